//! The decoder: stores source symbols, solves missing ones, and reports missing ranges.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::known::KnownSet;
use super::linear_system::{Equation, LinearSystem};
use super::redundancy::{ProductSum, VALUE_WORK, Value};
use super::results::{DecoderConfig, DecoderStats, MissingRange, Outcome, PushResult};
use super::work::WorkBudgets;
use super::{Columns, MAX_SYMBOL_SIZE, MAX_WINDOW, Window, coefficients};
use crate::BATCH_SIZE;
use crate::kernel::{Kernel, Mode};
use crate::rows::{AlignedRow, RowPool, padded_length};

/// Memory of rows kept for reuse, in bytes.
const POOL_BYTES: usize = 1 << 20;

#[derive(Debug)]
enum Slot {
    /// Unknown and in no equation.
    Missing,
    /// Unknown: a column of a linear system.
    Linked { system_id: u32, column: u32 },
    /// Received or solved.
    Known(AlignedRow),
}

/// Work for each coefficient of each column of a recoded repair, in bytes of matrix rows: it takes about as many
/// instructions as the kernels for AVX2 need for 8 bytes.
const COEFFICIENT_WORK: usize = 8;

/// Memory of a window start: number, count, and as much for free entries of the tree's nodes.
const WINDOW_START_BYTES: usize = 2 * (size_of::<u64>() + size_of::<u32>());

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
    /// Linear systems by ID. Two systems share no unknown.
    systems: Vec<Option<Box<LinearSystem>>>,
    /// IDs in `systems` that can be reused.
    free_ids: Vec<u32>,
    /// First symbols of the windows of the held equations, and how many have each.
    window_starts: BTreeMap<u64, u32>,
    equations: usize,
    /// Bytes of all systems.
    matrix_bytes: usize,
    /// Bytes of rows in slots and equations.
    row_bytes: usize,
    pool: RowPool,
    coefficient_pool: RowPool,
    /// Scratch: unknowns of the current window.
    unknowns: Vec<u64>,
    /// Scratch: the coefficients of a batch, one line for each column.
    lines: Vec<[u8; MAX_WINDOW as usize]>,
    /// Number of the last search for linked systems.
    search: u64,
    /// Symbols solved by the last packet.
    solved: Vec<u64>,
    work: WorkBudgets,
    stats: DecoderStats,
}

impl StreamDecoder {
    /// An empty decoder.
    #[must_use]
    pub fn new(config: DecoderConfig) -> Self {
        Self::with_kernel(config, Kernel::active())
    }

    /// As [`StreamDecoder::new`], with a kernel of the caller's choice.
    #[must_use]
    pub fn with_kernel(mut config: DecoderConfig, kernel: Kernel) -> Self {
        config.max_symbol_size = config.max_symbol_size.clamp(1, MAX_SYMBOL_SIZE);
        config.max_span = config.max_span.min(32_768);
        let work = WorkBudgets::new(config.max_symbol_size);
        Self {
            config,
            kernel,
            slots: VecDeque::new(),
            base: 0,
            known: KnownSet::default(),
            released: 0,
            first_missing: 0,
            highest: None,
            systems: Vec::new(),
            free_ids: Vec::new(),
            window_starts: BTreeMap::new(),
            equations: 0,
            matrix_bytes: 0,
            row_bytes: 0,
            pool: RowPool::new(config.max_symbol_size, POOL_BYTES),
            coefficient_pool: RowPool::new(MAX_WINDOW as usize, POOL_BYTES / 4),
            unknowns: Vec::new(),
            lines: Vec::new(),
            search: 0,
            solved: Vec::new(),
            work,
            stats: DecoderStats::default(),
        }
    }

    /// Raises the limits of symbols and equations.
    pub fn raise_limits(&mut self, max_symbols_held: usize, max_equations: usize) {
        self.config.max_symbols_held = self.config.max_symbols_held.max(max_symbols_held);
        self.config.max_equations = self.config.max_equations.max(max_equations);
    }

    /// Frees memory that is kept only for future symbols, and the released symbols unless a held equation
    /// needs them. Call it when the stream is idle: repairs whose windows begin with symbols from before can
    /// only be used if all others of the window are known.
    pub fn trim(&mut self) {
        self.drop_rows_below(self.released.min(self.first_missing));
        self.pool.trim();
        self.coefficient_pool.trim();
        self.slots.shrink_to_fit();
        self.known.trim();
        self.unknowns = Vec::new();
        self.lines = Vec::new();
        self.solved = Vec::new();
        if self.equations == 0 && self.systems.iter().all(Option::is_none) {
            self.systems = Vec::new();
            self.free_ids = Vec::new();
        }
    }

