use core::time::Duration;
use std::collections::VecDeque;

use bats_code::BATCH_SIZE;
use bats_code::stream::{StreamEncoder, Window};
use bats_types::Timestamp;

use super::rate::RateController;
use super::{PathView, SenderCounters};
use crate::config::Goal;
use crate::wire::coding::{REPAIR_HEADER_LEN, RepairHeader, SOURCE_HEADER_LEN, SourceHeader};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

/// Symbols that a repair of a busy flow covers: more cost delay, fewer cost redundancy
/// (`coding.md`, section 5.4).
const WINDOW: u64 = 64;
/// The window grows with bursts, which it must span, up to this many symbols.
const MAX_WINDOW: u64 = 256;
/// Symbols that a repair of a thin flow covers.
const THIN_WINDOW: u64 = 32;
/// A flow with fewer symbols in a round trip than this is thin: its losses are repaired message by
/// message, there is no window to spread repairs over.
const THIN_SYMBOLS: usize = 12;
/// What counts as a round trip for that at least.
const THIN_TIME: Duration = Duration::from_millis(50);
/// Silence after which the symbols at the end get the protection that nothing later gives them.
const FLUSH_AFTER: Duration = Duration::from_millis(4);
/// Symbols cut ahead of being sent.
const UNSENT_SYMBOLS: u64 = 16;

/// What a sender with deadlines is set up with.
#[derive(Clone, Copy, Debug)]
pub struct TimelyParameters {
    /// Bytes of a symbol at most.
    pub max_symbol_size: usize,
    /// Symbols that one repair may cover.
    pub window_cap: u16,
    /// Seed of the coefficients, as told to the peer.
    pub seed: u64,
    /// What redundancy favours; `None` for no repairs at all.
    pub goal: Option<Goal>,
}

/// A symbol that is kept: when it left, and until when it is worth repairing.
#[derive(Clone, Copy, Debug)]
struct Kept {
    sent_at: Option<Timestamp>,
    expires: Timestamp,
}

/// The sending end of a flow whose symbols are worth something for a while only (mode BTP): no
/// feedback, no top-up; repairs of a sliding window go between the symbols.
#[derive(Debug)]
pub struct TimelySender {
    encoder: StreamEncoder,
    symbol: Vec<u8>,
    /// `None` where nothing is ever repaired.
    rate: Option<RateController>,
    parameters: TimelyParameters,
    next_unsent: u64,
    /// The encoder's symbols.
    kept: VecDeque<Kept>,
    /// Repairs owed, the last one in part.
    owed: f64,
    /// Symbols and repairs since the last flush.
    unflushed: u64,
    unflushed_repairs: u64,
    flush_at: Option<Timestamp>,
    next_sequence: u64,
    counters: SenderCounters,
}

impl TimelySender {
    /// A sender for a fresh flow.
    pub fn new(parameters: TimelyParameters) -> Self {
        Self {
            encoder: StreamEncoder::new(parameters.max_symbol_size, parameters.seed),
            symbol: Vec::new(),
            rate: parameters.goal.map(RateController::new),
            parameters,
            next_unsent: 0,
            kept: VecDeque::new(),
            owed: 0.0,
            unflushed: 0,
            unflushed_repairs: 0,
            flush_at: None,
            next_sequence: 0,
            counters: SenderCounters::default(),
        }
    }

    /// Bytes held for sending and repair.
    pub fn bytes_held(&self) -> usize {
        self.encoder.bytes_held()
    }

    /// Frees memory that only a busy flow needs.
    pub fn trim(&mut self) {
        self.encoder.trim();
        self.symbol = Vec::new();
        self.kept.shrink_to_fit();
    }

    /// Counters since the start.
    pub fn counters(&self) -> SenderCounters {
        self.counters
    }

    /// Symbols so far.
    pub fn symbols(&self) -> u64 {
        self.encoder.next()
    }

    /// Whether nothing is left that would be sent, repairs included.
    pub fn is_idle(&self) -> bool {
        !self.wants_to_send() && self.flush_at.is_none()
    }

    /// Whether another symbol would be taken now.
    pub fn wants_symbol(&self) -> bool {
        self.encoder.next() - self.next_unsent < UNSENT_SYMBOLS
    }

    /// Whether [`TimelySender::poll`] would give a packet.
    pub fn wants_to_send(&self) -> bool {
        self.next_unsent < self.encoder.next() || self.repair_due()
    }

    fn repair_due(&self) -> bool {
        self.owed >= 1.0 && self.next_unsent > self.encoder.first()
    }

    /// Adds a symbol of up to `size` bytes that `fill` writes; it tells how many bytes it wrote,
    /// and until when they are worth repairing. False if it wrote none.
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
        self.kept.push_back(Kept { sent_at: None, expires });
        true
    }

    /// When [`TimelySender::on_timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        let oldest = self.kept.front().filter(|kept| kept.sent_at.is_some());
        let expiry = oldest.map(|kept| kept.expires);
        match (self.flush_at, expiry) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Forgets what is too old, and protects the end of what was sent if nothing follows.
    pub fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        self.forget(now);
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush(path);
        }
    }

    /// Lets go of what was sent and is too old, or beyond what any repair covers.
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
        self.owed = self.owed.max(0.0).max(wanted - sent).ceil();
        self.unflushed = 0;
        self.unflushed_repairs = 0;
    }

    /// Symbols sent within a round trip.
    fn is_thin(&self, now: Timestamp, path: &PathView) -> bool {
        let round = path.smoothed_rtt.max(THIN_TIME);
        let sent = self.kept.iter().rev().filter_map(|kept| kept.sent_at);
        sent.take(THIN_SYMBOLS).take_while(|&at| at + round > now).count() < THIN_SYMBOLS
    }

    /// The next coded payload, header included, into `out`. `more` tells whether further symbols
    /// would follow at once.
    pub fn poll(
        &mut self,
        now: Timestamp,
        path: &PathView,
        more: bool,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        out.clear();
        if self.repair_due() {
            self.owed -= 1.0;
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
        self.owe(now, path, !more && self.next_unsent == self.encoder.next());
        Some(PacketKind::Source)
    }

    /// A symbol was sent, and perhaps the last one for a while: what repair that asks for.
    fn owe(&mut self, now: Timestamp, path: &PathView, last: bool) {
        let Some(rate) = self.rate else { return };
        self.unflushed += 1;
        if self.is_thin(now, path) {
            self.flush_at = None;
            if last {
                self.owed = rate.thin(path);
                self.unflushed = 0;
            }
        } else {
            let window = self.window(path);
            self.owed += rate.timely(window, path) / window as f64;
            self.flush_at = Some(now + FLUSH_AFTER);
        }
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
