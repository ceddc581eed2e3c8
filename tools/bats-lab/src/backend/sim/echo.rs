//! Round-trip time of echoed messages in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use bats_proto::{ConnectionHandle, Event, Mode, SendError, Timestamp};
use bats_sim::capture::Capture;
use bats_sim::transfer::number_at;
use bytes::Bytes;

use super::ends::End;
use super::flow::{CONNECT_TIMEOUT, Snapshot};
use super::simulation::{SimNetwork, Simulation};
use super::transport::SimTransport;
use crate::protocol::reading::{Reading, of_round_trips};

/// Time to wait for the last answer if it may be lost.
const LOSSY_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Parameters of an echo measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct EchoTest {
    pub(super) mode: Mode,
    pub(super) count: u64,
    pub(super) size: usize,
    pub(super) interval: Duration,
    /// Measure only the first message, on each of this many connections.
    pub(super) connections: Option<u32>,
}

/// Virtual time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(500);

/// Measures `count` messages, `interval` apart; with `connections`, the first message of each
/// connection. Passes snapshots to `on_snapshot` as virtual time proceeds.
///
/// # Errors
/// If no connection is established or no answer arrives.
pub(super) fn measure(
    network: &SimNetwork,
    test: EchoTest,
    mut capture: Option<Capture>,
    of: &str,
    on_snapshot: &dyn Fn(Snapshot),
) -> Result<Reading> {
    let (mut times, mut connects, mut sent, mut elapsed) = (Vec::new(), Vec::new(), 0, 0.0);
    for index in 0..test.connections.unwrap_or(1) {
        let seed = network.seed.wrapping_add(u64::from(index));
        let network = SimNetwork { seed, ..network.clone() };
        let mut echo = Run::new(Simulation::new(&network, capture.take())?, test)?;
        let connect = echo.run(on_snapshot);
        elapsed += echo.simulation.now().as_secs_f64();
        echo.simulation.finish_capture()?;
        sent += test.count;
        let Some(connect) = connect else {
            if test.connections.is_some() {
                continue;
            }
            bail!(
                "no connection was established over this path within {} simulated seconds",
                CONNECT_TIMEOUT.as_secs()
            );
        };
        connects.push((f64::from(index), connect));
        if test.connections.is_some() {
            let first = echo.times.first().map(|time| time.1);
            times.extend(first.map(|time| (f64::from(index), time)));
            if first.is_some() {
                let (at, mbps, queue_kilobytes) = (elapsed, 0.0, 0.0);
                on_snapshot(Snapshot { at, mbps, rtt_ms: first, queue_kilobytes });
            }
        } else {
            times = echo.times;
        }
    }
    of_round_trips(times, &connects, sent as f64, test.connections.is_some(), of)
}

struct Run {
    simulation: Simulation,
    test: EchoTest,
    client: ConnectionHandle,
    sent: u64,
    /// Echoes that wait for space in the send buffer of the server.
    pending_echoes: VecDeque<Bytes>,
    established: Option<Timestamp>,
    is_closed: bool,
    times: Vec<(f64, f64)>,
    /// Time of the last snapshot, and the number of answers until then.
    last_snapshot: (Timestamp, usize),
}

impl Run {
    fn new(mut simulation: Simulation, test: EchoTest) -> Result<Self> {
        let client = simulation.connect(test.mode)?;
        Ok(Self {
            simulation,
            test,
            client,
            sent: 0,
            pending_echoes: VecDeque::new(),
            established: None,
            is_closed: false,
            times: Vec::new(),
            last_snapshot: (Timestamp::ZERO, 0),
        })
    }

    /// The answers since the last snapshot, if another snapshot is due.
    fn snapshot(&mut self) -> Option<Snapshot> {
        let (now, start) = (self.simulation.now(), self.established?);
        let since = self.last_snapshot.0.max(start);
        if self.test.connections.is_some() || now - since < SNAPSHOT_INTERVAL {
            return None;
        }
        let new = self.times.get(self.last_snapshot.1..).unwrap_or_default();
        if new.is_empty() {
            return None;
        }
        let bytes = new.len() * self.test.size.max(8);
        let sum: f64 = new.iter().map(|time| time.1).sum();
        let rtt_ms = Some(sum / new.len() as f64);
        let mbps = bytes as f64 * 8e-6 / (now - since).as_secs_f64();
        let queues = self.simulation.queues();
        let queue_kilobytes = queues.iter().max().map_or(0.0, |&bytes| bytes as f64 / 1e3);
        self.last_snapshot = (now, self.times.len());
        Some(Snapshot { at: (now - start).as_secs_f64(), mbps, rtt_ms, queue_kilobytes })
    }

