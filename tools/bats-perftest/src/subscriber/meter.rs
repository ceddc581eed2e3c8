//! Counts the samples of all publishers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::DEAD_AFTER;
use crate::cli::SubscriberOptions;
use crate::clock::now_ns;
use crate::loss::SequenceTracker;
use crate::wire::{Announcement, HEADER, Header, Hello, Refusal};

/// Time after an end mark in which reordered samples may still arrive, over transports that lose
/// messages.
const REORDERING_NS: u64 = 500_000_000;

/// Notes about refused peers.
const MAX_NOTES: u64 = 16;

/// The figures of all publishers together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Samples received, with those that the filter leaves out.
    pub(super) received: u64,
    /// Samples that count.
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
    pub(super) malformed: u64,
    /// Length of the last sample.
    pub(super) length: usize,
    /// When the first sample arrived.
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
    /// When the last publisher ended, if all have.
    pub(super) ended_ns: Option<u64>,
}

impl Totals {
    /// Time from the first sample to the last end mark, or to the last sample.
    pub(super) fn seconds(&self) -> f64 {
        let end = self.ended_ns.unwrap_or(self.last_ns);
        self.first_ns.map_or(0.0, |first| end.saturating_sub(first) as f64 / 1e9)
    }
}

/// The samples of a publisher.
#[derive(Debug)]
pub(super) struct PublisherState {
    pub(super) hello: Hello,
    /// Whether its transport delivers every sample in order.
    is_reliable: bool,
    tracker: SequenceTracker,
    samples: u64,
    bytes: u64,
    length: usize,
    first_ns: Option<u64>,
    last_ns: u64,
    ended_ns: Option<u64>,
    heard_ns: u64,
    /// Messages taken.
    pub(super) messages: u64,
}

