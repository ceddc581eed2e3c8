//! The TUN device of the worker.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bats_tun::{HEADER, Offload, OffloadLevel, Tun};

use super::lock;
use crate::config::{TunConfig, TunMode};

/// Counters of packets by outcome.
#[derive(Debug, Default)]
pub(in super::super) struct Counters {
    pub(in super::super) read: AtomicU64,
    pub(in super::super) read_bytes: AtomicU64,
    pub(in super::super) written: AtomicU64,
    pub(in super::super) written_bytes: AtomicU64,
    pub(in super::super) no_owner: AtomicU64,
    pub(in super::super) foreign_source: AtomicU64,
    pub(in super::super) malformed: AtomicU64,
    pub(in super::super) refused_by_kernel: AtomicU64,
    pub(in super::super) segmented_here: AtomicU64,
}

/// The TUN device of the worker.
pub(in super::super) struct Port {
    tun: Tun,
    pub(in super::super) level: Mutex<OffloadLevel>,
    pub(in super::super) counters: Counters,
}

impl Port {
    pub(in super::super) fn new(tun: Tun) -> Self {
        Self { tun, level: Mutex::new(OffloadLevel::None), counters: Counters::default() }
    }

    /// Applies mode and offload of the configuration.
    pub(in super::super) fn configure(&self, config: &TunConfig) -> std::io::Result<()> {
        let wanted = match (config.offload, config.mode) {
            (false, _) => OffloadLevel::None,
            // A datagram is lost as a whole, so the kernel splits TCP into single segments.
            (true, TunMode::Btp) => OffloadLevel::Checksums,
            (true, _) => OffloadLevel::Segmentation,
        };
        *lock(&self.level) = self.tun.set_offload(wanted)?;
        Ok(())
    }

    /// Reads a packet, with its header, into a buffer of at least `HEADER` + `MAX_PACKET` bytes.
    pub(super) fn read(&self, buffer: &mut [u8]) -> std::io::Result<(Offload, usize)> {
        self.tun.read(buffer)
    }

    /// Writes a packet of a peer. If the kernel refuses a super-packet, its segments follow.
    pub(super) fn write(&self, offload: Offload, packet: &mut [u8]) {
        let counters = &self.counters;
        let Ok(header) = offload.header_for(packet) else {
            counters.malformed.fetch_add(1, Relaxed);
            return;
        };
        let is_whole = offload.segment != 0 && *lock(&self.level) != OffloadLevel::None;
        if (offload.segment == 0 || is_whole) && self.tun.write(&header, packet).is_ok() {
            counters.written.fetch_add(1, Relaxed);
            counters.written_bytes.fetch_add(packet.len() as u64, Relaxed);
            return;
        }
        let Some(segments) = offload.segments(packet).ok().filter(|_| offload.segment != 0) else {
            counters.refused_by_kernel.fetch_add(1, Relaxed);
            return;
        };
        counters.segmented_here.fetch_add(1, Relaxed);
        for segment in segments {
            match self.tun.write(&[0; HEADER], &segment) {
                Ok(()) => {
                    counters.written.fetch_add(1, Relaxed);
                    counters.written_bytes.fetch_add(segment.len() as u64, Relaxed);
                }
                Err(_) => drop(counters.refused_by_kernel.fetch_add(1, Relaxed)),
            }
        }
    }
}
