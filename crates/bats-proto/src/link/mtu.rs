use core::time::Duration;

use bats_types::Timestamp;

/// UDP payload that every path must carry (RFC 9000, section 14).
pub const BASE_UDP_PAYLOAD: u16 = 1_200;
/// Largest UDP payload that is searched for: frames of 9,216 octets, and then some.
pub const MAX_UDP_PAYLOAD: u16 = 9_500;
/// Search stops when what passes and what does not are this close.
const SEARCH_STEP: u16 = 16;
/// Copies of a probe before its size counts as too large. Probes are lost at random, too: at
/// 30 % loss six copies fail together once in 1,400 times.
const COPIES: u8 = 6;
/// A finished search is repeated after this time, the path may have changed (RFC 8899, 5.1.1).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);
/// Large packets lost in a row, with nothing large getting through, that mean a black hole.
/// Random loss of 50 % does this once in 10^9 times.
const BLACK_HOLE_LOSSES: u32 = 30;

/// Path MTU discovery by padded probes (RFC 8899), in octets of UDP payload.
#[derive(Debug)]
pub struct MtuDiscovery {
    /// Largest size known to pass.
    current: u16,
    /// Smallest size believed not to pass.
    ceiling: u16,
    max: u16,
    probe: Option<Probe>,
    next_probe_at: Timestamp,
    large_losses: u32,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u16,
    copies: u8,
    deadline: Timestamp,
}

impl MtuDiscovery {
    /// Searches up to `max`; the first probe has that very size because it is usually right.
    pub fn new(max: u16) -> Self {
        let max = max.clamp(BASE_UDP_PAYLOAD, MAX_UDP_PAYLOAD);
        Self {
            current: BASE_UDP_PAYLOAD,
            ceiling: max + 1,
            max,
            probe: None,
            next_probe_at: Timestamp::ZERO,
            large_losses: 0,
        }
    }

    /// Largest UDP payload known to pass.
    pub fn current(&self) -> u16 {
        self.current
    }

    /// Size of a probe to be sent now, if one is due; `probe_timeout` is the path's.
    pub fn poll(&mut self, now: Timestamp, probe_timeout: Duration) -> Option<u16> {
        if now < self.next_probe_at {
            return None;
        }
        let probe = match self.probe {
            None => {
                let size = self.next_size()?;
                Probe { size, copies: 1, deadline: now + probe_timeout }
            }
            Some(probe) if probe.copies < COPIES => Probe { copies: probe.copies + 1, ..probe },
            Some(probe) => {
                // All copies are out and their answers overdue: this size does not pass.
                self.ceiling = self.ceiling.min(probe.size);
                self.probe = None;
                let Some(size) = self.next_size() else {
                    self.next_probe_at = now + RAISE_INTERVAL;
                    self.ceiling = self.max + 1;
                    return None;
                };
                Probe { size, copies: 1, deadline: now + probe_timeout }
            }
        };
        self.probe = Some(probe);
        // The first two copies leave at once, the others wait for an answer to them.
        self.next_probe_at = match probe.copies {
            1 => now,
            COPIES => probe.deadline.max(now + probe_timeout),
            _ => now + probe_timeout / 2,
        };
        Some(probe.size)
    }

    fn next_size(&self) -> Option<u16> {
        if self.current + SEARCH_STEP >= self.ceiling {
            return None;
        }
        if self.ceiling > self.max {
            Some(self.max)
        } else {
            Some((self.current + self.ceiling) / 2)
        }
    }

    /// When [`MtuDiscovery::poll`] wants to be asked again, if a search is on.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        (self.probe.is_some() || self.next_size().is_some()).then_some(self.next_probe_at)
    }

    /// A packet of `size` arrived.
    pub fn on_acknowledged(&mut self, now: Timestamp, size: u16) {
        if size > BASE_UDP_PAYLOAD {
            self.large_losses = 0;
        }
        if size > self.current {
            self.current = size.min(self.max);
            self.ceiling = self.ceiling.max(self.current + 1);
            if self.probe.is_some_and(|probe| probe.size <= size) {
                self.probe = None;
                self.next_probe_at = now;
            }
            if self.next_size().is_none() {
                self.next_probe_at = now + RAISE_INTERVAL;
            }
        }
    }

    /// A packet of `size` that was no probe was lost. True when that makes a black hole: the
    /// size falls back to the base and the search begins anew.
    pub fn on_lost(&mut self, now: Timestamp, size: u16) -> bool {
        if size <= BASE_UDP_PAYLOAD || self.current == BASE_UDP_PAYLOAD {
            return false;
        }
        self.large_losses += 1;
        if self.large_losses < BLACK_HOLE_LOSSES {
            return false;
        }
        self.large_losses = 0;
        self.ceiling = self.current;
        self.current = BASE_UDP_PAYLOAD;
        self.probe = None;
        self.next_probe_at = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTO: Duration = Duration::from_millis(100);

    /// Runs the search over a path that passes up to `limit` and loses by `lost`.
    fn search(limit: u16, max: u16, mut lost: impl FnMut(u32) -> bool) -> (MtuDiscovery, u32) {
        let mut mtu = MtuDiscovery::new(max);
        let mut now = Timestamp::from_millis(1);
        let mut probes = 0;
        while now < Timestamp::from_millis(60_000) {
            if let Some(size) = mtu.poll(now, PTO) {
                probes += 1;
                if size <= limit && !lost(probes) {
                    mtu.on_acknowledged(now + PTO / 2, size);
                }
            }
            now += Duration::from_millis(10);
        }
        (mtu, probes)
    }

    #[test]
    fn a_full_size_path_is_found_by_the_first_probe() {
        let (mtu, probes) = search(1472, 1472, |_| false);
        assert_eq!((mtu.current(), probes), (1472, 1));
    }

    #[test]
    fn a_smaller_path_is_found_within_a_step() {
        for limit in [1200, 1252, 1380, 1452] {
            let (mtu, probes) = search(limit, 1472, |_| false);
            assert!(mtu.current() <= limit && mtu.current() + SEARCH_STEP >= limit, "{mtu:?}");
            assert!(probes <= 40, "{probes}");
        }
    }

    #[test]
    fn lost_probes_are_repeated() {
        let (mtu, _) = search(1472, 1472, |n| n % 3 != 0);
        assert_eq!(mtu.current(), 1472);
    }

    #[test]
    fn a_black_hole_falls_back_and_one_loss_less_does_not() {
        let (mut mtu, _) = search(1472, 1472, |_| false);
        let now = Timestamp::from_millis(70_000);
        for _ in 0..BLACK_HOLE_LOSSES - 1 {
            assert!(!mtu.on_lost(now, 1437));
        }
        mtu.on_acknowledged(now, 1437);
        for _ in 0..BLACK_HOLE_LOSSES - 1 {
            assert!(!mtu.on_lost(now, 1437));
        }
        assert!(mtu.on_lost(now, 1437));
        assert_eq!(mtu.current(), BASE_UDP_PAYLOAD);
    }
}
