//! Throughput of one stream over loopback: OpenBATS and quinn, alternating in the same run.
//!
//!     cargo run --release -p openbats --example versus_quinn [SECONDS] [ROUNDS]
//!
//! Both encrypt with AES-GCM of the same library, write 64 KiB at a time, and have large windows.
//! Sender and receiver share the process; the CPU time is that of both. Single runs over loopback
//! vary a lot, so the figures are medians with their range over the rounds (5 by default). The ratio
//! is computed for each round. The last line reports whether its median reaches [`GOAL`]; the exit
//! code is 1 if it does not.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, TransportConfig, Trust, Wait};

const BLOCK: usize = 64 << 10;
/// Required median of the ratio of the throughput to quinn's.
const GOAL: f64 = 1.3;

/// Results of a run.
#[derive(Clone, Copy, Debug)]
struct Figures {
    gigabits_per_second: f64,
    cpu_seconds_per_gigabyte: f64,
}

/// Measures elapsed time and CPU time of a transfer.
struct Meter {
    start: Instant,
    cpu: f64,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// CPU time of this process in seconds, from `clock_gettime`.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Meter {
    fn start() -> Self {
        Self { start: now(), cpu: cpu_seconds() }
    }

    fn figures(&self, bytes: u64) -> Figures {
        let seconds = self.start.elapsed().as_secs_f64();
        Figures {
            gigabits_per_second: bytes as f64 * 8.0 / seconds / 1e9,
            cpu_seconds_per_gigabyte: (cpu_seconds() - self.cpu) / (bytes as f64 / 1e9),
        }
    }
}

fn openbats(length: Duration) -> Result<Figures> {
    let identity = Identity::generate(&["localhost"])?;
    let trust = Trust::fingerprint(identity.fingerprint());
    let transport = TransportConfig { send_budget: 64 << 20, ..TransportConfig::default() };
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()?;
    let client = Endpoint::builder().bind("127.0.0.1:0".parse()?).start()?;
    let options = ClientOptions::new(trust).transport(transport);
    let to = client.connect(server.local_addr(), "localhost", options).wait()?;
    let from = server.accept().wait()?;
    let meter = Meter::start();
    let receiving = std::thread::spawn(move || -> Result<u64> {
        let mut bytes = 0;
        while let Some(message) = from.recv().wait()? {
            bytes += message.len() as u64;
        }
        Ok(bytes)
    });
    let start = now();
    while start.elapsed() < length {
        to.send(vec![0x5a; BLOCK]).wait()?;
    }
    to.finish().wait()?;
    let bytes = receiving.join().expect("the receiver does not panic")?;
    Ok(meter.figures(bytes))
}

fn quinn_config() -> Arc<quinn::TransportConfig> {
    let window = quinn::VarInt::from_u32(64 << 20);
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(window).receive_window(window).send_window(64 << 20);
    Arc::new(transport)
}

fn quinn(length: Duration) -> Result<Figures> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let certificate = made.cert.der().clone();
        let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der())
            .map_err(anyhow::Error::msg)?;
        let mut server_config =
            quinn::ServerConfig::with_single_cert(vec![certificate.clone()], key)?;
        server_config.transport_config(quinn_config());
        let server = quinn::Endpoint::server(server_config, "127.0.0.1:0".parse()?)?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate)?;
        let mut client_config = quinn::ClientConfig::with_root_certificates(Arc::new(roots))?;
        client_config.transport_config(quinn_config());
        let mut client = quinn::Endpoint::client("127.0.0.1:0".parse()?)?;
        client.set_default_client_config(client_config);

        let address = server.local_addr()?;
        let accepting = tokio::spawn(async move {
            let incoming = server.accept().await.context("no incoming connection")?;
            Ok::<_, anyhow::Error>((server, incoming.await?))
        });
        let to = client.connect(address, "localhost")?.await?;
        let (_server, from) = accepting.await??;
        let meter = Meter::start();
        let receiving = tokio::spawn(async move {
            let mut stream = from.accept_uni().await?;
            let mut bytes = 0;
            while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
                bytes += chunk.bytes.len() as u64;
            }
            Ok::<_, anyhow::Error>(bytes)
        });
        let mut stream = to.open_uni().await?;
        let start = now();
        while start.elapsed() < length {
            stream.write_chunk(vec![0x5a; BLOCK].into()).await?;
        }
        stream.finish()?;
        let bytes = receiving.await??;
        Ok(meter.figures(bytes))
    })
}

/// The median of values and their range, shown as `1.23 (1.10 to 1.40)`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// The statistics of at least one value. The median of an even number of values is the mean of
    /// the two in the middle.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { median: (low + high) / 2.0, min: values[0], max: values[values.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.min, self.max)
    }
}

fn main() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| match arguments.next() {
        Some(text) => text.parse().with_context(|| format!("'{text}' is not a number")),
        None => Ok(default),
    };
    let (seconds, rounds) = (number(3)?, number(5)?.max(1));
    let length = Duration::from_secs(seconds);
    let mut all: [Vec<Figures>; 2] = [Vec::new(), Vec::new()];
    for round in 1..=rounds {
        for (name, run, figures) in
            [("openbats", openbats as fn(Duration) -> Result<Figures>, 0), ("quinn", quinn, 1)]
        {
            let result = run(length).with_context(|| format!("{name} failed"))?;
            println!(
                "{round} {name:<10} {:>6.2} Gbit/s  {:.2} processor seconds per GB",
                result.gigabits_per_second, result.cpu_seconds_per_gigabyte
            );
            all[figures].push(result);
        }
    }
    println!("median (minimum to maximum) of {rounds} rounds:");
    for (name, figures) in ["openbats", "quinn"].iter().zip(&all) {
        println!(
            "  {name:<16} {} Gbit/s, {} processor seconds per GB",
            Spread::of(figures.iter().map(|one| one.gigabits_per_second)),
            Spread::of(figures.iter().map(|one| one.cpu_seconds_per_gigabyte))
        );
    }
    let ratio = |figure: fn(&Figures) -> f64| {
        Spread::of(all[0].iter().zip(&all[1]).map(|(ours, theirs)| figure(ours) / figure(theirs)))
    };
    let throughput = ratio(|one| one.gigabits_per_second);
    println!(
        "  openbats / quinn {throughput} of the throughput, {} of the processor time per byte",
        ratio(|one| one.cpu_seconds_per_gigabyte)
    );
    let (verdict, code) = match throughput.median >= GOAL {
        true => ("reached", ExitCode::SUCCESS),
        false => ("MISSED", ExitCode::FAILURE),
    };
    println!("goal: a median of at least {GOAL} of quinn's throughput: {verdict}");
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_the_median_and_the_range() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[5.0, 1.0, 9.0]), Spread { median: 5.0, min: 1.0, max: 9.0 });
        assert_eq!(spread(&[4.0, 1.0, 9.0, 2.0]), Spread { median: 3.0, min: 1.0, max: 9.0 });
        assert_eq!(spread(&[7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
        assert_eq!(spread(&[1.5, 0.9, 1.234]).to_string(), "1.23 (0.90 to 1.50)");
    }
}
