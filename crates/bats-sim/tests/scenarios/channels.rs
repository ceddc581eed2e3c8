//! Channels of one session over a lossy link.

use std::collections::BTreeMap;
use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::{ChannelError, ChannelId, ConnectionHandle, Event, Mode, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;

const CHUNK: usize = 32 << 10;

/// A client that fills its channels, and a server that reads all but some of them.
struct Scenario {
    network: Network,
    client: ConnectionHandle,
    server: Option<ConnectionHandle>,
    channels: Vec<ChannelId>,
    /// The server does not read the first ones.
    stalled: usize,
    /// Bytes that the client has written and the server has read, by channel.
    written: BTreeMap<ChannelId, usize>,
    read: BTreeMap<ChannelId, usize>,
    /// Bytes that the client writes to each channel before it finishes it.
    total: usize,
    ended: usize,
}

/// Bytes of a channel from an offset: 31 times its number, plus the rest of the offset by 251. Copied from a table,
/// because the bytes cost more than the protocol otherwise.
fn bytes(id: ChannelId, offset: usize, len: usize) -> impl ExactSizeIterator<Item = u8> {
    static TABLE: [u8; 251 + CHUNK] = {
        let (mut rests, mut at) = ([0; 251 + CHUNK], 0);
        while at < rests.len() {
            rests[at] = (at % 251) as u8;
            at += 1;
        }
        rests
    };
    let first = (id.number() as usize * 31) as u8;
    TABLE[offset % 251..][..len].iter().map(move |rest| rest.wrapping_add(first))
}

impl Scenario {
    fn new(mode: Mode, link: &LinkConfig, channels: usize, stalled: usize, total: usize) -> Self {
        let transport =
            TransportConfig { mode, channels: Some(2_000), ..TransportConfig::default() };
        let mut network = Network::new(endpoints(&transport, 1), [link.clone(), link.clone()], 1);
        let client = network.connect(&transport);
        let mut scenario = Self {
            network,
            client,
            server: None,
            channels: Vec::new(),
            stalled,
            written: BTreeMap::new(),
            read: BTreeMap::new(),
            total,
            ended: 0,
        };
        while scenario.server.is_none() {
            scenario.step(Duration::from_secs(1));
        }
        let now = scenario.network.now();
        for _ in 0..channels {
            let endpoint = scenario.network.endpoint(Host::Client);
            let id = endpoint.open_channel(now, client).unwrap();
            scenario.channels.push(id);
            scenario.write(id);
        }
        scenario
    }

    fn step(&mut self, time: Duration) {
        let until = self.network.now() + time;
        while self.network.now() < until {
            self.network.step(until);
            for (host, handle, event) in core::mem::take(&mut self.network.events) {
                match (host, event) {
                    (Host::Server, Event::Accepted) => self.server = Some(handle),
                    (Host::Client, Event::ChannelWritable(id)) => self.write(id),
                    (Host::Server, Event::ChannelReadable(id)) => self.read(id),
                    (_, Event::Closed(reason)) => panic!("{host:?}: {reason}"),
                    _ => {}
                }
            }
        }
    }

    fn write(&mut self, id: ChannelId) {
        let now = self.network.now();
        let written = self.written.entry(id).or_default();
        let endpoint = self.network.endpoint(Host::Client);
        loop {
            let len = CHUNK.min(self.total - *written);
            if len == 0 {
                endpoint.finish_channel(self.client, id).unwrap();
                break;
            }
            let data: Vec<u8> = bytes(id, *written, len).collect();
            match endpoint.write_channel(now, self.client, id, &data) {
                Ok(len) => *written += len,
                Err(ChannelError::Blocked) => break,
                Err(error) => panic!("channel {id}: {error}"),
            }
        }
        self.network.wake(Host::Client);
    }

    fn read(&mut self, id: ChannelId) {
        if self.channels.iter().take(self.stalled).any(|&stalled| stalled == id) {
            return;
        }
        let (now, Some(server)) = (self.network.now(), self.server) else { return };
        let read = self.read.entry(id).or_default();
        let mut out = [0; CHUNK];
        loop {
            match self.network.endpoint(Host::Server).read_channel(now, server, id, &mut out) {
                Ok(Some(len)) => {
                    assert!(out[..len].iter().copied().eq(bytes(id, *read, len)), "channel {id}");
                    *read += len;
                }
                Ok(None) => {
                    assert_eq!(*read, self.total, "channel {id} ends early");
                    self.ended += 1;
                    break;
                }
                Err(ChannelError::Blocked) => break,
                Err(error) => panic!("channel {id}: {error}"),
            }
        }
        self.network.wake(Host::Server);
    }

    /// Bytes read per second from the channels that are read, and the least of them relative to the
    /// mean.
    fn rate(&mut self, seconds: u64) -> (f64, f64) {
        let before = self.read.clone();
        self.step(Duration::from_secs(seconds));
        let of = |id: &ChannelId| self.read.get(id).copied().unwrap_or_default();
        let ids = self.channels.iter().skip(self.stalled);
        let bytes: Vec<usize> =
            ids.map(|id| of(id) - before.get(id).copied().unwrap_or_default()).collect();
        let sum = bytes.iter().sum::<usize>() as f64;
        let least = bytes.iter().min().copied().unwrap_or_default() as f64;
        (sum / seconds as f64, least / (sum / bytes.len() as f64))
    }
}

fn link(loss: f64) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(50_000_000),
        delay: Duration::from_millis(20),
        loss: Loss::Iid(loss),
        ..LinkConfig::default()
    }
}

