//! A member of a group: the flows of its sources.

use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bats_types::Timestamp;

use super::{
    GROUP_SOURCE_TIMEOUT, GroupMessage, GroupOptions, GroupReceiverStats, MAX_GROUP_SOURCES,
    MAX_GROUP_SYMBOL,
};
use crate::config::PresharedKey;
use crate::crypto::GroupKeys;
use crate::flow::{FlowError, TimelyReceiver};
use crate::session::streams::{Receiving, TimelyIncoming, Totals};
use crate::session::{DatagramAssembly, Inbox, MESSAGE_OVERHEAD};
use crate::wire::announcement::{ANNOUNCEMENT_SALT_LEN, Announcement, AnnouncementHeader};
use crate::wire::coding::SourceHeader;
use crate::wire::flow::{FlowKey, NodeId};
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// Time for which the last symbols are awaited after the end was announced: longer than relays hold them on a hop.
const END_WAIT: Duration = Duration::from_secs(1);

/// Symbols that a receiver may be ahead of an announcement if none was authentic since the one before: those of packets
/// that overtake it.
const MAX_AHEAD: u64 = 4_096;

/// A member of a group.
#[derive(Debug)]
pub(crate) struct GroupReceiver {
    key: PresharedKey,
    options: GroupOptions,
    /// By source and flow ID.
    sources: BTreeMap<(NodeId, u32), Source>,
    /// The flow whose message was taken last, for round robin.
    last: (NodeId, u32),
    /// Messages that the application has not read of flows that have ended, and their bytes.
    unread: VecDeque<GroupMessage>,
    unread_bytes: usize,
    stats: GroupReceiverStats,
}

/// What is received of a source.
#[derive(Debug)]
struct Source {
    salt: [u8; ANNOUNCEMENT_SALT_LEN],
    instance: u64,
    keys: GroupKeys,
    /// When it was last announced.
    heard_at: Timestamp,
    incoming: TimelyIncoming,
    /// Whether a symbol was authentic since the last announcement.
    has_taken: bool,
    /// Messages that were lost before it was restarted.
    lost_before: u64,
    inbox: Inbox,
    polluted: u64,
    /// Content of the source symbol that was checked last.
    opened: Vec<u8>,
}

impl GroupReceiver {
    /// A member with the group's key.
    pub(crate) fn new(key: PresharedKey, options: GroupOptions) -> Self {
        Self {
            key,
            options,
            sources: BTreeMap::new(),
            last: (NodeId(0), 0),
            unread: VecDeque::new(),
            unread_bytes: 0,
            stats: GroupReceiverStats::default(),
        }
    }

