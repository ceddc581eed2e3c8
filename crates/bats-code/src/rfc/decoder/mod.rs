//! The decoder: outer and inner code together (RFC 9426, section 2.2.3), by belief propagation and
//! inactivation. It succeeds as soon as the received equations have full rank.
//!
//! 1. While packets arrive, only their coefficient vectors are looked at: what does not raise the
//!    rank of its batch is dropped.
//! 2. When there are as many equations as packets, `plan` fixes an order of elimination and a
//!    set of inactive packets, and `system` eliminates on coefficients: every other packet
//!    becomes a combination of packets before it and of inactive ones. The equations left over
//!    form the `residual` system in the inactive packets. If its rank is too small, packets that
//!    arrive later go there.
//! 3. At full rank `solve` computes the payloads, as few large matrix products.

use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::cache::BatchCache;
use super::echelon::VectorSpace;
use super::matrix::{Matrix, RowStore};
use super::padding::{MAX_PACKET_SIZE, padding_len};
use super::parameters::{Field, InnerCode, MAX_BATCH_SIZE};
use super::sampler::{Batch, OuterCode};
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

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reception {
    /// It raised the rank of its batch and is kept.
    Innovative,
    /// It is a combination of packets of its batch that are here, or the block is decoded.
    Redundant,
}

/// How far a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// At least this many more innovative packets are needed, 1 or more; after
    /// [`DecodeError::Inactive`] or [`DecodeError::Memory`], before it is tried again.
    Missing(usize),
    /// The block is decoded.
    Complete,
}

/// Figures of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Innovative packets received.
    pub packets: usize,
    /// Batches that they belong to.
    pub batches: usize,
    /// Inactive packets, once the elimination has begun.
    pub inactive: usize,
}

/// What was received of a batch.
#[derive(Debug)]
struct Received {
    /// What the packets span: min(M, degree) dimensions.
    space: VectorSpace,
    /// The structure of a batch of less than M packets, of which a vector alone does not tell
    /// whether it is innovative.
    small: Option<Arc<Batch>>,
    /// Coefficient vectors, M bytes each.
    vectors: Vec<u8>,
    payloads: Vec<u32>,
    /// How many of them the elimination has.
    eliminated: usize,
    degree: usize,
}

#[derive(Debug)]
enum Phase {
    /// The elimination begins when there are this many equations.
    Collecting {
        needed: usize,
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
    batches: BTreeMap<u32, Received>,
    /// Memory of the batches, in bytes.
    batches_bytes: usize,
    store: RowStore,
    phase: Phase,
    /// Packets that the elimination has.
    eliminated: usize,
    /// Memory of the phase, in bytes.
    phase_bytes: usize,
    stats: DecoderStats,
}

impl Decoder {
    /// A decoder for a block with T = `packet_size`; the cache brings the code.
    ///
    /// # Errors
    /// [`DecodeError::PacketSize`]; [`DecodeError::Memory`]: the block alone is above the limit.
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
            phase: Phase::Collecting { needed },
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

    /// Figures so far.
    #[must_use]
    pub fn stats(&self) -> DecoderStats {
        self.stats
    }

    /// Memory that the decoder holds, in bytes, without the cache of batches. During
    /// [`Decoder::decode`] it takes more, but never more than the limit.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.received_bytes().saturating_add(self.phase_bytes)
    }

    fn received_bytes(&self) -> usize {
        self.store.bytes().saturating_add(self.batches_bytes)
    }

    /// Gives the cache back, for the next block.
    #[must_use]
    pub fn into_cache(self) -> BatchCache {
        self.cache
    }

    /// Takes a packet of a batch: CO + T bytes, coefficient vector first. Cheap: nothing is
    /// decoded here.
    ///
    /// # Errors
    /// [`DecodeError::Length`], [`DecodeError::Batches`], [`DecodeError::Packets`],
    /// [`DecodeError::Memory`]; the packet is not kept then.
    pub fn push(&mut self, batch_id: u32, packet: &[u8]) -> Result<Reception, DecodeError> {
        if packet.len() != self.coded_packet_len() {
            return Err(DecodeError::Length);
        }
        if matches!(self.phase, Phase::Complete(_)) {
            return Ok(Reception::Redundant);
        }
        let inner = self.inner_code();
        let (vector, payload) = packet.split_at(inner.vector_len());
        if vector.iter().all(|&x| x == 0) {
            return Ok(Reception::Redundant);
        }
        let mut buffer;
        let coefficients = match inner.field() {
            Field::Byte => vector,
            Field::Binary => {
                buffer = [0; MAX_BATCH_SIZE];
                let expanded = &mut buffer[..inner.batch_size()];
                inner.expand_vector(vector, expanded);
                &*expanded
            }
        };
        let m = inner.batch_size();
        let (limits, held, packets) = (self.limits, self.batches.len(), self.store.len());
        let bytes = total([
            RowStore::size(packets + 1, self.packet_size),
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
                    return Ok(Reception::Redundant);
                }
                check(bytes)?;
                batch
            }
            Entry::Vacant(_) if held >= limits.max_batches => return Err(DecodeError::Batches),
            Entry::Vacant(entry) => {
                let degree = self.cache.code().degree(batch_id) as usize;
                let batch_bytes = Received::size(m, degree);
                check(bytes.saturating_add(batch_bytes))?;
                self.batches_bytes += batch_bytes;
                let small = (degree < m).then(|| self.cache.batch(batch_id));
                entry.insert(Received::new(m, degree, small))
            }
        };
        if !batch.insert(self.kernel, coefficients) {
            return Ok(Reception::Redundant);
        }
        self.stats.batches += usize::from(batch.payloads.is_empty());
        batch.vectors.extend_from_slice(coefficients);
        batch.payloads.push(self.store.push(payload));
        self.stats.packets += 1;
        Ok(Reception::Innovative)
    }

    /// Decodes if possible. Does the work of decoding only when the packets received since the last
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
            Phase::Collecting { needed } => {
                let checks = self.cache.code().precode().map_or(0, |p| p.check_packets() as usize);
                let have = self.store.len() + checks;
                if have < *needed {
                    return Ok(Progress::Missing(*needed - have));
                }
                // If a limit is in the way, more packets may help.
                *needed = have + have.div_ceil(64);
                let system = self.eliminate()?;
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
                system.extend(fresh.iter().map(|(batch, received)| received.equations(batch)));
            }
        }
        self.batches.values_mut().for_each(|batch| batch.eliminated = batch.payloads.len());
        self.eliminated = self.store.len();
        self.finish()
    }

    /// Builds the system from all that was received.
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
        // Room for matrices that have less rank than their shape allows.
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
                Some(index) => received[index].1.equations_from_first(&received[index].0),
            }
        }));
        built.map(|()| system).map_err(DecodeError::Inactive)
    }

    /// What elimination and solution take, in bytes.
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

    /// Source packet `number` (below K): T bytes, the last one with its padding. `None` before the
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

    /// Copies the block to the beginning of `output`; returns F, its length in bytes.
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

