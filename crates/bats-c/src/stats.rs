//! The statistics of the C interface.

use openbats::ConnectionStats;

/// Statistics of a connection. The caller sets `size` to the size of its struct. The library writes
/// at most that many bytes, and sets `size` to the number of bytes written.
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
    /// Minimum round-trip time in nanoseconds.
    pub min_rtt_ns: u64,
    /// Queueing delay of the forward path in nanoseconds: its delay above the minimum.
    pub queue_delay_ns: u64,
    /// Congestion window in bytes of UDP payload.
    pub cwnd_bytes: u64,
    /// Bytes in flight: sent, and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Pacing rate in bits per second.
    pub pacing_bps: u64,
    /// Delivery rate estimate in bits per second.
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
    /// Packets sent with source symbols.
    pub source_packets_sent: u64,
    /// Repair packets sent, proactive and top-up.
    pub repair_packets_sent: u64,
    /// Coded packets received.
    pub coded_packets_received: u64,
    /// Coded packets received that were not innovative.
    pub wasted_packets_received: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes of messages sent.
    pub message_bytes_sent: u64,
    /// Messages that the application has taken.
    pub messages_received: u64,
    /// Bytes of messages that arrived, taken or not.
    pub message_bytes_received: u64,
    /// Bytes in the send buffer.
    pub send_buffer_bytes: u64,
    /// Bytes in the receive buffer that the program has not read.
    pub receive_buffer_bytes: u64,
    /// Loss estimate of the forward path before repair, 0 to 1.
    pub loss_estimate: f64,
    /// Burst factor of the loss.
    pub burst_factor: f64,
    /// Source symbols per coded packet, 0 to 1.
    pub code_rate: f64,
    /// Modes 0 and 3: messages that expired before they were sent.
    pub messages_expired: u64,
    /// Modes 0 and 3: messages of the peer that are known to be lost.
    pub messages_lost: u64,
    /// Modes 0 and 3: symbols of the peer that neither arrived nor were repaired in time.
    pub symbols_lost: u64,
    /// Mode 0: symbols recovered by repairs.
    pub symbols_repaired: u64,
    /// Mode 0: sum of the repair delays of these symbols, from the detection of the loss to the
    /// repair, in nanoseconds.
    pub repair_delay_ns: u64,
    /// Mode 0: longest repair delay, in nanoseconds.
    pub longest_repair_delay_ns: u64,
}

fn nanoseconds(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl From<&ConnectionStats> for openbats_stats_t {
    fn from(stats: &ConnectionStats) -> Self {
        Self {
            size: size_of::<Self>() as u32,
            path_mtu: stats.path.mtu.into(),
            smoothed_rtt_ns: nanoseconds(stats.path.smoothed_rtt),
            min_rtt_ns: nanoseconds(stats.path.min_rtt),
            queue_delay_ns: nanoseconds(stats.path.queue_delay),
            cwnd_bytes: stats.congestion.cwnd_bytes,
            in_flight_bytes: stats.congestion.in_flight_bytes,
            pacing_bps: stats.congestion.pacing_bps,
            delivery_bps: stats.congestion.delivery_bps,
            bytes_sent: stats.packets.bytes_sent,
            packets_sent: stats.packets.sent,
            bytes_received: stats.packets.bytes_received,
            packets_received: stats.packets.received,
            packets_lost: stats.packets.lost,
            source_packets_sent: stats.coding.source_packets_sent,
            repair_packets_sent: stats.coding.proactive_packets_sent
                + stats.coding.top_up_packets_sent,
            coded_packets_received: stats.coding.coded_packets_received,
            wasted_packets_received: stats.coding.wasted_packets_received,
            messages_sent: stats.messages.sent,
            message_bytes_sent: stats.messages.bytes_sent,
            messages_received: stats.messages.received,
            message_bytes_received: stats.messages.bytes_received,
            send_buffer_bytes: stats.buffers.send_bytes,
            receive_buffer_bytes: stats.buffers.receive_bytes,
            loss_estimate: stats.path.loss_estimate,
            burst_factor: stats.path.burst_factor,
            code_rate: stats.coding.code_rate,
            messages_expired: stats.messages.expired,
            messages_lost: stats.messages.lost,
            symbols_lost: stats.coding.symbols_lost,
            symbols_repaired: stats.coding.symbols_repaired,
            repair_delay_ns: nanoseconds(stats.coding.repair_delay),
            longest_repair_delay_ns: nanoseconds(stats.coding.longest_repair_delay),
        }
    }
}
