//! Tasks that wait for the channels of a connection.

use std::collections::BTreeMap;
use std::task::Waker;

use bats_proto::{ChannelId, Event};

use crate::wakers::Wakers;

/// What a blocked call waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Opening,
    Accepting,
    Reading(ChannelId),
    Writing(ChannelId),
}

/// Tasks that wait for channels of a connection.
#[derive(Debug, Default)]
pub(crate) struct ChannelWakers {
    opening: Wakers,
    accepting: Wakers,
    reading: BTreeMap<ChannelId, Wakers>,
    writing: BTreeMap<ChannelId, Wakers>,
}

impl ChannelWakers {
    /// The tasks that wait for this.
    pub(crate) fn of(&mut self, waiting: Waiting) -> &mut Wakers {
        match waiting {
            Waiting::Opening => &mut self.opening,
            Waiting::Accepting => &mut self.accepting,
            Waiting::Reading(id) => self.reading.entry(id).or_default(),
            Waiting::Writing(id) => self.writing.entry(id).or_default(),
        }
    }

    /// Whether no task waits.
    pub(crate) fn is_empty(&self) -> bool {
        let common = self.opening.is_empty() && self.accepting.is_empty();
        common && self.reading.is_empty() && self.writing.is_empty()
    }

    /// Applies an event to the tasks that wait for it.
    pub(crate) fn on_event(&mut self, event: &Event, due: &mut Vec<Waker>) {
        match event {
            Event::ChannelIncoming => self.accepting.drain_into(due),
            Event::ChannelAvailable => self.opening.drain_into(due),
            Event::ChannelReadable(id) => wake(&mut self.reading, *id, due),
            Event::ChannelWritable(id) => wake(&mut self.writing, *id, due),
            _ => {}
        }
    }

    /// Removes the tasks that wait for this channel.
    pub(crate) fn forget(&mut self, id: ChannelId) {
        self.reading.remove(&id);
        self.writing.remove(&id);
    }

    pub(crate) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.opening.drain_into(due);
        self.accepting.drain_into(due);
        for waiting in [&mut self.reading, &mut self.writing] {
            core::mem::take(waiting).into_values().for_each(|mut wakers| wakers.drain_into(due));
        }
    }
}

fn wake(waiting: &mut BTreeMap<ChannelId, Wakers>, id: ChannelId, due: &mut Vec<Waker>) {
    if let Some(mut wakers) = waiting.remove(&id) {
        wakers.drain_into(due);
    }
}
