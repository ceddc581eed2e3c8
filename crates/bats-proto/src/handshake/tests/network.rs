//! Two ends and a bad network between them.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bats_types::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::{ClientConfig, Identity, PeerTrust, Security, ServerConfig, TransportConfig};
use crate::crypto::generate_identity;
use crate::handshake::{
    FirstPacket, Handshake, HandshakeError, ServerCrypto, ServerStart, parse_first,
};
use crate::wire::parameters::TransportParameters;

pub(super) const CLIENT_CID: [u8; 4] = *b"clnt";
pub(super) const SERVER_CID: [u8; 4] = *b"srvr";

pub(super) fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| generate_identity(&["bats.example".to_owned()]).unwrap())
}

pub(super) fn server_config(identity: Identity) -> ServerConfig {
    ServerConfig {
        identity,
        transport: Arc::new(TransportConfig::default()),
        retry_threshold: 10,
        max_connections: 10,
    }
}

pub(super) fn client_config(trust: PeerTrust) -> ClientConfig {
    ClientConfig { trust, identity: None, transport: Arc::new(TransportConfig::default()) }
}

/// What the network does to datagrams, each with a probability.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) one_way: Duration,
    pub(super) loss: f64,
    /// One octet among the first 50 is changed.
    pub(super) corruption: f64,
    pub(super) duplication: f64,
    /// Delivered later by up to the one-way delay.
    pub(super) reordering: f64,
}

impl Network {
    pub(super) fn clean(one_way_ms: u64) -> Self {
        Self {
            one_way: Duration::from_millis(one_way_ms),
            loss: 0.0,
            corruption: 0.0,
            duplication: 0.0,
            reordering: 0.0,
        }
    }
}

pub(super) struct Pair {
    pub(super) now: Timestamp,
    pub(super) client: Handshake,
    pub(super) server: Option<Handshake>,
    pub(super) crypto: ServerCrypto,
    pub(super) network: Network,
    /// The server asks for a proof of address.
    pub(super) ask: bool,
    pub(super) full: bool,
    pub(super) remote: SocketAddr,
    pub(super) client_error: Option<HandshakeError>,
    pub(super) server_error: Option<HandshakeError>,
    pub(super) client_done: Option<Timestamp>,
    pub(super) server_done: Option<Timestamp>,
    pub(super) retries: u32,
    pub(super) sent_by_client: Vec<usize>,
    pub(super) sent_by_server: Vec<usize>,
    server_received: usize,
    server_sent: usize,
    next_done: Option<Timestamp>,
    under_way: BTreeMap<(Timestamp, u64), (bool, Vec<u8>)>,
    serial: u64,
    rng: ChaCha8Rng,
    seed: [u8; 32],
}

impl Pair {
    pub(super) fn new(security: Security, trust: PeerTrust, network: Network, seed: u64) -> Self {
        Self::with(security, &client_config(trust), identity().clone(), network, seed)
    }

