use core::time::Duration;
use std::collections::VecDeque;

use bats_code::BATCH_SIZE;
use bats_code::stream::{StreamEncoder, Window};
use bats_types::Timestamp;

use super::rate::{RateController, RepairClass};
use super::spare_rate::SpareRate;
use super::steady::REPAIR_TIME_RTT_FRACTION;
use super::{PathView, SenderCounters};
use crate::config::Goal;
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader, SOURCE_HEADER_LEN, SourceHeader};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Number of symbols that a repair of a busy flow covers. More symbols cost delay, fewer cost
/// redundancy: by simulation at 30 % loss, windows of 32, 64 and 128 symbols need 1.69, 1.60 and
/// 1.56 packets per symbol for 1 % residual loss, and repair after 1.4, 2.8 and 5.1 packets.
const WINDOW: u64 = 64;
/// Maximum window size in symbols. The window grows with loss bursts, because it must span them.
const MAX_WINDOW: u64 = 256;
/// Number of symbols that a repair of a thin flow covers.
const THIN_WINDOW: u64 = 32;
/// A flow with fewer symbols than this in a round trip is thin. Its losses are repaired message by
/// message, because there is no window to spread repairs over.
const THIN_SYMBOLS: usize = 12;
/// Minimum round-trip time used for that decision.
const MIN_THIN_RTT: Duration = Duration::from_millis(50);
/// Idle time after which the last symbols get extra protection, because no later symbols follow.
const FLUSH_AFTER: Duration = Duration::from_millis(4);
/// Maximum number of symbols cut in advance of sending.
const MAX_UNSENT_SYMBOLS: u64 = 16;

/// Parameters of a sender with deadlines.
#[derive(Clone, Copy, Debug)]
pub struct TimelyParameters {
    /// Maximum size of a symbol in bytes.
    pub max_symbol_size: usize,
    /// Maximum number of symbols that one repair covers.
    pub window_cap: u16,
    /// Seed of the coefficients, as announced to the peer.
    pub seed: u64,
    /// Optimisation goal of the redundancy; `None` for no repairs at all.
    pub goal: Option<Goal>,
}

/// A symbol kept for repairs: its send time and its expiry time.
#[derive(Clone, Copy, Debug)]
struct KeptSymbol {
    sent_at: Option<Timestamp>,
    expires: Timestamp,
}

/// The sending end of a flow whose symbols have deadlines (mode BTP). Without feedback and top-ups:
/// repairs over a sliding window are sent between the symbols.
#[derive(Debug)]
pub struct TimelySender {
    encoder: StreamEncoder,
    symbol: Vec<u8>,
    /// `None` if nothing is repaired.
    rate: Option<RateController>,
    parameters: TimelyParameters,
    next_unsent: u64,
    /// One entry for each symbol of the encoder.
    kept: VecDeque<KeptSymbol>,
    /// Repairs due, with a fraction.
    due_repairs: f64,
    /// Symbols and repairs sent since the last flush.
    unflushed: u64,
    unflushed_repairs: u64,
    flush_at: Option<Timestamp>,
    /// Send time of the first symbol since the send queue was empty.
    backlog_since: Option<Timestamp>,
    spare: SpareRate,
    next_sequence: u64,
    counters: SenderCounters,
}

impl TimelySender {
    /// A sender for a new flow.
    pub fn new(parameters: TimelyParameters) -> Self {
        Self {
            encoder: StreamEncoder::new(parameters.max_symbol_size, parameters.seed),
            symbol: Vec::new(),
            rate: parameters.goal.map(RateController::new),
            parameters,
            next_unsent: 0,
            kept: VecDeque::new(),
            due_repairs: 0.0,
            unflushed: 0,
            unflushed_repairs: 0,
            flush_at: None,
            backlog_since: None,
            spare: SpareRate::default(),
            next_sequence: 0,
            counters: SenderCounters::default(),
        }
    }

    /// Bytes held for sending and repair.
    pub fn bytes_held(&self) -> usize {
        self.encoder.bytes_held()
    }

