//! One QUIC connection and the session on its stream.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bats_proto::crypto::describe_alert;
use bats_proto::stream::Session;
use bats_proto::{
    CloseReason, CongestionStats, ConnectionStats, PacketStats, PathStats, SendError, Timestamp,
};
use bats_types::STUCK_TIMER;
use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, Dir, Event, FrameStats, ReadError, StreamEvent, StreamId,
    VarInt, WriteError,
};

use super::datagrams::Datagrams;
use super::peer_reachability::PeerReachability;
use super::settings::Controller;
use super::tls_session::PeerFingerprint;
use super::watch::Counts;

/// Bytes that are framed at a time.
const FRAME_BATCH: usize = 64 << 10;
/// The close code for protocol violations; codes of applications are smaller.
const VIOLATION: VarInt = VarInt::MAX;

/// Frames of a peer that are allowed in addition to those for its packets. Chosen, as the limits below.
const FRAME_BURST: u64 = 512;
/// Frames for each packet on average, without datagrams, each of which is a message. A packet of 1,200 bytes can
/// hold more than a thousand, and each costs as much as 40 bytes of data.
const FRAMES_PER_PACKET: u64 = 8;
const TOO_MANY_FRAMES: &str = "too many QUIC frames for the number of packets";
/// Keys made in advance for a peer: the first ones of a handshake, then one for each key update. An update costs as much as
/// 17 packets of data, and a correct peer makes one after many thousands, `quinn-proto` the first after up to a thousand.
const KEY_UPDATE_BURST: u64 = 32;
/// One more for each of so many bytes received.
const KEY_UPDATE_BYTES: u64 = 1 << 20;
const TOO_MANY_KEY_UPDATES: &str = "too many QUIC key updates for the bytes received";
/// Ranges of acknowledgements that are allowed in addition to those for packets.
const ACK_RANGE_BURST: u64 = 4_096;
/// Ranges for each packet on average: as many as `quinn-proto` sends in one. A packet has room for more than 500.
const ACK_RANGES_PER_PACKET: u64 = 64;
const TOO_MANY_ACK_RANGES: &str =
    "too many ranges of QUIC acknowledgements for the number of packets";

/// Packets after the last acknowledged one. `quinn-proto` keeps records of 200 bytes for packets that only acknowledge, a
/// thousand for each other packet, and would do so until the congestion window is full. Chosen: as many are in flight at
/// 15 Gbit/s and 100 ms.
const UNACKNOWLEDGED: u64 = 131_072;
/// After so many the peer gets a PING, because it acknowledges no packets that only acknowledge.
const PING_INTERVAL: u64 = 16_384;
const ACKNOWLEDGES_NOTHING: &str = "QUIC packets are not acknowledged";
/// Connection IDs that a peer may retire in addition to those that it was sent. `quinn-proto` issues another one for each that
/// is retired, and keeps those that it cannot send.
const RETIRED_IDS: u64 = 64;
const TOO_MANY_RETIRED_IDS: &str = "more QUIC connection IDs are retired than were issued";
/// Bytes that a client may send before the handshake is complete: several times a ClientHello and a chain of certificates.
/// `quinn-proto` keeps packets for the pieces of TLS messages in them.
const HANDSHAKE_BYTES: u64 = 64 << 10;
const TOO_MANY_HANDSHAKE_BYTES: &str = "too many bytes before the QUIC handshake is complete";
/// A connection with datagrams has messages in datagrams only, which have the receive budget for themselves.
const MESSAGE_ON_STREAM: &str = "message on the stream of a connection with QUIC datagrams";

/// QUIC's codes of TLS alerts start here (RFC 9000 section 20.1).
const CRYPTO_ERROR: u64 = 0x100;

/// The error at both ends if only one of them enables datagrams.
const DATAGRAM_MISMATCH: &str =
    "only one side has QUIC datagrams enabled: enable them on both or on neither";

/// The text for a TLS alert about the certificate of the end that receives it (RFC 9001 section 4.8).
fn alert_text(code: quinn_proto::TransportErrorCode, is_client: bool) -> Option<String> {
    let alert = u64::from(code).checked_sub(CRYPTO_ERROR)?;
    describe_alert(u8::try_from(alert).ok()?, is_client)
}

