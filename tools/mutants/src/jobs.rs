//! Work that several threads share.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use anyhow::Result;

/// Calls `work` with each number below `count`; stops at the first error.
pub fn in_parallel(
    jobs: usize,
    count: usize,
    work: impl Fn(usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= count {
                return Ok(());
            }
            if let Err(error) = work(index) {
                next.store(count, Relaxed);
                return Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker panicked"))
    })
}
