//! Channels in blocks, which are decoded in any order and have many frames.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::session::{Reassembly, SendQueue};
use crate::wire::varint::Writer;

const BUDGET: usize = 64 << 20;
const SMALL_BUDGET: usize = 40_000;
const CHANNELS: u64 = 6;

fn limits(budget: usize) -> ChannelLimits {
    ChannelLimits::new(CHANNELS, budget, 1 << 20)
}

/// Channel, offset and length of a part.
type Part = (u64, u64, u64);

/// A block that the receiver has not taken in order.
struct Block {
    bytes: Vec<u8>,
    is_decoded: bool,
    /// All parts that it had memory for were taken.
    is_handed_up: bool,
    parts: Vec<Part>,
}

/// A client that sends blocks, and a server that decodes them in any order. What the server sends arrives at once.
struct OneWay {
    client: Channels,
    messages: SendQueue,
    server: Channels,
    reassembly: Reassembly,
    blocks: VecDeque<Block>,
    ids: Vec<ChannelId>,
    /// Bytes written to each channel, and read from it.
    written: BTreeMap<ChannelId, u64>,
    read: BTreeMap<ChannelId, u64>,
    /// Channels that were reset.
    given_up: BTreeSet<ChannelId>,
    sent: Vec<Bytes>,
    received: usize,
    /// Parts of the blocks that are decoded.
    arrived: Vec<Part>,
}

/// The byte at an offset of a channel.
fn byte(id: ChannelId, offset: u64) -> u8 {
    (offset * 31 + id.number() * 7) as u8
}

fn parts(block: &[u8]) -> Vec<Part> {
    let mut reader = Reader::new(block);
    let mut parts = Vec::new();
    while let Some(frame) = message::decode(&mut reader).unwrap() {
        if let MessageFrame::Channel(ChannelFrame::Data { id, offset, data, .. }) = frame {
            parts.push((id, offset, data.len() as u64));
        }
    }
    parts
}

impl OneWay {
    fn new(budget: usize) -> Self {
        let limits = limits(budget);
        let mut client = Channels::new(false, limits, limits.parameters());
        let ids: Vec<_> = (0..CHANNELS).map(|_| client.open_channel().unwrap()).collect();
        Self {
            client,
            messages: SendQueue::new(),
            server: Channels::new(true, limits, limits.parameters()),
            reassembly: Reassembly::new(limits.max_message()),
            blocks: VecDeque::new(),
            written: ids.iter().map(|&id| (id, 0)).collect(),
            read: ids.iter().map(|&id| (id, 0)).collect(),
            ids,
            given_up: BTreeSet::new(),
            sent: Vec::new(),
            received: 0,
            arrived: Vec::new(),
        }
    }

    fn write(&mut self, id: ChannelId, len: usize) {
        let written = self.written.get_mut(&id).unwrap();
        let data: Vec<u8> = (*written..).take(len).map(|offset| byte(id, offset)).collect();
        *written += self.client.write(id, &data).unwrap_or(0) as u64;
    }

    fn cut(&mut self, size: usize) -> bool {
        self.messages.set_credit(self.client.message_credit());
        let mut bytes = vec![0; size];
        let len = self.client.fill_symbol(&mut self.messages, &mut bytes);
        bytes.truncate(len);
        let parts = parts(&bytes);
        let block = Block { bytes, is_decoded: false, is_handed_up: false, parts };
        self.blocks.extend((len > 0).then_some(block));
        len > 0
    }

    fn decode(&mut self, at: usize) {
        if let Some(block) = self.blocks.get_mut(at)
            && !core::mem::replace(&mut block.is_decoded, true)
        {
            self.arrived.extend(&block.parts);
            self.hand_up(at);
        }
    }

    /// As the session does when a block was decoded or taken.
    fn hand_up(&mut self, from: usize) {
        for block in self.blocks.iter_mut().skip(from) {
            if block.is_decoded && !block.is_handed_up {
                block.is_handed_up = self.server.take_early(&mut block.bytes).unwrap();
            }
        }
    }

    /// The first block is decoded, if it was not before, and taken.
    fn take(&mut self) {
        let Some(block) = self.blocks.pop_front() else { return };
        self.reassembly.feed_with(&block.bytes, Some(&mut self.server), false).unwrap();
        if !block.is_decoded {
            self.arrived.extend(block.parts);
        }
        self.hand_up(0);
        while let Some(message) = self.reassembly.pop() {
            assert_eq!(message, self.sent[self.received]);
            self.received += 1;
            self.server.on_message_taken(message.len());
        }
    }