    /// Adds a source symbol.
    pub fn push_source(&mut self, number: u64, payload: &[u8]) -> PushResult {
        self.solved.clear();
        if !self.is_payload(payload) || number >= self.limit() {
            return self.refuse();
        }
        self.work.earn(payload.len());
        if number < self.base || self.known.contains(number) {
            self.stats.source_duplicate += 1;
            return PushResult::NON_INNOVATIVE;
        }
        self.stats.source_innovative += 1;
        self.highest = self.highest.max(Some(number));
        let row = self.pool.copy_of(payload);
        let slot = if number == self.base + self.slots.len() as u64 {
            // The common case: the next symbol in order.
            self.row_bytes += row.bytes();
            self.known.insert(number);
            self.slots.push_back(Slot::Known(row));
            Slot::Missing
        } else {
            self.extend_slots(number + 1);
            self.set_known(number, row)
        };
        if let Slot::Linked { system_id, column } = slot {
            self.remove_column(system_id, column);
            self.solve_system(system_id);
        } else if number > self.first_missing {
            // Neither the first missing symbol nor a linear system has changed.
            return self.result(Outcome::Innovative);
        }
        self.advance();
        self.result(Outcome::Innovative)
    }

    /// Adds a repair: a linear combination of the symbols of `window`. Explicit coefficients must
    /// be one for each symbol and not all zero; others give [`Outcome::OutOfRange`].
    pub fn push_repair(
        &mut self,
        window: Window,
        columns: Columns<'_>,
        payload: &[u8],
    ) -> PushResult {
        self.solved.clear();
        let Some(end) = window.end().filter(|&end| end <= self.limit()) else {
            return self.refuse();
        };
        if !self.is_payload(payload) || !are_explicit_coefficients_valid(columns, window) {
            return self.refuse();
        }
        self.work.earn(payload.len());
        let wanted = window.first.max(self.released);
        let Some(unknown) = self.known.next_unknown(wanted, end) else {
            self.highest = self.highest.max(Some(end - 1).filter(|&n| n >= self.base));
            self.stats.repair_non_innovative += 1;
            return PushResult::NON_INNOVATIVE;
        };
        if window.first < self.base || self.equations >= self.max_equations_for(window) {
            return self.refuse();
        }
        if self.work.is_empty() {
            self.stats.refused_for_work += 1;
            return self.refuse();
        }
        let before = self.stats.work;
        let mut expanded = None;
        if let Some(&Slot::Linked { system_id, .. }) = self.slot(unknown)
            && self.null_values(system_id).is_some()
        {
            let row = self.expand(window, columns);
            self.spend(u64::from(window.count) * VALUE_WORK as u64);
            let unknown = self.known.next_unknown(window.first, end).unwrap_or(unknown);
            if self.is_redundant(window, row.as_slice(), unknown) == Some(true) {
                self.coefficient_pool.give(row);
                self.highest = self.highest.max(Some(end - 1));
                self.stats.repair_non_innovative += 1;
                self.count_redundant(before);
                return PushResult::NON_INNOVATIVE;
            }
            expanded = Some(row);
        }
        self.collect_unknowns(window.first, end);
        let (linked, unlinked) = self.linked_systems();
        if self.span_with(&linked) > u64::from(self.config.max_span)
            || self.unknowns_with(&linked, unlinked) > self.config.max_unknowns as usize
        {
            self.spend((self.unknowns.len() * VALUE_WORK) as u64);
            self.count_redundant(before);
            return self.refuse();
        }
        self.extend_slots(end);
        self.highest = self.highest.max(Some(end - 1));

        let row = expanded.unwrap_or_else(|| self.expand(window, columns));
        let system_id = self.merge_systems(&linked);
        let Some(mut system) = self.take_system(system_id) else { return self.refuse() };
        let mut unknowns = Vec::with_capacity(self.unknowns.len());
        for &number in &self.unknowns {
            let coefficient = row.as_slice()[(number - window.first) as usize];
            let column = match self.slots[(number - self.base) as usize] {
                Slot::Linked { column, .. } => column as usize,
                // Recoding may cancel a symbol. One that is in no equation needs no column then.
                _ if coefficient == 0 => continue,
                _ => {
                    let column = system.add_column(number);
                    self.slots[(number - self.base) as usize] =
                        Slot::Linked { system_id, column: column as u32 };
                    column
                }
            };
            unknowns.push((column, coefficient));
        }
        let payload = self.pool.copy_of(payload);
        let equation = Equation { window, coefficients: row, payload };
        let bytes = equation.bytes();
        let inserted = system.insert(self.kernel, &unknowns, equation);
        self.put_system(system_id, system);
        let outcome = match inserted {
            Ok(()) => {
                self.row_bytes += bytes;
                self.equations += 1;
                *self.window_starts.entry(window.first).or_default() += 1;
                self.stats.repair_innovative += 1;
                Outcome::Innovative
            }
            Err(equation) => {
                self.recycle(equation);
                self.stats.repair_non_innovative += 1;
                Outcome::NonInnovative
            }
        };
        self.solve_system(system_id);
        if outcome == Outcome::NonInnovative {
            self.count_redundant(before);
        }
        self.advance();
        self.result(outcome)
    }

