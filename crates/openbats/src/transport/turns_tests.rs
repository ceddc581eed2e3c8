//! Connections with much data to send take turns: those of the mode QUIC, and those of several modes.

use std::sync::Arc;

use bats_proto::{
    CongestionAlgorithm, EndpointConfig, Event, PeerTrust, Received, ServerConfig, Transmit,
    TransportConfig,
};

use super::*;
use crate::clock::Clock;
use crate::driver::{LazyPoller, SocketOptions};

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// Bursts that the socket takes.
const BURSTS: usize = 100;
/// As long as the buffer of a burst.
const BUFFER: usize = 65_536;

fn address(end: usize) -> SocketAddr {
    ([10, 0, 0, 1 + end as u8], 4_000).into()
}

fn transport(mode: Mode, congestion: CongestionAlgorithm) -> TransportConfig {
    TransportConfig { mode, congestion, ..TransportConfig::default() }
}

/// A client and a server without sockets.
struct World {
    ends: [Transports; 2],
    now: Timestamp,
    connected: usize,
}

impl World {
    fn new() -> Self {
        let clock = Clock::new();
        let server = ServerConfig {
            identity: bats_proto::crypto::generate_identity(&["server".to_owned()]).unwrap(),
            client_trust: None,
            transport: Arc::new(TransportConfig {
                also_accepted: vec![Mode::Quic],
                ..transport(Mode::Brtp, CongestionAlgorithm::None)
            }),
            retry_threshold: usize::MAX,
            max_connections: 100,
        };
        let ends = [None, Some(server)].map(|server| {
            let quic = Quic::new(clock.clone(), [7; 32], server.as_ref(), false, None).unwrap();
            let options = SocketOptions::default();
            let tcp = Tcp::new(Arc::new(LazyPoller::default()), None, (None, options)).unwrap();
            let config = EndpointConfig { server, ..EndpointConfig::default() };
            let packets = bats_proto::Endpoint::new(config, [8; 32]).unwrap();
            Transports::new(packets, tcp, Udp::new(None, false), quic)
        });
        Self { ends, now: clock.now(), connected: 0 }
    }

    /// A connection after its handshake.
    fn established(&mut self, mode: Mode, congestion: CongestionAlgorithm) -> Handle {
        let transport = Arc::new(transport(mode, congestion));
        let trust = PeerTrust::DangerousAcceptAny;
        let config = ClientConfig { trust, identity: None, transport };
        let handle =
            self.ends[CLIENT].connect(self.now, address(SERVER), "server", config, false).unwrap();
        let before = self.connected;
        for _ in 0..1_000 {
            while self.poll_client().is_none_or(|sent| sent > 0) {}
            self.advance();
        }
        assert_eq!(self.connected, before + 1);
        handle
    }

    /// Some time passes.
    fn advance(&mut self) {
        self.now += Duration::from_micros(100);
        for end in &mut self.ends {
            end.handle_timers(self.now);
        }
        self.poll_server();
    }

    /// Delivers the client's next burst, and what the server answers; returns its bytes, 0 if there is none. `None`: there
    /// was an event.
    fn poll_client(&mut self) -> Option<usize> {
        let mut buffer = Vec::with_capacity(BUFFER);
        match self.ends[CLIENT].poll(self.now, &mut buffer) {
            Output::Event(_, event) => {
                self.connected += usize::from(event == Event::Connected);
                assert!(!matches!(event, Event::Closed(_)), "{event:?}");
                None
            }
            Output::Transmit(transmit) => {
                self.deliver(SERVER, &mut buffer, transmit);
                self.poll_server();
                Some(transmit.len)
            }
            Output::Timeout(_) => Some(0),
        }
    }

    /// The server sends all that it can, and takes all messages.
    fn poll_server(&mut self) {
        let mut buffer = Vec::with_capacity(BUFFER);
        loop {
            match self.ends[SERVER].poll(self.now, &mut buffer) {
                Output::Event(handle, _) => {
                    while self.ends[SERVER].recv(self.now, handle).is_some() {}
                }
                Output::Transmit(transmit) => self.deliver(CLIENT, &mut buffer, transmit),
                Output::Timeout(_) => return,
            }
        }
    }

    fn deliver(&mut self, to: usize, buffer: &mut [u8], transmit: Transmit) {
        for payload in buffer[..transmit.len].chunks_mut(transmit.segment_size) {
            let received =
                Received { remote: address(1 - to), local_ip: None, ecn: transmit.ecn, payload };
            self.ends[to].handle(self.now, Input::Datagram(received));
        }
    }

    /// Bytes that each connection sends while the socket takes [`BURSTS`] bursts and all have more to send.
    fn bytes_sent<const N: usize>(&mut self, handles: [Handle; N]) -> [u64; N] {
        let sent = |world: &Self| {
            handles.map(|handle| {
                world.ends[CLIENT].stats(world.now, handle).unwrap().packets.bytes_sent
            })
        };
        let before = sent(self);
        let mut bursts = 0;
        while bursts < BURSTS {
            for handle in handles {
                let message = Bytes::from(vec![7; 100_000]);
                while self.ends[CLIENT].send(self.now, handle, message.clone(), None).is_ok() {}
            }
            if self.poll_client().is_some_and(|sent| sent > 0) {
                bursts += 1;
            } else {
                self.advance();
            }
        }
        let after = sent(self);
        std::array::from_fn(|place| after[place] - before[place])
    }
}

#[test]
fn quic_connections_with_data_to_send_take_turns() {
    let mut world = World::new();
    let handles = [0; 3].map(|_| world.established(Mode::Quic, CongestionAlgorithm::Cubic));
    let sent = world.bytes_sent(handles);
    let all: u64 = sent.iter().sum();
    assert!(all > 500_000, "{sent:?}");
    assert!(sent.iter().all(|&sent| sent > all * 3 / 10), "{sent:?}");
}

#[test]
fn a_busy_brtp_connection_does_not_hold_up_a_quic_connection() {
    let mut world = World::new();
    let brtp = world.established(Mode::Brtp, CongestionAlgorithm::None);
    let quic = world.established(Mode::Quic, CongestionAlgorithm::Cubic);
    // The other one could send as much.
    let [alone] = world.bytes_sent([brtp]);
    let [busy, other] = world.bytes_sent([brtp, quic]);
    assert!(alone > 500_000 && busy > alone / 3, "{alone} {busy}");
    assert!(other > busy / 4, "{busy} {other}");
}
