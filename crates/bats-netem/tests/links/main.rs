//! Links as seen by their drivers.

mod conservation;
mod delays;
mod equivalence;
mod retiming;
mod schedules;

use core::time::Duration;

use bats_netem::{Fate, Link, LinkConfig, Output, Payload, Timestamp};

const MS: Duration = Duration::from_millis(1);
/// 1,000 bytes per millisecond.
const RATE: u64 = 8_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Packet {
    number: u64,
    len: usize,
    flow: u64,
    is_ect: bool,
    is_marked: bool,
    is_changed: bool,
}

impl Payload for Packet {
    fn len(&self) -> usize {
        self.len
    }
    fn corrupt(&mut self, at: usize, flip: u8) {
        assert!(at < self.len && flip != 0);
        self.is_changed = true;
    }
    fn mark(&mut self) {
        self.is_marked = true;
    }
    fn flow(&self) -> u64 {
        self.flow
    }
    fn is_ect(&self) -> bool {
        self.is_ect
    }
}

fn packet(number: u64, len: usize) -> Packet {
    Packet { number, len, ..Packet::default() }
}

fn ms(at: u64) -> Timestamp {
    Timestamp::from_millis(at)
}

/// Packets that arrive by `until`, each polled at the time that the link announces.
fn arrivals(
    link: &mut Link<Packet>,
    from: Timestamp,
    until: Timestamp,
) -> Vec<(Timestamp, Packet)> {
    let (mut now, mut all) = (from, Vec::new());
    loop {
        match link.poll(now) {
            Output::Deliver(packet) => {
                assert!(link.last_due() <= now);
                all.push((now, packet));
            }
            Output::Timeout(Some(next)) if next <= until => {
                assert!(next > now, "time stands still at {now}");
                now = next;
            }
            Output::Timeout(_) => return all,
        }
    }
}

/// Sends packets at their times. Returns fates and arrivals, each with its time.
fn run(
    config: &LinkConfig,
    seed: u64,
    packets: &[(Timestamp, Packet)],
) -> (Vec<Fate>, Vec<(Timestamp, Packet)>, Link<Packet>) {
    let mut link = Link::new(config.clone(), seed);
    let (mut fates, mut all, mut last) = (Vec::new(), Vec::new(), Timestamp::ZERO);
    for (at, packet) in packets {
        all.extend(arrivals(&mut link, last, *at));
        fates.push(link.handle(*at, packet.clone()));
        last = *at;
    }
    let end = last + Duration::from_secs(1_000);
    all.extend(arrivals(&mut link, last, end));
    // Updates the counters of precomputed frames.
    link.queue_bytes(end);
    (fates, all, link)
}