/// `least_rate` is the fraction of the link's rate that the channels have together without loss.
fn check_stalled_channel_of_1000(mode: Mode, least_rate: f64) {
    for loss in [0.0, 0.05] {
        let mut rates = [0, 1].map(|stalled| {
            let mut scenario = Scenario::new(mode, &link(loss), 1_000, stalled, usize::MAX / 2);
            scenario.step(Duration::from_secs(2));
            let (rate, least) = scenario.rate(3);
            assert!(least > 0.5, "a channel has {least} of the mean at {loss} loss");
            rate * 8.0 / 1e6
        });
        println!(
            "{mode:?}, {loss} loss: {:.2} Mbit/s, with a stalled reader {:.2}",
            rates[0], rates[1]
        );
        rates[1] /= rates[0];
        assert!(rates[1] >= 0.95, "{} of the throughput at {loss} loss", rates[1]);
        // And the throughput is that of messages.
        let least = least_rate * 50.0 * (1.0 - loss);
        assert!(rates[0] > least, "{} Mbit/s at {loss} loss", rates[0]);
    }
}

#[test]
fn a_stalled_channel_of_1000_leaves_the_others_their_throughput() {
    check_stalled_channel_of_1000(Mode::Brtp, 0.85);
}

#[test]
fn a_stalled_channel_of_1000_leaves_the_others_their_throughput_in_brctp() {
    check_stalled_channel_of_1000(Mode::Brctp, 0.85);
}

fn check_arrival_at_thirty_per_cent_loss(mode: Mode) {
    let mut scenario = Scenario::new(mode, &link(0.3), 50, 0, 100_000);
    for _ in 0..30 {
        scenario.step(Duration::from_secs(1));
        if scenario.ended == 50 {
            return;
        }
    }
    panic!("{} of 50 channels have ended", scenario.ended);
}

#[test]
fn channels_arrive_complete_at_thirty_per_cent_loss() {
    check_arrival_at_thirty_per_cent_loss(Mode::Brtp);
}

#[test]
fn channels_arrive_complete_at_thirty_per_cent_loss_in_brctp() {
    check_arrival_at_thirty_per_cent_loss(Mode::Brctp);
}
