//! Events for the application, and which of them it has got.

use std::collections::VecDeque;

use crate::event::Event;

/// What the application waits for, and the events that it has not fetched.
#[derive(Debug)]
pub(super) struct Notifications {
    events: VecDeque<Event>,
    readable: bool,
    /// The application waits for free space.
    writable_wanted: bool,
    /// Length of the message that was refused last.
    refused_bytes: usize,
    /// A message was refused before the session was established.
    refused_early: bool,
    /// Number of expired messages when the application was last notified of free space.
    expired: u64,
    acknowledged: bool,
}

impl Notifications {
    pub(super) fn new() -> Self {
        Self {
            events: VecDeque::new(),
            readable: false,
            writable_wanted: true,
            refused_bytes: 0,
            refused_early: false,
            expired: 0,
            acknowledged: true,
        }
    }

    /// Frees unused memory.
    pub(super) fn trim(&mut self) {
        self.events.shrink_to_fit();
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The session is established: the application waits for space only if it was refused before.
    pub(super) fn on_established(&mut self) {
        self.writable_wanted = self.refused_early;
    }

    /// The application has passed something that is to be acknowledged.
    pub(super) fn on_sending(&mut self) {
        self.acknowledged = false;
    }

    /// A message of `bytes` bytes was refused for lack of space.
    pub(super) fn on_refused(&mut self, bytes: usize) {
        self.writable_wanted = true;
        self.refused_bytes = bytes;
    }

    /// As [`Self::on_refused`], before the session is established.
    pub(super) fn on_refused_early(&mut self, bytes: usize) {
        self.refused_early = true;
        self.on_refused(bytes);
    }

    /// Whether the application waits for space.
    pub(super) fn awaits_space(&self) -> bool {
        self.writable_wanted
    }

    /// Length of the message that was refused last.
    pub(super) fn refused_bytes(&self) -> usize {
        self.refused_bytes
    }

    /// The application has read every message; it is not notified of the end twice.
    pub(super) fn on_all_read(&mut self, is_finished: bool) {
        self.readable = is_finished;
    }

    /// Whether more messages have expired than at the last call.
    pub(super) fn on_expired(&mut self, expired: u64) -> bool {
        core::mem::replace(&mut self.expired, expired) != expired
    }

    /// A message or the end can be read.
    pub(super) fn notify_readable(&mut self) {
        if !self.readable {
            self.readable = true;
            self.events.push_back(Event::Readable);
        }
    }

    /// There is space for what the application waits for.
    pub(super) fn notify_writable(&mut self) {
        if self.writable_wanted {
            self.writable_wanted = false;
            self.events.push_back(Event::Writable);
        }
    }

    /// Everything is acknowledged.
    pub(super) fn notify_acknowledged(&mut self) {
        if !self.acknowledged {
            self.acknowledged = true;
            self.events.push_back(Event::AllAcknowledged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(notifications: &mut Notifications) -> Vec<Event> {
        core::iter::from_fn(|| notifications.pop()).collect()
    }

    #[test]
    fn each_state_is_reported_once() {
        let mut notifications = Notifications::new();
        notifications.on_established();
        for _ in 0..2 {
            notifications.notify_readable();
            notifications.notify_writable();
            notifications.notify_acknowledged();
        }
        assert_eq!(events(&mut notifications), [Event::Readable]);
        notifications.on_all_read(false);
        notifications.on_refused(100);
        notifications.on_sending();
        assert!(notifications.awaits_space() && notifications.refused_bytes() == 100);
        for _ in 0..2 {
            notifications.notify_acknowledged();
            notifications.notify_writable();
            notifications.notify_readable();
        }
        let expected = [Event::AllAcknowledged, Event::Writable, Event::Readable];
        assert_eq!(events(&mut notifications), expected);
        notifications.on_all_read(true);
        notifications.notify_readable();
        assert!(notifications.is_empty(), "the end is known");
    }

    #[test]
    fn application_that_was_refused_early_waits_for_space() {
        let mut notifications = Notifications::new();
        notifications.on_refused_early(10);
        notifications.on_established();
        assert!(notifications.awaits_space());
    }

    #[test]
    fn expired_messages_count_when_there_are_more() {
        let mut notifications = Notifications::new();
        assert!(!notifications.on_expired(0));
        assert!(notifications.on_expired(2));
        assert!(!notifications.on_expired(2));
    }
}
