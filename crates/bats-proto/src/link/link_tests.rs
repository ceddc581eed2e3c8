//! Two links without an endpoint. Real TLS; the sessions above them are stubs.

use core::time::Duration;
use std::sync::Arc;

use bats_types::Timestamp;

use super::*;
use crate::config::{ClientConfig, PeerTrust, Security, ServerConfig};
use crate::crypto::generate_identity;
use crate::datagram::Local;
use crate::handshake::{FirstPacket, Protection, ServerCrypto, ServerStart, parse_first};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// Delay of the path in one direction.
const DELAY: Duration = Duration::from_millis(5);
const CODED: &[u8] = b"a coded payload";

/// A session that records what its link does.
#[derive(Debug, Default)]
struct StubSession {
    /// Coded payloads to send.
    coded: u32,
    /// Control frames to send; those that are lost are sent again.
    control: Option<SessionFrames>,
    last_control: SessionFrames,
    /// What is answered for a data packet, if it is not taken.
    refusal: Option<Result<bool, SessionFailure>>,
    /// Data packets that it was asked to take.
    offered: u32,
    received: Vec<Vec<u8>>,
    credits: Vec<u64>,
    lost_credits: u32,
    is_closed_by_peer: bool,
    closed: Option<CloseReason>,
}

impl LinkSession for StubSession {
    fn has_data(&self) -> bool {
        self.coded > 0
    }

    fn awaits_decoding(&self) -> bool {
        false
    }

    fn next_coded(
        &mut self,
        _: Timestamp,
        _: u16,
        _: &PathView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        self.coded = self.coded.checked_sub(1)?;
        out.extend_from_slice(CODED);
        Some(PacketKind::Source)
    }

    fn is_control_due(&mut self, _: Timestamp) -> bool {
        self.control.is_some()
    }

    fn is_end_due(&self) -> bool {
        false
    }

    fn next_control(&mut self, _: Timestamp, _: LinkRtt) -> SessionFrames {
        let frames = self.control.take().unwrap_or_default();
        if frames.is_ack_eliciting() {
            self.last_control = frames.clone();
        }
        frames
    }

    fn last_feedback(&mut self, _: Timestamp, _: LinkRtt) -> Option<RankFeedback> {
        None
    }

    fn on_nothing_sent(&mut self, _: impl FnOnce() -> LinkCapacity) {}

    fn may_take_packet(&mut self, _: Timestamp) -> Result<bool, SessionFailure> {
        self.offered += 1;
        self.refusal.clone().unwrap_or(Ok(true))
    }

    fn on_coded(
        &mut self,
        _: Timestamp,
        _: PacketKind,
        payload: &[u8],
        _: LinkRtt,
    ) -> Result<(), SessionFailure> {
        self.received.push(payload.to_vec());
        Ok(())
    }

    fn max_payload(&self) -> usize {
        0
    }

    fn may_read_ranks(&self, _: Timestamp) -> bool {
        true
    }

    fn on_frame(&mut self, _: Timestamp, frame: SessionFrame) -> Result<(), SessionFailure> {
        if let SessionFrame::Credit(symbols) = frame {
            self.credits.push(symbols);
        }
        Ok(())
    }

    fn on_end_acknowledged(&mut self) {}

    fn on_lost(&mut self, credit: bool, _: bool) {
        if credit {
            self.lost_credits += 1;
            self.control = Some(self.last_control.clone());
        }
    }

    fn on_probe_timeout(&mut self, _: u64) -> bool {
        false
    }

    fn on_path_lost(&mut self, _: Timestamp, _: &PathView, _: bool) {}

    fn report_soon(&mut self) {}

    fn handle_timeout(&mut self, _: Timestamp, _: &PathView) {}

    fn next_timeout(&self, _: bool) -> Option<Timestamp> {
        None
    }

    fn trim(&mut self) {}

    fn on_accepted(&mut self) {}

    fn on_closed_by_peer(&mut self) {
        self.is_closed_by_peer = true;
    }