pub(super) struct Connection {
    pub(super) handle: ConnectionHandle,
    pub(super) quic: quinn_proto::Connection,
    pub(super) session: Session,
    /// Set if messages go as datagrams instead of the stream. Boxed, because most connections have none.
    pub(super) datagrams: Option<Box<Datagrams>>,
    /// Address of the peer. Follows migrations as soon as the connection is not half-open.
    pub(super) remote: SocketAddr,
    /// Counted as half-open.
    pub(super) is_counted: bool,
    pub(super) armed: Option<Timestamp>,
    pub(super) reachability: PeerReachability,
    /// What the peer's packets have caused.
    pub(super) counted: Counts,
    /// Datagrams that were sent before the last PING.
    last_ping: u64,
    pub(super) is_server: bool,
    controller: Controller,
    stream: Option<StreamId>,
    /// Framed bytes; those before `written` are sent.
    framed: Vec<u8>,
    written: usize,
    /// The stream is blocked.
    is_full: bool,
    /// Code and text of the application for CONNECTION_CLOSE. Boxed, because open connections have none.
    application_close: Option<Box<(VarInt, String)>>,
    is_closed: bool,
    /// A defect for tests: a timer that nothing handles.
    #[cfg(test)]
    pub(super) stuck: Option<Timestamp>,
}

impl Connection {
    pub(super) fn new(
        handle: ConnectionHandle,
        quic: quinn_proto::Connection,
        session: Session,
        datagrams: Option<Box<Datagrams>>,
        remote: SocketAddr,
        (is_server, controller): (bool, Controller),
    ) -> Self {
        Self {
            datagrams,
            handle,
            quic,
            session,
            remote,
            is_counted: is_server,
            armed: None,
            reachability: PeerReachability::default(),
            counted: Counts::default(),
            last_ping: 0,
            is_server,
            controller,
            stream: None,
            framed: Vec::new(),
            written: 0,
            is_full: false,
            application_close: None,
            is_closed: false,
            #[cfg(test)]
            stuck: None,
        }
    }

    pub(super) fn is_half_open(&self) -> bool {
        self.is_server && !self.session.is_open() && !self.session.is_closed()
    }

    /// Whether this is a client that no server has answered yet.
    pub(super) fn is_unanswered(&self) -> bool {
        !self.is_server && self.quic.is_handshaking() && self.quic.stats().udp_rx.datagrams == 0
    }

    /// Sets what CONNECTION_CLOSE will say.
    fn set_close(&mut self, code: VarInt, text: &str) {
        self.application_close = Some(Box::new((code, text.to_owned())));
    }

    pub(super) fn close(&mut self, code: u64, reason: &str) {
        if !self.session.is_closed() {
            let code = code.min(VIOLATION.into_inner() - 1);
            self.set_close(VarInt::from_u64(code).unwrap_or(VIOLATION), reason);
            self.session.close(code, reason);
        }
    }

    /// A timer stays due although it was handled: closes the connection. Returns whether it was open.
    pub(super) fn on_stuck_timer(&mut self) -> bool {
        let was_open = !self.session.is_closed();
        if was_open {
            self.set_close(VIOLATION, STUCK_TIMER);
            self.session.on_stuck_timer();
        }
        was_open
    }

    /// Closes the connection of a peer whose packets cost too much work.
    pub(super) fn limit_work(&mut self) {
        let is_half_open = self.is_server && self.quic.is_handshaking();
        let stats = self.quic.stats();
        let excess = excess(&stats, self.counted, is_half_open);
        if let Some(reason) = excess {
            self.end_misbehaving(reason);
        }
        let sent = stats.udp_tx.datagrams;
        if sent.saturating_sub(self.counted.largest_acked.max(self.last_ping)) > PING_INTERVAL {
            self.last_ping = sent;
            self.quic.ping();
        }
    }

    /// Closes the connection of a peer that breaks this rule.
    fn end_misbehaving(&mut self, rule: &str) {
        if !self.session.is_closed() {
            self.set_close(VIOLATION, rule);
            self.session.end(CloseReason::PeerMisbehaved(rule.to_owned()));
        }
    }

