//! Messages over a stream of bytes, cut anywhere, made up or changed.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::script::Script;
use crate::config::TransportConfig;
use crate::stream::Session;

const MAX_MESSAGE: usize = 100_000;
const STEPS: usize = 300;
const START: Timestamp = Timestamp::from_millis(1_000);

/// What came of a run, so that tests can tell that something was tested.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamReport {
    /// Messages delivered.
    pub delivered: usize,
    /// Whether the first end, which heard arbitrary bytes, was still open at their end.
    pub survived: bool,
}

fn config() -> TransportConfig {
    TransportConfig {
        max_message_size: MAX_MESSAGE,
        receive_budget: 3 << 20,
        idle_timeout: Duration::from_secs(3_600),
        ..TransportConfig::default()
    }
}

/// An end that hears arbitrary bytes; then two honest ones, over a stream that delivers in pieces as
/// the script says; then two over one that changes a byte.
///
/// # Panics
/// A message is longer than allowed, more is held than was granted, an honest stream does not carry
/// everything unchanged and in order, or a session that is over says more.
pub fn stream_run(data: &[u8]) -> StreamReport {
    let mut report = StreamReport { survived: garbage(data), ..StreamReport::default() };
    report.delivered = honest(data, None);
    let at = data.iter().take(4).fold(0, |at, &byte| at * 256 + usize::from(byte));
    let changed = 1 + data.last().copied().unwrap_or(0) % 255;
    honest(data, Some((at % 4_096, changed)));
    report
}

fn garbage(data: &[u8]) -> bool {
    let mut script = Script::new(data);
    let is_client = script.u8() & 1 == 0;
    let config = config();
    let (mut session, mut now) = (Session::new(START, is_client, &config), START);
    let mut peer = Session::new(START, !is_client, &config);
    if script.u8() & 3 != 0 {
        // Greeted rightly: otherwise hardly anything goes further than the first frame.
        let mut hello = Vec::new();
        peer.transmit(now, &mut hello, 1_000);
        session.receive(now, &hello);
    }
    let mut last_words = 0;
    for _ in 0..STEPS {
        if script.is_empty() {
            break;
        }
        now += Duration::from_millis(u64::from(script.u8()));
        session.receive(now, script.bytes());
        session.handle_timeout(now);
        let was_over = session.is_over();
        while let Some(message) = session.recv() {
            assert!(message.len() <= MAX_MESSAGE);
        }
        let stats = session.stats(now);
        assert!(stats.receive_buffer_bytes <= config.receive_budget as u64 + MAX_MESSAGE as u64);
        let mut out = Vec::new();
        session.transmit(now, &mut out, 10_000);
        last_words += u32::from(was_over && !out.is_empty());
        assert!(last_words <= 1, "nothing follows the farewell");
        while session.pop_event().is_some() {}
    }
    session.is_open()
}

/// Messages of the first end that the second has got.
fn honest(data: &[u8], change: Option<(usize, u8)>) -> usize {
    let mut script = Script::new(data);
    let config = config();
    let mut ends = [Session::new(START, true, &config), Session::new(START, false, &config)];
    let mut on_the_way: [Vec<u8>; 2] = Default::default();
    let (mut sent, mut got) = (Vec::new(), Vec::<Bytes>::new());
    let (mut carried, mut now) = (0, START);
    let is_honest = change.is_none();
    for step in 0..4 * STEPS {
        now += Duration::from_millis(1);
        let over = script.is_empty();
        if over && got.len() == sent.len() && step > 8 {
            break;
        }
        let [kind, a, b] = script.array();
        if !over && kind & 1 == 0 {
            let len = usize::from(u16::from_be_bytes([a, b])) * usize::from(1 + (kind >> 1 & 1));
            let message = Bytes::from(vec![a ^ b; len.min(MAX_MESSAGE)]);
            if ends[0].send(message.clone()).is_ok() {
                sent.push(message);
            }
        }
        for from in 0..2 {
            let bytes = &mut on_the_way[from];
            let before = bytes.len();
            let limit = if over { 1 << 20 } else { usize::from(a) * 16 + 1 };
            if bytes.len() < limit {
                ends[from].transmit(now, bytes, limit);
            }
            if from == 0 {
                for byte in &mut bytes[before..] {
                    if let Some((at, how)) = change
                        && carried == at
                    {
                        *byte ^= how;
                    }
                    carried += 1;
                }
            }
            let piece = if over { bytes.len() } else { bytes.len().min(1 + usize::from(b) * 8) };
            let rest = bytes.split_off(piece);
            let piece = core::mem::replace(bytes, rest);
            ends[1 - from].receive(now, &piece);
        }
        while let Some(message) = ends[1].recv() {
            assert!(message.len() <= MAX_MESSAGE);
            assert!(!is_honest || sent.get(got.len()) == Some(&message), "in order, unchanged");
            got.push(message);
        }
        for end in &mut ends {
            end.handle_timeout(now);
            while end.pop_event().is_some() {}
            assert!(!is_honest || end.is_open() || step < 8, "{:?}", end.violation_found());
        }
    }
    assert!(!is_honest || got.len() == sent.len(), "{} of {}", got.len(), sent.len());
    got.len()
}
