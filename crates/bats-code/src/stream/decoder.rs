//! The receiver's half: stores what comes, solves what can be solved, and knows what is missing.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::cluster::{Equation, LinearSystem, Removal};
use super::known::KnownSet;
use super::{Columns, MAX_SYMBOL_SIZE, MAX_WINDOW, Window, coefficients, solve};
use crate::BATCH_SIZE;
use crate::kernel::{Kernel, Mode};
use crate::rows::{AlignedRow, RowPool, padded_length};

/// Bytes of rows kept for reuse.
const POOL_BYTES: usize = 1 << 20;

/// Limits of a decoder. All of them bound memory that a peer could otherwise grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Longest symbol in bytes, 1 to [`MAX_SYMBOL_SIZE`] (cut to that).
    pub max_symbol_size: usize,
    /// Seed of the coefficients, as the encoder's.
    pub seed: u64,
    /// Symbols from the first unreleased one on that are accepted.
    pub max_symbols_held: usize,
    /// Unsolved equations held in all; up to 512 of them, at most half, are kept for the window of
    /// the first missing symbol.
    pub max_equations: usize,
    /// Distance between the first and the last unknown of linked equations, in symbols (at most
    /// 32768). Bounds the work for one packet.
    pub max_span: u32,
    /// Released symbols that are kept below the first missing one, because a repair may combine
    /// them with it: the longest window in use less one.
    pub history: u16,
}

impl DecoderConfig {
    /// Usual limits: 65,536 symbols, 16,384 equations, spans of 1024, windows of 256.
    #[must_use]
    pub fn new(max_symbol_size: usize, seed: u64) -> Self {
        Self {
            max_symbol_size,
            seed,
            max_symbols_held: 65_536,
            max_equations: 16_384,
            max_span: 1024,
            history: 255,
        }
    }
}

/// What a packet was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It raised the rank.
    Innovative,
    /// It follows from what was there.
    Redundant,
    /// It is beyond a limit, malformed, or needs symbols that were released long ago.
    OutOfRange,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// What it was worth.
    pub outcome: Outcome,
    /// Symbols that were solved because of it (the source symbol that came does not count).
    pub decoded: usize,
}

impl Receipt {
    const REDUNDANT: Self = Self { outcome: Outcome::Redundant, decoded: 0 };
}

/// Missing symbols that are solved together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The first missing symbol.
    pub first: u64,
    /// Symbols from the first to the last missing one, both counted.
    pub span: u32,
    /// Independent equations that lack until all are solved.
    pub rank_missing: u16,
}

/// Counters of a decoder, in packets or symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Source symbols that were new.
    pub source_innovative: u64,
    /// Source symbols that were known already.
    pub source_redundant: u64,
    /// Repairs that raised the rank.
    pub repair_innovative: u64,
    /// Repairs that did not.
    pub repair_redundant: u64,
    /// Packets refused as [`Outcome::OutOfRange`].
    pub refused: u64,
    /// Symbols solved from repairs.
    pub decoded: u64,
    /// Equations dropped unsolved because only released symbols were left in them.
    pub equations_dropped: u64,
}

#[derive(Debug)]
enum Slot {
    /// Unknown, in no equation.
    Missing,
    /// Unknown, a column of a cluster.
    Linked { cluster: u32, column: u32 },
    /// Received or solved.
    Known(AlignedRow),
}

/// Collects symbols and equations of one stream.
#[derive(Debug)]
pub struct StreamDecoder {
    config: DecoderConfig,
    kernel: Kernel,
    /// State of the symbols from `base` on.
    slots: VecDeque<Slot>,
    base: u64,
    known: KnownSet,
    released: u64,
    first_missing: u64,
    highest: Option<u64>,
    clusters: Vec<Option<Box<LinearSystem>>>,
    vacant: Vec<u32>,
    /// First symbol of all windows of held equations; `u64::MAX` without any.
    oldest_window: u64,
    equations: usize,
    /// Bytes of rows in slots and equations.
    row_bytes: usize,
    pool: RowPool,
    coefficient_pool: RowPool,
    /// Scratch: unknowns of the window at hand.
    unknowns: Vec<u64>,
    stats: DecoderStats,
}

