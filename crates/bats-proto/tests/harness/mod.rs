//! A server and a misbehaving client, in virtual time. The plain-text TLS stand-in lets a test seal
//! any packet.

// Each test that shares this module needs only a part of it.
#![allow(dead_code, reason = "shared by several tests")]

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::fuzzing::{MisbehavingClient, open_short};
use bats_proto::wire::frame::{self, AckHeader, Frame};
use bats_proto::wire::parameters::{ChannelParameters, TransportParameters};
use bats_proto::wire::short_header::{PacketKind, ShortHeader};
use bats_proto::wire::varint::{Reader, Writer};
use bats_proto::{
    CloseReason, CongestionAlgorithm, ConnectionHandle, ConnectionStats, Endpoint, EndpointConfig,
    Event, Identity, Input, Output, Received, ServerConfig, Timestamp, TransportConfig,
};
use bytes::Bytes;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Calls the work that it gets, which is a call of the server, and may count what it does.
pub(crate) type Around = fn(&mut dyn FnMut());

/// Is around each call of the server, if a test sets it.
pub(crate) static AROUND_SERVER: OnceLock<Around> = OnceLock::new();

/// Does a call of the server.
pub(crate) fn in_server<T>(mut work: impl FnMut() -> T) -> T {
    let Some(around) = AROUND_SERVER.get() else { return work() };
    let mut result = None;
    around(&mut || result = Some(work()));
    result.expect("the work was done")
}

/// A server and a client that sends what the test passes. Datagrams have no delay.
pub(crate) struct Harness {
    pub(crate) now: Timestamp,
    pub(crate) server: Endpoint,
    pub(crate) client: MisbehavingClient,
    pub(crate) handle: Option<ConnectionHandle>,
    /// Datagrams that the server sent and the test has not taken yet.
    pub(crate) received: Vec<Vec<u8>>,
    pub(crate) closed: Option<CloseReason>,
    /// Address of the client.
    pub(crate) remote: SocketAddr,
    /// Destination of the server's last datagram.
    pub(crate) last_to: Option<SocketAddr>,
    /// Bytes of the largest message that the server sent.
    pub(crate) largest_sent: usize,
}

pub(crate) fn transport() -> TransportConfig {
    TransportConfig { congestion: CongestionAlgorithm::None, ..TransportConfig::default() }
}

pub(crate) fn server(
    transport: TransportConfig,
    retry_threshold: usize,
    max_connections: usize,
) -> Endpoint {
    let identity = Identity { certificate_chain: Vec::new(), private_key: Vec::new() };
    let transport = Arc::new(transport);
    let server =
        ServerConfig { identity, client_trust: None, transport, retry_threshold, max_connections };
    let security = Security::DangerousPlain;
    let config = EndpointConfig { security, server: Some(server), ..EndpointConfig::default() };
    let mut config = Some(config);
    in_server(|| Endpoint::new(config.take().expect("done once"), [2; 32]).unwrap())
}

impl Harness {
    /// After a valid handshake.
    pub(crate) fn established(transport: TransportConfig) -> Self {
        Self::with_credit(transport, 1 << 20)
    }

    /// After a handshake in which the client announced this initial credit in symbols.
    pub(crate) fn with_credit(transport: TransportConfig, initial_credit: u64) -> Self {
        let mode = transport.mode as u8;
        let channels = transport.channels.map(|channels| ChannelParameters {
            channels: u64::from(channels),
            channel_credit: 1 << 20,
            session_credit: 1 << 20,
            message_credit: 1 << 20,
        });
        let mut harness = Self {
            now: Timestamp::from_millis(1_000),
            server: server(transport, 1_000, 10),
            client: MisbehavingClient::new(1),
            handle: None,
            received: Vec::new(),
            closed: None,
            remote: Self::address(),
            last_to: None,
            largest_sent: 0,
        };
        let parameters = TransportParameters {
            initial_credit,
            connection_id: harness.client.cid(),
            mode,
            channels,
            ..TransportParameters::default()
        };
        let first = harness.client.first_flight(&parameters.encode(0), &[]);
        harness.deliver(first);
        harness.advance(MS * 20);
        let finished = harness.client.finished().unwrap();
        harness.deliver(finished);
        assert!(harness.handle.is_some(), "the handshake is complete");
        harness
    }

