//! One link in real time: two ports, one emulated link each way, one thread.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bats_netem::Payload;
use bats_types::Timestamp;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::clock;
use super::port::{Arrival, BATCH, Port};
use super::report::{DirectionReport, HopReport};
use super::wire::{Frame, Step, Wire};
use crate::settings::Link;

/// How long a busy link sleeps between rounds: deliveries are late by at most this, and a round
/// moves several frames.
const TICK: Duration = Duration::from_micros(75);
/// A delivery this far behind its time is late: many times what the tick explains, and what round
/// trips show.
pub(crate) const LATE: Duration = Duration::from_millis(1);
/// How often an idle link looks whether something was asked of it.
pub(crate) const IDLE: Duration = Duration::from_millis(100);
/// How often it tells what it does.
const TELL: Duration = Duration::from_millis(10);
/// Smaller frames are copied, so that they do not hold a buffer for a full one.
const SMALL: usize = 512;

/// What a link's thread shares with the control socket.
pub(crate) struct Shared {
    asked: Mutex<Option<Link>>,
    report: Mutex<HopReport>,
    reset_lateness: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Plain values: whoever panicked left a whole one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Of a link that begins as `link`: that is told even before its thread has begun.
    pub(crate) fn new(link: Link) -> Self {
        let report = HopReport { link, ..HopReport::default() };
        Self {
            asked: Mutex::default(),
            report: Mutex::new(report),
            reset_lateness: AtomicBool::default(),
        }
    }

    /// Asks the link to change.
    pub(crate) fn change(&self, link: Link) {
        *lock(&self.asked) = Some(link);
        lock(&self.report).link = link;
    }

    /// What the link has told last.
    pub(crate) fn report(&self) -> HopReport {
        lock(&self.report).clone()
    }

    /// Begins the latest delivery anew.
    pub(crate) fn reset_lateness(&self) {
        self.reset_lateness.store(true, Ordering::Relaxed);
    }
}

/// One direction: frames from one port through the wire to the other.
struct Lane {
    wire: Wire,
    buffers: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    arrivals: Vec<Arrival>,
    due: Vec<Frame>,
    frame_size: usize,
    last_arrival: Timestamp,
    latest: Duration,
    late: u64,
    refused: u64,
    missed: u64,
    sent: u64,
    sent_bytes: u64,
}

impl Lane {
    fn new(wire: Wire, frame_size: usize) -> Self {
        Self {
            wire,
            buffers: (0..BATCH).map(|_| vec![0; frame_size]).collect(),
            spare: Vec::new(),
            arrivals: Vec::with_capacity(BATCH),
            due: Vec::with_capacity(4 * BATCH),
            frame_size,
            last_arrival: Timestamp::ZERO,
            latest: Duration::ZERO,
            late: 0,
            refused: 0,
            missed: 0,
            sent: 0,
            sent_bytes: 0,
        }
    }

    /// Takes what has arrived at `port`. Says whether anything has.
    fn take(&mut self, port: &mut Port) -> Result<bool> {
        let mut any = false;
        // Bounded, so that a flood cannot keep the deliveries waiting.
        for _ in 0..8 {
            port.receive(&mut self.buffers, &mut self.arrivals)?;
            let (now, real) = clock::now_and_real();
            for (index, arrival) in self.arrivals.iter().enumerate() {
                let at = clock::arrival(now, real, arrival.at).max(self.last_arrival);
                self.last_arrival = at;
                let frame = if arrival.length <= SMALL {
                    Frame::copied(&self.buffers[index][..arrival.length])
                } else {
                    let fresh = self.spare.pop().unwrap_or_else(|| vec![0; self.frame_size]);
                    let full = std::mem::replace(&mut self.buffers[index], fresh);
                    Frame::whole(full, arrival.length)
                };
                self.wire.offer(at, frame);
            }
            any |= !self.arrivals.is_empty();
            if self.arrivals.len() < BATCH {
                break;
            }
        }
        Ok(any)
    }