    fn read(&mut self, id: ChannelId, len: usize) {
        let mut out = vec![0; len];
        let read = self.read.get_mut(&id).unwrap();
        match self.server.read(id, &mut out) {
            Ok(Some(len)) => {
                assert!(out[..len].iter().zip(*read..).all(|(found, at)| *found == byte(id, at)));
                *read += len as u64;
            }
            Ok(None) => assert_eq!(*read, self.written[&id]),
            Err(ChannelError::Reset { code }) => {
                assert!(code == 5 && self.given_up.contains(&id));
            }
            Err(ChannelError::Blocked | ChannelError::Closed) => {}
            Err(error) => panic!("{error}"),
        }
        let mut credit = vec![0; 1_000];
        let len = self.server.fill_symbol(&mut SendQueue::new(), &mut credit);
        self.client.feed_early(&credit[..len]).unwrap();
    }

    /// Bytes of the channel before the first one that is in no decoded block.
    fn naive(&self, id: ChannelId) -> u64 {
        let mut parts: Vec<_> = self.arrived.iter().filter(|part| part.0 == id.0).collect();
        parts.sort_unstable();
        parts.iter().fold(0, |end, (_, offset, len)| if *offset == end { end + len } else { end })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    Finish(usize),
    Reset(usize),
    Message(usize),
    Cut(usize),
    Decode(usize),
    Take,
    Read(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let channel = 0..CHANNELS as usize;
    prop_oneof![
        8 => (channel.clone(), 0_usize..9_000).prop_map(|(at, len)| Step::Write(at, len)),
        1 => channel.clone().prop_map(Step::Finish),
        1 => channel.clone().prop_map(Step::Reset),
        2 => (0_usize..3_000).prop_map(Step::Message),
        6 => prop_oneof![0_usize..100, 100_usize..50_000].prop_map(Step::Cut),
        6 => (0_usize..10).prop_map(Step::Decode),
        3 => Just(Step::Take),
        4 => (channel, 0_usize..20_000).prop_map(|(at, len)| Step::Read(at, len)),
    ]
}

proptest! {
    /// Blocks of any sizes, decoded in any order: a channel has the bytes before the first missing one, whatever other
    /// channels wait for, also with little memory for what waits, which is bounded.
    #[test]
    fn channels_of_blocks_in_any_order_agree_with_a_naive_model(
        steps in prop::collection::vec(step(), 1..200),
        is_small in any::<bool>(),
    ) {
        let mut pair = OneWay::new(if is_small { SMALL_BUDGET } else { BUDGET });
        for step in steps {
            match step {
                Step::Write(at, len) => pair.write(pair.ids[at], len),
                Step::Finish(at) => _ = pair.client.finish(pair.ids[at]),
                Step::Reset(at) => {
                    pair.client.reset(pair.ids[at], 5);
                    pair.given_up.insert(pair.ids[at]);
                }
                Step::Message(len) => {
                    let message: Bytes = vec![len as u8; len.min(limits(SMALL_BUDGET).max_message())].into();
                    pair.messages.push(message.clone());
                    pair.sent.push(message);
                }
                Step::Cut(size) => _ = pair.cut(size),
                Step::Decode(at) => pair.decode(at),
                Step::Take => pair.take(),
                Step::Read(at, len) => pair.read(pair.ids[at], len),
            }
            prop_assert!(pair.server.receive_window.early() <= pair.server.limits.early_budget());
            prop_assert!(pair.server.receive_window.unread() <= pair.server.limits.session_window);
            for &id in pair.ids.iter().filter(|id| !pair.given_up.contains(id)) {
                let Ok(stats) = pair.server.stats(id) else { continue };
                let naive = pair.naive(id);
                prop_assert_eq!(stats.bytes_received, naive);
            }
        }
        for id in pair.ids.clone() {
            _ = pair.client.finish(id);
        }
        for _ in 0..1_000 {
            pair.cut(5_000);
            pair.take();
            for id in pair.ids.clone() {
                pair.read(id, 50_000);
            }
            if pair.blocks.is_empty() && pair.messages.is_empty() && !pair.client.is_sendable() {
                break;
            }
        }
        prop_assert_eq!(pair.received, pair.sent.len());
        for &id in pair.ids.iter().filter(|id| !pair.given_up.contains(id)) {
            prop_assert_eq!(pair.read[&id], pair.written[&id]);
        }
        let held = [pair.client.queued_bytes(), pair.server.bytes_held()];
        prop_assert_eq!(held, [0, 0]);
    }

    /// What a peer sends in a block is accepted, or is a violation, within the memory that it was granted.
    #[test]
    fn any_blocks_are_an_error_or_bounded(
        blocks in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(prop_oneof![5_u8..12, 0_u8..70], 0..2_000)),
            0..20,
        ),
    ) {
        let limits = limits(SMALL_BUDGET);
        let mut end = Channels::new(true, limits, limits.parameters());
        let mut reassembly = Reassembly::new(limits.max_message());
        for (is_early, mut block) in blocks {
            let (len, taken) = (block.len(), is_early.then(|| end.take_early(&mut block).map(drop)));
            prop_assert!(block.len() <= len);
            let taken = taken.unwrap_or_else(|| reassembly.feed_with(&block, Some(&mut end), false));
            if taken.is_err() {
                break;
            }
            prop_assert!(end.open() <= CHANNELS as usize);
            prop_assert!(end.receive_window.unread() <= limits.session_window);
            prop_assert!(end.receive_window.early() <= limits.early_budget());
        }
    }
}

