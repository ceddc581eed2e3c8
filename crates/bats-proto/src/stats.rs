//! What can be seen of a connection: one sample, plain numbers with units in their names.

use core::time::Duration;

use bats_types::Timestamp;

/// A sample of a connection's state and its counters since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionStats {
    /// When the sample was taken.
    pub time: Timestamp,
    /// When the handshake was done.
    pub established: Option<Timestamp>,
    /// Name of the congestion controller's state.
    pub controller_state: &'static str,
    /// Congestion window in bytes of UDP payload. Of a session across relays this, the pacing and the
    /// delivery rate are those of the links that it leaves by, which control it.
    pub cwnd_bytes: u64,
    /// Bytes sent, neither acknowledged nor declared lost.
    pub in_flight_bytes: u64,
    /// Pacing rate in bits per second of UDP payload; `u64::MAX` when unpaced.
    pub pacing_bps: u64,
    /// Estimate of the link's rate in bits per second of UDP payload.
    pub delivery_bps: u64,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Minimum round-trip time.
    pub min_rtt: Duration,
    /// One-way delay of the forward path above its minimum.
    pub queue_delay: Duration,
    /// Loss of the forward path before repair, 0 to 1.
    pub loss_estimate: f64,
    /// Burst factor of that loss, 1 for independent losses.
    pub burst_factor: f64,
    /// Source symbols per coded packet sent, 0 to 1.
    pub code_rate: f64,
    /// Largest UDP payload known to pass.
    pub path_mtu: u16,
    /// UDP payload bytes and packets sent.
    pub bytes_sent: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// UDP payload bytes received and authenticated.
    pub bytes_received: u64,
    /// Packets received and authenticated.
    pub packets_received: u64,
    /// Packets that the link declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that arrived after all.
    pub packets_spuriously_lost: u64,
    /// Packets sent with fresh source symbols.
    pub source_packets_sent: u64,
    /// Repair packets sent before the peer asked.
    pub proactive_packets_sent: u64,
    /// Repair packets sent because the peer reported missing rank.
    pub top_up_packets_sent: u64,
    /// Coded packets received.
    pub coded_packets_received: u64,
    /// Coded packets received that brought nothing new.
    pub wasted_packets_received: u64,
    /// Source symbols recovered by decoding.
    pub symbols_decoded: u64,
    /// Application messages and bytes accepted by `send`.
    pub messages_sent: u64,
    /// Application bytes accepted by `send`.
    pub message_bytes_sent: u64,
    /// Messages delivered by `recv`, in order.
    pub messages_received: u64,
    /// Application bytes that became deliverable in order (taken or not).
    pub message_bytes_received: u64,
    /// Packets and reports of flows that the peer wanted to have carried without being admitted.
    pub packets_uncarried: u64,
    /// Symbols of a session across relays whose seal was broken: some node on the way has altered
    /// them. None of them is delivered.
    pub symbols_altered: u64,
    /// BTP: messages that were too old before they were sent.
    pub messages_expired: u64,
    /// BTP: messages of the peer that were given up, those among them that it did not send because
    /// they were too old, and those that found no room here. Known once 4,096 newer messages exist,
    /// or the peer has finished; then messages received and lost are those that the peer took.
    pub messages_lost: u64,
    /// BTP: symbols of the peer that neither arrived nor were repaired in time: the residual loss.
    pub symbols_lost: u64,
    /// BTP: symbols that a repair gave.
    pub symbols_repaired: u64,
    /// BTP: time by which these came later than was seen that they were missing, in all.
    pub repair_delay: Duration,
    /// BTP: the longest of these times.
    pub longest_repair_delay: Duration,
    /// Bytes held for sending now.
    pub send_buffer_bytes: u64,
    /// Bytes held of received data now.
    pub receive_buffer_bytes: u64,
    /// Packets that failed authentication.
    pub packets_forged: u64,
    /// Packets whose number had been seen before or was too old to tell.
    pub packets_replayed: u64,
    /// Packets that were authentic and malformed.
    pub packets_malformed: u64,
    /// Coded packets that the decoder had no room for.
    pub packets_refused: u64,
    /// Packets that overtook the handshake and found no room: their sender repairs them.
    pub early_packets_dropped: u64,
    /// Packets in parts of which some had arrived, given up for newer ones.
    pub fragments_dropped: u64,
    /// Challenges of the peer that a newer one replaced before they were answered.
    pub challenges_dropped: u64,
    /// Acknowledgements that left out older ranges for want of room.
    pub acks_shortened: u64,
    /// Key updates done by either side.
    pub key_updates: u64,
    /// Probe time-outs: times the sender had to speak up because nothing was heard.
    pub probe_timeouts: u64,
    /// Times that the peer was found at another address and proved it.
    pub path_changes: u64,
    /// CE marks reported by the peer.
    pub ecn_ce: u64,
    /// The handshake took up an earlier session.
    pub resumed: bool,
    /// Messages that went with the client's first flight; at the server, those that arrived so.
    pub early_messages: u64,
    /// Client: those among them that the server had when the handshake was done. The others were sent
    /// again.
    pub early_messages_accepted: u64,
    /// Server: packets with early data beyond what is taken of one connection.
    pub early_packets_refused: u64,
}

/// Counters of an endpoint for datagrams that belong to no connection, and of its handshakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams handed in.
    pub datagrams_received: u64,
    /// Datagrams that could not be parsed or belonged to no connection.
    pub datagrams_dropped: u64,
    /// Datagrams that a closed server left unanswered because they begin with a first packet that does not
    /// prove the key, or with one of another version; `datagrams_dropped` does not count them.
    pub strangers_ignored: u64,
    /// Handshakes begun by peers.
    pub handshakes_started: u64,
    /// First packets left unanswered because there are as many connections as allowed, or because they
    /// name the flow of a session that is there.
    pub connections_refused: u64,
    /// First packets left unanswered because too many handshakes are half-open, in all or from the
    /// sender's network.
    pub half_open_refused: u64,
    /// Connections not begun because all memory is promised.
    pub memory_refusals: u64,
    /// Connections begun with a smaller receive budget than configured.
    pub budgets_reduced: u64,
    /// Bytes of received data that connections may hold by what they were given, now.
    pub memory_promised: u64,
    /// Connections closed because the peer broke a rule.
    pub peers_misbehaved: u64,
    /// Answers to strangers dropped because they wait faster than they leave, or would be longer than
    /// the question.
    pub answers_dropped: u64,
    /// Retry packets sent.
    pub retries_sent: u64,
    /// Version negotiation packets sent.
    pub version_negotiations_sent: u64,
    /// Sessions that made room for others before a client came back with them.
    pub sessions_displaced: u64,
    /// Handshakes that began while so many first flights were remembered that early data were refused.
    pub early_data_refused: u64,
}
