//! Messages that are sent back, and their times: over TCP, UDP, QUIC and this project's sockets.
//!
//! A message is due at a fixed time and its round trip counts from then, so that a sender that is
//! held up cannot hide it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use openbats::{ClientOptions, Endpoint, Identity, Mode, ServerOptions, Trust, Wait};
use serde_json::json;

use super::quic;
use crate::interrupt;

/// How long the last answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(50);
/// Longest message.
const LONGEST: usize = 60_000;

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Carrier {
    /// The kernel's TCP
    Tcp,
    /// The kernel's UDP
    Udp,
    /// This project's unreliable mode
    Btp,
    /// This project's reliable mode
    Brtp,
    /// This project's mode without a rate
    Brctp,
    /// This project's mode without coding
    Transparent,
    /// QUIC by quinn
    Quic,
}

/// When which messages are due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) count: u64,
    pub(crate) size: usize,
    pub(crate) interval: Duration,
}

impl Schedule {
    /// When a message is due, from the start.
    pub(crate) fn due(&self, number: u64) -> Duration {
        Duration::from_nanos((self.interval.as_nanos() as u64).saturating_mul(number))
    }

    /// A message: its number, then bytes that follow from it.
    pub(crate) fn message(&self, number: u64) -> Vec<u8> {
        let mut message = vec![number as u8; self.size];
        message[..8].copy_from_slice(&number.to_le_bytes());
        message
    }
}

/// What has come back.
#[derive(Default)]
pub(crate) struct Record(Mutex<Times>);

#[derive(Default)]
struct Times {
    sent: u64,
    /// Seconds and milliseconds.
    round_trips: Vec<(f64, f64)>,
    seen: std::collections::BTreeSet<u64>,
}

impl Record {
    /// A message has been sent.
    pub(crate) fn sent(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sent += 1;
    }

    /// A message has come back; true if it was the last that is missing.
    pub(crate) fn arrived(&self, plan: &Schedule, start: Instant, message: &[u8]) -> bool {
        let mut times = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number =
            message.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        if let Some(number) = number.filter(|&number| number < plan.count)
            && times.seen.insert(number)
        {
            let due = plan.due(number);
            let time = start.elapsed().saturating_sub(due);
            times.round_trips.push((due.as_secs_f64(), time.as_secs_f64() * 1e3));
        }
        times.seen.len() as u64 >= plan.count
    }
}

