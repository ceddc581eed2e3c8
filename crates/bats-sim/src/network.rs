//! Two endpoints and the links between them.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use bats_netem::{Link, LinkConfig, LinkStats, Output as LinkOutput, Payload};
use bats_proto::{
    ConnectionHandle, Endpoint, Event, Input, Output, Received, Timestamp, TransportConfig,
};

use crate::delays::Delays;
use crate::record::{LinkEvent, Recorder, What};
use crate::transfer::client_config;

/// A UDP datagram on its way.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Payload.
    pub bytes: Vec<u8>,
    /// ECN bits.
    pub ecn: u8,
    /// When it was handed to the link.
    pub sent: Timestamp,
    /// Where to.
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
}

/// Which of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Opens the connection.
    Client,
    /// Accepts it.
    Server,
}

impl Host {
    /// Address of the host in the simulated network.
    pub fn address(self) -> SocketAddr {
        self.address_v4().into()
    }

    pub(crate) fn address_v4(self) -> SocketAddrV4 {
        match self {
            Self::Client => SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 40_000),
            Self::Server => SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4_000),
        }
    }

    fn index(self) -> usize {
        usize::from(self == Self::Server)
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Two hosts joined by a link, or by several one behind the other.
#[derive(Debug)]
pub struct Network {
    now: Timestamp,
    endpoints: [Endpoint; 2],
    /// Where each host is, as the other one sees it.
    addresses: [SocketAddr; 2],
    /// `links[i]` carry what host i sends, in the order of the way.
    links: [Vec<Link<Datagram>>; 2],
    wake: [Option<Timestamp>; 2],
    buffer: Vec<u8>,
    spare: Vec<Vec<u8>>,
    recorder: Recorder,
    delays: [Delays; 2],
    /// Rounds of work and answers of hosts at this moment.
    work: u32,
    /// What the endpoints said: (who, connection, event).
    pub events: Vec<(Host, ConnectionHandle, Event)>,
}

/// Buffers of datagrams kept for reuse.
const MAX_SPARE: usize = 4_096;
/// Rounds of work and answers of hosts at one moment; more are a loop without end. A sender without
/// control may send all that it holds at once: some 100,000 packets.
const MAX_WORK: u32 = 4_000_000;

impl Network {
    /// Joins client and server; `seed` decides the links' random choices.
    pub fn new(endpoints: [Endpoint; 2], links: [LinkConfig; 2], seed: u64) -> Self {
        Self::chain(endpoints, links.map(|link| vec![link]), seed)
    }

    /// Joins client and server by several links, which forward what they get; `links[i]` carry what
    /// host i sends, in the order of the way. At least one each.
    ///
    /// # Panics
    ///
    /// If a direction has no link.
    pub fn chain(endpoints: [Endpoint; 2], links: [Vec<LinkConfig>; 2], seed: u64) -> Self {
        assert!(links.iter().all(|way| !way.is_empty()), "no link");
        let mut seeds = [seed ^ 0x9e37_79b9, seed ^ 0x7f4a_7c15_0000].into_iter();
        let links = links.map(|way| {
            let seed = seeds.next().unwrap_or_default();
            let hops = way.into_iter().zip(0_u64..);
            hops.map(|(link, hop)| Link::new(link, seed ^ hop << 48)).collect()
        });
        Self {
            now: Timestamp::from_millis(1),
            endpoints,
            addresses: [Host::Client, Host::Server].map(Host::address),
            links,
            wake: [Some(Timestamp::ZERO); 2],
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

    /// An endpoint. Whoever changes it calls [`Network::touch`] afterwards.
    pub fn endpoint(&mut self, host: Host) -> &mut Endpoint {
        &mut self.endpoints[host.index()]
    }

    /// The endpoint has something new to say.
    pub fn touch(&mut self, host: Host) {
        self.wake[host.index()] = Some(self.now);
    }

    /// The client begins a connection to the server.
    ///
    /// # Panics
    ///
    /// If it cannot: the settings are refused, or there are too many connections.
    pub fn connect(&mut self, transport: &TransportConfig) -> ConnectionHandle {
        let (now, to) = (self.now, Host::Server.address());
        let config = client_config(transport);
        let client = self.endpoint(Host::Client).connect(now, to, "server", config);
        self.touch(Host::Client);
        client.expect("a valid configuration")
    }

    /// The first link that carries what `host` sends.
    pub fn link_from(&mut self, host: Host) -> &mut Link<Datagram> {
        &mut self.links[host.index()][0]
    }

    /// Counters of the first link that carries what `host` sends.
    pub fn link_stats(&self, host: Host) -> LinkStats {
        self.links[host.index()][0].stats()
    }

    /// Changes the behaviour of the first link that carries what `host` sends.
    pub fn set_link(&mut self, host: Host, config: LinkConfig) {
        let now = self.now;
        self.links[host.index()][0].set_config(now, config);
    }

    /// The network gives `host` another address, as a NAT does that has forgotten it: what is under
    /// way to the old one is lost.
    pub fn rebind(&mut self, host: Host, address: SocketAddr) {
        self.addresses[host.index()] = address;
    }

    /// Changes the behaviour of all links that carry what `host` sends, in the order of the way;
    /// those beyond the list's end keep theirs.
    pub fn set_links(&mut self, host: Host, configs: Vec<LinkConfig>) {
        let now = self.now;
        for (link, config) in self.links[host.index()].iter_mut().zip(configs) {
            link.set_config(now, config);
        }
    }

    /// Bytes that wait before each link that carries what `host` sends, in the order of the way.
    pub fn queues(&mut self, host: Host) -> Vec<usize> {
        let now = self.now;
        self.links[host.index()].iter_mut().map(|link| link.queue_bytes(now)).collect()
    }

    /// From the entrance of the link to the arrival, of what `host` sent: queue, transmission and
    /// propagation.
    pub fn delays_from(&mut self, host: Host) -> &mut Delays {
        &mut self.delays[host.index()]
    }

    /// What takes down the events on the links from now on.
    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    fn count_work(&mut self) {
        self.work += 1;
        assert!(self.work < MAX_WORK, "time stands still at {:?}", self.now);
    }

    /// Does what is to be done now; true if an event was noted.
    fn settle(&mut self) -> bool {
        let before = self.events.len();
        loop {
            self.count_work();
            let mut idle = true;
            for host in [Host::Client, Host::Server] {
                let index = host.index();
                if self.wake[index].is_some_and(|at| at <= self.now) {
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
                    self.recorder.note(&LinkEvent {
                        time: self.now,
                        from: host,
                        what: What::Delivered,
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
                        self.recorder.note(&LinkEvent {
                            time: self.now,
                            from: host,
                            what: What::Sent(fate),
                            ecn: transmit.ecn,
                            payload: segment,
                        });
                    }
                }
                Output::Event(handle, event) => self.events.push((host, handle, event)),
                Output::Timeout(at) => {
                    self.wake[index] = at;
                    return;
                }
            }
        }
    }

    /// Goes on until something was noted in `events`, nothing can happen any more, or `until`;
    /// false in the latter cases.
    ///
    /// # Panics
    ///
    /// If there is no end to what is to be done at one moment.
    pub fn step(&mut self, until: Timestamp) -> bool {
        loop {
            if self.settle() {
                return true;
            }
            let link = |link: &mut Link<Datagram>, now| match link.poll(now) {
                LinkOutput::Timeout(at) => at,
                LinkOutput::Deliver(_) => None,
            };
            let now = self.now;
            let links = self.links.iter_mut().flatten().filter_map(|each| link(each, now));
            let next = self.wake.into_iter().flatten().chain(links).min();
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