    /// Takes an end-to-end packet to the group. What is not an authentic announcement has no effect.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn on_control(&mut self, now: Timestamp, flow: FlowKey, packet: &[u8]) {
        if self.take_announcement(now, flow, packet).is_none() {
            self.stats.announcements_refused = self.stats.announcements_refused.saturating_add(1);
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn take_announcement(&mut self, now: Timestamp, flow: FlowKey, packet: &[u8]) -> Option<()> {
        let (AnnouncementHeader { salt, number }, header, sealed) =
            AnnouncementHeader::decode(packet)?;
        let id = (flow.source, flow.flow);
        let read = |keys: &GroupKeys| Announcement::decode(&keys.open(number, header, sealed)?);
        if let Some(source) = self.sources.get_mut(&id).filter(|source| source.salt == salt) {
            let announced = read(&source.keys)?;
            source.heard_at = now;
            let has_taken = core::mem::take(&mut source.has_taken);
            let end = source.incoming.seen_end().unwrap_or(0);
            if !has_taken && end.saturating_sub(announced.first_symbol) > MAX_AHEAD {
                source.restart(&announced, &self.options);
            }
            if announced.is_end {
                source.on_end(now, &announced);
            }
            return Some(());
        }
        let keys = GroupKeys::derive(&self.key, &salt, flow)?;
        let announced = read(&keys)?;
        let of_source = (flow.source, 0)..=(flow.source, u32::MAX);
        let newest = self.sources.range(of_source).map(|(_, source)| source.instance).max();
        let older: Vec<_> = self
            .sources
            .iter()
            .filter(|((node, _), source)| {
                *node == flow.source && source.instance < announced.instance
            })
            .map(|(id, _)| *id)
            .collect();
        // What an older instance has sent may come again from a node that has recorded it.
        if newest.is_some_and(|newest| announced.instance < newest)
            || self.sources.get(&id).is_some_and(|known| announced.instance == known.instance)
            || announced.max_symbol_size > MAX_GROUP_SYMBOL
            || announced.is_end
        {
            return None;
        }
        older.into_iter().for_each(|id| self.remove(id));
        if self.sources.len() >= MAX_GROUP_SOURCES {
            let finished = self.sources.iter().find(|(_, source)| source.is_finished());
            let finished = finished.map(|(id, _)| *id)?;
            self.remove(finished);
        }
        let source = Source::new(now, keys, salt, &announced, &self.options);
        self.sources.insert(id, source);
        Some(())
    }

    /// Takes a coded packet of a flow.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn on_coded(
        &mut self,
        now: Timestamp,
        flow: FlowKey,
        kind: PacketKind,
        payload: &[u8],
    ) {
        let id = (flow.source, flow.flow);
        let Some(source) = self.sources.get_mut(&id) else {
            self.stats.unknown = self.stats.unknown.saturating_add(1);
            return;
        };
        match source.on_coded(now, kind, payload, &self.options) {
            Ok(malformed) => {
                self.stats.malformed = self.stats.malformed.saturating_add(malformed);
            }
            // Too much work. The next announcement begins again.
            Err(FlowError::NonInnovative) => self.remove(id),
            Err(_) => self.stats.malformed = self.stats.malformed.saturating_add(1),
        }
    }

    /// Removes a flow. Its counters stay, and the messages that the application has not read, as far as there is memory
    /// for those of one source.
    fn remove(&mut self, id: (NodeId, u32)) {
        if let Some(mut source) = self.sources.remove(&id) {
            while let Some(message) = source.inbox.pop() {
                let bytes = message.len().saturating_add(MESSAGE_OVERHEAD);
                let held = self.unread_bytes.saturating_add(bytes);
                if held > self.options.receive_budget && !self.unread.is_empty() {
                    self.stats.messages_lost = self.stats.messages_lost.saturating_add(1);
                    continue;
                }
                self.unread_bytes = held;
                self.unread.push_back(GroupMessage { source: id.0, message });
            }
            self.stats.messages_lost =
                self.stats.messages_lost.saturating_add(source.messages_lost());
            self.stats.polluted = self.stats.polluted.saturating_add(source.polluted);
        }
    }

    /// Whether there is a message.
    pub(crate) fn is_readable(&self) -> bool {
        !self.unread.is_empty() || self.sources.values().any(|source| !source.inbox.is_empty())
    }

    /// The next message; the sources take turns.
    pub(crate) fn recv(&mut self) -> Option<GroupMessage> {
        if let Some(unread) = self.unread.pop_front() {
            self.unread_bytes -= unread.message.len() + MESSAGE_OVERHEAD;
            self.stats.messages += 1;
            return Some(unread);
        }
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let readable =
            |(id, source): (&(NodeId, u32), &Source)| (!source.inbox.is_empty()).then_some(*id);
        let next = self.sources.range(after).find_map(readable);
        let id = next.or_else(|| self.sources.iter().find_map(readable))?;
        let message = self.sources.get_mut(&id)?.inbox.pop()?;
        self.last = id;
        self.stats.messages += 1;
        Some(GroupMessage { source: id.0, message })
    }

    /// When [`GroupReceiver::handle_timeout`] is to be called.
    pub(crate) fn next_timeout(&self) -> Option<Timestamp> {
        let next = |source: &Source| {
            let end = source.incoming.next_timeout();
            let silent = source.heard_at + GROUP_SOURCE_TIMEOUT;
            end.map_or(silent, |end| end.min(silent))
        };
        self.sources.values().map(next).min()
    }