impl StreamDecoder {
    /// A decoder that knows nothing yet.
    #[must_use]
    pub fn new(config: DecoderConfig) -> Self {
        Self::with_kernel(config, Kernel::active())
    }

    /// As [`StreamDecoder::new`], with a kernel of the caller's choice.
    #[must_use]
    pub fn with_kernel(mut config: DecoderConfig, kernel: Kernel) -> Self {
        config.max_symbol_size = config.max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        config.max_span = config.max_span.min(32_768);
        Self {
            config,
            kernel,
            slots: VecDeque::new(),
            base: 0,
            known: KnownSet::default(),
            released: 0,
            first_missing: 0,
            highest: None,
            clusters: Vec::new(),
            vacant: Vec::new(),
            oldest_window: u64::MAX,
            equations: 0,
            row_bytes: 0,
            pool: RowPool::new(config.max_symbol_size, POOL_BYTES),
            coefficient_pool: RowPool::new(MAX_WINDOW as usize, POOL_BYTES / 4),
            unknowns: Vec::new(),
            stats: DecoderStats::default(),
        }
    }

    /// Frees the memory that only serves the next symbols; for a stream that rests. What was released
    /// and may still take part in a repair stays.
    pub fn trim(&mut self) {
        self.pool.trim();
        self.coefficient_pool.trim();
        self.slots.shrink_to_fit();
        self.known.trim();
        self.unknowns = Vec::new();
        if self.equations == 0 && self.clusters.iter().all(Option::is_none) {
            self.clusters = Vec::new();
            self.vacant = Vec::new();
        }
    }

    /// Takes a source symbol.
    pub fn push_source(&mut self, number: u64, payload: &[u8]) -> Receipt {
        if !self.is_payload(payload) || number >= self.limit() {
            return self.refuse();
        }
        if number < self.base || self.known.contains(number) {
            self.stats.source_redundant += 1;
            return Receipt::REDUNDANT;
        }
        self.stats.source_innovative += 1;
        self.highest = self.highest.max(Some(number));
        let row = self.pool.copy_of(payload);
        let slot = if number == self.base + self.slots.len() as u64 {
            // The usual case: what comes next.
            self.row_bytes += row.bytes();
            self.known.insert(number);
            self.slots.push_back(Slot::Known(row));
            Slot::Missing
        } else {
            self.extend_slots(number + 1);
            self.set_known(number, row)
        };
        let mut decoded = 0;
        if let Slot::Linked { cluster, column } = slot {
            self.remove_column(cluster, column);
            decoded = self.settle(cluster);
        } else if number > self.first_missing {
            // Nothing that this would move on has changed.
            return Receipt { outcome: Outcome::Innovative, decoded };
        }
        self.advance();
        Receipt { outcome: Outcome::Innovative, decoded }
    }

