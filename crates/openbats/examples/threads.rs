//! Four connections between two endpoints, with one I/O thread each and then with two: throughput, and processor time
//! of the whole process. The processors limit the throughput: two I/O threads at each end, and eight threads of the
//! application, share them.
//!
//!     cargo run --release -p openbats --example threads [MEGABYTES [THREADS ...]]

use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, Trust, Wait};

const CONNECTIONS: usize = 4;
const MESSAGE: usize = 140_800;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Processor time of this process, user and system.
fn processor_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec.unsigned_abs(), usage.tv_nsec.unsigned_abs() as u32)
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let megabytes = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let mut threads: Vec<NonZeroUsize> =
        arguments.map(|text| text.parse()).collect::<Result<_, _>>()?;
    if threads.is_empty() {
        threads = [1, 2].into_iter().filter_map(NonZeroUsize::new).collect();
    }
    println!("{} processors", thread::available_parallelism()?);
    threads.into_iter().try_for_each(|threads| run(megabytes, threads))
}

pub(crate) fn run(megabytes: usize, threads: NonZeroUsize) -> anyhow::Result<()> {
    let count = megabytes * 1_000_000 / MESSAGE / CONNECTIONS + 1;
    let identity = Identity::generate(&["localhost"])?;
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity))
        .threads(threads)
        .start()?;
    let client = Endpoint::builder().threads(threads).start()?;
    let mut pairs = Vec::new();
    for _ in 0..CONNECTIONS {
        let options = ClientOptions::new(trust.clone());
        let to = client.connect(server.local_addr(), "localhost", options).wait()?;
        pairs.push((to, server.accept().wait()?));
    }
    let (start, used) = (now(), processor_time());
    let mut work = Vec::new();
    for (to, from) in pairs {
        work.push(thread::spawn(move || {
            let mut received = 0;
            while let Ok(Some(message)) = from.recv().wait() {
                received += message.len();
            }
            received
        }));
        work.push(thread::spawn(move || {
            let message = bytes::Bytes::from(vec![7; MESSAGE]);
            (0..count).for_each(|_| to.send(message.clone()).wait().expect("open"));
            to.finish().wait().expect("open");
            // It stays open until everything has arrived.
            while let Ok(Some(_)) = to.recv().wait() {}
            0
        }));
    }
    let received: usize = work.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    let (took, used) = (now() - start, processor_time() - used);
    assert_eq!(received, count * MESSAGE * CONNECTIONS);
    println!(
        "{threads} I/O threads at each end: {} MB in {CONNECTIONS} connections, {:.2} Gbit/s, {:.2} s of processors, {:.2} s of wall clock",
        received / 1_000_000,
        received as f64 * 8.0 / took.as_secs_f64() / 1e9,
        used.as_secs_f64(),
        took.as_secs_f64(),
    );
    Ok(())
}