    /// Frees memory that only a busy flow needs, and symbols for which no repair is due: the receiver
    /// forgets them during a pause.
    pub fn trim(&mut self) {
        if self.is_idle() {
            self.kept.clear();
            self.encoder.release_below(self.next_unsent);
        }
        self.encoder.trim();
        self.symbol = Vec::new();
        self.kept.shrink_to_fit();
    }

    /// Counters since the start.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }

    /// Number of symbols pushed so far.
    pub fn symbols(&self) -> u64 {
        self.encoder.next()
    }

    /// Whether nothing is left to send, repairs included.
    pub fn is_idle(&self) -> bool {
        !self.wants_to_send() && self.flush_at.is_none()
    }

    /// Whether another symbol can be pushed now.
    pub fn wants_symbol(&self) -> bool {
        self.encoder.next() - self.next_unsent < MAX_UNSENT_SYMBOLS
    }

    /// Whether [`TimelySender::poll`] would return a packet.
    pub fn wants_to_send(&self) -> bool {
        self.next_unsent < self.encoder.next() || self.repair_due()
    }

    fn repair_due(&self) -> bool {
        self.due_repairs >= 1.0 && self.next_unsent > self.encoder.first()
    }

    /// Adds a symbol of up to `size` bytes, which `fill` writes; `fill` returns their number and
    /// their expiry time. Returns false if it writes nothing.
    pub fn push_symbol(
        &mut self,
        size: usize,
        fill: impl FnOnce(&mut [u8]) -> (usize, Timestamp),
    ) -> bool {
        let size = size.min(self.parameters.max_symbol_size);
        self.symbol.resize(size, 0);
        let (len, expires) = fill(&mut self.symbol);
        if self.encoder.push(&self.symbol[..len.min(size)]).is_err() {
            return false;
        }
        self.kept.push_back(KeptSymbol { sent_at: None, expires });
        true
    }