    /// Processes QUIC's events and the received data.
    pub(super) fn read(&mut self, now: Timestamp) {
        while let Some(event) = self.quic.poll() {
            match event {
                Event::Connected => {
                    if let Some(datagrams) = &mut self.datagrams
                        && !datagrams.update_max_size(&mut self.quic)
                    {
                        // There is no silent fall-back to the stream.
                        self.set_close(VIOLATION, DATAGRAM_MISMATCH);
                        self.session.end(CloseReason::Handshake(DATAGRAM_MISMATCH.to_owned()));
                    } else if !self.is_server {
                        self.stream = self.quic.streams().open(Dir::Bi);
                    }
                }
                Event::DatagramsUnblocked => {
                    if let Some(datagrams) = &mut self.datagrams {
                        datagrams.on_unblocked();
                    }
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) if self.stream.is_none() => {
                    self.stream = self.quic.streams().accept(Dir::Bi);
                }
                Event::Stream(StreamEvent::Writable { .. }) => self.is_full = false,
                Event::ConnectionLost { reason } => {
                    // Deliver the data received before the end.
                    self.read_datagrams(now);
                    self.read_stream(now);
                    let reason = self.close_reason(reason);
                    self.session.end(reason);
                    self.is_closed = true;
                }
                _ => {}
            }
        }
        // Datagrams first: the peer sent them before the end on the stream.
        self.read_datagrams(now);
        self.read_stream(now);
    }

    fn read_datagrams(&mut self, now: Timestamp) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.read(&mut self.quic);
            // The stream is idle in this mode; QUIC has its own idle timeout.
            self.session.on_peer_activity(now);
        }
    }

    fn read_stream(&mut self, now: Timestamp) {
        let Some(stream) = self.stream else { return };
        let mut stream = self.quic.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { return };
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => self.session.receive(now, &chunk.bytes),
                Err(ReadError::Blocked) => break,
                Ok(None) | Err(ReadError::Reset(_)) => {
                    self.session.on_lost("the peer ended the stream");
                    break;
                }
            }
        }
        // The result is not needed: `poll_transmit` is called anyway.
        let _ = chunks.finalize();
        if self.datagrams.is_some() && self.session.receive_buffer_bytes() > 0 {
            self.end_misbehaving(MESSAGE_ON_STREAM);
        }
    }

    fn close_reason(&self, error: ConnectionError) -> CloseReason {
        match error {
            ConnectionError::VersionMismatch => CloseReason::Version,
            ConnectionError::TimedOut if self.session.is_open() => {
                CloseReason::IdleTimeout(self.session.idle_timeout())
            }
            ConnectionError::TimedOut => CloseReason::HandshakeTimeout,
            ConnectionError::ApplicationClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                match close.error_code {
                    VIOLATION => CloseReason::ReportedByPeer(reason),
                    code => CloseReason::Peer { code: code.into_inner(), reason },
                }
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == quinn_proto::TransportErrorCode::CONNECTION_REFUSED =>
            {
                CloseReason::Refused
            }
            ConnectionError::LocallyClosed => CloseReason::Local,
            other if self.session.is_open() => CloseReason::Lost(other.to_string()),
            ConnectionError::ConnectionClosed(close) => {
                let alert = alert_text(close.error_code, !self.is_server);
                CloseReason::Handshake(alert.unwrap_or_else(|| close.to_string()))
            }
            // The alert that this end sends, as the peer reads it.
            ConnectionError::TransportError(error) => {
                let alert = alert_text(error.code, self.is_server);
                CloseReason::Handshake(alert.unwrap_or_else(|| error.to_string()))
            }
            other => CloseReason::Handshake(other.to_string()),
        }
    }

    /// Advances the connection as far as QUIC allows.
    pub(super) fn drive(
        &mut self,
        now: Timestamp,
        at: Instant,
        endpoint: &mut quinn_proto::Endpoint,
    ) {
        self.read(now);
        self.write(now);
        if self.session.is_closed() && !self.is_closed {
            self.is_closed = true;
            let (code, reason) = match self.session.violation_found() {
                Some(rule) => (VIOLATION, rule.to_owned()),
                None => self.application_close.take().map(|close| *close).unwrap_or_default(),
            };
            self.quic.close(at, code, Bytes::from(reason));
        }
        while let Some(event) = self.quic.poll_endpoint_events() {
            if let Some(event) = endpoint.handle_event(self.handle, event) {
                self.quic.handle_event(event);
            }
        }
    }

    fn write(&mut self, now: Timestamp) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.update_max_size(&mut self.quic);
            datagrams.write(now, &mut self.quic, &mut self.session);
        }
        let Some(stream) = self.stream else { return };
        while !self.is_full && !self.session.is_closed() {
            if self.written == self.framed.len() {
                self.framed.clear();
                self.written = 0;
                self.session.transmit(now, &mut self.framed, FRAME_BATCH);
                if self.framed.is_empty() {
                    self.framed = Vec::new();
                    return;
                }
            }
            match self.quic.send_stream(stream).write(&self.framed[self.written..]) {
                Ok(len) => self.written += len,
                Err(WriteError::Blocked) => self.is_full = true,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    self.session.on_lost("the peer stopped the stream");
                }
            }
        }
    }

    pub(super) fn stats(&self, now: Timestamp) -> ConnectionStats {
        let quic = self.quic.stats();
        let path = quic.path;
        let fraction = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let mut stats = ConnectionStats {
            congestion: CongestionStats {
                controller_state: self.controller.state(),
                cwnd_bytes: path.cwnd,
                pacing_bps: u64::MAX,
                delivery_bps: window_rate(path.cwnd, path.rtt),
                ..CongestionStats::default()
            },
            path: PathStats {
                smoothed_rtt: path.rtt,
                min_rtt: path.min_rtt,
                loss_estimate: fraction(path.lost_packets, path.sent_packets).min(1.0),
                mtu: path.current_mtu,
                ..PathStats::default()
            },
            packets: PacketStats {
                bytes_sent: quic.udp_tx.bytes,
                sent: quic.udp_tx.datagrams,
                bytes_received: quic.udp_rx.bytes,
                received: quic.udp_rx.datagrams,
                lost: path.lost_packets,
                ..PacketStats::default()
            },
            ..self.session.stats(now)
        };
        if let Some(datagrams) = &self.datagrams {
            datagrams.add_to(&mut stats);
        }
        stats
    }

    pub(super) fn receive_buffer_bytes(&self) -> usize {
        let datagrams =
            self.datagrams.as_ref().map_or(0, |datagrams| datagrams.receive_buffer_bytes());
        self.session.receive_buffer_bytes() + datagrams
    }

    pub(super) fn pop_event(&mut self) -> Option<bats_proto::Event> {
        let event = self.session.pop_event();
        event.or_else(|| self.datagrams.as_mut()?.pop_event(&self.session))
    }

    pub(super) fn send(
        &mut self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        match &mut self.datagrams {
            Some(datagrams) => datagrams.send(now, &self.session, message, deadline),
            // Over the stream: reliable, so that deadlines are ignored.
            None => self.session.send(message),
        }
    }

    pub(super) fn finish(&mut self) -> Result<(), SendError> {
        match &mut self.datagrams {
            Some(datagrams) => datagrams.finish(&self.session),
            None => self.session.finish(),
        }
    }

    pub(super) fn recv(&mut self) -> Option<Bytes> {
        let datagram = self.datagrams.as_mut().and_then(|datagrams| datagrams.recv());
        datagram.or_else(|| self.session.recv())
    }

    pub(super) fn is_finished(&self) -> bool {
        self.session.is_finished()
            && self.datagrams.as_ref().is_none_or(|datagrams| datagrams.is_empty())
    }

    pub(super) fn is_all_acknowledged(&self) -> bool {
        match &self.datagrams {
            Some(datagrams) => datagrams.is_all_acknowledged(&self.session),
            None => self.session.is_all_acknowledged(),
        }
    }

    pub(super) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        let identity = self.quic.crypto_session().peer_identity()?;
        identity.downcast().ok().map(|identity: Box<PeerFingerprint>| identity.0)
    }
}

