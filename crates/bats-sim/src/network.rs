//! A network of two endpoints and the links between them.

use core::net::SocketAddr;

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput, Payload};
use bats_proto::{
    ConnectionHandle, Endpoint, Event, Input, Output, Received, Timestamp, TransportConfig,
};

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

/// Two hosts connected by one link, or by several links in a row.
#[derive(Debug)]
pub struct Network {
    now: Timestamp,
    endpoints: [Endpoint; 2],
    /// The address of each host as its peer sees it.
    addresses: [SocketAddr; 2],
    /// `links[i]` carry the datagrams that host i sends, in the order of transmission.
    links: [Vec<Link<Datagram>>; 2],
    wake_at: [Option<Timestamp>; 2],
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    recorder: Recorder,
    delays: [DelayHistogram; 2],
    /// Rounds of work and polls of hosts since the virtual time last advanced.
    work: u32,
    /// Events of the endpoints that the caller has not taken: (host, connection, event).
    pub events: Vec<(Host, ConnectionHandle, Event)>,
}

/// Maximum number of datagram buffers kept for reuse.
const MAX_SPARE: usize = 4_096;
/// Maximum rounds of work and polls of hosts at one point in virtual time; more indicate an
/// infinite loop. A sender without congestion control may send its whole buffer at once, some
/// 100,000 packets.
const MAX_WORK: u32 = 4_000_000;

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
        let links = links.map(|direction| {
            let seed = seeds.next().unwrap_or_default();
            let hops = direction.into_iter().zip(0_u64..);
            hops.map(|(link, hop)| Link::new(link, seed ^ hop << 48)).collect()
        });
        Self {
            now: Timestamp::from_millis(1),
            endpoints,
            addresses: [Host::Client, Host::Server].map(Host::address),
            links,
            wake_at: [Some(Timestamp::ZERO); 2],
            buffer: Vec::with_capacity(65_536),
            spare: Vec::new(),
            recorder: Recorder::default(),
            delays: Default::default(),
            work: 0,
            events: Vec::new(),
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The endpoint of a host. Call [`Network::wake`] after changing it.
    pub fn endpoint(&mut self, host: Host) -> &mut Endpoint {
        &mut self.endpoints[host.index()]
    }

    /// Schedules an endpoint to be polled now, after it was changed.
    pub fn wake(&mut self, host: Host) {
        self.wake_at[host.index()] = Some(self.now);
    }

    /// Starts a connection from the client to the server.
    ///
    /// # Panics
    ///
    /// If the configuration is invalid or the client has too many connections.
    pub fn connect(&mut self, transport: &TransportConfig) -> ConnectionHandle {
        let (now, to) = (self.now, Host::Server.address());
        let config = client_config(transport);
        let client = self.endpoint(Host::Client).connect(now, to, "server", config);
        self.wake(Host::Client);
        client.expect("a valid configuration")
    }

    /// The first link from `host`.
    pub fn link_from(&mut self, host: Host) -> &mut Link<Datagram> {
        &mut self.links[host.index()][0]
    }

    /// Counters of the first link from `host`.
    pub fn link_stats(&self, host: Host) -> LinkStats {
        self.links[host.index()][0].stats()
    }

    /// Changes the configuration of the first link from `host`.
    pub fn set_link(&mut self, host: Host, config: LinkConfig) {
        let now = self.now;
        self.links[host.index()][0].set_config(now, config);
    }

    /// NAT rebinding: changes the address of `host` as its peer sees it. Datagrams in flight to the
    /// old address are lost.
    pub fn rebind(&mut self, host: Host, address: SocketAddr) {
        self.addresses[host.index()] = address;
    }

    /// Changes the configuration of the links from `host`, in the order of transmission. Links
    /// beyond the end of the list keep theirs.
    pub fn set_links(&mut self, host: Host, configs: Vec<LinkConfig>) {
        let now = self.now;
        for (link, config) in self.links[host.index()].iter_mut().zip(configs) {
            link.set_config(now, config);
        }
    }

    /// Bytes in the queue of each link from `host`, in the order of transmission.
    pub fn queues(&mut self, host: Host) -> Vec<usize> {
        let now = self.now;
        self.links[host.index()].iter_mut().map(|link| link.queue_bytes(now)).collect()
    }

    /// Delays of the datagrams from `host`, since they entered the first link: queueing,
    /// transmission and propagation.
    pub fn delays_from(&mut self, host: Host) -> &mut DelayHistogram {
        &mut self.delays[host.index()]
    }

    /// The recorder of the link events.
    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    fn count_work(&mut self) {
        self.work += 1;
        assert!(
            self.work < MAX_WORK,
            "virtual time does not advance at {:?}: infinite loop",
            self.now
        );
    }

    /// Does all work that is due now. True if an event was added.
    fn process_due(&mut self) -> bool {
        let before = self.events.len();
        loop {
            self.count_work();
            let mut idle = true;
            for host in [Host::Client, Host::Server] {
                let index = host.index();
                if self.wake_at[index].is_some_and(|at| at <= self.now) {
                    idle = false;
                    self.endpoints[index].handle(self.now, Input::Timeout);
                    self.drive(host);
                }
                let last = self.links[index].len() - 1;
                for hop in 0..last {
                    while let LinkOutput::Deliver(datagram) = self.links[index][hop].poll(self.now)
                    {
                        idle = false;
                        self.links[index][hop + 1].handle(self.now, datagram);
                    }
                }
                while let LinkOutput::Deliver(mut datagram) = self.links[index][last].poll(self.now)
                {
                    idle = false;
                    let receiver = host.other();
                    self.delays[index].add(self.now - datagram.sent);
                    self.recorder.record(&LinkEvent {
                        time: self.now,
                        from: host,
                        kind: LinkEventKind::Delivered,
                        ecn: datagram.ecn,
                        payload: &datagram.bytes,
                    });
                    if datagram.to != self.addresses[receiver.index()] {
                        continue;
                    }
                    let received = Received {
                        remote: self.addresses[index],
                        local_ip: None,
                        ecn: datagram.ecn,
                        payload: &mut datagram.bytes,
                    };
                    self.endpoints[receiver.index()].handle(self.now, Input::Datagram(received));
                    if self.spare.len() < MAX_SPARE {
                        self.spare.push(datagram.bytes);
                    }
                    self.drive(receiver);
                }
            }
            if idle {
                return self.events.len() > before;
            }
        }
    }

    fn drive(&mut self, host: Host) {
        let index = host.index();
        loop {
            self.count_work();
            match self.endpoints[index].poll(self.now, &mut self.buffer) {
                Output::Transmit(transmit) => {
                    for segment in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                        let mut bytes = self.spare.pop().unwrap_or_default();
                        bytes.clear();
                        bytes.extend_from_slice(segment);
                        let datagram = Datagram {
                            bytes,
                            ecn: transmit.ecn,
                            sent: self.now,
                            to: transmit.remote,
                        };
                        let fate = self.links[index][0].handle(self.now, datagram);
                        self.recorder.record(&LinkEvent {
                            time: self.now,
                            from: host,
                            kind: LinkEventKind::Sent(fate),
                            ecn: transmit.ecn,
                            payload: segment,
                        });
                    }
                }
                Output::Event(handle, event) => self.events.push((host, handle, event)),
                Output::Timeout(at) => {
                    self.wake_at[index] = at;
                    return;
                }
            }
        }
    }

    /// Advances virtual time until `events` grows (returns true) or until `until` (returns false).
    ///
    /// # Panics
    ///
    /// If there is an infinite amount of work at one point in virtual time.
    pub fn step(&mut self, until: Timestamp) -> bool {
        loop {
            if self.process_due() {
                return true;
            }
            let link = |link: &mut Link<Datagram>, now| match link.poll(now) {
                LinkOutput::Timeout(at) => at,
                LinkOutput::Deliver(_) => None,
            };
            let now = self.now;
            let links = self.links.iter_mut().flatten().filter_map(|each| link(each, now));
            let next = self.wake_at.into_iter().flatten().chain(links).min();
            match next {
                Some(at) if at <= until => {
                    self.work = if at > self.now { 0 } else { self.work };
                    self.now = at.max(self.now);
                }
                _ => {
                    self.work = if until > self.now { 0 } else { self.work };
                    self.now = until;
                    return false;
                }
            }
        }
    }
}