    /// Runs the measurement. Returns the time to establish the connection, in ms.
    fn run(&mut self, on_snapshot: &dyn Fn(Snapshot)) -> Option<f64> {
        let EchoTest { mode, count, interval, .. } = self.test;
        let begin = self.simulation.now();
        let mut end = begin + CONNECT_TIMEOUT;
        while self.simulation.now() < end && (self.times.len() as u64) < count && !self.is_closed {
            // A blocked message waits for an event.
            let due = self.due().filter(|&due| due > self.simulation.now());
            for (_, side, handle, event) in self.simulation.step(due.unwrap_or(end).min(end)) {
                match (side, event) {
                    (End::Client, Event::Connected) => {
                        let now = self.simulation.now();
                        self.established = Some(now);
                        self.simulation.start_schedules();
                        let answer_timeout = if SimTransport::OpenBats(mode).is_reliable() {
                            CONNECT_TIMEOUT
                        } else {
                            LOSSY_ANSWER_TIMEOUT
                        };
                        end = now
                            + interval * u32::try_from(count).unwrap_or(u32::MAX)
                            + answer_timeout;
                    }
                    (End::Client, Event::Readable) => self.receive_answers(),
                    (End::Client, Event::Closed(_)) => self.is_closed = true,
                    (End::Server, Event::Readable | Event::Writable) => self.echo(handle),
                    _ => {}
                }
            }
            self.send();
            if let Some(snapshot) = self.snapshot() {
                on_snapshot(snapshot);
            }
        }
        self.established.map(|at| (at - begin).as_secs_f64() * 1e3)
    }

    /// When the next message is due.
    fn due(&self) -> Option<Timestamp> {
        let start = self.established.filter(|_| self.sent < self.test.count)?;
        Some(start + self.test.interval * u32::try_from(self.sent).unwrap_or(u32::MAX))
    }

    fn send(&mut self) {
        let now = self.simulation.now();
        while self.due().is_some_and(|due| due <= now) {
            let mut message = vec![0; self.test.size.max(8)];
            message[..8].copy_from_slice(&self.sent.to_le_bytes());
            let Some(client) = self.simulation.endpoint(0, End::Client) else { return };
            match client.send(now, self.client, message.into()) {
                Ok(()) => self.sent += 1,
                // The send buffer is full; the next answer frees space. The RTT counts from the due
                // time.
                Err(SendError::Blocked(_)) => break,
                Err(_) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        self.simulation.request_poll(0, End::Client);
    }

    fn echo(&mut self, handle: ConnectionHandle) {
        let now = self.simulation.now();
        let Some(server) = self.simulation.endpoint(0, End::Server) else { return };
        while let Some(message) = server.recv(now, handle) {
            self.pending_echoes.push_back(message);
        }
        while let Some(message) = self.pending_echoes.front().cloned() {
            if server.send(now, handle, message).is_err() {
                break;
            }
            self.pending_echoes.pop_front();
        }
        self.simulation.request_poll(0, End::Server);
    }

    fn receive_answers(&mut self) {
        let now = self.simulation.now();
        let Some(client) = self.simulation.endpoint(0, End::Client) else { return };
        while let Some(message) = client.recv(now, self.client) {
            let number = number_at(&message, 0);
            let (Some(number), Some(start)) = (number, self.established) else { continue };
            let due = self.test.interval * u32::try_from(number).unwrap_or(u32::MAX);
            let time = (now - (start + due)).as_secs_f64() * 1e3;
            self.times.push((due.as_secs_f64(), time));
        }
        self.simulation.request_poll(0, End::Client);
    }
}

#[cfg(test)]
mod tests {
    use bats_netem::LinkConfig;

    use super::*;

    fn median(hops: usize, mode: Mode, recoding: Option<bool>) -> f64 {
        let link = LinkConfig { delay: Duration::from_millis(10), ..LinkConfig::default() };
        let links = vec![[link.clone(), link]; hops];
        let network = SimNetwork { links, recoding, seed: 1, paths: Vec::new() };
        let interval = Duration::from_millis(10);
        let test = EchoTest { mode, count: 50, size: 512, interval, connections: None };
        let snapshots = std::cell::RefCell::new(Vec::new());
        let on_snapshot = |snapshot: Snapshot| snapshots.borrow_mut().push(snapshot);
        let reading = measure(&network, test, None, "x", &on_snapshot).unwrap();
        // 500 ms of messages give one snapshot.
        let snapshots = snapshots.borrow();
        assert!(
            snapshots.len() == 1 && (0.5..0.6).contains(&snapshots[0].at),
            "{mode:?}: {snapshots:?}"
        );
        let shown = snapshots[0].rtt_ms.unwrap();
        assert!((shown / reading.figures["rtt_p50_ms"] - 1.0).abs() < 0.1, "{mode:?}: {shown}");
        assert!(snapshots[0].mbps > 0.3, "{mode:?}: {snapshots:?}");
        assert_eq!(reading.figures["unanswered_percent"], 0.0, "{mode:?}");
        reading.figures["rtt_p50_ms"]
    }

    #[test]
    fn rtt_without_loss_is_the_delay_of_the_links() {
        for mode in [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent] {
            let one = median(1, mode, Some(true));
            assert!((20.0..25.0).contains(&one), "{mode:?}: {one}");
            let three = median(3, mode, None);
            assert!((60.0..66.0).contains(&three), "{mode:?}: {three}");
        }
        for mode in [Mode::Btp, Mode::Brtp] {
            for recoding in [true, false] {
                let relayed = median(3, mode, Some(recoding));
                assert!((60.0..66.0).contains(&relayed), "{mode:?} {recoding}: {relayed}");
            }
        }
    }
}
