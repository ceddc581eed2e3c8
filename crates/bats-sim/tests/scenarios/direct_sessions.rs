//! Direct sessions: multipath between two neighbours over all links between them, without an end-to-end handshake or seal.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::relay::RelayConfig;
use bats_proto::wire::short_header::{PacketKind, ShortHeader};
use bats_proto::{ConnectionHandle, Event, Mode, SendError, Timestamp, TransportConfig};
use bats_sim::LinkEventKind;
use bats_sim::paths::{Paths, link};
use bats_sim::relay_network::{LinkDirection, RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

const MODES: [Mode; 4] = [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent];
/// Message size in bytes: one message per symbol.
const SIZE: usize = 1_150;

/// Two neighbours with these links between them.
fn neighbours(links: &[LinkConfig]) -> RelayNetwork {
    let transport = TransportConfig {
        also_accepted: MODES.to_vec(),
        deadline: Duration::from_secs(1),
        // The least path MTU, so that a new link needs no fragments for symbols that are larger than it takes yet.
        max_udp_payload: 1_200,
        ..TransportConfig::default()
    };
    let relay = RelayConfig::new(node_id(0));
    let config = RelayNetworkConfig { links: links.to_vec(), relay, transport, seed: 1 };
    let mut network = RelayNetwork::mesh(config, vec![(0, 1); links.len()]);
    network.use_direct_sessions();
    network
}

#[test]
fn two_unlike_links_reach_at_least_what_an_end_to_end_session_reaches() {
    for loss in [0.0, 0.05] {
        let links = [link(50.0, 10, loss), link(10.0, 50, loss)];
        let runs = (1..=2).map(|seed| Paths { seed, ..Paths::parallel("5:1", &links) });
        let runs: Vec<Paths> = runs.collect();
        let mean = |runs: Vec<Paths>| {
            let shares: Vec<f64> = runs.iter().map(|run| run.run().share).collect();
            println!("loss {loss}: {shares:.4?}");
            shares.iter().sum::<f64>() / shares.len() as f64
        };
        let direct = mean(runs.iter().cloned().map(Paths::with_direct_session).collect());
        let end_to_end = mean(runs);
        println!("loss {loss}: {direct:.4} and end to end {end_to_end:.4}");
        assert!(direct >= end_to_end && direct >= 0.9, "{direct} and {end_to_end}");
    }
}

/// A bulk transfer of the first node, and when its messages arrive.
struct Transfer {
    client: ConnectionHandle,
    mode: Mode,
    sent: u64,
    connected: Option<Timestamp>,
    /// When each message arrived, in the order of arrival.
    arrivals: Vec<Timestamp>,
    next: u64,
    /// Links of node 0 that were established: (link, time).
    established: Vec<(usize, Timestamp)>,
}

impl Transfer {
    fn start(network: &mut RelayNetwork, mode: Mode) -> Self {
        let client = network.connect_ends_in(mode);
        Self {
            client,
            mode,
            sent: 0,
            connected: None,
            arrivals: Vec::new(),
            next: 0,
            established: Vec::new(),
        }
    }

    /// Sends as much as the session accepts until this time.
    fn run(&mut self, network: &mut RelayNetwork, until: Timestamp) {
        while network.now() < until {
            network.step(until);
            let now = network.now();
            for (node, handle, event) in core::mem::take(&mut network.events) {
                match event {
                    Event::Connected | Event::Writable if (node, handle) == (0, self.client) => {
                        self.connected.get_or_insert(now);
                        self.send(network);
                    }
                    Event::Connected if node == 0 => {
                        let link = network.link_of(0, handle).expect("a link");
                        self.established.push((link, now));
                    }
                    Event::Readable if node == 1 => self.receive(network, handle),
                    Event::Closed(reason) if (node, handle) == (0, self.client) => {
                        panic!("{:?}: {reason:?}", self.mode)
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, network: &mut RelayNetwork) {
        let now = network.now();
        loop {
            let mut message = vec![self.sent as u8; SIZE];
            message[..8].copy_from_slice(&self.sent.to_le_bytes());
            match network.node(0).send(now, self.client, Bytes::from(message)) {
                Ok(()) => self.sent += 1,
                Err(SendError::Blocked(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        network.wake(0);
    }

    fn receive(&mut self, network: &mut RelayNetwork, server: ConnectionHandle) {
        let now = network.now();
        while let Some(message) = network.node(1).recv(now, server) {
            let number = u64::from_le_bytes(message[..8].try_into().expect("8 bytes"));
            assert_eq!((message.len(), message[SIZE - 1]), (SIZE, number as u8));
            if matches!(self.mode, Mode::Brtp | Mode::Brctp) {
                assert_eq!(number, self.next, "all messages in order");
            }
            self.next = number + 1;
            self.arrivals.push(now);
        }
        network.wake(1);
    }

    /// The longest time without an arrival between these times.
    fn longest_gap(&self, from: Timestamp, to: Timestamp) -> Duration {
        let within = self.arrivals.iter().copied().filter(|at| (from..to).contains(at));
        let mut last = from;
        let mut longest = Duration::ZERO;
        for at in within.chain([to]) {
            longest = longest.max(at - last);
            last = at;
        }
        longest
    }

    fn arrived_between(&self, from: Timestamp, to: Timestamp) -> usize {
        self.arrivals.iter().filter(|at| (from..to).contains(at)).count()
    }
}

fn cut(link: &LinkConfig) -> LinkConfig {
    LinkConfig { black_hole: true, ..link.clone() }
}

#[test]
fn cut_of_one_link_stalls_for_a_round_trip_and_60_ms_at_most_in_all_modes() {
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    let unlike = [link(50.0, 10, 0.0), link(10.0, 50, 0.0)];
    for mode in MODES {
        for (links, failed) in [(&two, 0), (&two, 1), (&unlike, 0), (&unlike, 1)] {
            let mut network = neighbours(links);
            let mut transfer = Transfer::start(&mut network, mode);
            let start = network.now();
            transfer.run(&mut network, start + Duration::from_secs(2));
            let at = network.now();
            network.set_link(failed, &cut(&links[failed]));
            transfer.run(&mut network, at + Duration::from_secs(2));
            let stall = transfer.longest_gap(at, network.now());
            let longest_rtt = links.iter().map(|link| link.delay * 2).max().expect("links");
            println!("{mode:?}, link {failed} of {longest_rtt:?} is cut: stall of {stall:?}");
            // A block of BRCTP is delivered as a whole: the one that was in flight waits for the remaining link.
            let block = 512.0 * 1_250.0 * 8.0 / links[1 - failed].rate_bps.expect("a rate") as f64;
            let block = if mode == Mode::Brctp { block } else { 0.0 };
            let most = longest_rtt + Duration::from_millis(60) + Duration::from_secs_f64(block);
            assert!(stall <= most, "{mode:?}, link {failed} of {longest_rtt:?}: {stall:?}");
        }
    }
}

/// Kinds of the relayed packets that arrived at node 1 over a link, with the times.
type Arrived = Rc<RefCell<Vec<(Timestamp, PacketKind)>>>;

fn observe(network: &mut RelayNetwork, watched: usize) -> Arrived {
    let arrived = Arrived::default();
    let seen = Rc::clone(&arrived);
    network.observe(Box::new(move |event| {
        let is_forward = event.direction == LinkDirection::Forward && event.link == watched;
        if !is_forward || event.kind != LinkEventKind::Delivered {
            return;
        }
        // Headers are not protected in simulations.
        if let Some(header) = ShortHeader::decode(event.payload).filter(|header| header.relayed) {
            seen.borrow_mut().push((event.time, header.kind));
        }
    }));
    arrived
}

/// Data goes over the new link one round trip after it is established, and no packet of the session came before: the link's
/// own handshake is all there is.
#[test]
fn a_further_link_carries_data_within_one_round_trip() {
    let links = [link(20.0, 20, 0.0), link(20.0, 30, 0.0)];
    for mode in MODES {
        let mut network = neighbours(&links);
        // The second link ends, before the session begins.
        let second = network.link_connection(1).expect("a link");
        let now = network.now();
        network.node(0).close(now, second, 0, "not yet");
        network.wake(0);
        let mut transfer = Transfer::start(&mut network, mode);
        let arrived = observe(&mut network, 1);
        transfer.run(&mut network, now + Duration::from_secs(3));
        assert!(transfer.arrivals.len() > 1_000 && arrived.borrow().is_empty(), "{mode:?}");
        let joins = network.now();
        network.connect_link(1);
        transfer.run(&mut network, joins + Duration::from_secs(3));
        let [(1, established)] = transfer.established[..] else {
            panic!("{:?}", transfer.established)
        };
        let round_trip = links[1].delay * 2;
        assert!(established <= joins + round_trip + Duration::from_millis(10), "one round trip");
        let first = arrived.borrow()[0];
        println!("{mode:?}: {:?} after the link, {:?}", first.0 - established, first.1);
        assert!(first.0 <= established + round_trip, "{mode:?}: {:?}", first.0 - established);
        assert_ne!(first.1, PacketKind::Control, "{mode:?}: a packet of data");
        // Both links are used.
        let within_a_second_of = |end: Timestamp| {
            let from = Timestamp::from_nanos(end.as_nanos() - 1_000_000_000);
            transfer.arrived_between(from, end) as f64
        };
        let (alone, both) = (within_a_second_of(joins), within_a_second_of(network.now()));
        assert!(both > 1.6 * alone, "{mode:?}: {both} and {alone} messages in a second");
    }
}

/// Links die and return while data is sent: the session continues over those that are left, and waits while there is none.
#[test]
fn a_session_survives_while_links_end_and_return() {
    let links = [link(20.0, 10, 0.0), link(20.0, 20, 0.0)];
    let mut network = neighbours(&links);
    let mut transfer = Transfer::start(&mut network, Mode::Brtp);
    let run = |network: &mut RelayNetwork, transfer: &mut Transfer, seconds| {
        let from = network.now();
        transfer.run(network, from + Duration::from_secs(seconds));
        transfer.arrived_between(from + Duration::from_millis(200), network.now())
    };
    let close = |network: &mut RelayNetwork, link: usize| {
        let handle = network.link_connection(link).expect("a link");
        let now = network.now();
        network.node(0).close(now, handle, 0, "taken down");
        network.wake(0);
    };
    assert!(run(&mut network, &mut transfer, 2) > 4_000);
    for round in 0..3 {
        let link = round % 2;
        close(&mut network, link);
        assert!(run(&mut network, &mut transfer, 1) > 1_000, "round {round}");
        close(&mut network, 1 - link);
        assert_eq!(run(&mut network, &mut transfer, 1), 0, "round {round}: there is no link");
        network.connect_link(link);
        network.connect_link(1 - link);
        assert!(run(&mut network, &mut transfer, 2) > 3_000, "round {round}: both are back");
    }
}

/// A short message of a direct session is shorter on the wire by the seal: two bytes of length, 16 of checksum.
#[test]
fn datagrams_of_direct_sessions_are_shorter_by_the_seal_of_symbols() {
    let largest = |is_direct: bool| {
        let mut network = neighbours(&[link(20.0, 10, 0.0)]);
        if !is_direct {
            network = RelayNetwork::mesh(
                RelayNetworkConfig {
                    links: vec![link(20.0, 10, 0.0)],
                    relay: RelayConfig::new(node_id(0)),
                    transport: TransportConfig::default(),
                    seed: 1,
                },
                vec![(0, 1)],
            );
        }
        let client = network.connect_ends_in(Mode::Brtp);
        let start = network.now();
        while network.now() < start + Duration::from_secs(2) {
            network.step(start + Duration::from_secs(2));
        }
        let longest = Rc::new(RefCell::new(0));
        let seen = Rc::clone(&longest);
        network.observe(Box::new(move |event| {
            if event.direction == LinkDirection::Forward {
                let mut longest = seen.borrow_mut();
                *longest = event.payload.len().max(*longest);
            }
        }));
        let now = network.now();
        network.node(0).send(now, client, Bytes::from(vec![1; 500])).expect("room");
        network.wake(0);
        while network.now() < now + Duration::from_millis(5) {
            network.step(now + Duration::from_millis(5));
        }
        let bytes: usize = *longest.borrow();
        bytes
    };
    assert_eq!(largest(true) + 18, largest(false));
}