    /// The result of a packet that may have solved symbols.
    fn result(&self, outcome: Outcome) -> PushResult {
        PushResult { outcome, decoded: self.solved.len() }
    }

    fn spend(&mut self, work: u64) {
        self.stats.work = self.stats.work.saturating_add(work);
        self.work.spend(work);
    }

    /// Counts the work since it was `before` as that for a repair that added nothing.
    fn count_redundant(&mut self, before: u64) {
        let work = self.stats.work.saturating_sub(before);
        self.stats.non_innovative_work = self.stats.non_innovative_work.saturating_add(work);
        self.work.count_redundant(work);
    }

    /// Whether a symbol was received or solved, or is below the symbols that the decoder keeps.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.known.contains(number)
    }

    /// The symbols that the last packet solved, in ascending order, without the source symbol that it
    /// contained.
    #[must_use]
    pub fn solved(&self) -> &[u64] {
        &self.solved
    }

    /// A symbol, if it is known and held. A solved symbol is zero-padded to the length of the
    /// longest symbol in the windows that it was solved from: the code does not know its true
    /// length.
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

    /// The highest symbol number seen in an accepted packet.
    #[must_use]
    pub fn highest_seen(&self) -> Option<u64> {
        self.highest
    }

    /// All symbols below this number are released.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Number of unsolved equations.
    #[must_use]
    pub fn equations_held(&self) -> usize {
        self.equations
    }

    /// Counters since the start.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// Memory of symbols, equations and matrices, in bytes, without rows kept for reuse.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        self.row_bytes
            + self.matrix_bytes
            + self.slots.len() * size_of::<Slot>()
            + self.systems.len() * size_of::<Option<Box<LinearSystem>>>()
            + self.window_starts.len() * WINDOW_START_BYTES
    }

    /// Memory of the coefficients and matrices of all equations, in bytes, without payloads.
    #[must_use]
    pub fn equation_overhead(&self) -> usize {
        self.equations * padded_length(usize::from(MAX_WINDOW)) + self.matrix_bytes
    }

    /// Releases all symbols below `number`: the application has consumed them or gives them up.
    /// Rows stay while held equations need them, and for [`DecoderConfig::history`] symbols.
    pub fn release_below(&mut self, number: u64) {
        if number <= self.released {
            return;
        }
        self.released = number;
        // The last unknown of a system that is no longer wanted is among the symbols released now.
        // Unknowns below the first missing one were released before.
        let end = number.min(self.base + self.slots.len() as u64);
        let mut next = self.first_missing;
        while let Some(unknown) = self.known.next_unknown(next, end) {
            next = unknown + 1;
            if let Some(&Slot::Linked { system_id, .. }) = self.slot(unknown) {
                self.drop_if_released(system_id);
            }
        }
        self.advance();
    }

    /// Forgets a polluted symbol, and all equations: they may contain it, or come from the same
    /// polluting relay. Does nothing if the symbol is released or not known.
    pub fn forget(&mut self, number: u64) {
        self.solved.clear();
        let held = number >= self.released.max(self.base) && self.symbol(number).is_some();
        if !held {
            return;
        }
        for system_id in 0..self.systems.len() as u32 {
            let Some(system) = &self.systems[system_id as usize] else { continue };
            for &unknown in system.columns() {
                self.slots[(unknown - self.base) as usize] = Slot::Missing;
            }
            self.stats.equations_dropped += self.remove_system(system_id) as u64;
        }
        self.known.remove(number);
        let index = (number - self.base) as usize;
        if let Slot::Known(row) = core::mem::replace(&mut self.slots[index], Slot::Missing) {
            self.row_bytes -= row.bytes();
            self.pool.give(row);
        }
        self.first_missing = self.first_missing.min(number);
    }

    /// The missing ranges below `below`, ordered by first symbol, at most `max`. The unknowns of
    /// one linear system are one range, which may end beyond `below`; each run of other unknowns is
    /// one.
    #[must_use]
    pub fn missing_ranges(&self, below: u64, max: usize) -> Vec<MissingRange> {
        let mut found = Vec::new();
        let mut next = self.first_missing;
        while found.len() < max {
            let Some(number) = self.known.next_unknown(next, below) else { break };
            next = number + 1;
            match self.slot(number) {
                Some(&Slot::Linked { system_id, .. }) => {
                    let Some(system) = &self.systems[system_id as usize] else { continue };
                    let Some((mut first, last)) = system.extent() else { continue };
                    if first < self.released {
                        let wanted = system.columns().iter().filter(|&&n| n >= self.released);
                        first = wanted.min().copied().unwrap_or(last);
                    }
                    // A system is reported at its first unreleased unknown.
                    if first == number {
                        found.push(missing_range(
                            first,
                            last,
                            system.columns().len() - system.rank(),
                        ));
                    }
                }
                None => {
                    // No packet has referred to this symbol or a later one.
                    found.push(missing_range(number, below - 1, (below - number) as usize));
                    break;
                }
                Some(_) => {
                    let held = self.base + self.slots.len() as u64;
                    while next < below.min(held) && matches!(self.slot(next), Some(Slot::Missing)) {
                        next += 1;
                    }
                    found.push(missing_range(number, next - 1, (next - number) as usize));
                }
            }
        }
        found
    }

    /// Compares the running totals with the systems.
    #[cfg(test)]
    pub(super) fn check_totals(&self) {
        let systems = || self.systems.iter().flatten();
        let equations = || systems().flat_map(|system| system.equations());
        assert_eq!(self.matrix_bytes, systems().map(|system| system.bytes()).sum::<usize>());
        assert_eq!(self.equations, equations().count());
        let oldest = equations().map(|equation| equation.window.first).min();
        assert_eq!(self.window_starts.first_key_value().map(|(&first, _)| first), oldest);
        let counted: u32 = self.window_starts.values().sum();
        assert_eq!(counted as usize, self.equations);
        let wanted = |system: &LinearSystem| system.extent().is_some_and(|e| e.1 >= self.released);
        assert!(systems().all(|system| wanted(system)), "systems without wanted symbols are gone");
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        self.slots.get(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    fn is_payload(&self, payload: &[u8]) -> bool {
        !payload.is_empty() && payload.len() <= self.config.max_symbol_size
    }

    /// Reserves some equations for the window of the first missing symbol. Otherwise incomplete
    /// later generations could fill the limit, and in-order delivery would stall forever.
    fn max_equations_for(&self, window: Window) -> usize {
        let max = self.config.max_equations;
        if window.first <= self.first_missing {
            return max;
        }
        max - (max / 2).min(usize::from(MAX_WINDOW))
    }

    /// First symbol number that is refused.
    fn limit(&self) -> u64 {
        self.released.saturating_add(self.config.max_symbols_held as u64).min(u64::MAX - 1)
    }

    fn refuse(&mut self) -> PushResult {
        self.stats.refused += 1;
        PushResult { outcome: Outcome::OutOfRange, decoded: 0 }
    }

    fn extend_slots(&mut self, end: u64) {
        let count = end.saturating_sub(self.base) as usize;
        if count > self.slots.len() {
            self.slots.resize_with(count, || Slot::Missing);
        }
    }

    /// Stores a symbol and returns its former slot.
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

    /// IDs of the linear systems that the collected unknowns belong to, and the number of those that
    /// belong to none.
    fn linked_systems(&mut self) -> (Vec<u32>, usize) {
        self.search += 1;
        let (mut linked, mut unlinked) = (Vec::new(), 0);
        for &number in &self.unknowns {
            let Some(&Slot::Linked { system_id, .. }) = self.slot(number) else {
                unlinked += 1;
                continue;
            };
            if linked.last() != Some(&system_id)
                && let Some(system) = &mut self.systems[system_id as usize]
                && system.is_found_first(self.search)
            {
                linked.push(system_id);
            }
        }
        (linked, unlinked)
    }

    /// Unknowns of the system that would result from merging these and adding those of no system.
    fn unknowns_with(&self, linked: &[u32], unlinked: usize) -> usize {
        let systems = linked.iter().filter_map(|&id| self.systems[id as usize].as_ref());
        systems.map(|system| system.columns().len()).sum::<usize>() + unlinked
    }

    /// Span of the system that would result from merging these and adding the collected unknowns.
    fn span_with(&self, linked: &[u32]) -> u64 {
        let (Some(&first), Some(&last)) = (self.unknowns.first(), self.unknowns.last()) else {
            return 0;
        };
        let (first, last) = linked
            .iter()
            .filter_map(|&system_id| self.systems[system_id as usize].as_ref()?.extent())
            .fold((first, last), |(low, high), (first, last)| (low.min(first), high.max(last)));
        last - first + 1
    }

    /// Expands the coefficients of a repair over its window.
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
                self.lines.resize(BATCH_SIZE, [0; MAX_WINDOW as usize]);
                for (line, column) in self.lines.iter_mut().zip(0..) {
                    coefficients(seed, batch, column, &mut line[..count]);
                    line[count..padded].fill(0);
                }
                let lines: Vec<&[u8]> = self.lines.iter().map(|line| &line[..]).collect();
                let output = &mut [row.padded_mut()];
                self.kernel.product(vector, &lines, output, padded, Mode::Overwrite);
                self.spend((count * BATCH_SIZE * COEFFICIENT_WORK) as u64);
            }
        }
        row
    }

    /// Whether a repair of known coefficients, whose first unknown symbol is `unknown`, is redundant
    /// by the vectors of the null spaces of its linear systems. `None`: they are not computed.
    ///
    /// This is one pass over the window, which costs less than collecting the unknown symbols.
    fn is_redundant(&self, window: Window, row: &[u8], unknown: u64) -> Option<bool> {
        let (mut current, mut values) = (u32::MAX, &[][..]);
        let mut product = ProductSum::new();
        let skipped = (unknown - window.first) as usize;
        let slots = self.slots.range((unknown - self.base) as usize..);
        for (slot, &coefficient) in slots.zip(&row[skipped..]) {
            match *slot {
                Slot::Known(_) => {}
                Slot::Linked { system_id, column } => {
                    if system_id != current {
                        current = system_id;
                        values = self.null_values(system_id)?;
                    }
                    product.add(coefficient, values[column as usize]);
                }
                // A symbol that is in no equation.
                Slot::Missing if coefficient != 0 => return Some(false),
                Slot::Missing => {}
            }
        }
        let held = self.base + self.slots.len() as u64;
        let beyond = held.saturating_sub(window.first) as usize;
        let is_beyond = row.get(beyond..).is_some_and(|rest| rest.iter().any(|&x| x != 0));
        Some(!is_beyond && product.value() == [0; 4])
    }

    fn null_values(&self, system_id: u32) -> Option<&[Value]> {
        self.systems[system_id as usize].as_ref()?.null_values()
    }

    /// Advances the first missing symbol and recycles rows that are no longer needed.
    fn advance(&mut self) {
        let from = self.first_missing.max(self.released);
        let end = self.base + self.slots.len() as u64;
        self.first_missing = self.known.next_unknown(from, end).unwrap_or(from.max(end));

        let history = u64::from(self.config.history);
        self.drop_rows_below(self.first_missing.saturating_sub(history).min(self.released));
    }

    /// Recycles the rows of released symbols below `floor` that no held equation needs.
    fn drop_rows_below(&mut self, floor: u64) {
        let oldest_window = self.window_starts.first_key_value();
        let floor = oldest_window.map_or(floor, |(&first, _)| floor.min(first));
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

/// Whether explicit coefficients are one for each symbol and not all zero. Other columns always
/// satisfy this.
fn are_explicit_coefficients_valid(columns: Columns<'_>, window: Window) -> bool {
    let Columns::Explicit { coefficients } = columns else { return true };
    coefficients.len() == usize::from(window.count)
        && coefficients.len() <= BATCH_SIZE
        && coefficients.iter().any(|&x| x != 0)
}

fn missing_range(first: u64, last: u64, rank_missing: usize) -> MissingRange {
    MissingRange {
        first,
        span: u32::try_from((last - first).saturating_add(1)).unwrap_or(u32::MAX),
        rank_missing: u16::try_from(rank_missing).unwrap_or(u16::MAX),
    }
}

#[cfg(test)]
mod limit_tests;
mod systems;