    /// Takes a repair: a combination of the symbols of `window`. Explicit coefficients that are not
    /// one for each symbol, or all zero, are refused as out of range.
    pub fn push_repair(&mut self, window: Window, columns: Columns<'_>, payload: &[u8]) -> Receipt {
        let Some(end) = window.end().filter(|&end| end <= self.limit()) else {
            return self.refuse();
        };
        if !self.is_payload(payload) || !is_of_window(columns, window) {
            return self.refuse();
        }
        let wanted = window.first.max(self.released);
        if self.known.next_unknown(wanted, end).is_none() {
            self.highest = self.highest.max(Some(end - 1).filter(|&n| n >= self.base));
            self.stats.repair_redundant += 1;
            return Receipt::REDUNDANT;
        }
        if window.first < self.base || self.equations >= self.max_equations_for(window) {
            return self.refuse();
        }
        self.collect_unknowns(window.first, end);
        let linked = self.linked_clusters();
        if self.span_with(&linked) > u64::from(self.config.max_span) {
            return self.refuse();
        }
        self.extend_slots(end);
        self.highest = self.highest.max(Some(end - 1));

        let row = self.expand(window, columns);
        let cluster = self.join(&linked);
        let Some(mut system) = self.take_cluster(cluster) else { return self.refuse() };
        let mut unknowns = Vec::with_capacity(self.unknowns.len());
        for &number in &self.unknowns {
            let coefficient = row.as_slice()[(number - window.first) as usize];
            let column = match self.slots[(number - self.base) as usize] {
                Slot::Linked { column, .. } => column as usize,
                // Recoding may cancel a symbol; one that is in no equation is no unknown of it.
                _ if coefficient == 0 => continue,
                _ => {
                    let column = system.add_column(number);
                    self.slots[(number - self.base) as usize] =
                        Slot::Linked { cluster, column: column as u32 };
                    column
                }
            };
            unknowns.push((column, coefficient));
        }
        let payload = self.pool.copy_of(payload);
        let equation = Equation { window, coefficients: row, payload };
        let bytes = equation.bytes();
        let inserted = system.insert(self.kernel, &unknowns, equation);
        self.clusters[cluster as usize] = Some(system);
        let receipt = match inserted {
            Ok(()) => {
                self.row_bytes += bytes;
                self.equations += 1;
                self.oldest_window = self.oldest_window.min(window.first);
                self.stats.repair_innovative += 1;
                Receipt { outcome: Outcome::Innovative, decoded: self.settle(cluster) }
            }
            Err(equation) => {
                self.recycle(equation);
                self.stats.repair_redundant += 1;
                self.settle(cluster);
                Receipt::REDUNDANT
            }
        };
        self.advance();
        receipt
    }