impl PublisherState {
    fn new(hello: Hello, is_reliable: bool) -> Self {
        Self {
            hello,
            is_reliable,
            tracker: SequenceTracker::default(),
            samples: 0,
            bytes: 0,
            length: 0,
            first_ns: None,
            last_ns: 0,
            ended_ns: None,
            heard_ns: now_ns(),
            messages: 0,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.tracker.has_ended()
    }

    /// Notes a message that arrived at this time.
    pub(super) fn on_message(&mut self, at_ns: u64) {
        self.heard_ns = at_ns;
    }

    /// Counts a sample.
    pub(super) fn on_sample(&mut self, header: &Header, at_ns: u64, filter: Option<(u32, u32)>) {
        if !self.tracker.on_sample(header.sequence) {
            return;
        }
        self.first_ns.get_or_insert(at_ns);
        self.last_ns = at_ns;
        let is_wanted = filter.is_none_or(|(first, last)| (first..=last).contains(&header.key));
        if is_wanted {
            let length = HEADER + header.length as usize;
            self.length = length;
            self.samples += 1;
            self.bytes += length as u64;
        }
    }

    pub(super) fn on_end(&mut self, samples: u64, at_ns: u64) {
        if !self.tracker.has_ended() {
            self.tracker.on_end(samples);
            self.ended_ns = Some(at_ns);
        }
    }
}

/// The samples of all publishers.
#[derive(Debug)]
pub(super) struct Meter {
    publishers: Mutex<Vec<Arc<Mutex<PublisherState>>>>,
    pub(super) announcement: Announcement,
    pub(super) filter: Option<(u32, u32)>,
    expected: usize,
    is_raw: bool,
    keyed: bool,
    instances: u32,
    malformed: AtomicU64,
    notes: AtomicU64,
    failure: Mutex<Option<String>>,
    pub(super) is_over: AtomicBool,
    /// The user has ended the test before the publishers did.
    pub(super) leaves_early: AtomicBool,
}

pub(super) type Publisher = Arc<Mutex<PublisherState>>;

/// Locks the state of a publisher.
pub(super) fn lock(publisher: &Publisher) -> MutexGuard<'_, PublisherState> {
    publisher.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meter {
    pub(super) fn new(options: &SubscriberOptions, announcement: Announcement) -> Self {
        Self {
            publishers: Mutex::default(),
            announcement,
            filter: options.filter,
            expected: options.common.peers_expected,
            keyed: options.common.keyed,
            instances: options.common.instances,
            is_raw: options.common.transport == crate::cli::Transport::Raw,
            malformed: 0.into(),
            notes: 0.into(),
            failure: Mutex::default(),
            is_over: AtomicBool::new(false),
            leaves_early: AtomicBool::new(false),
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Publisher>> {
        self.publishers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of publishers that have introduced themselves.
    pub(super) fn publishers(&self) -> usize {
        self.all().len()
    }

    /// Adds a publisher whose transport delivers every sample, or does not.
    ///
    /// # Errors
    /// Why it cannot take part.
    pub(super) fn add(&self, hello: Hello, is_reliable: bool) -> Result<Publisher, Refusal> {
        let mut publishers = self.all();
        if hello.domain != self.announcement.domain {
            return Err(Refusal::Domain(hello.domain));
        }
        if let Some(other) =
            publishers.iter().find(|one| lock(one).hello.publisher == hello.publisher)
        {
            let other = lock(other).hello.process;
            return Err(match other == hello.process {
                true => Refusal::Connected,
                false => Refusal::SameId(hello.publisher),
            });
        }
        if hello.keyed != self.keyed {
            return Err(Refusal::Keyed { at_publisher: hello.keyed });
        }
        if hello.instances != self.instances {
            return Err(Refusal::Instances(self.instances));
        }
        if publishers.len() >= self.expected {
            return Err(Refusal::Full(self.expected as u32));
        }
        let publisher = Publisher::new(Mutex::new(PublisherState::new(hello, is_reliable)));
        publishers.push(Publisher::clone(&publisher));
        Ok(publisher)
    }

    /// Whether to print one more note: unknown senders must not flood the terminal.
    pub(super) fn may_print_note(&self) -> bool {
        self.notes.fetch_add(1, Ordering::Relaxed) < MAX_NOTES
    }

    pub(super) fn on_malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fail(&self, text: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn leave_early(&self) {
        self.leaves_early.store(true, Ordering::Release);
    }

    /// Fails if a publisher on UDP has been silent for too long.
    pub(super) fn find_dead(&self) {
        let now = now_ns();
        for publisher in self.all().iter() {
            let state = lock(publisher);
            let silent = now.saturating_sub(state.heard_ns);
            if self.is_raw && !state.has_ended() && silent > DEAD_AFTER.as_nanos() as u64 {
                self.fail(format!(
                    "publisher {}: nothing received for {:.1} s",
                    state.hello.publisher,
                    DEAD_AFTER.as_secs_f64()
                ));
            }
        }
    }

    /// Whether all publishers have ended, and no more samples are expected.
    pub(super) fn is_complete(&self) -> bool {
        let publishers = self.all();
        let now = now_ns();
        publishers.len() >= self.expected
            && publishers.iter().all(|publisher| {
                let state = lock(publisher);
                let waited = state.ended_ns.map_or(0, |ended| now.saturating_sub(ended));
                state.has_ended()
                    && (state.is_reliable || state.tracker.lost() == 0 || waited >= REORDERING_NS)
            })
    }

    pub(super) fn totals(&self) -> Totals {
        let publishers = self.all();
        let mut totals =
            Totals { malformed: self.malformed.load(Ordering::Relaxed), ..Totals::default() };
        let mut all_ended = publishers.len() >= self.expected;
        let mut last_end = 0;
        for publisher in publishers.iter() {
            let state = lock(publisher);
            totals.received += state.tracker.received();
            totals.samples += state.samples;
            totals.bytes += state.bytes;
            totals.lost = totals.lost.saturating_add(state.tracker.lost());
            totals.duplicates += state.tracker.duplicates();
            totals.length = totals.length.max(state.length);
            totals.first_ns = [totals.first_ns, state.first_ns].into_iter().flatten().min();
            totals.last_ns = totals.last_ns.max(state.last_ns);
            all_ended &= state.has_ended();
            // A reordered sample can arrive after the end mark.
            last_end = last_end.max(state.ended_ns.unwrap_or(0)).max(state.last_ns);
        }
        totals.ended_ns = all_ended.then_some(last_end);
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse_line};

    fn meter(line: &str) -> Meter {
        let Command::Subscribe(options) = parse_line(line).unwrap() else { panic!("{line}") };
        Meter::new(&options, Announcement { domain: 1, ..Announcement::default() })
    }

    fn hello(publisher: u32) -> Hello {
        Hello { domain: 1, publisher, instances: 1, ..Hello::default() }
    }

    fn sample(sequence: u32) -> Header {
        Header { sequence, target: -1, ..Header::default() }
    }

    #[test]
    fn samples_that_arrive_after_the_end_mark_are_not_lost() {
        // The mode of the connection counts, not the default of the subscriber.
        let meter = meter("-sub");
        let publisher = meter.add(hello(0), false).unwrap();
        {
            let mut state = lock(&publisher);
            state.on_sample(&sample(0), 1, None);
            state.on_sample(&sample(2), 2, None);
            state.on_end(4, now_ns());
        }
        assert!(!meter.is_complete(), "reordered samples may still come");
        assert_eq!(meter.totals().lost, 2);
        lock(&publisher).on_sample(&sample(3), 3, None);
        assert!(!meter.is_complete());
        lock(&publisher).on_sample(&sample(1), 4, None);
        assert!(meter.is_complete(), "all have come");
        assert_eq!((meter.totals().lost, meter.totals().received), (0, 4));
    }

    #[test]
    fn lost_samples_are_final_after_the_time_of_reordering() {
        let meter = meter("-sub");
        let publisher = meter.add(hello(0), false).unwrap();
        // The clock of the process begins with its first use.
        lock(&publisher).on_end(4, now_ns());
        assert!(!meter.is_complete());
        std::thread::sleep(std::time::Duration::from_nanos(REORDERING_NS));
        assert!(meter.is_complete());
        assert_eq!(meter.totals().lost, 4);
    }

    #[test]
    fn publishers_that_do_not_fit_are_refused_with_the_reason() {
        let meter = meter("-sub -numPublishers 2");
        meter.add(hello(0), true).unwrap();
        let problem = |hello| meter.add(hello, true).unwrap_err().to_string();
        assert!(problem(Hello { process: 9, ..hello(0) }).contains("another publisher with id 0"));
        assert!(problem(Hello { keyed: true, ..hello(1) }).contains("the publisher has -keyed"));
        assert!(problem(Hello { domain: 2, ..hello(1) }).contains("domain 2"));
        assert!(problem(Hello { instances: 9, ..hello(1) }).contains("has -instances 1 and"));
        meter.add(hello(1), true).unwrap();
        assert!(problem(hello(2)).contains("all 2 publishers"));
    }
}