    fn on_closed(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// A link and the stub above it.
#[derive(Debug)]
struct End {
    link: Link,
    session: StubSession,
}

impl End {
    fn new(
        now: Timestamp,
        (role, handshake): (Role, Handshake),
        remote: Remote,
        local_cid: [u8; 4],
    ) -> Self {
        let setup = LinkSetup {
            role,
            medium: Medium::Network,
            config: Arc::new(TransportConfig::default()),
            remote,
            local: Local::default(),
            local_cid,
            handshake,
            seed: [5; 32],
        };
        Self { link: Link::new(now, setup), session: StubSession::default() }
    }

    /// The datagrams that are sent now, at most a hundred.
    fn datagrams(&mut self, now: Timestamp) -> Vec<Vec<u8>> {
        let (mut buffer, mut datagrams) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let sent = self.link.poll_transmit(now, &mut buffer, &mut self.session, None);
            let Some(transmit) = sent else { break };
            datagrams.extend(buffer.chunks(transmit.segment_size).map(<[u8]>::to_vec));
        }
        datagrams
    }

    fn take(&mut self, now: Timestamp, datagram: &mut [u8]) {
        if datagram[0] & 0x80 == 0 {
            let from = (self.link.remote(), None);
            self.link.handle_packet(now, from, datagram, false, &mut self.session);
        } else if self.link.handle_handshake_datagram(now, datagram, &mut self.session) {
            self.link.install_keys(now);
            if self.link.is_handshaking() && self.link.handshake().is_complete() {
                self.establish(now);
            }
        }
    }

    fn establish(&mut self, now: Timestamp) {
        let (parameters, remote_cid) = self.link.peer().expect("the handshake is complete");
        self.link.set_remote_cid(remote_cid);
        self.link.establish(now, &parameters, CongestionAlgorithm::None);
        match self.link.role() {
            Role::Client => self.link.confirm_to_server(),
            Role::Server => self.link.confirm_to_client(),
        }
        self.link.handle_early(now, &mut self.session);
    }
}

fn remote(ip: [u8; 4], port: u16) -> Remote {
    Remote::Network((ip, port).into())
}

/// Both ends of a path without loss.
#[derive(Debug)]
struct Pair {
    now: Timestamp,
    client: End,
    server: End,
}

impl Pair {
    /// Two links that are established.
    fn established() -> Self {
        let now = Timestamp::from_millis(1_000);
        let transport = Arc::new(TransportConfig::default());
        let addresses = [1, 2].map(|host| remote([10, 0, 0, host], 4_000));
        let client = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::clone(&transport),
        };
        let server = ServerConfig {
            identity: generate_identity(&["server".to_owned()]).expect("an identity"),
            client_trust: None,
            transport,
            retry_threshold: 100,
            max_connections: 10,
        };
        let (to, parameters) = ((addresses[1], "server"), TransportParameters::default);
        let handshake = Handshake::client(
            now,
            &client,
            to,
            Protection::Handshake(Security::Tls),
            parameters(),
            [1; 4],
            [3; 32],
        )
        .expect("a configuration");
        let mut client = End::new(now, (Role::Client, handshake), addresses[1], [1; 4]);
        let mut flight = client.datagrams(now);
        let Some(FirstPacket::Initial(initial)) = parse_first(&flight[0]) else {
            panic!("a first flight")
        };
        let crypto = ServerCrypto::new(&server, Security::Tls, [9; 32]).expect("a configuration");
        let ServerStart::Accept(start) = crypto.start(now, addresses[0], &initial, false, false)
        else {
            panic!("it is accepted")
        };
        let handshake =
            Handshake::server(now, &crypto, parameters(), [2; 4], &start, false, [4; 32])
                .expect("a session");
        let mut server = End::new(now, (Role::Server, handshake), addresses[0], [2; 4]);
        for datagram in &mut flight {
            assert!(server.link.on_datagram(datagram.len()));
            server.take(now, datagram);
        }
        let mut pair = Self { now, client, server };
        for _ in 0..20 {
            pair.exchange();
        }
        assert!(pair.client.link.handshake().is_confirmed());
        assert!(pair.client.link.was_validated() && pair.server.link.was_validated());
        pair
    }