    /// Hands what is due to `port`. Says whether there was anything, and when to come back.
    fn give(&mut self, port: &mut Port, now: Timestamp) -> Result<(bool, Option<Timestamp>)> {
        let next = loop {
            match self.wire.step(now) {
                Step::Deliver(frame, due) => {
                    let behind = now - due;
                    self.latest = self.latest.max(behind);
                    self.late += u64::from(behind > LATE);
                    self.due.push(frame);
                }
                Step::Until(next) => break next,
            }
        };
        let any = !self.due.is_empty();
        let mut done = 0;
        while done < self.due.len() {
            match port.send(self.due[done..].iter().map(Frame::bytes)) {
                Ok(0) => {
                    self.refused += 1;
                    done += 1;
                }
                Ok(count) => {
                    let sent = &self.due[done..done + count];
                    self.sent += count as u64;
                    self.sent_bytes += sent.iter().map(|frame| frame.len() as u64).sum::<u64>();
                    done += count;
                }
                // The host's interface is down or full: a real wire would lose the frame too.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(error.into());
                }
                Err(_) => {
                    self.refused += 1;
                    done += 1;
                }
            }
        }
        for frame in self.due.drain(..) {
            if let Some(buffer) = frame.into_buffer(self.frame_size) {
                self.spare.push(buffer);
            }
        }
        Ok((any, next))
    }

    fn report(&mut self, from: &Port, now: Timestamp) -> DirectionReport {
        self.missed += from.take_drops();
        let wire = self.wire.report(now);
        DirectionReport {
            frames_out: self.sent,
            bytes_out: self.sent_bytes,
            emulator_drops: wire.emulator_drops + self.missed + self.refused,
            latest_us: u64::try_from(self.latest.as_micros()).unwrap_or(u64::MAX),
            frames_late: self.late,
            ..wire
        }
    }
}

/// Carries frames between `left` and `right` until `stop`.
///
/// # Errors
/// Where a port breaks for good.
pub(crate) fn run(
    mut left: Port,
    mut right: Port,
    link: Link,
    mtu: u32,
    seed: u64,
    shared: &Shared,
    stop: &AtomicBool,
) -> Result<()> {
    // An Ethernet header, and room to see that a frame is too large.
    let frame_size = mtu as usize + 14 + 4;
    let mut forward = Lane::new(Wire::new(&link, &link.forward, mtu, seed), frame_size);
    let mut backward = Lane::new(Wire::new(&link, &link.backward, mtu, !seed), frame_size);
    let mut told = clock::now();
    while !stop.load(Ordering::Relaxed) {
        let arrived = forward.take(&mut left)? | backward.take(&mut right)?;
        let now = clock::now();
        let (gave_forward, next_forward) = forward.give(&mut right, now)?;
        let (gave_backward, next_backward) = backward.give(&mut left, now)?;
        if now - told >= TELL {
            told = now;
            if let Some(link) = lock(&shared.asked).take() {
                forward.wire.configure(&link, &link.forward, mtu, now);
                backward.wire.configure(&link, &link.backward, mtu, now);
            }
            if shared.reset_lateness.swap(false, Ordering::Relaxed) {
                (forward.latest, backward.latest) = (Duration::ZERO, Duration::ZERO);
            }
            let mut report = lock(&shared.report);
            report.forward = forward.report(&left, now);
            report.backward = backward.report(&right, now);
        }
        if arrived || gave_forward || gave_backward {
            clock::sleep(TICK);
            continue;
        }
        let next = [next_forward, next_backward].into_iter().flatten().min();
        let wait = next.map_or(IDLE, |next| (next - clock::now()).min(IDLE));
        let mut fds = [
            PollFd::new(left.as_fd(), PollFlags::POLLIN),
            PollFd::new(right.as_fd(), PollFlags::POLLIN),
        ];
        // A signal ends the wait early, which is as good.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(wait)), None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who asks before the link's thread has begun is told what was asked for, too.
    #[test]
    fn a_link_is_known_from_the_start() {
        let mut link = Link::default();
        link.forward.rate = 50_000_000;
        let shared = Shared::new(link);
        assert_eq!(shared.report().link, link);
        link.forward.rate = 40_000_000;
        shared.change(link);
        assert_eq!(shared.report().link, link);
    }
}