/// The frames of a block.
fn block(frames: &[ChannelFrame<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; 100_000];
    let mut writer = Writer::new(&mut bytes);
    for frame in frames {
        crate::wire::channel::encode(&mut writer, frame).unwrap();
    }
    let len = writer.written();
    bytes.truncate(len);
    bytes
}

fn data(id: u64, offset: u64, data: &[u8]) -> ChannelFrame<'_> {
    ChannelFrame::Data { id, offset, data, end: false }
}

/// A block that is decoded early has more parts behind gaps than there is memory for. Those of other channels and
/// credit are taken, and the rest in its turn.
#[test]
fn parts_without_memory_stay_in_their_block_and_hold_up_no_other_channel() {
    let limits = limits(SMALL_BUDGET);
    let mut end = Channels::new(true, limits, limits.parameters());
    let mut frames: Vec<_> = (0..500).map(|at| data(2, 1 + 2 * at, b"a")).collect();
    frames.push(data(4, 0, b"other"));
    frames.push(ChannelFrame::Credit { id: MESSAGES, bytes: 1 << 30 });
    let mut early = block(&frames);
    let len = early.len();
    assert_eq!(end.take_early(&mut early), Ok(false));
    let held = end.receive_window.early();
    let most = limits.early_budget();
    assert!(held <= most && held + 129 > most, "{held} bytes of {most}");
    let taken = held / 129;
    assert_eq!(parts(&early).len(), 500 - taken);
    assert!(early.len() < len && early.capacity() < len);
    let mut out = [0; 9];
    assert_eq!(end.read(ChannelId(4), &mut out), Ok(Some(5)));
    assert_eq!(end.message_credit(), 1 << 30);
    assert_eq!(end.read(ChannelId(2), &mut out), Err(ChannelError::Blocked));
    // The missing block had the first byte only: the rest does not follow.
    let mut reassembly = Reassembly::new(limits.max_message());
    reassembly.feed_with(&block(&[data(2, 0, b"a")]), Some(&mut end), false).unwrap();
    assert_eq!(end.read(ChannelId(2), &mut out), Ok(Some(2)));
    let refused = reassembly.feed_with(&early, Some(&mut end), false);
    assert_eq!(refused, Err(ChannelViolation::Sequence(2).into()));
}

/// A server whose memory for early parts is used up by channel 2.
fn without_early_memory(limits: ChannelLimits) -> Channels {
    let mut end = Channels::new(true, limits, limits.parameters());
    let frames: Vec<_> = (0..500).map(|at| data(2, 1 + 2 * at, b"a")).collect();
    end.take_early(&mut block(&frames)).unwrap();
    assert!(end.receive_window.early() + 129 > limits.early_budget());
    end
}

/// An empty part is not stored, so it needs no memory.
#[test]
fn the_end_of_a_channel_does_not_wait_for_memory() {
    let limits = limits(SMALL_BUDGET);
    let mut end = without_early_memory(limits);
    let mut early = block(&[ChannelFrame::Data { id: 4, offset: 5, data: b"", end: true }]);
    end.take_early(&mut early).unwrap();
    assert!(early.is_empty());
    let mut reassembly = Reassembly::new(limits.max_message());
    reassembly.feed_with(&block(&[data(4, 0, b"first")]), Some(&mut end), false).unwrap();
    let mut out = [0; 9];
    assert_eq!(end.read(ChannelId(4), &mut out), Ok(Some(5)));
    assert_eq!(end.read(ChannelId(4), &mut out), Ok(None));
}