    pub(crate) fn address() -> SocketAddr {
        MisbehavingClient::address(1)
    }

    /// Delivers a datagram of the client to the server.
    pub(crate) fn deliver(&mut self, mut datagram: Vec<u8>) {
        let remote = self.remote;
        in_server(|| {
            let payload = &mut datagram[..];
            let received = Received { remote, local_ip: None, ecn: 0, payload };
            self.server.handle(self.now, Input::Datagram(received));
        });
        self.settle();
    }

    pub(crate) fn settle(&mut self) {
        let mut buffer = Vec::with_capacity(65_536);
        loop {
            match in_server(|| self.server.poll(self.now, &mut buffer)) {
                Output::Transmit(transmit) => {
                    self.last_to = Some(transmit.remote);
                    for datagram in buffer.chunks(transmit.segment_size) {
                        self.client.learn(datagram);
                        self.received.push(datagram.to_vec());
                    }
                }
                Output::Event(handle, Event::Accepted) => self.handle = Some(handle),
                Output::Event(_, Event::Closed(reason)) => self.closed = Some(reason),
                Output::Event(..) => {}
                Output::Timeout(_) => break,
            }
        }
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += MS;
            in_server(|| self.server.handle(self.now, Input::Timeout));
            self.settle();
        }
    }

    /// Sends a packet of the client.
    pub(crate) fn send_packet(
        &mut self,
        kind: PacketKind,
        write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
    ) {
        let datagram = written(&mut self.client, kind, write);
        self.deliver(datagram);
    }

    pub(crate) fn send_frame(&mut self, frame: &Frame<'_>) {
        self.send_packet(PacketKind::Control, |writer| frame::encode(writer, frame));
    }

    pub(crate) fn send_ack(&mut self, received_at: Timestamp, ranges: &[(u64, u64)]) {
        let header =
            AckHeader { largest: ranges[0].1, delay: Duration::ZERO, received_at, ce_count: 0 };
        self.send_packet(PacketKind::Control, |writer| frame::encode_ack(writer, &header, ranges));
    }

    pub(crate) fn send_from_server(&mut self, bytes: usize) {
        assert!(self.try_send_from_server(bytes), "there is space in the send buffer");
    }

    /// Returns whether there was space in the send buffer.
    pub(crate) fn try_send_from_server(&mut self, bytes: usize) -> bool {
        self.largest_sent = self.largest_sent.max(bytes);
        let is_sent = in_server(|| {
            let message = Bytes::from(vec![7; bytes]);
            self.server.send(self.now, self.handle.unwrap(), message).is_ok()
        });
        self.settle();
        is_sent
    }

    pub(crate) fn stats(&self) -> ConnectionStats {
        self.server.stats(self.now, self.handle.unwrap()).unwrap()
    }

    /// Takes the datagrams received. Returns packet numbers and kinds of the data packets.
    pub(crate) fn take_packets(&mut self) -> Vec<(u64, PacketKind)> {
        let headers = self.received.drain(..).filter_map(|datagram| ShortHeader::decode(&datagram));
        headers.map(|header| (u64::from(header.packet_number), header.kind)).collect()
    }

    /// The path challenge in the datagrams received.
    pub(crate) fn challenge(&self) -> Option<u64> {
        self.received.iter().find_map(|datagram| {
            let (header, payload) = open_short(false, 0, datagram)?;
            let mut reader = Reader::new(&payload);
            while header.kind == PacketKind::Control
                && let Ok(Some(frame)) = frame::decode(&mut reader, &mut Vec::new())
            {
                if let Frame::PathChallenge(challenge) = frame {
                    return Some(challenge);
                }
            }
            None
        })
    }

    pub(crate) fn violation(&self) -> &str {
        match &self.closed {
            Some(CloseReason::PeerMisbehaved(rule)) => rule,
            other => panic!("not closed for a protocol violation: {other:?}"),
        }
    }
}

/// A packet of the client with the payload that `write` writes.
pub(crate) fn written(
    client: &mut MisbehavingClient,
    kind: PacketKind,
    write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
) -> Vec<u8> {
    let mut payload = [0; 1_440];
    let mut writer = Writer::new(&mut payload);
    write(&mut writer).unwrap();
    let len = writer.written();
    client.packet(kind, &payload[..len]).unwrap()
}
