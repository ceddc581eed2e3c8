//! Memory that a server holds after each attack of `.ci/hostile-packets`: the allocator's count, compared
//! with our own, which the budgets limit.

#[path = "../examples/hostile_packets/attack.rs"]
mod attack;
#[path = "../examples/hostile_packets/attacks.rs"]
mod attacks;
mod harness;

use attack::Attack;
use bats_proto::TransportConfig;

/// State that is neither received data nor data to send: keys, packets in flight, half-open handshakes.
const OTHER_STATE: i64 = 640 << 10;

/// With a budget that attacks use up, and with one in which they are as large as they can be; with an
/// application that reads, and with one that does not.
#[test]
fn attacks_take_no_more_memory_than_is_charged() {
    let budgets = [3 << 20, 4 << 20, 8 << 20, 16 << 20, 192 << 20];
    let runs = budgets.iter().flat_map(|&budget| [(budget, true), (budget, false)]);
    for ((budget, is_read), case) in runs.flat_map(|run| attacks::NAMES.map(|case| (run, case))) {
        let transport = TransportConfig { receive_budget: budget, ..harness::transport() };
        let Attack { harness, packets, is_closed, .. } =
            attacks::attacked(case, transport, is_read).expect("a case of the list");
        let (server, handle) = (harness.server, harness.handle.expect("established"));
        // None: closed and removed.
        let stats = server.stats(harness.now, handle);
        let [received, sent] = stats
            .map_or([0; 2], |stats| {
                [stats.receive_buffer_bytes, stats.send_buffer_bytes + stats.sent_record_bytes]
            })
            .map(|bytes| bytes as i64);
        let held = -allocation_counter::measure(|| drop(server)).bytes_current;
        println!(
            "{case}, budget {budget}, read {is_read}: {held} bytes after {packets} packets; {received} counted as \
             received, {sent} as to be sent; closed: {is_closed}"
        );
        // Half of the budget is set aside for the state of channels when a connection has them.
        let channels = if case.starts_with("channels") { budget as i64 / 2 } else { 0 };
        let charged = (received + sent) * 11 / 10 + channels + OTHER_STATE;
        let limit = budget as i64 + sent * 11 / 10 + OTHER_STATE;
        let context = format!("{case}, budget {budget}, read {is_read}: {held} bytes");
        assert!(held <= charged.min(limit), "{context}, {charged} charged, limit {limit}");
    }
}