    /// Time of the next call of [`TimelySender::on_timeout`].
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let oldest = self.kept.front().filter(|kept| kept.sent_at.is_some());
        let expiry = oldest.map(|kept| kept.expires);
        match (self.flush_at, expiry) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Drops expired symbols, and protects the last symbols if none follow.
    pub fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        self.forget(now);
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush(path);
        }
    }

    /// Drops sent symbols that are expired or that no repair covers.
    fn forget(&mut self, now: Timestamp) {
        let covered = self.next_unsent.saturating_sub(MAX_WINDOW);
        let mut keep = self.encoder.first();
        while let Some(kept) = self.kept.front()
            && kept.sent_at.is_some()
            && (kept.expires <= now || keep < covered)
        {
            self.kept.pop_front();
            keep += 1;
        }
        self.encoder.release_below(keep);
    }

    fn flush(&mut self, path: &PathView) {
        self.flush_at = None;
        let Some(rate) = self.rate else { return };
        let symbols = self.unflushed.min(WINDOW);
        let wanted = rate.timely_end(symbols, path);
        let sent = (self.unflushed_repairs as f64).min(symbols as f64 * path.loss);
        self.due_repairs = self.due_repairs.max(0.0).max(wanted - sent).ceil();
        self.unflushed = 0;
        self.unflushed_repairs = 0;
    }

    /// Whether fewer symbols than `THIN_SYMBOLS` were sent within a round trip.
    fn is_thin(&self, now: Timestamp, path: &PathView) -> bool {
        let round = path.smoothed_rtt.max(MIN_THIN_RTT);
        let sent = self.kept.iter().rev().filter_map(|kept| kept.sent_at);
        sent.take(THIN_SYMBOLS).take_while(|&at| at + round > now).count() < THIN_SYMBOLS
    }

    /// Writes the next coded payload, header included, to `out`. `more` says whether further
    /// symbols follow at once.
    pub fn poll(
        &mut self,
        now: Timestamp,
        path: &PathView,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        out.clear();
        if self.repair_due() {
            self.due_repairs -= 1.0;
            if let Some(kind) = self.send_repair(now, path, out) {
                return Some(kind);
            }
        }
        if self.next_unsent == self.encoder.next() {
            return None;
        }
        let number = self.next_unsent;
        let symbol = self.encoder.symbol(number)?;
        out.resize(SOURCE_HEADER_LEN, 0);
        SourceHeader::new(number).encode(&mut Writer::new(out))?;
        out.extend_from_slice(symbol);
        let index = (number - self.encoder.first()) as usize;
        if let Some(kept) = self.kept.get_mut(index) {
            kept.sent_at = Some(now);
        }
        self.next_unsent += 1;
        self.counters.source_packets += 1;
        self.forget(now);
        self.schedule_repairs(now, path, !more && self.next_unsent == self.encoder.next());
        Some(PacketKind::Source)
    }

    /// Schedules the repairs that a sent symbol requires. `last` if no symbol follows for now.
    fn schedule_repairs(&mut self, now: Timestamp, path: &PathView, last: bool) {
        let Some(rate) = self.rate else { return };
        self.unflushed += 1;
        let waited = now - *self.backlog_since.get_or_insert(now);
        // Congestion control limits a flow whose send queue was not empty for a round trip: more
        // repairs would delay its messages further.
        let is_limited = waited > path.smoothed_rtt;
        if last {
            self.backlog_since = None;
        }
        let share =
            if rate.uses_spare_rate() { self.spare.on_symbol(now, waited, path) } else { 0.0 };
        if self.is_thin(now, path) {
            self.flush_at = None;
            if last {
                self.due_repairs = rate.thin(path);
                self.unflushed = 0;
            }
        } else {
            let window = self.window(path);
            let repairs = rate.timely(window, is_limited, path) / window as f64;
            self.due_repairs += repairs;
            if share > 0.0 {
                let time = path.smoothed_rtt / REPAIR_TIME_RTT_FRACTION;
                let recent = self.recent_symbols(now, time);
                let most = rate.proactive(RepairClass::Tail, recent, path) / recent as f64;
                self.due_repairs += share * (most - repairs).max(0.0);
            }
            self.flush_at = Some(now + FLUSH_AFTER);
        }
    }

    /// Symbols sent in the last `time`, this one included.
    fn recent_symbols(&self, now: Timestamp, time: Duration) -> u64 {
        let sent = self.next_unsent.saturating_sub(self.encoder.first());
        let is_older = |kept: &KeptSymbol| kept.sent_at.is_some_and(|at| at + time <= now);
        sent.saturating_sub(self.kept.partition_point(is_older) as u64).max(1)
    }

    fn window(&self, path: &PathView) -> u64 {
        let window = (WINDOW as f64 * path.burst_factor) as u64;
        window.min(MAX_WINDOW).min(u64::from(self.parameters.window_cap)).max(1)
    }

    fn send_repair(
        &mut self,
        now: Timestamp,
        path: &PathView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let cover = if self.is_thin(now, path) { THIN_WINDOW } else { self.window(path) };
        let first = self.next_unsent.saturating_sub(cover).max(self.encoder.first());
        let count = u16::try_from(self.next_unsent - first).ok().filter(|&count| count > 0)?;
        let (batch, column) =
            (self.next_sequence / BATCH_SIZE as u64, self.next_sequence % BATCH_SIZE as u64);
        self.next_sequence += 1;
        let header = RepairHeader {
            batch: (batch & 0x00ff_ffff) as u32,
            column: column as u8,
            first: first as u32,
            count,
        };
        out.resize(REPAIR_HEADER_LEN + self.parameters.max_symbol_size, 0);
        header.encode(&mut Writer::new(out))?;
        let window = Window { first, count };
        let output = &mut [&mut out[REPAIR_HEADER_LEN..]];
        let len = self.encoder.encode(window, header.batch, header.column, output).ok()?;
        out.truncate(REPAIR_HEADER_LEN + len);
        self.counters.proactive_packets += 1;
        self.unflushed_repairs += 1;
        Some(PacketKind::Repair)
    }
}

#[cfg(test)]
#[path = "timely_sender_tests.rs"]
mod tests;
