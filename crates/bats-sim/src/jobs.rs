//! Work on all processors, with results in order.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Runs `work` for all items on so many threads (0: one a processor). Returns the results in the order of
/// the items, so that the number of threads changes nothing but the time.
pub fn parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(items.iter().map(|_| None).collect());
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        given => given,
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        for threads in [0, 1, 3] {
            let squares = super::parallel(&items, threads, |item| item * item);
            assert!(squares.iter().zip(&items).all(|(square, item)| *square == item * item));
        }
        assert!(super::parallel(&[], 2, |item: &u64| *item).is_empty());
    }
}