    /// What both ends send now arrives at the other one.
    fn exchange(&mut self) {
        let to_server = self.client.datagrams(self.now);
        let to_client = self.server.datagrams(self.now);
        self.now += DELAY;
        for (end, datagrams) in [(&mut self.server, to_server), (&mut self.client, to_client)] {
            for mut datagram in datagrams {
                if end.link.on_datagram(datagram.len()) {
                    end.take(self.now, &mut datagram);
                }
            }
            end.link.handle_timeout(self.now, &mut end.session);
        }
    }
}

/// Packets of the statistics whose number was a duplicate.
fn replayed(link: &Link) -> u64 {
    let mut stats = ConnectionStats::default();
    link.add_stats(&mut stats);
    stats.packets.replayed
}

#[test]
fn close_of_a_link_reaches_the_peer_and_its_session() {
    let mut pair = Pair::established();
    let End { link, session } = &mut pair.client;
    link.begin_close(pair.now, true, 7, "bye", CloseReason::Local, session);
    assert_eq!(session.closed, Some(CloseReason::Local));
    assert!(!link.is_open() && !link.is_dead(), "it answers late packets");
    pair.exchange();
    let End { link, session } = &pair.server;
    assert!(link.is_dead() && session.is_closed_by_peer);
    assert_eq!(session.closed, Some(CloseReason::Peer { code: 7, reason: "bye".to_owned() }));
}

#[test]
fn a_packet_that_the_session_refuses_counts_as_lost_and_is_no_duplicate() {
    let mut pair = Pair::established();
    pair.client.session.coded = 1;
    let mut sent = pair.client.datagrams(pair.now);
    assert_eq!(sent.len(), 1);
    let End { link, session } = &mut pair.server;
    let before = link.counters.packets_received();
    session.refusal = Some(Ok(false));
    pair.server.take(pair.now, &mut sent[0].clone());
    assert_eq!(pair.server.link.counters.packets_received(), before);
    assert!(pair.server.session.received.is_empty());
    pair.server.session.refusal = None;
    pair.server.take(pair.now, &mut sent[0].clone());
    pair.server.take(pair.now, &mut sent[0]);
    assert_eq!(pair.server.session.received, [CODED]);
    assert_eq!(replayed(&pair.server.link), 1);
}

#[test]
fn a_session_that_cannot_go_on_closes_the_link_with_its_reason() {
    let mut pair = Pair::established();
    pair.server.session.refusal = Some(Err(SessionFailure::Memory(9)));
    pair.client.session.coded = 1;
    pair.exchange();
    assert_eq!(pair.server.session.closed, Some(CloseReason::Memory(9)));
    pair.exchange();
    let reason = CloseReason::ReportedByPeer(CloseReason::Memory(9).to_string());
    assert_eq!(pair.client.session.closed, Some(reason));
}

#[test]
fn lost_credit_is_given_back_to_the_session_and_sent_again() {
    let mut pair = Pair::established();
    pair.client.session.control =
        Some(SessionFrames { credit: Some(40), ..SessionFrames::default() });
    assert!(!pair.client.datagrams(pair.now).is_empty(), "these packets are lost");
    for _ in 0..200 {
        pair.exchange();
    }
    assert_eq!(pair.client.session.lost_credits, 1);
    assert_eq!(pair.server.session.credits, [40]);
}

/// It does not reach the session, even if the session would refuse a new packet.
#[test]
fn a_replayed_packet_changes_nothing_above_the_link() {
    let mut pair = Pair::established();
    pair.client.session.coded = 1;
    let mut sent = pair.client.datagrams(pair.now);
    pair.server.take(pair.now, &mut sent[0].clone());
    let last_received = |pair: &Pair| pair.server.link.activity.last_received_at();
    let (offered, before) = (pair.server.session.offered, last_received(&pair));
    pair.server.session.refusal = Some(Err(SessionFailure::Memory(9)));
    pair.server.take(pair.now + DELAY * 40, &mut sent[0]);
    assert_eq!((pair.server.session.offered, replayed(&pair.server.link)), (offered, 1));
    assert_eq!((last_received(&pair), pair.server.session.closed), (before, None));
}

