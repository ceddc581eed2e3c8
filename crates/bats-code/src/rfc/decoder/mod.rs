//! The decoder: outer and inner code together (RFC 9426, section 2.2.3), by belief propagation with
//! inactivation. It succeeds as soon as the received equations have full rank.
//!
//! 1. While packets arrive, only their coefficient vectors are processed. Packets that do not raise
//!    the rank of their batch are dropped.
//! 2. When there are as many equations as packets, `plan` chooses an order of elimination and a set
//!    of inactive packets, and `system` eliminates on coefficients. Every other packet becomes a
//!    linear combination of earlier packets and inactive ones. The remaining equations form the
//!    `residual` system in the inactive packets. If its rank is too small, later packets are added
//!    to it.
//! 3. At full rank `solve` computes the payloads, in a few large matrix products.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::batch::Batch;
use super::cache::BatchCache;
use super::echelon::VectorSpace;
use super::matrix::{Matrix, RowStore};
use super::padding::{MAX_PACKET_SIZE, padding_len};
use super::parameters::{Field, InnerCode, MAX_BATCH_SIZE};
use super::sampler::OuterCode;
use crate::gf256;
use crate::kernel::Kernel;

mod limits;
mod plan;
mod residual;
mod solve;
mod system;

pub use limits::{DecodeError, Limits};
use plan::{Group, plan, plan_bytes};
use residual::Residual;
use solve::{Solution, solve};
use system::{Equations, System};

/// Whether a packet was innovative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// It raised the rank of its batch and is kept.
    Innovative,
    /// It depends linearly on received packets of its batch, or the block is already decoded.
    NonInnovative,
}

/// Progress of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least this many more innovative packets are needed, 1 or more. After
    /// [`DecodeError::Inactive`] or [`DecodeError::Memory`]: needed before the next attempt.
    Missing(usize),
    /// The block is decoded.
    Complete,
}

/// Counters of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Innovative packets received.
    pub packets: usize,
    /// Batches that they belong to.
    pub batches: usize,
    /// Inactive packets, once elimination has begun.
    pub inactive: usize,
}

/// The received packets of a batch.
#[derive(Debug)]
struct ReceivedBatch {
    /// The space that the packets span, of at most min(M, degree) dimensions.
    space: VectorSpace,
    /// The structure of the batch if its degree is below M. Then the coefficient vector alone does
    /// not determine whether a packet is innovative.
    structure: Option<Arc<Batch>>,
    /// Coefficient vectors, M bytes each.
    vectors: Vec<u8>,
    payloads: Vec<u32>,
    /// Number of them already passed to the elimination.
    eliminated: usize,
    degree: usize,
}

#[derive(Debug)]
enum Phase {
    /// Elimination begins when there are `needed` equations, or, if it lacked memory before, `memory` bytes.
    Collecting {
        needed: usize,
        memory: Option<usize>,
    },
    Eliminating(System),
    Complete(Solution),
}

/// The decoder of one block.
#[derive(Debug)]
pub struct Decoder {
    kernel: Kernel,
    cache: BatchCache,
    packet_size: usize,
    limits: Limits,
    batches: BTreeMap<u32, ReceivedBatch>,
    /// Memory of the batches, in bytes.
    batches_bytes: usize,
    store: RowStore,
    phase: Phase,
    /// Number of packets passed to the elimination.
    eliminated: usize,
    /// Memory of the phase, in bytes.
    phase_bytes: usize,
    stats: DecoderStats,
}

impl Decoder {
    /// A decoder for a block with T = `packet_size` and the code of the cache.
    ///
    /// # Errors
    /// [`DecodeError::PacketSize`]; [`DecodeError::Memory`] if the block alone exceeds the limit.
    pub fn new(cache: BatchCache, packet_size: usize, limits: Limits) -> Result<Self, DecodeError> {
        Self::with_kernel(cache, packet_size, limits, Kernel::active())
    }

