//! A network of two endpoints and the links between them.

use core::net::SocketAddr;

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput, Payload};
use bats_proto::testing::{Arrival, Delivery, Links, Turn, World};
use bats_proto::{ConnectionHandle, Endpoint, Event, Timestamp, Transmit, TransportConfig};

use crate::delay_histogram::DelayHistogram;
use crate::endpoints::client_config;
use crate::link_event::{LinkEvent, LinkEventKind};
use crate::recorder::Recorder;

pub use crate::host::Host;

/// A UDP datagram on a link.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Payload.
    pub bytes: Vec<u8>,
    /// ECN bits.
    pub ecn: u8,
    /// Time at which it entered the first link.
    pub sent: Timestamp,
    /// Destination address.
    pub to: SocketAddr,
}

impl Payload for Datagram {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= flip;
        }
    }

    fn mark(&mut self) {
        if self.ecn != 0 {
            self.ecn = 3;
        }
    }

    /// By the destination. All datagrams between two endpoints in one direction are one flow, as by
    /// their addresses and ports.
    fn flow(&self) -> u64 {
        u64::from(self.to.port())
    }

    fn is_ect(&self) -> bool {
        self.ecn != 0
    }
}

impl Datagram {
    pub(crate) fn new(now: Timestamp, transmit: &Transmit, bytes: Vec<u8>) -> Self {
        Self { bytes, ecn: transmit.ecn, sent: now, to: transmit.remote }
    }
}

/// Two hosts connected by one link, or by several links in a row.
#[derive(Debug)]
pub struct Network {
    world: World<Chains>,
    /// Events of the endpoints that the caller has not taken: (host, connection, event).
    pub events: Vec<(Host, ConnectionHandle, Event)>,
}

/// The links of both directions.
#[derive(Debug)]
struct Chains {
    /// The address of each host as its peer sees it.
    addresses: [SocketAddr; 2],
    /// `chains[i]` carry the datagrams that host i sends, in the order of transmission.
    chains: [Vec<Link<Datagram>>; 2],
    recorder: Recorder,
    delays: [DelayHistogram; 2],
}

/// The links are the sources, those of the client first.
impl Links for Chains {
    fn send(
        &mut self,
        now: Timestamp,
        from: usize,
        transmit: &Transmit,
        segment: &[u8],
        bytes: Vec<u8>,
    ) {
        let fate = self.chains[from][0].handle(now, Datagram::new(now, transmit, bytes));
        self.recorder.record(&LinkEvent {
            time: now,
            from: Host::ALL[from],
            kind: LinkEventKind::Sent(fate),
            ecn: transmit.ecn,
            payload: segment,
        });
    }

    fn receive(&mut self, now: Timestamp, source: usize) -> Arrival {
        let clients = self.chains[0].len();
        let (from, hop) = if source < clients { (0, source) } else { (1, source - clients) };
        let LinkOutput::Deliver(datagram) = self.chains[from][hop].poll(now) else {
            return Arrival::Idle;
        };
        if let Some(next) = self.chains[from].get_mut(hop + 1) {
            next.handle(now, datagram);
            return Arrival::Progress;
        }
        self.delays[from].add(now - datagram.sent);
        self.recorder.record(&LinkEvent {
            time: now,
            from: Host::ALL[from],
            kind: LinkEventKind::Delivered,
            ecn: datagram.ecn,
            payload: &datagram.bytes,
        });
        let to = 1 - from;
        if datagram.to != self.addresses[to] {
            return Arrival::Progress;
        }
        let (remote, Datagram { ecn, bytes, .. }) = (self.addresses[from], datagram);
        Arrival::Delivery(Delivery { to, remote, local_ip: None, ecn, bytes })
    }

    fn next(&mut self, now: Timestamp) -> Option<Timestamp> {
        next_of(self.chains.iter_mut().flatten(), now)
    }
}

/// When one of these links delivers next.
///
/// # Panics
///
/// If one still has a packet to deliver now.
pub fn next_of<'a, P: Payload + 'a>(
    links: impl Iterator<Item = &'a mut Link<P>>,
    now: Timestamp,
) -> Option<Timestamp> {
    let next = |link: &mut Link<P>| match link.poll(now) {
        LinkOutput::Timeout(at) => at,
        LinkOutput::Deliver(_) => panic!("a packet that arrives now would be lost"),
    };
    links.filter_map(next).min()
}

impl Network {
    /// Connects client and server by one link; `seed` determines the random choices of the links.
    pub fn new(endpoints: [Endpoint; 2], links: [LinkConfig; 2], seed: u64) -> Self {
        Self::chain(endpoints, links.map(|link| vec![link]), seed)
    }

