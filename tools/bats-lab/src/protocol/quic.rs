//! Built-in QUIC load with quinn: a source, a sink and an echo server. Needs no installed program.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use serde_json::json;

use crate::interrupt;

/// Bytes of one write.
const BLOCK: usize = 64 << 10;
/// Flow control window in bytes: large enough not to limit 10 Gbit/s over 200 ms.
const WINDOW: u32 = 256 << 20;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

fn transport(congestion: &str) -> Result<Arc<quinn::TransportConfig>> {
    let factory: Arc<dyn ControllerFactory + Send + Sync> = match congestion {
        "bbr" => Arc::new(BbrConfig::default()),
        "cubic" => Arc::new(CubicConfig::default()),
        "newreno" => Arc::new(NewRenoConfig::default()),
        other => bail!("quinn has no congestion control `{other}`"),
    };
    let mut transport = quinn::TransportConfig::default();
    let window = quinn::VarInt::from_u32(WINDOW);
    transport
        .stream_receive_window(window)
        .receive_window(window)
        .send_window(u64::from(WINDOW))
        .congestion_controller_factory(factory)
        .max_idle_timeout(Some(IDLE_TIMEOUT.try_into()?));
    Ok(Arc::new(transport))
}

fn server(port: u16) -> Result<quinn::Endpoint> {
    let made = rcgen::generate_simple_self_signed(["lab".to_owned()])?;
    let key =
        PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let mut config = quinn::ServerConfig::with_single_cert(vec![made.cert.der().clone()], key)?;
    config.transport_config(transport("cubic")?);
    quinn::Endpoint::server(config, SocketAddr::from(([0, 0, 0, 0], port)))
        .with_context(|| format!("cannot listen on port {port}"))
}

fn client(congestion: &str) -> Result<quinn::Endpoint> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport(congestion)?);
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([0, 0, 0, 0], 0)))?;
    endpoint.set_default_client_config(config);
    Ok(endpoint)
}

/// Accepts any certificate: only the lab's own server is in its network.
#[derive(Debug)]
struct AnyServer(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Runs to the end, even when interrupted; `work` checks for interrupts itself.
fn run_through<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        tokio::select! {
            result = work => result,
            () = interrupted() => bail!("interrupted"),
        }
    });
    runtime.shutdown_background();
    result
}

async fn interrupted() {
    while !interrupt::requested() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Accepts one connection and prints the received data per `interval` in iperf3's format.
pub(crate) fn sink(port: u16, interval: Duration) -> Result<()> {
    interrupt::watch()?;
    let intervals = run_through(async {
        let endpoint = server(port)?;
        let arriving = async {
            let connection = endpoint.accept().await.context("no client connected")?.await?;
            let stream = connection.accept_uni().await?;
            Ok::<_, anyhow::Error>((connection, stream))
        };
        let (_connection, mut stream) = tokio::select! {
            arrived = arriving => arrived?,
            () = interrupted() => bail!("interrupted before a client connected"),
        };
        let start = Instant::now();
        let mut intervals = Vec::new();
        let (mut begin, mut bytes) = (0.0, 0u64);
        let mut tick = tokio::time::interval(interval);
        tick.tick().await;
        loop {
            let ended = tokio::select! {
                chunk = stream.read_chunk(usize::MAX, true) => match chunk {
                    Ok(Some(chunk)) => {
                        bytes += chunk.bytes.len() as u64;
                        continue;
                    }
                    // The source closes the connection when its time is over.
                    Ok(None) | Err(_) => true,
                },
                _ = tick.tick() => false,
                // When interrupted, report the results so far.
                () = interrupted() => true,
            };
            let now = start.elapsed().as_secs_f64();
            intervals.push(json!({ "sum": {
                "start": begin, "end": now, "bytes": bytes,
                "bits_per_second": bytes as f64 * 8.0 / (now - begin).max(1e-9),
            }}));
            (begin, bytes) = (now, 0);
            if ended {
                return Ok(intervals);
            }
        }
    })?;
    outln!("{}", json!({ "intervals": intervals }));
    Ok(())
}

/// Writes for some seconds, then closes the connection.
pub(crate) fn source(to: SocketAddr, seconds: u64, congestion: &str) -> Result<()> {
    interrupt::watch()?;
    run(async {
        let endpoint = client(congestion)?;
        let connection =
            endpoint.connect(to, "lab")?.await.with_context(|| format!("cannot reach {to}"))?;
        let mut stream = connection.open_uni().await?;
        let end = tokio::time::Instant::now() + Duration::from_secs(seconds);
        let block = bytes::Bytes::from(vec![0x5a; BLOCK]);
        let writing = async {
            loop {
                stream.write_chunk(block.clone()).await?;
            }
        };
        let written: Result<Result<(), quinn::WriteError>, _> =
            tokio::time::timeout_at(end, writing).await;
        if let Ok(broken) = written {
            broken.context("the connection failed")?;
        }
        connection.close(0u32.into(), b"done");
        // CONNECTION_CLOSE may need to be retransmitted.
        let _ = tokio::time::timeout(Duration::from_secs(1), endpoint.wait_idle()).await;
        Ok(())
    })
}

/// Echoes all streams of every connection until interrupted.
pub(crate) fn echo(port: u16) -> Result<()> {
    interrupt::watch()?;
    run(async {
        let endpoint = server(port)?;
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async move {
                let Ok(connection) = incoming.await else { return };
                while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                    while let Ok(Some(chunk)) = receive.read_chunk(BLOCK, true).await {
                        if send.write_all(&chunk.bytes).await.is_err() {
                            break;
                        }
                    }
                    let _ = send.finish();
                }
            });
        }
        Ok(())
    })
}

/// Measures round-trip times of messages over one connection; returns its setup time in
/// milliseconds.
pub(crate) fn messages(
    to: SocketAddr,
    congestion: &str,
    schedule: &super::echo::Schedule,
    record: &super::echo::RttRecord,
) -> Result<f64> {
    run(async {
        let began = Instant::now();
        let endpoint = client(congestion)?;
        let connection =
            endpoint.connect(to, "lab")?.await.with_context(|| format!("cannot reach {to}"))?;
        let (mut send, mut receive) = connection.open_bi().await?;
        let connected = began.elapsed().as_secs_f64() * 1e3;
        let start = Instant::now();
        let sending = async {
            for number in 0..schedule.count {
                let due = schedule.due(number);
                tokio::time::sleep_until((start + due).into()).await;
                record.sent();
                send.write_all(&schedule.message(number)).await?;
            }
            send.finish()?;
            Ok::<_, anyhow::Error>(())
        };
        let receiving = async {
            let mut message = vec![0; schedule.size];
            while receive.read_exact(&mut message).await.is_ok() {
                if record.arrived(schedule, start, &message) {
                    break;
                }
            }
        };
        let total_timeout = schedule.due(schedule.count) + super::echo::REPLY_TIMEOUT;
        let both = async { tokio::join!(sending, receiving).0 };
        if let Ok(done) = tokio::time::timeout(total_timeout, both).await {
            done?;
        }
        connection.close(0u32.into(), b"done");
        Ok(connected)
    })
}