    /// As [`Decoder::new`], with a kernel of the caller's choice.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn with_kernel(
        cache: BatchCache,
        packet_size: usize,
        limits: Limits,
        kernel: Kernel,
    ) -> Result<Self, DecodeError> {
        if packet_size == 0 || packet_size > MAX_PACKET_SIZE {
            return Err(DecodeError::PacketSize);
        }
        let needed = cache.code().intermediate_packets() as usize;
        let block = Matrix::size(needed, packet_size).saturating_mul(2);
        if block > limits.max_bytes {
            return Err(DecodeError::Memory(block));
        }
        Ok(Self {
            kernel,
            cache,
            packet_size,
            limits,
            batches: BTreeMap::new(),
            batches_bytes: 0,
            store: RowStore::new(packet_size),
            phase: Phase::Collecting { needed, memory: None },
            eliminated: 0,
            phase_bytes: 0,
            stats: DecoderStats::default(),
        })
    }

    /// The code of the block.
    #[must_use]
    pub fn code(&self) -> &OuterCode {
        self.cache.code()
    }

    /// TO = CO + T: bytes of a coded packet.
    #[must_use]
    pub fn coded_packet_len(&self) -> usize {
        self.inner_code().vector_len() + self.packet_size
    }

    fn inner_code(&self) -> InnerCode {
        self.code().inner_code()
    }

    /// Counters so far.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// Memory of the decoder, in bytes, without the batch cache. [`Decoder::decode`] uses more
    /// temporarily, but never more than the limit.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.received_bytes().saturating_add(self.phase_bytes)
    }

    /// Memory of the batch cache, in bytes. The caches of several decoders may share parts.
    #[must_use]
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Replaces [`Limits::max_bytes`], for a caller that divides memory among several blocks.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.limits.max_bytes = max_bytes;
    }

    fn received_bytes(&self) -> usize {
        self.store.bytes().saturating_add(self.batches_bytes)
    }

    /// Exchanges the cache for another one, so that the decoders of several blocks use one after the other and hold none in
    /// between. Returns false, and changes nothing, if the other one is of another code.
    pub fn swap_cache(&mut self, cache: &mut BatchCache) -> bool {
        self.cache.swap(cache)
    }

    /// Returns the cache, for the next block.
    #[must_use]
    pub fn into_cache(self) -> BatchCache {
        self.cache
    }

    /// Adds a packet of a batch: CO + T bytes, coefficient vector first. Cheap: it does not decode.
    ///
    /// # Errors
    /// [`DecodeError::Length`], [`DecodeError::Batches`], [`DecodeError::Packets`],
    /// [`DecodeError::Memory`]. On an error the packet is not kept.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn push(&mut self, batch_id: u32, packet: &[u8]) -> Result<Reception, DecodeError> {
        if packet.len() != self.coded_packet_len() {
            return Err(DecodeError::Length);
        }
        if matches!(self.phase, Phase::Complete(_)) {
            return Ok(Reception::NonInnovative);
        }
        let inner = self.inner_code();
        let Some((vector, payload)) = packet.split_at_checked(inner.vector_len()) else {
            return Err(DecodeError::Length);
        };
        if vector.iter().all(|&x| x == 0) {
            return Ok(Reception::NonInnovative);
        }
        let mut buffer;
        let coefficients = match inner.field() {
            Field::Byte => vector,
            Field::Binary => {
                buffer = [0; MAX_BATCH_SIZE];
                let expanded = buffer.get_mut(..inner.batch_size()).unwrap_or_default();
                inner.expand_vector(vector, expanded);
                &*expanded
            }
        };
        let m = inner.batch_size();
        let (limits, held, packets) = (self.limits, self.batches.len(), self.store.len());
        let bytes = total([
            RowStore::size(packets.saturating_add(1), self.packet_size),
            self.batches_bytes,
            self.phase_bytes,
        ]);
        let check = |bytes: usize| {
            if packets >= limits.max_packets {
                return Err(DecodeError::Packets);
            }
            if bytes > limits.max_bytes { Err(DecodeError::Memory(bytes)) } else { Ok(()) }
        };
        let batch = match self.batches.entry(batch_id) {
            Entry::Occupied(entry) => {
                let batch = entry.into_mut();
                if batch.space.is_full() {
                    return Ok(Reception::NonInnovative);
                }
                check(bytes)?;
                batch
            }
            Entry::Vacant(_) if held >= limits.max_batches => return Err(DecodeError::Batches),
            Entry::Vacant(entry) => {
                let degree = self.cache.code().degree(batch_id) as usize;
                let batch_bytes = ReceivedBatch::size(m, degree);
                check(bytes.saturating_add(batch_bytes))?;
                self.batches_bytes = self.batches_bytes.saturating_add(batch_bytes);
                let structure = (degree < m).then(|| self.cache.batch(batch_id));
                entry.insert(ReceivedBatch::new(m, degree, structure))
            }
        };
        if !batch.insert(self.kernel, coefficients) {
            return Ok(Reception::NonInnovative);
        }
        let begun = usize::from(batch.payloads.is_empty());
        self.stats.batches = self.stats.batches.saturating_add(begun);
        batch.vectors.extend_from_slice(coefficients);
        batch.payloads.push(self.store.push(payload));
        self.stats.packets = self.stats.packets.saturating_add(1);
        Ok(Reception::Innovative)
    }

    /// Decodes the block if possible. Returns quickly unless the packets received since the last
    /// call may complete the block, so that it can be called after every packet.
    ///
    /// # Errors
    /// [`DecodeError::Memory`], [`DecodeError::Inactive`].
    pub fn decode(&mut self) -> Result<Progress, DecodeError> {
        let received = self.received_bytes();
        let m = self.inner_code().batch_size();
        let packets = self.code().intermediate_packets() as usize;
        match &mut self.phase {
            Phase::Complete(_) => return Ok(Progress::Complete),
            Phase::Collecting { needed, memory } => {
                let checks = self.cache.code().precode().map_or(0, |p| p.check_packets() as usize);
                let have = self.store.len() + checks;
                let lacks_memory = memory.is_none_or(|bytes| bytes > self.limits.max_bytes);
                let few = have.div_ceil(64);
                if have < *needed && lacks_memory {
                    let missing = *needed - have;
                    // Memory rather than packets is missing.
                    return Ok(Progress::Missing(memory.map_or(missing, |_| missing.min(few))));
                }
                // If a limit prevents the elimination, more packets may help.
                (*needed, *memory) = (have + few, None);
                let system = self.eliminate();
                if let Err(DecodeError::Memory(bytes)) = system {
                    // They help little here, and each attempt costs work.
                    let needed = have + have.div_ceil(8);
                    self.phase = Phase::Collecting { needed, memory: Some(bytes) };
                }
                let system = system?;
                self.stats.inactive = system.columns();
                self.phase = Phase::Eliminating(system);
            }
            Phase::Eliminating(system) => {
                let new = self.store.len() - self.eliminated;
                if new < system.missing() {
                    return Ok(Progress::Missing(system.missing() - new));
                }
                let added = self.batches.values().map(|batch| {
                    let (n, d) = (batch.payloads.len() - batch.eliminated, batch.degree);
                    if n == 0 { 0 } else { batch_elimination_bytes(n, d) + structure_bytes(m, d) }
                });
                let widest = self.batches.values().map(|batch| batch.degree).max().unwrap_or(0);
                let bytes = total([
                    received,
                    system.bytes(),
                    total(added),
                    (2 * new).saturating_mul(Matrix::size(1, system.columns() + SPARE_COLUMNS)),
                    Matrix::size(system.columns(), system.columns()),
                    Matrix::size(packets + 2 * system.columns(), self.packet_size),
                    scratch_bytes(m, widest, system.columns()),
                ]);
                if bytes > self.limits.max_bytes {
                    return Err(DecodeError::Memory(bytes));
                }
                let (cache, batches) = (&mut self.cache, &self.batches);
                let fresh =
                    structures(cache, batches, |batch| batch.eliminated < batch.payloads.len());
                system.extend(fresh.iter().map(|(batch, received)| received.new_equations(batch)));
            }
        }
        self.batches.values_mut().for_each(|batch| batch.eliminated = batch.payloads.len());
        self.eliminated = self.store.len();
        self.finish()
    }

    /// Builds the system from all received packets.
    fn eliminate(&mut self) -> Result<System, DecodeError> {
        let code = self.cache.code();
        let packets = code.intermediate_packets() as usize;
        let inactive_from = code.precode().map_or(packets, |p| p.sampled_packets() as usize);
        let m = code.inner_code().batch_size();
        let structures_bytes = self.batches.values().map(|batch| structure_bytes(m, batch.degree));
        let degrees = self.batches.values().map(|batch| batch.degree);
        let (count, members) =
            code.precode().map_or((0, 0), |p| (p.check_packets() as usize, p.members_bound()));
        let planning =
            plan_bytes(self.batches.len() + count, total(degrees).saturating_add(members), packets);
        let bytes = total([self.received_bytes(), total(structures_bytes), planning]);
        if bytes > self.limits.max_bytes {
            return Err(DecodeError::Memory(bytes));
        }
        let constraints = self.cache.constraints();
        let received =
            structures(&mut self.cache, &self.batches, |batch| !batch.payloads.is_empty());
        let groups: Vec<Group<'_>> = constraints
            .iter()
            .map(|batch| Group {
                indices: batch.indices(),
                equations: batch.generator_rows().row_count(),
            })
            .chain(received.iter().map(|(batch, received)| Group {
                indices: batch.indices(),
                equations: received.payloads.len(),
            }))
            .collect();
        let plan = plan(&groups, packets, inactive_from, self.limits.max_inactive)
            .map_err(DecodeError::Inactive)?;
        let inactive = plan.inactive.len();
        // Spare columns, for matrices without full rank.
        let max_inactive =
            (inactive + inactive / 8 + SPARE_COLUMNS).min(self.limits.max_inactive).min(packets);
        let elimination = self.elimination_bytes(&groups, packets, max_inactive);
        let bytes = bytes.saturating_add(elimination);
        if bytes > self.limits.max_bytes {
            return Err(DecodeError::Memory(bytes));
        }
        let mut system = System::new(self.kernel, packets, &plan.inactive, max_inactive);
        let built = system.build(plan.order.iter().map(|&group| {
            let group = group as usize;
            match group.checked_sub(constraints.len()) {
                None => {
                    Equations { batch: &constraints[group], vectors: None, payloads: Vec::new() }
                }
                Some(index) => received[index].1.all_equations(&received[index].0),
            }
        }));
        built.map(|()| system).map_err(DecodeError::Inactive)
    }

    /// Upper bound of the memory for elimination and solution, in bytes.
    fn elimination_bytes(&self, groups: &[Group<'_>], packets: usize, inactive: usize) -> usize {
        let equations: usize = groups.iter().map(|group| group.equations).sum();
        let steps = groups
            .iter()
            .map(|group| batch_elimination_bytes(group.equations, group.indices.len()));
        let left_over = equations.saturating_sub(packets - inactive);
        let most = groups.iter().map(|group| group.equations).max().unwrap_or(0);
        let widest = groups.iter().map(|group| group.indices.len()).max().unwrap_or(0);
        total([
            total(steps),
            Matrix::size(packets, inactive),
            left_over.saturating_mul(Matrix::size(1, inactive) + size_of::<Matrix>() + 8),
            Residual::size(inactive),
            Matrix::size(packets, self.packet_size),
            Matrix::size(inactive, self.packet_size).saturating_mul(2),
            scratch_bytes(most, widest, inactive),
        ])
    }

    /// Computes the payloads if the system has full rank.
    fn finish(&mut self) -> Result<Progress, DecodeError> {
        let Phase::Eliminating(system) = &self.phase else { return Ok(Progress::Complete) };
        self.phase_bytes = system.bytes();
        let Some(residual) = system.residual().filter(|residual| residual.missing() == 0) else {
            return Ok(Progress::Missing(system.missing()));
        };
        let solution = solve(self.kernel, system, residual, &self.store, self.packet_size);
        self.phase_bytes = solution.bytes();
        self.phase = Phase::Complete(solution);
        self.batches = BTreeMap::new();
        self.batches_bytes = 0;
        self.store = RowStore::new(self.packet_size);
        Ok(Progress::Complete)
    }

    /// Source packet `number` (below K): T bytes, the last one with its padding. `None` until the
    /// block is decoded.
    #[must_use]
    pub fn source_packet(&self, number: u32) -> Option<&[u8]> {
        let code = self.code();
        let Phase::Complete(solution) = &self.phase else { return None };
        if number >= code.source_packets() {
            return None;
        }
        let position = code.precode().map_or(number, |precode| precode.position(number));
        solution.packet(position as usize).map(|packet| &packet[..self.packet_size])
    }

    /// F, the length of the block in bytes.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`], [`DecodeError::Padding`].
    pub fn block_len(&self) -> Result<usize, DecodeError> {
        let count = self.code().source_packets();
        let last = self.source_packet(count - 1).ok_or(DecodeError::Incomplete)?;
        let padding = padding_len(last).map_err(DecodeError::Padding)?;
        Ok(count as usize * self.packet_size - padding)
    }

    /// Copies the block to the start of `output`. Returns F, its length in bytes.
    ///
    /// # Errors
    /// [`DecodeError::Incomplete`], [`DecodeError::Padding`], [`DecodeError::OutputSize`].
    pub fn copy_block(&self, output: &mut [u8]) -> Result<usize, DecodeError> {
        let len = self.block_len()?;
        let output = output.get_mut(..len).ok_or(DecodeError::OutputSize)?;
        for (number, space) in (0..).zip(output.chunks_mut(self.packet_size)) {
            let packet = self.source_packet(number).ok_or(DecodeError::Incomplete)?;
            space.copy_from_slice(&packet[..space.len()]);
        }
        Ok(len)
    }
}