/// What a peer has sent too much of, if anything. `is_half_open`: a client, whose handshake is not complete.
fn excess(
    stats: &quinn_proto::ConnectionStats,
    counted: Counts,
    is_half_open: bool,
) -> Option<&'static str> {
    let (frames, udp) = (&stats.frame_rx, &stats.udp_rx);
    let ranges = ACK_RANGE_BURST + ACK_RANGES_PER_PACKET * udp.datagrams;
    let updates = KEY_UPDATE_BURST + udp.bytes / KEY_UPDATE_BYTES;
    let retired = RETIRED_IDS + stats.frame_tx.new_connection_id;
    if has_too_many_frames(frames, udp.datagrams) {
        Some(TOO_MANY_FRAMES)
    } else if counted.ack_ranges > ranges {
        Some(TOO_MANY_ACK_RANGES)
    } else if counted.key_updates > updates {
        Some(TOO_MANY_KEY_UPDATES)
    } else if frames.retire_connection_id > retired {
        Some(TOO_MANY_RETIRED_IDS)
    } else if stats.udp_tx.datagrams.saturating_sub(counted.largest_acked) > UNACKNOWLEDGED {
        Some(ACKNOWLEDGES_NOTHING)
    } else {
        (is_half_open && udp.bytes > HANDSHAKE_BYTES).then_some(TOO_MANY_HANDSHAKE_BYTES)
    }
}

