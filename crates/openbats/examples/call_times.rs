//! How long calls for an idle connection take while others of the same endpoint send as fast as they can, and how much
//! of that is the system: a thread that only sleeps is late, too.
//!
//!     cargo run --release -p openbats --example call_times [SECONDS [CONNECTIONS]]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use openbats::{ClientOptions, Connection, Endpoint, Identity, ServerOptions, Trust, Wait};

/// Bytes of a message of the busy connections.
const MESSAGE: usize = 140_800;
/// Time between two calls.
const INTERVAL: Duration = Duration::from_micros(500);

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let connections = arguments.next().map_or(Ok(4), |text| text.parse())?;
    println!("{} processors", thread::available_parallelism()?);
    run(Duration::from_secs(seconds), connections)
}

pub(crate) fn run(duration: Duration, connections: usize) -> anyhow::Result<()> {
    let identity = Identity::generate(&["localhost"])?;
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity))
        .start()?;
    let client = Endpoint::builder().start()?;
    let connect = || {
        let options = ClientOptions::new(trust.clone());
        let to = client.connect(server.local_addr(), "localhost", options).wait()?;
        anyhow::Ok((to, server.accept().wait()?))
    };
    let (idle, _other_end) = connect()?;
    let pairs = (0..connections).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    let (is_over, received) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (to, from) in &pairs {
            scope.spawn(|| {
                while let Ok(Some(message)) = from.recv().wait() {
                    received.fetch_add(message.len() as u64, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                let message = bytes::Bytes::from(vec![7; MESSAGE]);
                while !is_over.load(Ordering::Relaxed) {
                    to.send(message.clone()).wait().expect("open");
                }
                to.close(0, "");
            });
        }
        let start = now();
        let (mut calls, mut sleeps) = (Vec::new(), Vec::new());
        while now() - start < duration {
            let before = now();
            thread::sleep(INTERVAL);
            sleeps.push((now() - before).saturating_sub(INTERVAL));
            calls.push(time_of_calls(&idle));
        }
        is_over.store(true, Ordering::Relaxed);
        let rate = received.load(Ordering::Relaxed) as f64 * 8.0 / duration.as_secs_f64() / 1e9;
        println!("{connections} busy connections: {rate:.2} Gbit/s");
        print("calls of an idle connection", calls);
        print("lateness of a sleep", sleeps);
    });
    Ok(())
}

/// Looks for a message, and asks for statistics and whether everything has arrived.
fn time_of_calls(connection: &Connection) -> Duration {
    let before = now();
    assert_eq!(connection.try_recv(), None);
    assert_eq!(connection.close_reason(), None);
    assert_eq!(connection.stats().messages.received, 0);
    now() - before
}

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{name}: {} times, median {:.1?}, 90 % {:.1?}, 99 % {:.1?}, longest {:.1?}",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
    );
}
