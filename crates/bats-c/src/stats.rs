//! The statistics as C sees them.

use openbats::ConnectionStats;

/// A sample of a connection's statistics. The caller sets `size`; a library that knows more
/// fields than the caller fills the caller's, and one that knows fewer says so in `size`.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct openbats_stats_t {
    /// Bytes of this struct.
    pub size: u32,
    /// Largest UDP payload known to pass, in bytes.
    pub path_mtu: u32,
    /// Smoothed round-trip time in nanoseconds.
    pub smoothed_rtt_ns: u64,
    /// Least round-trip time in nanoseconds.
    pub min_rtt_ns: u64,
    /// Delay of the forward path above its least, in nanoseconds.
    pub queue_delay_ns: u64,
    /// Congestion window in bytes of UDP payload.
    pub cwnd_bytes: u64,
    /// Bytes sent, neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Pacing rate in bits per second.
    pub pacing_bps: u64,
    /// Estimate of the link's rate in bits per second.
    pub delivery_bps: u64,
    /// Bytes of UDP payload sent.
    pub bytes_sent: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Bytes of UDP payload received.
    pub bytes_received: u64,
    /// Packets received.
    pub packets_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets sent with fresh data.
    pub source_packets_sent: u64,
    /// Repair packets sent, asked for or not.
    pub repair_packets_sent: u64,
    /// Coded packets received.
    pub coded_packets_received: u64,
    /// Coded packets that brought nothing new.
    pub wasted_packets_received: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes of messages sent.
    pub message_bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes of messages received.
    pub message_bytes_received: u64,
    /// Bytes held for sending.
    pub send_buffer_bytes: u64,
    /// Bytes held that the program has not taken.
    pub receive_buffer_bytes: u64,
    /// Loss of the forward path before repair, 0 to 1.
    pub loss_estimate: f64,
    /// Burst factor of that loss.
    pub burst_factor: f64,
    /// Source symbols per coded packet, 0 to 1.
    pub code_rate: f64,
    /// Modes 0 and 3: messages that were too old before they were sent.
    pub messages_expired: u64,
    /// Modes 0 and 3: messages of the peer that were given up, as far as it is known.
    pub messages_lost: u64,
    /// Modes 0 and 3: symbols of the peer that neither arrived nor were repaired in time.
    pub symbols_lost: u64,
    /// Mode 0: symbols that a repair gave.
    pub symbols_repaired: u64,
    /// Mode 0: time by which these came later than it was seen that they were missing, in all, in
    /// nanoseconds.
    pub repair_delay_ns: u64,
    /// Mode 0: the longest of these times, in nanoseconds.
    pub longest_repair_delay_ns: u64,
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl From<&ConnectionStats> for openbats_stats_t {
    fn from(stats: &ConnectionStats) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            path_mtu: stats.path_mtu.into(),
            smoothed_rtt_ns: nanoseconds(stats.smoothed_rtt),
            min_rtt_ns: nanoseconds(stats.min_rtt),
            queue_delay_ns: nanoseconds(stats.queue_delay),
            cwnd_bytes: stats.cwnd_bytes,
            in_flight_bytes: stats.in_flight_bytes,
            pacing_bps: stats.pacing_bps,
            delivery_bps: stats.delivery_bps,
            bytes_sent: stats.bytes_sent,
            packets_sent: stats.packets_sent,
            bytes_received: stats.bytes_received,
            packets_received: stats.packets_received,
            packets_lost: stats.packets_lost,
            source_packets_sent: stats.source_packets_sent,
            repair_packets_sent: stats.proactive_packets_sent + stats.top_up_packets_sent,
            coded_packets_received: stats.coded_packets_received,
            wasted_packets_received: stats.wasted_packets_received,
            messages_sent: stats.messages_sent,
            message_bytes_sent: stats.message_bytes_sent,
            messages_received: stats.messages_received,
            message_bytes_received: stats.message_bytes_received,
            send_buffer_bytes: stats.send_buffer_bytes,
            receive_buffer_bytes: stats.receive_buffer_bytes,
            loss_estimate: stats.loss_estimate,
            burst_factor: stats.burst_factor,
            code_rate: stats.code_rate,
            messages_expired: stats.messages_expired,
            messages_lost: stats.messages_lost,
            symbols_lost: stats.symbols_lost,
            symbols_repaired: stats.symbols_repaired,
            repair_delay_ns: nanoseconds(stats.repair_delay),
            longest_repair_delay_ns: nanoseconds(stats.longest_repair_delay),
        }
    }
}
