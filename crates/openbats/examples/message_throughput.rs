//! Sends large messages as fast as possible and prints the throughput. The baseline for the
//! bindings to other languages: `crates/bats-c/examples/cpp/throughput.cpp` does the same, see
//! `crates/bats-c/compare-speed`.
//!
//!     cargo run --release -p openbats --example message_throughput [MEGABYTES]

use std::thread;
use std::time::Instant;

use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, Trust, Wait};

/// The ideal length on loopback, which the C++ program uses, too.
const MESSAGE: usize = 140_800;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn main() -> anyhow::Result<()> {
    run(std::env::args().nth(1).map_or(Ok(100), |text| text.parse())?)
}

pub(crate) fn run(megabytes: usize) -> anyhow::Result<()> {
    let count = megabytes * 1_000_000 / MESSAGE + 1;
    let identity = Identity::generate(&["localhost"])?;
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity))
        .start()?;
    let client = Endpoint::builder().start()?;
    let to = client.connect(server.local_addr(), "localhost", ClientOptions::new(trust)).wait()?;
    let from = server.accept().wait()?;
    let receiver = thread::spawn(move || {
        let (mut received, mut first, mut last) = (0, None, now());
        while let Ok(Some(message)) = from.recv().wait() {
            last = now();
            first.get_or_insert(last);
            received += message.len();
        }
        (received, last - first.unwrap_or(last))
    });
    let message = vec![7; MESSAGE];
    for _ in 0..count {
        to.send(message.clone()).wait()?;
    }
    to.finish().wait()?;
    let (received, took) = receiver.join().expect("the receiver does not panic");
    assert_eq!(received, count * MESSAGE);
    let rate = received as f64 * 8.0 / took.as_secs_f64() / 1e9;
    println!("throughput: {} MB in {count} messages, {rate:.2} Gbit/s", received / 1_000_000);
    Ok(())
}
