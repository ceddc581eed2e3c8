//! One link in real time: two ports, one emulated link per direction, one thread.

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

/// Sleep of a busy link between rounds. Deliveries are late by at most this, and a round forwards
/// several frames.
const TICK: Duration = Duration::from_micros(75);
/// A delivery later than this after its due time counts as late. It is many ticks, and visible in
/// round-trip times.
pub(crate) const LATE_THRESHOLD: Duration = Duration::from_millis(1);
/// Interval at which an idle link checks for requests.
pub(crate) const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a link updates its report.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);
/// Frames up to this size are copied, so that they do not occupy a buffer for a full frame.
const MAX_COPIED_FRAME: usize = 512;

/// State that a link's thread shares with the control socket.
pub(crate) struct Shared {
    pending_link: Mutex<Option<Link>>,
    report: Mutex<HopReport>,
    reset_lateness: AtomicBool,
    start_schedules: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The values are plain data and stay consistent even if a thread panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// State for a link that starts as `link`, which is reported even before its thread runs.
    pub(crate) fn new(link: Link) -> Self {
        let report = HopReport { link, ..HopReport::default() };
        Self {
            pending_link: Mutex::default(),
            report: Mutex::new(report),
            reset_lateness: AtomicBool::default(),
            start_schedules: AtomicBool::default(),
        }
    }

    /// Requests a change of the link.
    pub(crate) fn change(&self, link: Link) {
        *lock(&self.pending_link) = Some(link.clone());
        lock(&self.report).link = link;
    }

    /// The link's last report.
    pub(crate) fn report(&self) -> HopReport {
        lock(&self.report).clone()
    }

    /// Resets the maximum lateness.
    pub(crate) fn reset_lateness(&self) {
        self.reset_lateness.store(true, Ordering::Relaxed);
    }

    /// Lets the schedules begin.
    pub(crate) fn start_schedules(&self) {
        self.start_schedules.store(true, Ordering::Relaxed);
    }
}

/// One direction: forwards frames from one port through the wire to the other.
struct Forwarder {
    wire: Wire,
    buffers: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    arrivals: Vec<Arrival>,
    due: Vec<Frame>,
    frame_size: usize,
    last_arrival: Timestamp,
    latest: Duration,
    late: u64,
    send_errors: u64,
    socket_drops: u64,
    sent: u64,
    sent_bytes: u64,
}

impl Forwarder {
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
            send_errors: 0,
            socket_drops: 0,
            sent: 0,
            sent_bytes: 0,
        }
    }

    /// Receives frames from `port`; returns whether there were any.
    fn receive_frames(&mut self, port: &mut Port) -> Result<bool> {
        let mut any = false;
        // Bounded, so that a flood of frames cannot delay deliveries.
        for _ in 0..8 {
            port.receive(&mut self.buffers, &mut self.arrivals)?;
            let (now, real) = clock::now_and_real();
            for (index, arrival) in self.arrivals.iter().enumerate() {
                let at = clock::arrival(now, real, arrival.at).max(self.last_arrival);
                self.last_arrival = at;
                let frame = if arrival.length <= MAX_COPIED_FRAME {
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

    /// Sends due frames to `port`; returns whether there were any, and when the next is due.
    fn deliver_due(
        &mut self,
        port: &mut Port,
        now: Timestamp,
    ) -> Result<(bool, Option<Timestamp>)> {
        let next = loop {
            match self.wire.step(now) {
                Step::Deliver(frame, due) => {
                    let behind = now - due;
                    self.latest = self.latest.max(behind);
                    self.late += u64::from(behind > LATE_THRESHOLD);
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
                    self.send_errors += 1;
                    done += 1;
                }
                Ok(count) => {
                    let sent = &self.due[done..done + count];
                    self.sent += count as u64;
                    self.sent_bytes += sent.iter().map(|frame| frame.len() as u64).sum::<u64>();
                    done += count;
                }
                // The host's interface is down or full: a real link would lose the frame, too.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    return Err(error.into());
                }
                Err(_) => {
                    self.send_errors += 1;
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
        self.socket_drops += from.take_drops();
        let wire = self.wire.report(now);
        DirectionReport {
            frames_out: self.sent,
            bytes_out: self.sent_bytes,
            emulator_drops: wire.emulator_drops + self.socket_drops + self.send_errors,
            latest_us: u64::try_from(self.latest.as_micros()).unwrap_or(u64::MAX),
            frames_late: self.late,
            ..wire
        }
    }
}

/// Forwards frames between `left` and `right` until `stop`.
///
/// # Errors
/// If a port fails permanently.
pub(crate) fn run(
    mut left: Port,
    mut right: Port,
    link: Link,
    mtu: u32,
    seed: u64,
    shared: &Shared,
    stop: &AtomicBool,
) -> Result<()> {
    // MTU, Ethernet header, and room to detect frames that are too large.
    let frame_size = mtu as usize + 14 + 4;
    let mut forward = Forwarder::new(Wire::new(&link, &link.forward, mtu, seed)?, frame_size);
    let mut backward = Forwarder::new(Wire::new(&link, &link.backward, mtu, !seed)?, frame_size);
    let mut reported_at = clock::now();
    while !stop.load(Ordering::Relaxed) {
        let arrived = forward.receive_frames(&mut left)? | backward.receive_frames(&mut right)?;
        let now = clock::now();
        let (delivered_forward, next_forward) = forward.deliver_due(&mut right, now)?;
        let (delivered_backward, next_backward) = backward.deliver_due(&mut left, now)?;
        if now - reported_at >= REPORT_INTERVAL {
            reported_at = now;
            if let Some(link) = lock(&shared.pending_link).take() {
                forward.wire.configure(&link, &link.forward, mtu, now)?;
                backward.wire.configure(&link, &link.backward, mtu, now)?;
            }
            if shared.start_schedules.swap(false, Ordering::Relaxed) {
                forward.wire.start_schedules(now);
                backward.wire.start_schedules(now);
            }
            if shared.reset_lateness.swap(false, Ordering::Relaxed) {
                (forward.latest, backward.latest) = (Duration::ZERO, Duration::ZERO);
            }
            let mut report = lock(&shared.report);
            report.forward = forward.report(&left, now);
            report.backward = backward.report(&right, now);
        }
        if arrived || delivered_forward || delivered_backward {
            clock::sleep(TICK);
            continue;
        }
        let next = [next_forward, next_backward].into_iter().flatten().min();
        let wait =
            next.map_or(IDLE_POLL_INTERVAL, |next| (next - clock::now()).min(IDLE_POLL_INTERVAL));
        let mut fds = [
            PollFd::new(left.as_fd(), PollFlags::POLLIN),
            PollFd::new(right.as_fd(), PollFlags::POLLIN),
        ];
        // A signal may end the wait early, which is fine.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(wait)), None);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_reported_before_its_thread_runs() {
        let mut link = Link::default();
        link.forward.rate = 50_000_000;
        let shared = Shared::new(link.clone());
        assert_eq!(shared.report().link, link);
        link.forward.rate = 40_000_000;
        shared.change(link.clone());
        assert_eq!(shared.report().link, link);
    }
}