/// The structures of the received batches that `wanted` selects.
fn structures<'a>(
    cache: &mut BatchCache,
    batches: &'a BTreeMap<u32, ReceivedBatch>,
    wanted: impl Fn(&ReceivedBatch) -> bool,
) -> Vec<(Arc<Batch>, &'a ReceivedBatch)> {
    let (ids, received): (Vec<u32>, Vec<&ReceivedBatch>) =
        batches.iter().filter(|(_, batch)| wanted(batch)).map(|(&id, batch)| (id, batch)).unzip();
    cache.batches(&ids).into_iter().zip(received).collect()
}

/// Packets that may become inactive in addition to the plan's and an eighth more.
const SPARE_COLUMNS: usize = 128;

/// A saturating sum: byte counts may exceed a 32-bit address space.
fn total(sizes: impl IntoIterator<Item = usize>) -> usize {
    sizes.into_iter().fold(0, usize::saturating_add)
}

/// Memory of the structure of a batch during planning, in bytes.
fn structure_bytes(batch_size: usize, degree: usize) -> usize {
    total([Matrix::size(batch_size, degree), degree.saturating_mul(4), 2 * size_of::<Batch>()])
}

/// Upper bound of the bytes that elimination keeps for `n` equations over `degree` packets.
fn batch_elimination_bytes(n: usize, degree: usize) -> usize {
    total([
        n.saturating_add(degree).saturating_mul(n),
        n.saturating_add(degree.saturating_mul(2)).saturating_mul(4),
        256,
    ])
}