/// Whether so many packets hold more frames than is allowed.
fn has_too_many_frames(received: &FrameStats, packets: u64) -> bool {
    let frames: u64 = [
        received.acks,
        received.ack_frequency,
        received.crypto,
        received.data_blocked,
        received.immediate_ack,
        received.max_data,
        received.max_stream_data,
        received.max_streams_bidi,
        received.max_streams_uni,
        received.new_connection_id,
        received.new_token,
        received.path_challenge,
        received.path_response,
        received.ping,
        received.reset_stream,
        received.retire_connection_id,
        received.stream_data_blocked,
        received.streams_blocked_bidi,
        received.streams_blocked_uni,
        received.stop_sending,
        received.stream,
    ]
    .iter()
    .sum();
    frames > FRAME_BURST + FRAMES_PER_PACKET * packets
}

/// The rate in bit/s of one congestion window per RTT.
fn window_rate(window: u64, rtt: std::time::Duration) -> u64 {
    let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
    window.saturating_mul(8_000_000) / micros
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_quic_packets_are_limited_unless_they_are_datagrams() {
        let mut received = FrameStats::default();
        (received.acks, received.stream) = (FRAME_BURST, 100 * FRAMES_PER_PACKET);
        assert!(!has_too_many_frames(&received, 100));
        received.ping = 1;
        assert!(has_too_many_frames(&received, 100) && !has_too_many_frames(&received, 101));
        received.datagram = 1_000_000;
        assert!(!has_too_many_frames(&received, 101));
    }

    #[test]
    fn key_updates_and_ranges_of_acknowledgements_are_limited() {
        let of = |datagrams, bytes, key_updates, ack_ranges| {
            let mut stats = quinn_proto::ConnectionStats::default();
            (stats.udp_rx.datagrams, stats.udp_rx.bytes) = (datagrams, bytes);
            excess(&stats, Counts { key_updates, ack_ranges, largest_acked: 0 }, false)
        };
        let (burst, ranges) = (KEY_UPDATE_BURST, ACK_RANGE_BURST);
        assert_eq!(of(100, KEY_UPDATE_BYTES - 1, burst, ranges + 6_400), None);
        assert_eq!(of(100, KEY_UPDATE_BYTES - 1, burst + 1, 0), Some(TOO_MANY_KEY_UPDATES));
        assert_eq!(of(100, KEY_UPDATE_BYTES, burst + 1, 0), None);
        assert_eq!(of(100, 0, 0, ranges + 6_401), Some(TOO_MANY_ACK_RANGES));
        assert_eq!(of(101, 0, 0, ranges + 6_401), None);
    }

    #[test]
    fn retired_ids_and_bytes_of_handshakes_are_limited() {
        let of = |retired, issued, bytes, is_half_open| {
            let mut stats = quinn_proto::ConnectionStats::default();
            (stats.udp_rx.datagrams, stats.udp_rx.bytes) = (1_000_000, bytes);
            stats.frame_rx.retire_connection_id = retired;
            stats.frame_tx.new_connection_id = issued;
            excess(&stats, Counts::default(), is_half_open)
        };
        assert_eq!(of(RETIRED_IDS + 7, 7, 0, false), None);
        assert_eq!(of(RETIRED_IDS + 8, 7, 0, false), Some(TOO_MANY_RETIRED_IDS));
        assert_eq!(of(0, 0, HANDSHAKE_BYTES, true), None);
        assert_eq!(of(0, 0, HANDSHAKE_BYTES + 1, true), Some(TOO_MANY_HANDSHAKE_BYTES));
        assert_eq!(of(0, 0, HANDSHAKE_BYTES + 1, false), None);
    }

    #[test]
    fn packets_that_are_not_acknowledged_are_limited() {
        let of = |sent, largest_acked| {
            let mut stats = quinn_proto::ConnectionStats::default();
            stats.udp_tx.datagrams = sent;
            excess(&stats, Counts { largest_acked, ..Counts::default() }, false)
        };
        assert_eq!(of(UNACKNOWLEDGED + 9, 9), None);
        assert_eq!(of(UNACKNOWLEDGED + 10, 9), Some(ACKNOWLEDGES_NOTHING));
        assert_eq!(of(9, UNACKNOWLEDGED), None);
    }
}
