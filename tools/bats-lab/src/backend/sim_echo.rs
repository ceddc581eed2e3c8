//! Messages that are sent back, in virtual time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use bats_netem::LinkConfig;
use bats_proto::{
    ClientConfig, ConnectionHandle, Event, PeerTrust, SendError, Timestamp, TransportConfig,
};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

use super::sim::round_trips;
use crate::protocol::reading::Reading;

/// How long a connection may take, and the last answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures `count` messages, `interval` apart; with `rounds` the first one of so many connections.
///
/// # Errors
/// Where no connection comes about or nothing comes back.
pub(crate) fn measure(
    links: [LinkConfig; 2],
    count: u64,
    size: usize,
    interval: Duration,
    rounds: Option<u32>,
    seed: u64,
    of: &str,
) -> Result<Reading> {
    let (mut times, mut connects, mut sent) = (Vec::new(), Vec::new(), 0);
    for round in 0..rounds.unwrap_or(1) {
        let mut run = Run::new(&links, count, size, interval, seed.wrapping_add(u64::from(round)))?;
        let connect = run.go();
        sent += count;
        let Some(connect) = connect else {
            if rounds.is_some() {
                continue;
            }
            bail!(
                "no connection came about over this link in {} simulated seconds",
                PATIENCE.as_secs()
            );
        };
        connects.push(connect);
        if rounds.is_some() {
            times.extend(run.times.first().map(|time| (f64::from(round), connect + time.1)));
        } else {
            times = run.times;
        }
    }
    round_trips(times, &connects, sent, rounds.is_some(), of)
}

struct Run {
    network: Network,
    client: ConnectionHandle,
    count: u64,
    size: usize,
    interval: Duration,
    sent: u64,
    /// Echoes that the server could not hand over yet.
    waiting: std::collections::VecDeque<Bytes>,
    established: Option<Timestamp>,
    closed: bool,
    times: Vec<(f64, f64)>,
}

impl Run {
    fn new(
        links: &[LinkConfig; 2],
        count: u64,
        size: usize,
        interval: Duration,
        seed: u64,
    ) -> Result<Self> {
        let transport = TransportConfig::default();
        let mut network = Network::new(endpoints(&transport, seed), links.clone(), seed);
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(transport),
        };
        let now = network.now();
        let client = network
            .endpoint(Host::Client)
            .connect(now, Host::Server.address(), "server", config)
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        network.touch(Host::Client);
        Ok(Self {
            network,
            client,
            count,
            size: size.max(8),
            interval,
            sent: 0,
            waiting: std::collections::VecDeque::new(),
            established: None,
            closed: false,
            times: Vec::new(),
        })
    }

    /// Returns the milliseconds to the connection.
    fn go(&mut self) -> Option<f64> {
        let begin = self.network.now();
        let mut end = begin + PATIENCE;
        while self.network.now() < end && (self.times.len() as u64) < self.count && !self.closed {
            let due = self.due();
            self.network.step(due.unwrap_or(end).min(end));
            for (host, handle, event) in std::mem::take(&mut self.network.events) {
                match (host, event) {
                    (Host::Client, Event::Connected) => {
                        let now = self.network.now();
                        self.established = Some(now);
                        end = now
                            + self.interval * u32::try_from(self.count).unwrap_or(u32::MAX)
                            + PATIENCE;
                    }
                    (Host::Client, Event::Readable) => self.arrived(),
                    (Host::Client, Event::Closed(_)) => self.closed = true,
                    (Host::Server, Event::Readable | Event::Writable) => self.echo(handle),
                    _ => {}
                }
            }
            self.send();
        }
        self.established.map(|at| (at - begin).as_secs_f64() * 1e3)
    }

    /// When the next message is due.
    fn due(&self) -> Option<Timestamp> {
        let start = self.established.filter(|_| self.sent < self.count)?;
        Some(start + self.interval * u32::try_from(self.sent).unwrap_or(u32::MAX))
    }

    fn send(&mut self) {
        let now = self.network.now();
        while self.due().is_some_and(|due| due <= now) {
            let mut message = vec![0; self.size];
            message[..8].copy_from_slice(&self.sent.to_le_bytes());
            match self.network.endpoint(Host::Client).send(now, self.client, message.into()) {
                Ok(()) => self.sent += 1,
                // There is no room: the next answer makes some. Its time counts from when it was due.
                Err(SendError::Blocked(_)) => break,
                Err(_) => {
                    self.closed = true;
                    break;
                }
            }
        }
        self.network.touch(Host::Client);
    }

    fn echo(&mut self, handle: ConnectionHandle) {
        let now = self.network.now();
        while let Some(message) = self.network.endpoint(Host::Server).recv(now, handle) {
            self.waiting.push_back(message);
        }
        while let Some(message) = self.waiting.front().cloned() {
            if self.network.endpoint(Host::Server).send(now, handle, message).is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        self.network.touch(Host::Server);
    }

    fn arrived(&mut self) {
        let now = self.network.now();
        while let Some(message) = self.network.endpoint(Host::Client).recv(now, self.client) {
            let number =
                message.get(..8).and_then(|octets| octets.try_into().ok()).map(u64::from_le_bytes);
            let (Some(number), Some(start)) = (number, self.established) else { continue };
            let due = self.interval * u32::try_from(number).unwrap_or(u32::MAX);
            let time = (now - (start + due)).as_secs_f64() * 1e3;
            self.times.push((due.as_secs_f64(), time));
        }
        self.network.touch(Host::Client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_loss_a_round_trip_is_the_links() {
        let link = LinkConfig { delay: Duration::from_millis(10), ..LinkConfig::default() };
        let reading =
            measure([link.clone(), link], 50, 512, Duration::from_millis(10), None, 1, "x")
                .unwrap();
        let median = reading.figures["rtt_p50_ms"];
        assert!((20.0..25.0).contains(&median), "{median}");
        assert_eq!(reading.figures["unanswered_percent"], 0.0);
    }
}