/// Upper bound of the temporary memory of elimination and solution, in bytes: for one group of at
/// most `equations` over at most `degree` packets, and for one block of the residual system.
fn scratch_bytes(equations: usize, degree: usize, inactive: usize) -> usize {
    let lines = equations.max(residual::BLOCK);
    let width = total([degree, equations, inactive, SPARE_COLUMNS]);
    total([
        // Coefficients: received, sorted, transformed, extended by the identity, and selected.
        Matrix::size(lines, width).saturating_mul(6),
        // Lists of rows, columns and positions: at most eight, of machine words.
        width.saturating_add(lines).saturating_mul(64),
    ])
}

impl ReceivedBatch {
    fn new(batch_size: usize, degree: usize, structure: Option<Arc<Batch>>) -> Self {
        let width = batch_size.min(degree);
        Self {
            space: VectorSpace::new(width),
            structure,
            vectors: Vec::with_capacity(width * batch_size),
            payloads: Vec::with_capacity(width),
            eliminated: 0,
            degree,
        }
    }

    /// Upper bound of the memory of a batch without its payloads, in bytes.
    fn size(batch_size: usize, degree: usize) -> usize {
        let width = batch_size.min(degree);
        let structure = if degree < batch_size { structure_bytes(batch_size, degree) } else { 0 };
        total([VectorSpace::size(width), width * batch_size, 4 * width, structure])
            // Nodes of the B-tree are at least half full.
            .saturating_add(2 * (size_of::<Self>() + size_of::<u32>()))
    }