    /// Whether a symbol was received or solved, or is so old that it no longer matters.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.known.contains(number)
    }

    /// A symbol that is known and held. A solved one is as long as the longest symbol of the
    /// windows that it was solved from, zero-padded: the code does not know the true length.
    #[must_use]
    pub fn symbol(&self, number: u64) -> Option<&[u8]> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        match self.slots.get(index)? {
            Slot::Known(row) => Some(row.as_slice()),
            _ => None,
        }
    }

    /// The lowest symbol that is neither known nor released.
    #[must_use]
    pub fn first_missing(&self) -> u64 {
        self.first_missing
    }

    /// The highest symbol that a packet told of.
    #[must_use]
    pub fn highest_seen(&self) -> Option<u64> {
        self.highest
    }

    /// Symbols below this are released.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Unsolved equations held.
    #[must_use]
    pub fn equations_held(&self) -> usize {
        self.equations
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// Memory of symbols, equations and matrices, in bytes, without what is kept for reuse.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.row_bytes + self.matrix_bytes() + self.slots.len() * size_of::<Slot>()
    }

    /// What equations take beyond their payloads, in bytes: coefficients and matrices.
    #[must_use]
    pub fn equation_overhead(&self) -> usize {
        self.equations * padded_length(usize::from(MAX_WINDOW)) + self.matrix_bytes()
    }

    fn matrix_bytes(&self) -> usize {
        self.clusters.iter().flatten().map(|system| system.bytes()).sum()
    }

    /// The application has consumed, or gives up, all symbols below `number`. Rows stay as long as
    /// held equations need them, and for [`DecoderConfig::history`] symbols.
    pub fn release_below(&mut self, number: u64) {
        if number <= self.released {
            return;
        }
        self.released = number;
        // Unknowns below the first missing one were released before: their clusters have gone.
        if number > self.first_missing {
            for cluster in 0..self.clusters.len() {
                self.drop_if_released(cluster as u32);
            }
        }
        self.advance();
    }

    /// The symbol turned out to be wrong: forgets it, and all equations held, in which it or what
    /// made it wrong may be. Nothing happens if it was released or is not known.
    pub fn forget(&mut self, number: u64) {
        let held = number >= self.released.max(self.base) && self.symbol(number).is_some();
        if !held {
            return;
        }
        for cluster in 0..self.clusters.len() as u32 {
            let Some(system) = &self.clusters[cluster as usize] else { continue };
            for &unknown in system.columns() {
                self.slots[(unknown - self.base) as usize] = Slot::Missing;
            }
            self.stats.equations_dropped += self.forget_cluster(cluster) as u64;
        }
        self.known.remove(number);
        let index = (number - self.base) as usize;
        if let Slot::Known(row) = core::mem::replace(&mut self.slots[index], Slot::Missing) {
            self.row_bytes -= row.bytes();
            self.pool.give(row);
        }
        self.first_missing = self.first_missing.min(number);
    }

    /// What is missing below `below`, in order of the first symbol, at most `max` clusters:
    /// unknowns linked by held equations as one cluster (which may reach beyond `below`), runs of
    /// other unknowns as one each.
    #[must_use]
    pub fn missing_clusters(&self, below: u64, max: usize) -> Vec<Cluster> {
        let mut found = Vec::new();
        let mut next = self.first_missing;
        while found.len() < max {
            let Some(number) = self.known.next_unknown(next, below) else { break };
            next = number + 1;
            match self.slot(number) {
                Some(&Slot::Linked { cluster, .. }) => {
                    let Some(system) = &self.clusters[cluster as usize] else { continue };
                    let Some((mut first, last)) = system.extent() else { continue };
                    if first < self.released {
                        let wanted = system.columns().iter().filter(|&&n| n >= self.released);
                        first = wanted.min().copied().unwrap_or(last);
                    }
                    // A cluster counts where its first wanted symbol stands.
                    if first == number {
                        found.push(cluster_of(first, last, system.columns().len() - system.rank()));
                    }
                }
                None => {
                    // Nothing was heard of this symbol or a later one.
                    found.push(cluster_of(number, below - 1, (below - number) as usize));
                    break;
                }
                Some(_) => {
                    let held = self.base + self.slots.len() as u64;
                    while next < below.min(held) && matches!(self.slot(next), Some(Slot::Missing)) {
                        next += 1;
                    }
                    found.push(cluster_of(number, next - 1, (next - number) as usize));
                }
            }
        }
        found
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    fn is_payload(&self, payload: &[u8]) -> bool {
        !payload.is_empty() && payload.len() <= self.config.max_symbol_size
    }

    /// A part of the equations is kept for the window of the first missing symbol: nothing gets
    /// on without it, and incomplete later cells give nothing back.
    fn max_equations_for(&self, window: Window) -> usize {
        let max = self.config.max_equations;
        if window.first <= self.first_missing {
            return max;
        }
        max - (max / 2).min(usize::from(MAX_WINDOW))
    }

    /// Symbols from here on are refused.
    fn limit(&self) -> u64 {
        self.released.saturating_add(self.config.max_symbols_held as u64).min(u64::MAX - 1)
    }

    fn refuse(&mut self) -> Receipt {
        self.stats.refused += 1;
        Receipt { outcome: Outcome::OutOfRange, decoded: 0 }
    }

    fn extend_slots(&mut self, end: u64) {
        let count = end.saturating_sub(self.base) as usize;
        if count > self.slots.len() {
            self.slots.resize_with(count, || Slot::Missing);
        }
    }

    /// Stores a symbol and returns what was there.
    fn set_known(&mut self, number: u64, row: AlignedRow) -> Slot {
        self.row_bytes += row.bytes();
        self.known.insert(number);
        core::mem::replace(&mut self.slots[(number - self.base) as usize], Slot::Known(row))
    }

    fn collect_unknowns(&mut self, first: u64, end: u64) {
        let unknowns = &mut self.unknowns;
        unknowns.clear();
        self.known.for_each_unknown(first, end, |number| unknowns.push(number));
    }

    /// Clusters that the collected unknowns belong to.
    fn linked_clusters(&self) -> Vec<u32> {
        let mut linked = Vec::new();
        for &number in &self.unknowns {
            if let Some(&Slot::Linked { cluster, .. }) = self.slot(number)
                && linked.last() != Some(&cluster)
                && !linked.contains(&cluster)
            {
                linked.push(cluster);
            }
        }
        linked
    }

    /// Span of the cluster that these clusters and the collected unknowns would make.
    fn span_with(&self, linked: &[u32]) -> u64 {
        let (Some(&first), Some(&last)) = (self.unknowns.first(), self.unknowns.last()) else {
            return 0;
        };
        let (first, last) = linked
            .iter()
            .filter_map(|&cluster| self.clusters[cluster as usize].as_ref()?.extent())
            .fold((first, last), |(low, high), (first, last)| (low.min(first), high.max(last)));
        last - first + 1
    }

    /// Coefficients of a repair over its window.
    fn expand(&mut self, window: Window, columns: Columns<'_>) -> AlignedRow {
        let seed = self.config.seed;
        let count = usize::from(window.count);
        let mut row = self.coefficient_pool.take(count);
        match columns {
            Columns::Fresh { batch, column } => {
                coefficients(seed, batch, column, row.as_mut_slice());
            }
            Columns::Explicit { coefficients } => row.as_mut_slice().copy_from_slice(coefficients),
            Columns::Recoded { batch, vector } => {
                let padded = padded_length(count);
                let mut lines = [[0u8; MAX_WINDOW as usize]; BATCH_SIZE];
                for (line, column) in lines.iter_mut().zip(0..) {
                    coefficients(seed, batch, column, &mut line[..count]);
                }
                let lines: Vec<&[u8]> = lines.iter().map(|line| &line[..]).collect();
                let output = &mut [row.padded_mut()];
                self.kernel.product(vector, &lines, output, padded, Mode::Overwrite);
            }
        }
        row
    }

    /// Makes one cluster of several, a new one of none.
    fn join(&mut self, linked: &[u32]) -> u32 {
        let Some((&target, others)) = linked.split_first() else {
            return match self.vacant.pop() {
                Some(id) => {
                    self.clusters[id as usize] = Some(Box::default());
                    id
                }
                None => {
                    self.clusters.push(Some(Box::default()));
                    (self.clusters.len() - 1) as u32
                }
            };
        };
        for &other in others {
            let Some(absorbed) = self.take_cluster(other) else { continue };
            self.vacant.push(other);
            let Some(system) = &mut self.clusters[target as usize] else { continue };
            let from = system.columns().len();
            system.absorb(*absorbed);
            for (column, &number) in system.columns().iter().enumerate().skip(from) {
                self.slots[(number - self.base) as usize] =
                    Slot::Linked { cluster: target, column: column as u32 };
            }
        }
        target
    }

    fn take_cluster(&mut self, cluster: u32) -> Option<Box<LinearSystem>> {
        self.clusters[cluster as usize].take()
    }

    /// Removes the column of a symbol that has become known.
    fn remove_column(&mut self, cluster: u32, column: u32) {
        let Some(system) = &mut self.clusters[cluster as usize] else { return };
        let Removal { moved, equation } = system.remove_column(self.kernel, column as usize);
        if let Some(number) = moved {
            self.slots[(number - self.base) as usize] = Slot::Linked { cluster, column };
        }
        if let Some(equation) = equation {
            self.equations -= 1;
            self.row_bytes -= equation.bytes();
            self.recycle(equation);
            self.oldest_window = self.find_oldest_window();
        }
    }

    /// Computes what a cluster determines, and forgets the cluster when nothing is left of it.
    fn settle(&mut self, cluster: u32) -> usize {
        let Some(system) = &self.clusters[cluster as usize] else { return 0 };
        let solved = system.solved_rows();
        if !solved.is_empty() {
            let (slots, base) = (&self.slots, self.base);
            let known_row = |number: u64| match &slots[(number - base) as usize] {
                Slot::Known(row) => row.padded(),
                _ => &[],
            };
            let rows = solve::payloads(
                self.kernel,
                system,
                &solved,
                &self.known,
                known_row,
                &mut self.pool,
            );
            let numbers: Vec<u64> = solved.iter().map(|&row| system.pivot_symbol(row)).collect();
            let all = numbers.len() == system.columns().len();
            for (number, row) in numbers.into_iter().zip(rows) {
                if let Slot::Linked { column, .. } = self.set_known(number, row)
                    && !all
                {
                    self.remove_column(cluster, column);
                }
            }
            self.stats.decoded += solved.len() as u64;
            if all {
                self.forget_cluster(cluster);
            }
        }
        self.drop_if_released(cluster);
        solved.len()
    }

    /// Gives back a cluster whose columns no slot names any more. Returns its equations' number.
    fn forget_cluster(&mut self, cluster: u32) -> usize {
        let Some(system) = self.take_cluster(cluster) else { return 0 };
        self.vacant.push(cluster);
        let equations = system.into_equations();
        let count = equations.len();
        for equation in equations {
            self.equations -= 1;
            self.row_bytes -= equation.bytes();
            self.recycle(equation);
        }
        self.oldest_window = self.find_oldest_window();
        count
    }

    /// Gives up a cluster that concerns released symbols only, or none.
    fn drop_if_released(&mut self, cluster: u32) {
        let Some(system) = &self.clusters[cluster as usize] else { return };
        if system.extent().is_some_and(|(_, last)| last >= self.released) {
            return;
        }
        for &number in system.columns() {
            self.slots[(number - self.base) as usize] = Slot::Missing;
        }
        self.stats.equations_dropped += self.forget_cluster(cluster) as u64;
    }

    fn recycle(&mut self, equation: Equation) {
        self.coefficient_pool.give(equation.coefficients);
        self.pool.give(equation.payload);
    }

    fn find_oldest_window(&self) -> u64 {
        if self.equations == 0 {
            return u64::MAX;
        }
        let windows = self.clusters.iter().flatten().filter_map(|system| system.first_window());
        windows.min().unwrap_or(u64::MAX)
    }

    /// Moves the first missing symbol on and gives back the rows that nothing needs any more.
    fn advance(&mut self) {
        let from = self.first_missing.max(self.released);
        let end = self.base + self.slots.len() as u64;
        self.first_missing = self.known.next_unknown(from, end).unwrap_or(from.max(end));

        let history = u64::from(self.config.history);
        let floor = self.first_missing.saturating_sub(history).min(self.released);
        let floor = floor.min(self.oldest_window);
        if floor <= self.base {
            return;
        }
        while self.base < floor {
            match self.slots.pop_front() {
                Some(Slot::Known(row)) => {
                    self.row_bytes -= row.bytes();
                    self.pool.give(row);
                }
                Some(_) => {}
                None => self.base = floor - 1,
            }
            self.base += 1;
        }
        self.known.release_below(self.base);
    }
}

/// Whether explicit coefficients are as many as the symbols and not all zero; all others are by
/// construction.
fn is_of_window(columns: Columns<'_>, window: Window) -> bool {
    let Columns::Explicit { coefficients } = columns else { return true };
    coefficients.len() == usize::from(window.count)
        && coefficients.len() <= BATCH_SIZE
        && coefficients.iter().any(|&x| x != 0)
}

fn cluster_of(first: u64, last: u64, rank_missing: usize) -> Cluster {
    Cluster {
        first,
        span: u32::try_from((last - first).saturating_add(1)).unwrap_or(u32::MAX),
        rank_missing: u16::try_from(rank_missing).unwrap_or(u16::MAX),
    }
}