    pub(super) fn with(
        security: Security,
        client: &ClientConfig,
        identity: Identity,
        network: Network,
        seed: u64,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut seeds = [[0; 32]; 3];
        seeds.iter_mut().for_each(|seed| rng.fill_bytes(seed));
        let parameters = TransportParameters { code_seed: 1, ..TransportParameters::default() };
        let client = Handshake::client(
            Timestamp::ZERO,
            client,
            "bats.example",
            security,
            parameters,
            CLIENT_CID,
            seeds[0],
        )
        .unwrap();
        Self {
            now: Timestamp::ZERO,
            client,
            server: None,
            crypto: ServerCrypto::new(&server_config(identity), security, seeds[1]).unwrap(),
            network,
            ask: false,
            full: false,
            remote: SocketAddr::from(([192, 0, 2, 1], 4_000)),
            client_error: None,
            server_error: None,
            client_done: None,
            server_done: None,
            retries: 0,
            sent_by_client: Vec::new(),
            sent_by_server: Vec::new(),
            server_received: 0,
            server_sent: 0,
            next_done: None,
            under_way: BTreeMap::new(),
            serial: 0,
            rng,
            seed: seeds[2],
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        (self.rng.next_u32() as f64) < probability * 4_294_967_296.0
    }

    pub(super) fn inject(&mut self, to_server: bool, datagram: Vec<u8>) {
        let copies = if self.chance(self.network.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            if self.chance(self.network.loss) {
                continue;
            }
            let mut datagram = datagram.clone();
            if self.chance(self.network.corruption) {
                let at = self.rng.next_u32() as usize % datagram.len().min(50);
                datagram[at] ^= (self.rng.next_u32() as u8).max(1);
            }
            let mut at = self.now + self.network.one_way;
            if self.chance(self.network.reordering) {
                at += self.network.one_way * (self.rng.next_u32() % 100) / 100;
            }
            self.serial += 1;
            self.under_way.insert((at, self.serial), (to_server, datagram));
        }
    }

    /// Both ends say what they have to say now.
    pub(super) fn flush(&mut self) {
        let mut buffer = [0; 1_500];
        while let Some(len) = self.client.poll_datagram(self.now, &mut buffer, usize::MAX) {
            self.sent_by_client.push(len);
            self.inject(true, buffer[..len].to_vec());
        }
        loop {
            let allowance = (3 * self.server_received).saturating_sub(self.server_sent);
            let Some(server) = &mut self.server else { break };
            let Some(len) = server.poll_datagram(self.now, &mut buffer, allowance) else { break };
            if !server.is_address_validated() {
                assert!(len <= allowance, "amplified");
            }
            self.server_sent += len;
            self.sent_by_server.push(len);
            self.inject(false, buffer[..len].to_vec());
        }
        // Stands for HANDSHAKE_DONE in data packets, repeated by the link.
        if self.next_done.is_some_and(|at| at <= self.now) {
            self.next_done = Some(self.now + Duration::from_millis(60));
            self.inject(false, vec![0x40; 60]);
        }
    }

    fn close(&mut self, from_client: bool, error: HandshakeError) {
        let mut buffer = Vec::new();
        if from_client {
            self.client.write_close(&error.to_string(), &mut buffer);
            self.client_error = Some(error);
        } else if let Some(server) = &mut self.server {
            server.write_close(&error.to_string(), &mut buffer);
            self.server_error = Some(error);
        }
        if !buffer.is_empty() {
            self.inject(from_client, buffer);
        }
    }

    fn deliver_to_server(&mut self, mut datagram: Vec<u8>) {
        if self.server.is_some() {
            self.server_received += datagram.len();
        } else {
            match parse_first(&datagram) {
                Some(FirstPacket::Initial(initial)) => {
                    let (full, ask) = (self.full, self.ask);
                    match self.crypto.start(self.now, self.remote, &initial, full, ask) {
                        ServerStart::Accept(accepted) => {
                            let parameters =
                                TransportParameters { code_seed: 2, ..Default::default() };
                            let server = Handshake::server(
                                self.now,
                                &self.crypto,
                                parameters,
                                SERVER_CID,
                                &accepted,
                                self.seed,
                            );
                            self.server = Some(server.unwrap());
                            self.server_received += datagram.len();
                        }
                        ServerStart::Answer(answer) => {
                            assert!(answer.len() <= datagram.len());
                            self.retries += 1;
                            return self.inject(false, answer);
                        }
                        ServerStart::Drop => return,
                    }
                }
                _ => return,
            }
        }
        let Some(server) = &mut self.server else { return };
        if self.server_error.is_some() || datagram[0] & 0x80 == 0 {
            return;
        }
        match server.handle_datagram(self.now, &mut datagram) {
            Ok(()) => {
                if server.is_complete() && self.server_done.is_none() {
                    self.server_done = Some(self.now);
                    self.next_done = Some(self.now);
                }
            }
            Err(error) => self.close(false, error),
        }
    }

    fn deliver_to_client(&mut self, mut datagram: Vec<u8>) {
        if self.client_error.is_some() {
            return;
        }
        if datagram[0] & 0x80 == 0 {
            if self.client.is_complete() {
                self.client.confirm();
                self.next_done = None;
            }
            return;
        }
        match self.client.handle_datagram(self.now, &mut datagram) {
            Ok(()) => {
                if self.client.is_complete() && self.client_done.is_none() {
                    self.client_done = Some(self.now);
                }
            }
            Err(error) => self.close(true, error),
        }
    }

    /// Goes on to the next thing that happens; `false` when nothing will.
    pub(super) fn step(&mut self) -> bool {
        self.flush();
        let arrival = self.under_way.first_key_value().map(|(&(at, _), _)| at);
        let times = [
            arrival,
            self.client.next_timeout().filter(|_| self.client_error.is_none()),
            self.server.as_ref().and_then(Handshake::next_timeout),
            self.next_done,
        ];
        let Some(next) = times.into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= self.now
        {
            let (to_server, datagram) = entry.remove();
            if to_server {
                self.deliver_to_server(datagram);
            } else {
                self.deliver_to_client(datagram);
            }
        }
        self.client.handle_timeout(self.now);
        if let Some(server) = &mut self.server {
            server.handle_timeout(self.now);
        }
        !self.client.has_timed_out(self.now)
    }

    /// Runs until both ends are complete and the client knows it, or one has failed, or time is up.
    /// Returns when both were complete.
    pub(super) fn run(&mut self) -> Option<Duration> {
        for _ in 0..100_000 {
            let failed = self.client_error.is_some() || self.server_error.is_some();
            let silent = self.under_way.is_empty();
            if !self.step() || failed && silent {
                break;
            }
            if self.client_done.is_some() && self.server_done.is_some() && self.next_done.is_none()
            {
                break;
            }
        }
        let done = self.client_done?.max(self.server_done?);
        Some(done - Timestamp::ZERO)
    }

    pub(super) fn server(&mut self) -> &mut Handshake {
        self.server.as_mut().expect("the server has begun")
    }
}
