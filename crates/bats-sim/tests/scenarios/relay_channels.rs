//! Channels of a session across two lossy relays, and over two parallel links.

use std::collections::BTreeMap;
use std::time::Duration;

use bats_proto::relay::RelayConfig;
use bats_proto::{ChannelError, ChannelId, ConnectionHandle, Event, Mode, TransportConfig};
use bats_sim::links;
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};

const CHANNELS: usize = 40;
/// Bytes of each channel.
const TOTAL: usize = 100_000;
/// Code of the channels that the client resets or the server stops.
const CODE: u64 = 9;

/// The byte at an offset of a channel.
fn byte(id: ChannelId, offset: usize) -> u8 {
    (offset % 251) as u8 ^ id.number() as u8
}

/// How a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Reset,
}

/// A client that writes channels, and a server that reads them; the first one is not read.
struct Scenario {
    network: RelayNetwork,
    client: ConnectionHandle,
    server: ConnectionHandle,
    ids: Vec<ChannelId>,
    written: BTreeMap<ChannelId, usize>,
    read: BTreeMap<ChannelId, usize>,
    ends: BTreeMap<ChannelId, End>,
    messages: usize,
}

impl Scenario {
    fn new(mode: Mode, edges: Vec<(usize, usize)>) -> Self {
        let transport = TransportConfig {
            mode,
            also_accepted: vec![Mode::Brtp, Mode::Brctp],
            channels: Some(100),
            ..TransportConfig::default()
        };
        let link = links::queued(20_000_000, Duration::from_millis(5), 2.0, 0.05);
        let links = vec![link; edges.len()];
        let relay = RelayConfig::new(node_id(0));
        let config = RelayNetworkConfig { links: links.clone(), relay, transport, seed: 5 };
        let mut network = RelayNetwork::build(config, &links, edges);
        let limit = network.now() + Duration::from_secs(20);
        while !network.is_established() {
            assert!(network.now() < limit, "the links are established");
            network.step(limit);
        }
        let client = network.connect_ends_in(mode);
        let mut server = None;
        while server.is_none() {
            assert!(network.now() < limit, "the session is established");
            network.step(limit);
            let last = network.last();
            for (node, handle, event) in core::mem::take(&mut network.events) {
                if node == last && event == Event::Accepted && network.is_session(node, handle) {
                    server = Some(handle);
                }
            }
        }
        let now = network.now();
        let ids = (0..CHANNELS).map(|_| network.node(0).open_channel(now, client).unwrap());
        let ids = ids.collect();
        Self {
            client,
            server: server.unwrap(),
            ids,
            network,
            written: BTreeMap::new(),
            read: BTreeMap::new(),
            ends: BTreeMap::new(),
            messages: 0,
        }
    }

    /// Writes, reads and then runs for a millisecond.
    fn step(&mut self) {
        let now = self.network.now();
        for id in self.ids.clone() {
            self.write(id);
            if id != self.ids[0] {
                self.read(id);
            }
        }
        let last = self.network.last();
        while self.network.node(last).recv(now, self.server).is_some() {
            self.messages += 1;
        }
        self.network.wake(0);
        self.network.wake(last);
        let until = now + Duration::from_millis(1);
        while self.network.now() < until {
            self.network.step(until);
        }
    }

    fn write(&mut self, id: ChannelId) {
        let (now, client) = (self.network.now(), self.client);
        let written = self.written.entry(id).or_default();
        if *written > TOTAL {
            return;
        }
        let end = TOTAL.min(*written + 8_000);
        let data: Vec<u8> = (*written..end).map(|offset| byte(id, offset)).collect();
        if data.is_empty() {
            self.network.node(0).finish_channel(client, id).unwrap();
            *written += 1;
            return;
        }
        match self.network.node(0).write_channel(now, client, id, &data) {
            Ok(len) => *written += len,
            Err(ChannelError::Blocked) => {}
            // It was reset or stopped.
            Err(ChannelError::Finished | ChannelError::Stopped { .. } | ChannelError::Closed) => {
                *written = TOTAL + 1;
            }
            Err(error) => panic!("channel {id}: {error}"),
        }
    }

    fn read(&mut self, id: ChannelId) {
        let (now, last) = (self.network.now(), self.network.last());
        let read = self.read.entry(id).or_default();
        let mut out = [0; 16_000];
        loop {
            let end = match self.network.node(last).read_channel(now, self.server, id, &mut out) {
                Ok(Some(len)) => {
                    let found = out[..len].iter().zip(*read..);
                    found.for_each(|(found, at)| assert_eq!(*found, byte(id, at), "channel {id}"));
                    *read += len;
                    continue;
                }
                Ok(None) => {
                    assert_eq!(*read, TOTAL, "channel {id} ends early");
                    End::Finished
                }
                Err(ChannelError::Reset { code: CODE }) => End::Reset,
                Err(ChannelError::Blocked | ChannelError::Closed) => return,
                Err(error) => panic!("channel {id}: {error}"),
            };
            self.ends.insert(id, end);
        }
    }
}

fn check(mode: Mode, edges: Vec<(usize, usize)>) {
    let context = format!("{mode:?}, {edges:?}");
    let mut scenario = Scenario::new(mode, edges);
    let begun = scenario.network.now();
    let [stalled, reset, stopped] = [0, 1, 2].map(|at| scenario.ids[at]);
    let (mut sent, mut is_given_up) = (0, false);
    let is_complete = |scenario: &Scenario| {
        let finished = scenario.ends.values().filter(|end| **end == End::Finished).count();
        finished == CHANNELS - 3 && scenario.messages == 50
    };
    while !is_complete(&scenario) {
        let now = scenario.network.now();
        let time = now - begun;
        assert!(
            time < Duration::from_secs(20),
            "{context}: {} of {CHANNELS} have ended, {} messages",
            scenario.ends.len(),
            scenario.messages
        );
        if sent < 50 && time > Duration::from_millis(20) * sent {
            let message = vec![sent as u8; 500].into();
            scenario.network.node(0).send(now, scenario.client, message).unwrap();
            sent += 1;
        }
        if !is_given_up && time > Duration::from_millis(200) {
            is_given_up = true;
            scenario.network.node(0).reset_channel(scenario.client, reset, CODE);
            let last = scenario.network.last();
            scenario.network.node(last).stop_channel(scenario.server, stopped, CODE);
        }
        scenario.step();
    }
    let time = scenario.network.now() - begun;
    let bytes: usize = scenario.read.values().sum();
    println!("{context}: {:.2} Mbit/s, {time:?}", bytes as f64 * 8.0 / 1e6 / time.as_secs_f64());
    assert_eq!(scenario.ends.get(&reset), Some(&End::Reset), "{context}");
    assert!(!scenario.ends.contains_key(&stopped), "{context}");
    // The one that was not read has waited.
    assert!(!scenario.read.contains_key(&stalled));
    scenario.read(stalled);
    assert!(scenario.read[&stalled] > 0, "{context}");
}

#[test]
fn channels_of_both_modes_cross_two_lossy_relays() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        check(mode, vec![(0, 1), (1, 2), (2, 3)]);
    }
}

#[test]
fn channels_of_both_modes_take_two_parallel_links() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        check(mode, vec![(0, 1), (0, 1)]);
    }
}