/// The structures of the received batches that are wanted.
fn structures<'a>(
    cache: &mut BatchCache,
    batches: &'a BTreeMap<u32, Received>,
    wanted: impl Fn(&Received) -> bool,
) -> Vec<(Arc<Batch>, &'a Received)> {
    let (ids, received): (Vec<u32>, Vec<&Received>) =
        batches.iter().filter(|(_, batch)| wanted(batch)).map(|(&id, batch)| (id, batch)).unzip();
    cache.batches(&ids).into_iter().zip(received).collect()
}

/// Packets that may become inactive beyond the plan and an eighth more.
const SPARE_COLUMNS: usize = 128;

/// A sum that an address space of 32 bits does not overflow.
fn total(sizes: impl IntoIterator<Item = usize>) -> usize {
    sizes.into_iter().fold(0, usize::saturating_add)
}

/// What the structure of a batch takes while the elimination is planned.
fn structure_bytes(batch_size: usize, degree: usize) -> usize {
    total([Matrix::size(batch_size, degree), degree.saturating_mul(4), 2 * size_of::<Batch>()])
}

/// An upper bound for what the elimination keeps of `n` equations over `degree` packets.
fn batch_elimination_bytes(n: usize, degree: usize) -> usize {
    total([
        n.saturating_add(degree).saturating_mul(n),
        n.saturating_add(degree.saturating_mul(2)).saturating_mul(4),
        256,
    ])
}

/// An upper bound for what elimination and solution take for a while: for one group of at most
/// `equations` over at most `degree` packets, and for one block of the residual system.
fn scratch_bytes(equations: usize, degree: usize, inactive: usize) -> usize {
    let lines = equations.max(residual::BLOCK);
    let width = total([degree, equations, inactive, SPARE_COLUMNS]);
    total([
        // Coefficients as they are, sorted, transformed, with the identity behind, and selected.
        Matrix::size(lines, width).saturating_mul(6),
        // Lists of rows, columns and positions: eight at most, of words.
        width.saturating_add(lines).saturating_mul(64),
    ])
}

impl Received {
    fn new(batch_size: usize, degree: usize, small: Option<Arc<Batch>>) -> Self {
        let width = batch_size.min(degree);
        Self {
            space: VectorSpace::new(width),
            small,
            vectors: Vec::with_capacity(width * batch_size),
            payloads: Vec::with_capacity(width),
            eliminated: 0,
            degree,
        }
    }

    /// An upper bound for what a batch takes besides its payloads, in bytes.
    fn size(batch_size: usize, degree: usize) -> usize {
        let width = batch_size.min(degree);
        let small = if degree < batch_size { structure_bytes(batch_size, degree) } else { 0 };
        total([VectorSpace::size(width), width * batch_size, 4 * width, small])
            // The tree keeps nodes half full at least.
            .saturating_add(2 * (size_of::<Self>() + size_of::<u32>()))
    }

    /// Adds a coefficient vector; tells whether the packet raises the rank of the batch.
    fn insert(&mut self, kernel: Kernel, vector: &[u8]) -> bool {
        let Some(batch) = &self.small else { return self.space.insert(kernel, vector) };
        // Of M packets made from less than M the vectors may be independent, the packets are not.
        let mut sum = [0; MAX_BATCH_SIZE];
        let sum = &mut sum[..self.degree];
        for (column, &factor) in vector.iter().enumerate().filter(|&(_, &factor)| factor != 0) {
            for (x, &y) in sum.iter_mut().zip(batch.generator(column)) {
                *x ^= gf256::mul(factor, y);
            }
        }
        self.space.insert(kernel, sum)
    }

    fn equations_from_first<'a>(&'a self, batch: &'a Batch) -> Equations<'a> {
        Equations { batch, vectors: Some(&self.vectors), payloads: self.payloads.clone() }
    }

    /// Those that the elimination has not yet.
    fn equations<'a>(&'a self, batch: &'a Batch) -> Equations<'a> {
        let width = self.vectors.len() / self.payloads.len().max(1);
        Equations {
            batch,
            vectors: Some(&self.vectors[self.eliminated * width..]),
            payloads: self.payloads[self.eliminated..].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