    /// Adds a coefficient vector. Returns whether the packet raises the rank of the batch.
    fn insert(&mut self, kernel: Kernel, vector: &[u8]) -> bool {
        let Some(batch) = &self.structure else { return self.space.insert(kernel, vector) };
        // M packets coded from fewer than M are dependent, even if their vectors are independent.
        let mut sum = [0; MAX_BATCH_SIZE];
        let sum = &mut sum[..self.degree];
        for (column, &factor) in vector.iter().enumerate().filter(|&(_, &factor)| factor != 0) {
            for (x, &y) in sum.iter_mut().zip(batch.generator(column)) {
                *x ^= gf256::mul(factor, y);
            }
        }
        self.space.insert(kernel, sum)
    }

    fn all_equations<'a>(&'a self, batch: &'a Batch) -> Equations<'a> {
        Equations { batch, vectors: Some(&self.vectors), payloads: self.payloads.clone() }
    }

    /// The equations that are not yet eliminated.
    fn new_equations<'a>(&'a self, batch: &'a Batch) -> Equations<'a> {
        let width = self.vectors.len() / self.payloads.len().max(1);
        Equations {
            batch,
            vectors: Some(&self.vectors[self.eliminated * width..]),
            payloads: self.payloads[self.eliminated..].to_vec(),
        }
    }
}

#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod tests;