/// Sends back whatever comes until it is ended.
pub(crate) fn serve(carrier: Carrier, port: u16) -> Result<()> {
    match carrier {
        Carrier::Tcp => serve_tcp(port),
        Carrier::Udp => serve_udp(port),
        Carrier::Btp | Carrier::Brtp | Carrier::Brctp | Carrier::Transparent => serve_bats(port),
        Carrier::Quic => quic::echo(port),
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn serve_tcp(port: u16) -> Result<()> {
    interrupt::watch()?;
    let listener = TcpListener::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    listener.set_nonblocking(true)?;
    while !interrupt::requested() {
        match listener.accept() {
            Ok((mut stream, _)) => {
                std::thread::spawn(move || {
                    let _ = stream.set_nonblocking(false);
                    let _ = stream.set_nodelay(true);
                    let mut buffer = vec![0; LONGEST];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        if stream.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                });
            }
            Err(error) if is_pause(&error) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(error).context("the listener broke"),
        }
    }
    Ok(())
}

fn serve_udp(port: u16) -> Result<()> {
    interrupt::watch()?;
    let socket = UdpSocket::bind(("0.0.0.0", port))
        .with_context(|| format!("cannot listen on port {port}"))?;
    socket.set_read_timeout(Some(GLANCE))?;
    let mut buffer = vec![0; 65_536];
    while !interrupt::requested() {
        match socket.recv_from(&mut buffer) {
            Ok((count, from)) => {
                // What cannot be sent back is lost, as on a wire.
                let _ = socket.send_to(&buffer[..count], from);
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error).context("the socket broke"),
        }
    }
    Ok(())
}

fn serve_bats(port: u16) -> Result<()> {
    interrupt::watch()?;
    let endpoint = Endpoint::builder()
        .bind(SocketAddr::from(([0, 0, 0, 0], port)))
        .server(ServerOptions::new(Identity::generate(&["lab"])?).modes([
            Mode::Btp,
            Mode::Brtp,
            Mode::Brctp,
            Mode::Transparent,
        ]))
        .start()?;
    std::thread::scope(|scope| {
        let accepting = &endpoint;
        scope.spawn(move || {
            while let Ok(connection) = accepting.accept().wait() {
                std::thread::spawn(move || {
                    while let Ok(Some(message)) = connection.recv().wait() {
                        if connection.send(message).wait().is_err() {
                            break;
                        }
                    }
                    let _ = connection.finish().wait();
                });
            }
        });
        while !interrupt::requested() {
            std::thread::sleep(GLANCE);
        }
        endpoint.shut_down(0, "the echo ends");
    });
    Ok(())
}

/// What `__rtt` is asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) carrier: Carrier,
    pub(crate) to: SocketAddr,
    pub(crate) plan: Schedule,
    /// Measures the first message of so many connections, with connecting.
    pub(crate) first: Option<u32>,
    pub(crate) congestion: Option<String>,
}

/// Measures, and prints JSON.
pub(crate) fn measure(question: &Question) -> Result<()> {
    interrupt::watch()?;
    if !(16..=LONGEST).contains(&question.plan.size) {
        bail!("a message has 16 to {LONGEST} bytes");
    }
    let mut connects = Vec::new();
    let (mut sent, mut round_trips) = (0, Vec::new());
    let rounds = question.first.unwrap_or(1);
    for round in 0..rounds {
        interrupt::check()?;
        let record = Record::default();
        let plan = if question.first.is_some() {
            Schedule { count: 1, ..question.plan }
        } else {
            question.plan
        };
        let connected = one(question, &plan, &record);
        let times = record.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let connect = match connected {
            Ok(connect) => connect,
            // The other rounds of a lossy link may do better; what is missing is counted.
            Err(_) if question.first.is_some() => {
                sent += 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        connects.push((f64::from(round), connect));
        sent += times.sent;
        match question.first {
            // The whole of it: from the wish to the answer.
            Some(_) => round_trips
                .extend(times.round_trips.first().map(|time| (f64::from(round), connect + time.1))),
            None => round_trips = times.round_trips,
        }
    }
    round_trips.sort_by(|a, b| a.0.total_cmp(&b.0));
    outln!(
        "{}",
        json!({
            "sent": sent, "round_trips": round_trips, "connects": connects,
            "first": question.first.is_some(),
        })
    );
    Ok(())
}

/// One connection. Returns the milliseconds that it took to come about.
fn one(question: &Question, plan: &Schedule, record: &Record) -> Result<f64> {
    match question.carrier {
        Carrier::Tcp => over_tcp(question, plan, record),
        Carrier::Udp => over_udp(question.to, plan, record),
        Carrier::Btp => over_bats(question.to, Mode::Btp, plan, record),
        Carrier::Brtp => over_bats(question.to, Mode::Brtp, plan, record),
        Carrier::Brctp => over_bats(question.to, Mode::Brctp, plan, record),
        Carrier::Transparent => over_bats(question.to, Mode::Transparent, plan, record),
        Carrier::Quic => {
            let congestion = question.congestion.as_deref().unwrap_or("cubic");
            quic::messages(question.to, congestion, plan, record)
        }
    }
}

/// Sends what is due with `send`, on the calling thread.
fn pace(
    plan: &Schedule,
    start: Instant,
    record: &Record,
    mut send: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    for number in 0..plan.count {
        std::thread::sleep((start + plan.due(number)).saturating_duration_since(Instant::now()));
        interrupt::check()?;
        record.sent();
        send(&plan.message(number))?;
    }
    Ok(())
}

fn over_tcp(question: &Question, plan: &Schedule, record: &Record) -> Result<f64> {
    let began = Instant::now();
    let patience = Duration::from_secs(30);
    let mut stream = TcpStream::connect_timeout(&question.to, patience)
        .with_context(|| format!("cannot reach {}", question.to))?;
    let connected = began.elapsed().as_secs_f64() * 1e3;
    if let Some(congestion) = &question.congestion {
        setsockopt(&stream, sockopt::TcpCongestion, &congestion.as_str().into())
            .with_context(|| format!("this kernel has no congestion control `{congestion}`"))?;
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GLANCE))?;
    let start = Instant::now();
    let mut reading = stream.try_clone()?;
    let end = start + plan.due(plan.count) + PATIENCE;
    std::thread::scope(|scope| {
        let answers = scope.spawn(move || {
            let mut message = vec![0; plan.size];
            let mut filled = 0;
            while Instant::now() < end && !interrupt::requested() {
                match reading.read(&mut message[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if is_pause(&error) => continue,
                    Err(_) => break,
                }
                if filled == plan.size {
                    filled = 0;
                    if record.arrived(plan, start, &message) {
                        break;
                    }
                }
            }
        });
        let sent = pace(plan, start, record, |message| {
            stream.write_all(message).context("the connection broke")
        });
        let _ = answers.join();
        sent
    })?;
    Ok(connected)
}

fn over_udp(to: SocketAddr, plan: &Schedule, record: &Record) -> Result<f64> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("cannot open a socket")?;
    socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
    socket.set_read_timeout(Some(GLANCE))?;
    let start = Instant::now();
    // A lost datagram never comes: the wait for it is short.
    let end = start + plan.due(plan.count) + Duration::from_secs(2);
    std::thread::scope(|scope| {
        let socket = &socket;
        let answers = scope.spawn(move || {
            let mut message = vec![0; plan.size];
            while Instant::now() < end && !interrupt::requested() {
                match socket.recv(&mut message) {
                    Ok(_) if record.arrived(plan, start, &message) => break,
                    Ok(_) => {}
                    Err(error) if is_pause(&error) => {}
                    // Nobody listens there yet.
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let sent = pace(plan, start, record, |message| {
            let _ = socket.send(message);
            Ok(())
        });
        let _ = answers.join();
        sent
    })?;
    Ok(0.0)
}

fn over_bats(to: SocketAddr, mode: Mode, plan: &Schedule, record: &Record) -> Result<f64> {
    let endpoint = Endpoint::builder().start()?;
    let began = Instant::now();
    let options = ClientOptions::new(Trust::dangerous_any()).mode(mode);
    let connection = endpoint
        .connect(to, "lab", options)
        .wait()
        .with_context(|| format!("cannot reach {to}"))?;
    let connected = began.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    // A lost message never comes: the wait for it is short.
    let is_lossy = matches!(mode, Mode::Btp | Mode::Transparent);
    let patience = if is_lossy { Duration::from_secs(2) } else { PATIENCE };
    let end = start + plan.due(plan.count) + patience;
    std::thread::scope(|scope| {
        let connection = &connection;
        let answers = scope.spawn(move || {
            while Instant::now() < end && !interrupt::requested() {
                match connection.recv().wait_for(GLANCE) {
                    Ok(Ok(Some(message))) if record.arrived(plan, start, &message) => break,
                    Ok(Ok(Some(_))) | Err(_) => {}
                    Ok(Ok(None) | Err(_)) => break,
                }
            }
        });
        let sent = pace(plan, start, record, |message| {
            connection.send(message.to_vec()).wait().context("the connection broke")
        });
        let _ = answers.join();
        sent
    })?;
    connection.close(0, "done");
    Ok(connected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_count_once_and_from_when_they_were_due() {
        let plan = Schedule { count: 2, size: 16, interval: Duration::from_millis(10) };
        let record = Record::default();
        let start = Instant::now() - Duration::from_millis(30);
        assert!(!record.arrived(&plan, start, &plan.message(1)));
        assert!(!record.arrived(&plan, start, &plan.message(1)));
        assert!(!record.arrived(&plan, start, &plan.message(7)));
        assert!(record.arrived(&plan, start, &plan.message(0)));
        let times = record.0.into_inner().unwrap();
        assert_eq!(times.round_trips.len(), 2);
        assert!(times.round_trips[0].1 >= 20.0 && times.round_trips[1].1 >= 30.0);
        assert_eq!(times.round_trips[0].0, 0.01);
    }
}