/// Block 2 is decoded first, then block 1 with an empty part while there is no memory, then block 0, which closes the gap
/// before the part of block 2. The empty part must not wait until then: it would be one of bytes that have arrived.
#[test]
fn an_empty_part_in_a_block_that_is_kept_is_no_violation() {
    let limits = limits(SMALL_BUDGET);
    let mut end = Channels::new(true, limits, limits.parameters());
    end.take_early(&mut block(&[data(4, 100, &[7; 10])])).unwrap();
    let mut frames = vec![data(4, 100, b"")];
    frames.splice(0..0, (0..500).map(|at| data(2, 1 + 2 * at, b"a")));
    let mut kept = block(&frames);
    end.take_early(&mut kept).unwrap();
    let parts = parts(&kept);
    assert!(!parts.is_empty() && parts.iter().all(|part| part.0 == 2));
    let mut reassembly = Reassembly::new(limits.max_message());
    reassembly.feed_with(&block(&[data(4, 0, &[7; 100])]), Some(&mut end), false).unwrap();
    assert_eq!(end.read(ChannelId(4), &mut [0; 200]), Ok(Some(110)));
}

/// Messages are in order: they stay in a block that is decoded early.
#[test]
fn messages_wait_in_their_block_for_the_blocks_before_it() {
    let limits = limits(BUDGET);
    let mut end = Channels::new(true, limits, limits.parameters());
    let mut early = vec![1, 2, 2, 8, 9, 0, 0];
    early.extend(block(&[data(2, 0, b"x")]));
    early.extend([3, 0]);
    assert_eq!(end.take_early(&mut early), Ok(true));
    assert_eq!(early, [1, 2, 2, 8, 9, 3]);
    assert_eq!(end.read(ChannelId(2), &mut [0; 9]), Ok(Some(1)));
    let mut reassembly = Reassembly::new(limits.max_message());
    reassembly.feed_with(&early, Some(&mut end), false).unwrap();
    assert_eq!((reassembly.pop().as_deref(), reassembly.is_finished()), (Some(&[8, 9][..]), true));
    // One without them takes no memory.
    let mut early = block(&[data(2, 1, b"y")]);
    end.take_early(&mut early).unwrap();
    assert_eq!((early.len(), early.capacity()), (0, 0));
}

#[test]
fn violations_in_blocks_that_are_decoded_early_have_the_same_reasons() {
    let limits = limits(BUDGET);
    let credit = limits.parameters().channel_credit;
    let cases: [(&[ChannelFrame<'_>], ChannelViolation); 6] = [
        (&[data(0, 0, b"a")], ChannelViolation::MessageChannel),
        (&[data(1, 0, b"a")], ChannelViolation::NotOpened(1)),
        (&[data(2 + 2 * CHANNELS, 0, b"a")], ChannelViolation::TooMany(2 + 2 * CHANNELS)),
        (&[data(2, credit, b"a")], ChannelViolation::BeyondCredit(2)),
        (
            &[ChannelFrame::Reset { id: 2, code: 0, size: credit + 1 }],
            ChannelViolation::BeyondCredit(2),
        ),
        (&[data(2, 5, b"ab"), data(2, 6, b"b")], ChannelViolation::Sequence(2)),
    ];
    for (frames, violation) in cases {
        let mut end = Channels::new(true, limits, limits.parameters());
        assert_eq!(end.take_early(&mut block(frames)), Err(violation.into()), "{frames:?}");
    }
    let mut end = Channels::new(true, limits, limits.parameters());
    assert_eq!(end.take_early(&mut vec![0xff]), Err(SessionError::Malformed));
    end.receive_window.grant().set_granted(10);
    let reset = |id| ChannelFrame::Reset { id, code: 0, size: 6 };
    let refused = end.take_early(&mut block(&[reset(2), reset(4)]));
    assert_eq!(refused, Err(ChannelViolation::BeyondCredit(4).into()));
}

/// The last part of a sealed block may be shorter than a control frame.
#[test]
fn control_frames_wait_for_a_part_of_the_block_with_room() {
    for size in 0..100 {
        let mut pair = OneWay::new(SMALL_BUDGET);
        let id = pair.ids[0];
        pair.client.on_message_taken(10_000);
        pair.client.reset(id, 5);
        assert!(pair.client.has_control());
        let has_cut = pair.cut(size);
        assert_eq!(has_cut, size >= 28, "{size} bytes");
        while pair.cut(100) {}
        assert!(!pair.client.has_control());
    }
}