    /// Gives up sources that are silent, and symbols that do not arrive after the end.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        let mut silent = Vec::new();
        for (&id, source) in &mut self.sources {
            source.incoming.on_timeout(now);
            if source.heard_at + GROUP_SOURCE_TIMEOUT <= now {
                silent.push(id);
            }
        }
        silent.into_iter().for_each(|id| self.remove(id));
    }

    /// Counters.
    pub(crate) fn stats(&self) -> GroupReceiverStats {
        let mut stats = GroupReceiverStats { sources: self.sources.len() as u64, ..self.stats };
        for source in self.sources.values() {
            stats.messages_lost = stats.messages_lost.saturating_add(source.messages_lost());
            stats.polluted = stats.polluted.saturating_add(source.polluted);
        }
        stats
    }
}

/// The flow of a source from the position that it has announced.
fn incoming(announced: &Announcement, options: &GroupOptions) -> TimelyIncoming {
    let size = usize::from(announced.max_symbol_size);
    let mut flow = TimelyReceiver::new(size, announced.code_seed);
    flow.begin_at(announced.first_symbol);
    let mut assembly = DatagramAssembly::new(options.max_message_size, options.receive_budget);
    assembly.begin_at(announced.first_message);
    TimelyIncoming::new(flow, assembly)
}

impl Source {
    fn new(
        now: Timestamp,
        keys: GroupKeys,
        salt: [u8; ANNOUNCEMENT_SALT_LEN],
        announced: &Announcement,
        options: &GroupOptions,
    ) -> Self {
        Self {
            salt,
            instance: announced.instance,
            keys,
            heard_at: now,
            incoming: incoming(announced, options),
            has_taken: false,
            lost_before: 0,
            inbox: Inbox::default(),
            polluted: 0,
            opened: Vec::new(),
        }
    }

    /// Begins again where the source is: a symbol number far ahead, which no key protects, has moved the receiver there,
    /// so that it would refuse what comes.
    fn restart(&mut self, announced: &Announcement, options: &GroupOptions) {
        self.lost_before = self.messages_lost();
        self.incoming = incoming(announced, options);
    }

    fn on_end(&mut self, now: Timestamp, end: &Announcement) {
        let totals = Totals { symbols: end.first_symbol, messages: end.first_message };
        self.incoming.on_end(totals, now + END_WAIT);
    }

    fn is_finished(&self) -> bool {
        self.incoming.is_finished() && self.inbox.is_empty()
    }

    fn messages_lost(&self) -> u64 {
        self.lost_before.saturating_add(self.incoming.residual().messages_lost)
    }

    /// Takes a coded packet. Returns how many symbols that became complete are malformed.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_coded(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        options: &GroupOptions,
    ) -> Result<u64, FlowError> {
        // Before it can pollute repairs; only after the first pollution, because it is as much work again.
        if self.polluted > 0 && kind == PacketKind::Source && self.is_polluted(payload) {
            self.polluted = self.polluted.saturating_add(1);
            return Ok(0);
        }
        self.incoming.on_packet(now, kind, payload, Duration::ZERO)?;
        let mut malformed = 0_u64;
        while self.incoming.has_ready() {
            let (room, keys) = ((options.receive_budget, true), &mut self.keys.symbols);
            match self.incoming.take(&mut self.inbox, None, room, Some(keys)) {
                Ok(taken) => {
                    self.has_taken |= taken.polluted == 0;
                    self.polluted = self.polluted.saturating_add(taken.polluted);
                }
                // A member has sealed it.
                Err(_) => malformed = malformed.saturating_add(1),
            }
        }
        Ok(malformed)
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn is_polluted(&mut self, payload: &[u8]) -> bool {
        let mut reader = Reader::new(payload);
        let header = SourceHeader::decode(&mut reader).zip(self.incoming.seen_end());
        header.is_some_and(|(header, end)| {
            !self.keys.symbols.open(header.number(end), reader.rest(), &mut self.opened)
        })
    }
}
