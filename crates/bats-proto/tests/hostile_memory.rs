//! Memory that a server holds during and after each attack of `.ci/hostile-packets`: the allocator's count,
//! compared with our own, which the budgets limit.

#[path = "../examples/hostile_packets/attack.rs"]
#[allow(dead_code, reason = "here, an attack counts the server's memory")]
mod attack;
#[path = "../examples/hostile_packets/attacks.rs"]
mod attacks;
mod harness;

use std::cell::Cell;

use bats_proto::TransportConfig;
use harness::{AROUND_SERVER, Harness, in_server};

thread_local! {
    /// Bytes that calls of the server have allocated and not freed, and the most there were at any time,
    /// also within a call.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// Counts the memory of a call of the server.
fn count(work: &mut dyn FnMut()) {
    let call = allocation_counter::measure(work);
    let before = HELD.get();
    HELD.set(before + call.bytes_current);
    PEAK.set(PEAK.get().max(before + call.bytes_max as i64));
}

/// As [`attack::Attack`], with all that the server does counted.
struct Attack {
    harness: Harness,
    packets: u64,
    is_closed: bool,
    is_read: bool,
    buffer: Vec<u8>,
}

impl Attack {
    fn new(harness: Harness) -> Self {
        let buffer = Vec::with_capacity(65_536);
        Self { harness, packets: 0, is_closed: false, is_read: true, buffer }
    }

    fn push(&mut self, mut datagram: Vec<u8>) {
        if self.is_closed {
            return;
        }
        let (harness, buffer) = (&mut self.harness, &mut self.buffer);
        harness.now += attack::INTERVAL;
        let (now, remote) = (harness.now, harness.remote);
        self.is_closed |=
            in_server(|| attack::measured(&mut harness.server, now, remote, &mut datagram, buffer));
        self.packets += 1;
        if let Some(handle) = harness.handle.filter(|_| self.is_read) {
            while in_server(|| harness.server.recv(now, handle).is_some()) {}
        }
    }
}

/// Whether the server closes the connection in this case; `None`: with some budgets only, or after more packets than
/// some budgets have credit for. Where it stays open, the attack has reached what it is for.
fn is_closed_in(case: &str) -> Option<bool> {
    match case {
        "brtp-credits"
        | "channels-many-opened"
        | "btp-redundant-repairs"
        | "btp-repairs-beyond-the-span"
        | "btp-sources-among-linked-repairs"
        | "btp-many-parts" => Some(true),
        "brtp-one-byte-symbols"
        | "brtp-two-symbol-repairs"
        | "brtp-sources-among-repairs"
        | "brtp-redundant-repairs"
        | "brtp-redundant-recoded-repairs"
        | "brtp-redundant-repairs-of-four-systems"
        | "brtp-repairs-beyond-the-span"
        | "brtp-sources-among-linked-repairs"
        | "channels-descending-parts"
        | "btp-descending-parts"
        | "btp-ascending-parts"
        | "btp-huge-announcements"
        | "transparent-descending-parts" => None,
        _ => Some(false),
    }
}

/// State that is neither received data nor data to send: keys, packets in flight, half-open handshakes.
const OTHER_STATE: i64 = 640 << 10;
/// Packets of the largest block (RFC 9426) and their bytes: while one is decoded, its packets are there twice.
const BLOCK_PACKETS: i64 = 512;
const BLOCK_PACKET: i64 = 1_408;
/// Bytes that calls may allocate and others free without being counted: what the test itself gives the server.
const UNCOUNTED: i64 = 4 << 10;

/// With a budget that attacks use up, and with one in which they are as large as they can be; with an
/// application that reads, and with one that does not. Also within a packet, memory is at most the budget and
/// 10 %, with what the budget does not limit: other state, data that the application sends, a block that is decoded.
#[test]
fn attacks_take_no_more_memory_than_is_charged() {
    let budgets = [3 << 20, 4 << 20, 8 << 20, 16 << 20, 192 << 20];
    let runs = budgets.iter().flat_map(|&budget| [(budget, true), (budget, false)]);
    AROUND_SERVER.set(count).expect("no other test of this process sets it");
    for ((budget, is_read), case) in runs.flat_map(|run| attacks::NAMES.map(|case| (run, case))) {
        let transport = TransportConfig { receive_budget: budget, ..harness::transport() };
        HELD.set(0);
        PEAK.set(0);
        let Attack { harness, packets, is_closed, .. } =
            attacks::attacked(case, transport, is_read).expect("a case of the list");
        let (counted, peak) = (HELD.get(), PEAK.get());
        let largest_sent = harness.largest_sent;
        let (server, handle) = (harness.server, harness.handle.expect("established"));
        // None: closed and removed.
        let stats = server.stats(harness.now, handle);
        let [received, sent] = stats
            .map_or([0; 2], |stats| {
                [
                    stats.buffers.receive_bytes,
                    stats.buffers.send_bytes + stats.buffers.sent_record_bytes,
                ]
            })
            .map(|bytes| bytes as i64);
        let held = -allocation_counter::measure(|| drop(server)).bytes_current;
        assert!((held - counted).abs() < UNCOUNTED, "{case}: {held} bytes, {counted} by calls");
        println!(
            "{case}, budget {budget}, read {is_read}: {held} bytes after {packets} packets, {peak} at most; \
             {counted} by calls; {received} counted as received, {sent} as to be sent; closed: {is_closed}"
        );
        let expected = is_closed_in(case).unwrap_or(is_closed);
        assert_eq!(is_closed, expected, "{case}, budget {budget}, read {is_read}: closed");
        // Half of the budget is set aside for the state of channels when a connection has them.
        let channels = if case.contains("channel") { budget as i64 / 2 } else { 0 };
        let charged = (received + sent) * 11 / 10 + channels + OTHER_STATE;
        let limit = budget as i64 + sent * 11 / 10 + OTHER_STATE;
        let context = format!("{case}, budget {budget}, read {is_read}: {held} bytes");
        assert!(held <= charged.min(limit), "{context}, {charged} charged, limit {limit}");

        let block = if case.starts_with("brctp") {
            (budget as i64 / 8).min(BLOCK_PACKETS * BLOCK_PACKET)
        } else {
            0
        };
        // A message that is sent is there until all of its symbols are made.
        let message = largest_sent as i64;
        let most = budget as i64 * 11 / 10 + sent * 11 / 10 + message + block + OTHER_STATE;
        assert!(peak <= most, "{context}; {peak} at the peak, limit {most}");
    }
}