    /// Connects client and server by several links in a row, which only forward. `links[i]` carry
    /// the datagrams that host i sends, in the order of transmission.
    ///
    /// # Panics
    ///
    /// If a direction has no link.
    pub fn chain(endpoints: [Endpoint; 2], links: [Vec<LinkConfig>; 2], seed: u64) -> Self {
        assert!(links.iter().all(|direction| !direction.is_empty()), "each direction needs a link");
        let mut seeds = [seed ^ 0x9e37_79b9, seed ^ 0x7f4a_7c15_0000].into_iter();
        let chains: [Vec<_>; 2] = links.map(|direction| {
            let seed = seeds.next().unwrap_or_default();
            let hops = direction.into_iter().zip(0_u64..);
            hops.map(|(link, hop)| Link::new(link, seed ^ hop << 48)).collect()
        });
        // Each host and then its links.
        let (client, all) = (chains[0].len(), chains[0].len() + chains[1].len());
        let turns = [Turn::Node(0)].into_iter().chain((0..client).map(Turn::Source));
        let turns = turns.chain([Turn::Node(1)]).chain((client..all).map(Turn::Source));
        let addresses = Host::ALL.map(Host::address);
        let (recorder, delays) = Default::default();
        let links = Chains { addresses, chains, recorder, delays };
        let now = Timestamp::from_millis(1);
        let world = World::new(now, endpoints.into(), links, turns.collect());
        Self { world, events: Vec::new() }
    }

    /// The virtual time.
    pub fn now(&self) -> Timestamp {
        self.world.now
    }

    /// The endpoint of a host. Call [`Network::wake`] after changing it.
    pub fn endpoint(&mut self, host: Host) -> &mut Endpoint {
        &mut self.world.nodes[host.index()]
    }

    /// Schedules an endpoint to be polled now, after it was changed.
    pub fn wake(&mut self, host: Host) {
        self.world.wake(host.index());
    }

    /// Starts a connection from the client to the server.
    ///
    /// # Panics
    ///
    /// If the configuration is invalid or the client has too many connections.
    pub fn connect(&mut self, transport: &TransportConfig) -> ConnectionHandle {
        let (now, to) = (self.now(), Host::Server.address());
        let config = client_config(transport);
        let client = self.endpoint(Host::Client).connect(now, to, "server", config);
        self.wake(Host::Client);
        client.expect("a valid configuration")
    }

    /// The first link from `host`.
    pub fn link_from(&mut self, host: Host) -> &mut Link<Datagram> {
        &mut self.world.links.chains[host.index()][0]
    }

    /// Counters of the first link from `host`.
    pub fn link_stats(&self, host: Host) -> LinkStats {
        self.world.links.chains[host.index()][0].stats()
    }

    /// Changes the configuration of the first link from `host`.
    pub fn set_link(&mut self, host: Host, config: LinkConfig) {
        let now = self.world.now;
        self.world.links.chains[host.index()][0].set_config(now, config);
    }

    /// NAT rebinding: changes the address of `host` as its peer sees it. Datagrams in flight to the
    /// old address are lost.
    pub fn rebind(&mut self, host: Host, address: SocketAddr) {
        self.world.links.addresses[host.index()] = address;
    }

    /// Changes the configuration of the links from `host`, in the order of transmission. Links
    /// beyond the end of the list keep theirs.
    pub fn set_links(&mut self, host: Host, configs: Vec<LinkConfig>) {
        let now = self.world.now;
        for (link, config) in self.world.links.chains[host.index()].iter_mut().zip(configs) {
            link.set_config(now, config);
        }
    }

    /// Bytes in the queue of each link from `host`, in the order of transmission.
    pub fn queues(&mut self, host: Host) -> Vec<usize> {
        let now = self.world.now;
        self.world.links.chains[host.index()].iter_mut().map(|link| link.queue_bytes(now)).collect()
    }

    /// Delays of the datagrams from `host`, since they entered the first link: queueing,
    /// transmission and propagation.
    pub fn delays_from(&mut self, host: Host) -> &mut DelayHistogram {
        &mut self.world.links.delays[host.index()]
    }

    /// The recorder of the link events.
    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.world.links.recorder
    }

    /// Advances virtual time until `events` grows (returns true) or until `until` (returns false).
    ///
    /// # Panics
    ///
    /// If there is an infinite amount of work at one point in virtual time.
    pub fn step(&mut self, until: Timestamp) -> bool {
        let has_event = self.world.step(until, &mut ());
        let events = self.world.events.drain(..);
        self.events.extend(events.map(|(host, handle, event)| (Host::ALL[host], handle, event)));
        has_event
    }
}
