//! Several bulk transfers of the protocol over one link.

use core::time::Duration;

use bats_netem::{LinkConfig, LinkStats};
use bats_proto::{ConnectionHandle, Event, TransportConfig};
use bytes::Bytes;

use crate::endpoints::endpoints;
use crate::host::Host;
use crate::network::Network;
use crate::transfer;

/// Connections from one client to one server. Each always has data to send.
#[derive(Clone, Debug)]
pub struct Flows {
    /// Link from the client to the server: the data direction.
    pub up: LinkConfig,
    /// Link from the server to the client.
    pub down: LinkConfig,
    /// Transport configuration of both ends.
    pub transport: TransportConfig,
    /// Message size in bytes, at least 8.
    pub message_size: usize,
    /// Start time of each connection.
    pub starts: Vec<Duration>,
    /// Duration of the run.
    pub duration: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// State of all connections, sampled every [`Flows::SAMPLE`].
#[derive(Clone, Debug)]
pub struct FlowsSample {
    /// Time since the start of the run.
    pub time: Duration,
    /// Message bytes received by each connection.
    pub received: Vec<u64>,
    /// Bytes in the queue of the data direction.
    pub queue_bytes: usize,
    /// Link counters of the data direction.
    pub link: LinkStats,
}

/// Jain's fairness index: 1 if all shares are equal, 1/n if one of n flows has everything.
pub fn jain_index(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 0.0 }
}

impl Flows {
    /// Interval of the samples.
    pub const SAMPLE: Duration = Duration::from_millis(100);

    /// Runs all transfers in virtual time.
    ///
    /// # Panics
    ///
    /// If a received message does not contain the index of a connection.
    pub fn run(&self) -> Vec<FlowsSample> {
        let endpoints = endpoints(&self.transport, self.seed);
        let network = Network::new(endpoints, [self.up.clone(), self.down.clone()], self.seed);
        let mut run =
            Run { flows: self, network, clients: Vec::new(), received: vec![0; self.starts.len()] };
        run.go()
    }
}

struct Run<'a> {
    flows: &'a Flows,
    network: Network,
    /// Handles of the connections started so far.
    clients: Vec<ConnectionHandle>,
    received: Vec<u64>,
}

impl Run<'_> {
    fn go(&mut self) -> Vec<FlowsSample> {
        let start = self.network.now();
        let end = start + self.flows.duration;
        let mut samples = Vec::new();
        let mut due = start;
        while self.network.now() < end {
            let connect_at = self.flows.starts.get(self.clients.len()).map(|&after| start + after);
            let until = connect_at.map_or(due, |at| at.min(due)).min(end);
            self.network.step(until);
            self.take_events();
            let now = self.network.now();
            if connect_at.is_some_and(|at| at <= now) {
                self.connect();
            }
            if due <= now {
                samples.push(FlowsSample {
                    time: now - start,
                    received: self.received.clone(),
                    queue_bytes: self.network.link_from(Host::Client).queue_bytes(now),
                    link: self.network.link_stats(Host::Client),
                });
                due += Flows::SAMPLE;
            }
        }
        samples
    }

    fn connect(&mut self) {
        let client = self.network.connect(&self.flows.transport);
        self.clients.push(client);
    }

    fn take_events(&mut self) {
        for (host, handle, event) in core::mem::take(&mut self.network.events) {
            match (host, event) {
                (Host::Client, Event::Connected | Event::Writable) => self.send(handle),
                (Host::Server, Event::Readable) => self.receive(handle),
                _ => {}
            }
        }
    }

    fn send(&mut self, handle: ConnectionHandle) {
        let now = self.network.now();
        let Some(flow) = self.clients.iter().position(|&client| client == handle) else { return };
        let mut bytes = vec![0; self.flows.message_size.max(8)];
        bytes[..8].copy_from_slice(&(flow as u64).to_le_bytes());
        let message = Bytes::from(bytes);
        while self.network.endpoint(Host::Client).send(now, handle, message.clone()).is_ok() {}
        self.network.wake(Host::Client);
    }

    fn receive(&mut self, handle: ConnectionHandle) {
        let now = self.network.now();
        while let Some(got) = self.network.endpoint(Host::Server).recv(now, handle) {
            let flow = transfer::number_at(&got, 0).unwrap_or(u64::MAX);
            let received = self.received.get_mut(flow as usize).expect("the index of a connection");
            *received += got.len() as u64;
        }
        self.network.wake(Host::Server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_index_is_one_for_equal_shares_and_one_nth_for_a_single_taker() {
        assert!((jain_index(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain_index(&[5.0, 0.0]) - 0.5).abs() < 1e-12);
        assert!((jain_index(&[2.0, 1.0]) - 0.9).abs() < 1e-12);
    }
}
