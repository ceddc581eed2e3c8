//! Statistics of connections and endpoints; units are part of the names.

use core::time::Duration;

use bats_types::Timestamp;

/// A sample of a connection's state and its counters since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionStats {
    /// When the sample was taken.
    pub time: Timestamp,
    /// When the connection was established.
    pub established: Option<Timestamp>,
    /// The handshake resumed an earlier TLS session.
    pub resumed: bool,
    /// Key updates done by either side.
    pub key_updates: u64,
    /// Congestion control of the data that this side sends.
    pub congestion: CongestionStats,
    /// What is measured of the path.
    pub path: PathStats,
    /// Packets sent, received, lost and dropped.
    pub packets: PacketStats,
    /// Coded packets, and the symbols that they repair.
    pub coding: CodingStats,
    /// Messages of the application.
    pub messages: MessageStats,
    /// Memory held now.
    pub buffers: BufferStats,
    /// Early data.
    pub early: EarlyDataStats,
}

/// State of the congestion controller, and the signals that it reacts to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CongestionStats {
    /// Name of the congestion controller's state.
    pub controller_state: &'static str,
    /// Bound of the congestion controller that limits sending now, by the draft's name; empty if the
    /// controller has none.
    pub limited_by: &'static str,
    /// Congestion window in bytes of UDP payload. For an end-to-end session, this, the pacing rate
    /// and the delivery rate are those of its first links, which control it.
    pub cwnd_bytes: u64,
    /// Bytes sent, neither acknowledged nor declared lost.
    pub in_flight_bytes: u64,
    /// Pacing rate in bits per second of UDP payload; `u64::MAX` when unpaced.
    pub pacing_bps: u64,
    /// Estimated delivery rate of the link in bits per second of UDP payload.
    pub delivery_bps: u64,
    /// Loss that the congestion controller takes for the path's own and not for congestion, 0 to 1.
    pub own_loss: f64,
    /// Probe timeouts (RFC 9002, section 6.2).
    pub probe_timeouts: u64,
    /// CE marks reported by the peer.
    pub ecn_ce: u64,
}

/// Measurements of the path between the two ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathStats {
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Minimum round-trip time.
    pub min_rtt: Duration,
    /// One-way delay of the forward path above its minimum.
    pub queue_delay: Duration,
    /// Loss of the forward path before repair, 0 to 1.
    pub loss_estimate: f64,
    /// Burst factor of the loss, 1 for independent losses.
    pub burst_factor: f64,
    /// Path MTU: largest UDP payload in bytes known to pass.
    pub mtu: u16,
    /// Migrations of the peer to another validated address.
    pub changes: u64,
    /// Path challenges of the peer that newer ones replaced before they were answered.
    pub challenges_dropped: u64,
}

/// Counters of packets. Bytes are those of UDP payloads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PacketStats {
    /// UDP payload bytes sent.
    pub bytes_sent: u64,
    /// Packets sent.
    pub sent: u64,
    /// UDP payload bytes received and authenticated.
    pub bytes_received: u64,
    /// Packets received and authenticated.
    pub received: u64,
    /// Packets that the link declared lost.
    pub lost: u64,
    /// Packets declared lost that arrived later.
    pub spuriously_lost: u64,
    /// Packets that failed authentication.
    pub forged: u64,
    /// Packets whose number was a duplicate or older than the replay window.
    pub replayed: u64,
    /// Packets that were authentic but malformed.
    pub malformed: u64,
    /// Coded packets that the decoder had no room for.
    pub refused: u64,
    /// Packets and reports for the relay dropped because the peer is not admitted.
    pub relayed_refused: u64,
    /// Packets that arrived before the handshake completed and found no room; the sender repairs
    /// them.
    pub early_dropped: u64,
    /// Incomplete fragmented packets dropped for newer ones.
    pub fragments_dropped: u64,
    /// Acknowledgements that omitted older ranges for lack of room.
    pub acks_shortened: u64,
}

/// Counters of coded packets and of the source symbols that they carry or repair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CodingStats {
    /// Source symbols per coded packet sent, 0 to 1.
    pub code_rate: f64,
    /// Packets sent with new source symbols.
    pub source_packets_sent: u64,
    /// Proactive repairs sent, before feedback.
    pub proactive_packets_sent: u64,
    /// Top-up repairs sent, after the peer reported missing rank.
    pub top_up_packets_sent: u64,
    /// Coded packets received.
    pub coded_packets_received: u64,
    /// Non-innovative coded packets received.
    pub wasted_packets_received: u64,
    /// Source symbols recovered by decoding.
    pub symbols_decoded: u64,
    /// Polluted symbols of an end-to-end session: they failed authentication, because a relay
    /// changed them. None of them is delivered.
    pub symbols_polluted: u64,
    /// BTP: residual loss: symbols of the peer that neither arrived nor were repaired in time.
    pub symbols_lost: u64,
    /// BTP: symbols recovered by repairs.
    pub symbols_repaired: u64,
    /// BTP: sum over these symbols of the time from detecting the gap to recovery.
    pub repair_delay: Duration,
    /// BTP: the longest such time.
    pub longest_repair_delay: Duration,
}

