//! Measures round trips of small messages, one after the other, and prints percentiles.
//!
//!     cargo run --release -p openbats --example latency

use std::time::Instant;

use openbats::{ClientOptions, Endpoint, Goal, Identity, ServerOptions};
use openbats::{TransportConfig, Trust, Wait};

const ROUNDS: u32 = 500;

#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn now() -> Instant {
    Instant::now()
}

pub(crate) fn main() -> anyhow::Result<()> {
    let identity = Identity::generate(&["localhost"])?;
    let trust = Trust::fingerprint(identity.fingerprint());
    // The goal `Latency` adds redundancy to hide losses; it costs a few percent of the rate.
    let transport = TransportConfig { goal: Goal::Latency, ..TransportConfig::default() };
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()?;
    let address = server.local_addr();
    let echo = std::thread::spawn(move || -> anyhow::Result<()> {
        let connection = server.accept().wait()?;
        while let Some(message) = connection.recv().wait()? {
            connection.send(message).wait()?;
        }
        connection.finish().wait()?;
        Ok(())
    });

    let client = Endpoint::builder().start()?;
    let options = ClientOptions::new(trust).transport(transport);
    let connection = client.connect(address, "localhost", options).wait()?;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let message = round.to_be_bytes().repeat(16);
        let start = now();
        connection.send(message.clone()).wait()?;
        let echo = connection.recv().wait()?.expect("the server has not finished");
        times.push(start.elapsed());
        assert_eq!(echo, message);
    }
    connection.finish().wait()?;
    echo.join().expect("the server does not panic")?;
    times.sort();
    let percentile = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{ROUNDS} rounds, median {:?}, 99 % below {:?}", percentile(50), percentile(99));
    assert_eq!(times.len(), ROUNDS as usize);
    Ok(())
}