/// A client that changes its port with each packet makes the server forget what is in flight once in a probe timeout.
#[test]
fn packets_in_flight_stay_in_the_window_when_the_port_changes_again() {
    let mut pair = Pair::established();
    let changes = |pair: &mut Pair, port: u16| {
        pair.client.session.coded = 1;
        pair.server.session.coded = 10;
        let mut sent = pair.client.datagrams(pair.now);
        // None of these arrives.
        pair.server.datagrams(pair.now);
        let before = pair.server.link.sent.bytes_in_flight();
        let from = (remote([10, 0, 0, 1], port), None);
        let End { link, session } = &mut pair.server;
        link.handle_packet(pair.now, from, &mut sent[0], false, session);
        (before, link.sent.bytes_in_flight())
    };
    let (before, after) = changes(&mut pair, 5_000);
    assert!(before > 0 && after == 0, "{before} bytes, {after} after a new port");
    // The new port is validated.
    (0..2).for_each(|_| pair.exchange());
    assert!(!pair.server.link.path.is_unvalidated());
    let (before, after) = changes(&mut pair, 6_000);
    assert!(before > 0 && after == before, "{before} bytes, {after} after another port");
}

/// Then RTT, loss estimate, path MTU and congestion control start again, for which old packets must not count.
#[test]
fn packets_in_flight_are_abandoned_with_each_move_to_another_host() {
    let mut pair = Pair::established();
    for host in [7, 8, 9] {
        // One address is validated in a probe timeout.
        pair.now += Duration::from_millis(200);
        pair.server.session.coded = 10;
        pair.server.datagrams(pair.now);
        assert!(pair.server.link.sent.bytes_in_flight() > 0);
        pair.client.session.coded = 1;
        let mut sent = pair.client.datagrams(pair.now);
        let from = (remote([10, 0, 1, host], 4_000), None);
        let End { link, session } = &mut pair.server;
        link.handle_packet(pair.now, from, &mut sent[0], false, session);
        assert_ne!(link.remote(), from.0, "it is not validated");
        for mut challenge in pair.server.datagrams(pair.now) {
            pair.client.take(pair.now, &mut challenge);
        }
        for mut response in pair.client.datagrams(pair.now) {
            let End { link, session } = &mut pair.server;
            link.handle_packet(pair.now, from, &mut response, false, session);
        }
        assert_eq!(pair.server.link.remote(), from.0);
        assert_eq!(pair.server.link.sent.bytes_in_flight(), 0, "host {host}");
    }
}

/// A client knows its server's address, and old packets may come from where the client was before.
#[test]
fn only_servers_follow_the_newest_packet_to_another_address() {
    let mut pair = Pair::established();
    let other = (remote([10, 0, 0, 1], 5_000), None);
    pair.server.session.coded = 1;
    let mut to_client = pair.server.datagrams(pair.now);
    let (before, servers) = (pair.client.link.remote(), remote([10, 0, 0, 2], 5_000));
    let End { link, session } = &mut pair.client;
    link.handle_packet(pair.now, (servers, None), &mut to_client[0], false, session);
    assert_eq!((session.received.len(), link.remote()), (1, before), "the client stays");

    let mut packets = Vec::new();
    for _ in 0..2 {
        pair.client.session.coded = 1;
        packets.extend(pair.client.datagrams(pair.now));
    }
    let before = pair.server.link.remote();
    let newest = packets.last_mut().expect("two packets");
    pair.server.take(pair.now, newest);
    let End { link, session } = &mut pair.server;
    link.handle_packet(pair.now, other, &mut packets[0], false, session);
    assert_eq!((session.received.len(), link.remote()), (2, before), "an older packet");
}