/// Counters of the messages of the application.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageStats {
    /// Application messages accepted by `send`.
    pub sent: u64,
    /// Application bytes accepted by `send`.
    pub bytes_sent: u64,
    /// Messages that the application has taken.
    pub received: u64,
    /// Application bytes that became deliverable in order: also those of messages that the application has
    /// not taken yet, or that were dropped untaken.
    pub bytes_received: u64,
    /// BTP: messages that expired before they were sent.
    pub expired: u64,
    /// BTP: messages of the peer that were not delivered, including those that expired at the peer
    /// and those dropped here for lack of room. Counted once 4,096 newer messages exist, or the
    /// peer has finished. Once the application has taken what is left, messages received and lost add up
    /// to those that the peer accepted.
    pub lost: u64,
}

/// Memory that the connection holds now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BufferStats {
    /// Bytes held for sending.
    pub send_bytes: u64,
    /// Bytes held of received data.
    pub receive_bytes: u64,
    /// Memory of the record of sent packets that may still be acknowledged, in bytes.
    pub sent_record_bytes: u64,
}

/// Counters of early data (RFC 8446, section 2.3): messages sent with the client's first flight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EarlyDataStats {
    /// Messages sent with the client's first flight; at the server, those received.
    pub messages: u64,
    /// Client: early messages that the server had when the handshake completed. The others were
    /// sent again.
    pub messages_accepted: u64,
    /// Server: early-data packets refused because they exceed the limit of one connection.
    pub packets_refused: u64,
}

/// Counters of an endpoint for datagrams that belong to no connection, and of its handshakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Datagrams that could not be parsed or belonged to no connection.
    pub datagrams_dropped: u64,
    /// Datagrams that a server in PSK mode ignored: their first packet does not prove the key or
    /// has another version. `datagrams_dropped` does not count them.
    pub unauthenticated_ignored: u64,
    /// Handshakes started by peers.
    pub handshakes_started: u64,
    /// First packets ignored because the connection limit is reached, or because they name the flow
    /// of an existing session.
    pub connections_refused: u64,
    /// First packets ignored because too many handshakes are half-open, in total or from the
    /// sender's network.
    pub half_open_refused: u64,
    /// Connections refused because the memory budget is used up.
    pub memory_refusals: u64,
    /// Connections started with a smaller receive budget than configured.
    pub budgets_reduced: u64,
    /// Memory charged to current connections for received data, in bytes: 256 KiB each and more with
    /// use, never more than the memory budget in sum.
    pub memory_promised: u64,
    /// How often a connection needed more memory than there was. Until there is some, its packets may
    /// count as lost.
    pub memory_shortages: u64,
    /// Connections closed because the peer violated the protocol.
    pub peers_misbehaved: u64,
    /// Connections closed because a timer stayed due after it was handled: a defect.
    pub timers_stuck: u64,
    /// Answers to unauthenticated peers dropped because the queue was full, or because the answer
    /// would be longer than the datagram that it answers.
    pub answers_dropped: u64,
    /// Retry packets sent.
    pub retries_sent: u64,
    /// Version negotiation packets sent.
    pub version_negotiations_sent: u64,
    /// Stateless resets sent for packets with unknown connection IDs.
    pub stateless_resets_sent: u64,
    /// Connections that a stateless reset of their server ended.
    pub stateless_resets_received: u64,
    /// TLS sessions evicted before a client resumed them.
    pub sessions_displaced: u64,
    /// Handshakes whose early data was refused because the replay ledger was full.
    pub early_data_refused: u64,
}

impl EndpointStats {
    /// The counters of two endpoints together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            datagrams_received: self.datagrams_received + other.datagrams_received,
            datagrams_dropped: self.datagrams_dropped + other.datagrams_dropped,
            unauthenticated_ignored: self.unauthenticated_ignored + other.unauthenticated_ignored,
            handshakes_started: self.handshakes_started + other.handshakes_started,
            connections_refused: self.connections_refused + other.connections_refused,
            half_open_refused: self.half_open_refused + other.half_open_refused,
            memory_refusals: self.memory_refusals + other.memory_refusals,
            budgets_reduced: self.budgets_reduced + other.budgets_reduced,
            memory_promised: self.memory_promised + other.memory_promised,
            memory_shortages: self.memory_shortages + other.memory_shortages,
            peers_misbehaved: self.peers_misbehaved + other.peers_misbehaved,
            timers_stuck: self.timers_stuck + other.timers_stuck,
            answers_dropped: self.answers_dropped + other.answers_dropped,
            retries_sent: self.retries_sent + other.retries_sent,
            version_negotiations_sent: self.version_negotiations_sent
                + other.version_negotiations_sent,
            stateless_resets_sent: self.stateless_resets_sent + other.stateless_resets_sent,
            stateless_resets_received: self.stateless_resets_received
                + other.stateless_resets_received,
            sessions_displaced: self.sessions_displaced + other.sessions_displaced,
            early_data_refused: self.early_data_refused + other.early_data_refused,
        }
    }
}
