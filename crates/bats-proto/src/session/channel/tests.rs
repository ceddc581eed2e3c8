use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::grant::CREDIT_STEP;
use super::*;
use crate::session::{Reassembly, SendQueue};

const SYMBOL: usize = 200;
/// The part of a receive budget of `16 * MIB` that is for channels, about 3.2 MiB.
const BUDGET: usize = 16 << 20;

fn limits(channels: u64, budget: usize) -> ChannelLimits {
    ChannelLimits::new(channels, budget, 1 << 20)
}

/// Both ends of a session and the symbols between them.
struct Pair {
    ends: [Channels; 2],
    messages: [SendQueue; 2],
    reassemblies: [Reassembly; 2],
    /// Symbols that each end has sent and the other has not taken in order, and whether each was
    /// handed up.
    symbols: [VecDeque<(Vec<u8>, bool)>; 2],
}

impl Pair {
    fn new(limits: ChannelLimits) -> Self {
        let end = |is_server| Channels::new(is_server, limits, limits.parameters());
        Self {
            ends: [end(false), end(true)],
            messages: Default::default(),
            reassemblies: [(); 2].map(|()| Reassembly::new(limits.max_message())),
            symbols: Default::default(),
        }
    }

    /// Fills a symbol at `from`; false if there is nothing to send.
    fn send(&mut self, from: usize, size: usize) -> bool {
        let credit = self.ends[from].message_credit();
        self.messages[from].set_credit(credit);
        let mut symbol = vec![0; size];
        let len = self.ends[from].fill_symbol(&mut self.messages[from], &mut symbol);
        if len > 0 {
            symbol.truncate(len);
            self.symbols[from].push_back((symbol, false));
        }
        len > 0
    }

    /// Hands the symbol at `at` up before those ahead of it.
    fn hand_up(&mut self, from: usize, at: usize) {
        if let Some((symbol, is_handed_up)) = self.symbols[from].get_mut(at)
            && !*is_handed_up
            && self.ends[1 - from].takes_early()
        {
            self.ends[1 - from].feed_early(symbol).unwrap();
            *is_handed_up = true;
        }
    }

    /// Takes the first symbol in order.
    fn take(&mut self, from: usize) {
        if let Some((symbol, is_handed_up)) = self.symbols[from].pop_front() {
            let to = 1 - from;
            let channels = Some(&mut self.ends[to]);
            self.reassemblies[to].feed_with(&symbol, channels, is_handed_up).unwrap();
        }
    }

    /// Everything that can be sent arrives.
    fn settle(&mut self) {
        loop {
            let sent = [0, 1].map(|from| self.send(from, SYMBOL));
            for from in [0, 1] {
                while !self.symbols[from].is_empty() {
                    self.take(from);
                }
            }
            if sent == [false; 2] {
                return;
            }
        }
    }
}

/// The byte at an offset of a channel in one direction.
fn byte(from: usize, id: u64, offset: usize) -> u8 {
    (offset as u64 * 31 + id * 7 + from as u64) as u8
}

/// What the model knows of one direction of a channel.
#[derive(Debug, Default)]
struct Direction {
    written: usize,
    is_ended: bool,
    reset: Option<u64>,
    stopped: Option<u64>,
    read: usize,
    is_over: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Write { from: usize, channel: usize, len: usize },
    Read { at: usize, channel: usize, len: usize },
    Finish { from: usize, channel: usize },
    Reset { from: usize, channel: usize, code: u64 },
    Stop { at: usize, channel: usize, code: u64 },
    Message { from: usize, len: usize },
    Send { from: usize, size: usize },
    HandUp { from: usize, at: usize },
    Take { from: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (end, channel) = (0_usize..2, 0_usize..64);
    let of = (end.clone(), channel);
    prop_oneof![
        2 => end.clone().prop_map(Step::Open),
        6 => (of.clone(), 0_usize..3_000)
            .prop_map(|((from, channel), len)| Step::Write { from, channel, len }),
        6 => (of.clone(), 0_usize..4_000)
            .prop_map(|((at, channel), len)| Step::Read { at, channel, len }),
        1 => of.clone().prop_map(|(from, channel)| Step::Finish { from, channel }),
        1 => (of.clone(), 0_u64..9)
            .prop_map(|((from, channel), code)| Step::Reset { from, channel, code }),
        1 => (of, 0_u64..9).prop_map(|((at, channel), code)| Step::Stop { at, channel, code }),
        1 => (end.clone(), 0_usize..2_000).prop_map(|(from, len)| Step::Message { from, len }),
        8 => (end.clone(), 64_usize..400).prop_map(|(from, size)| Step::Send { from, size }),
        4 => (end.clone(), 0_usize..20).prop_map(|(from, at)| Step::HandUp { from, at }),
        6 => end.prop_map(|from| Step::Take { from }),
    ]
}

/// A naive model of what an application may see: the bytes that the peer wrote, in order, up to its
/// end, or a reset.
#[derive(Default)]
struct Model {
    /// By channel and sending end.
    directions: BTreeMap<(u64, usize), Direction>,
    ids: Vec<u64>,
    messages: [Vec<Bytes>; 2],
    received: [usize; 2],
}

impl Model {
    fn id(&self, channel: usize) -> Option<u64> {
        let count = self.ids.len();
        (count > 0).then(|| self.ids[channel % count])
    }

    fn direction(&mut self, id: u64, from: usize) -> &mut Direction {
        self.directions.entry((id, from)).or_default()
    }

    fn apply(&mut self, pair: &mut Pair, step: Step) {
        match step {
            Step::Open(from) => {
                if let Ok(id) = pair.ends[from].open_channel() {
                    self.ids.push(id.number());
                }
            }
            Step::Write { from, channel, len } => {
                let Some(id) = self.id(channel) else { return };
                let direction = self.direction(id, from);
                let data: Vec<u8> =
                    (0..len).map(|i| byte(from, id, direction.written + i)).collect();
                match pair.ends[from].write(ChannelId(id), &data) {
                    Ok(len) => {
                        assert!(!direction.is_ended && direction.reset.is_none());
                        direction.written += len;
                    }
                    Err(ChannelError::Stopped { code }) => {
                        assert_eq!(direction.stopped, Some(code));
                    }
                    Err(ChannelError::Finished) => {
                        assert!(direction.is_ended || direction.reset.is_some());
                    }
                    Err(ChannelError::Blocked | ChannelError::Closed) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Read { at, channel, len } => {
                if let Some(id) = self.id(channel) {
                    self.read(pair, at, id, len);
                }
            }
            Step::Finish { from, channel } => {
                let Some(id) = self.id(channel) else { return };
                if pair.ends[from].finish(ChannelId(id)).is_ok() {
                    self.direction(id, from).is_ended = true;
                }
            }
            Step::Reset { from, channel, code } => {
                let Some(id) = self.id(channel) else { return };
                // It counts only before the end is in a symbol.
                if pair.ends[from].table.get(&id).is_some_and(|channel| channel.send.is_open()) {
                    pair.ends[from].reset(ChannelId(id), code);
                    self.direction(id, from).reset = Some(code);
                }
            }
            Step::Stop { at, channel, code } => {
                let Some(id) = self.id(channel) else { return };
                let end = &mut pair.ends[at];
                let is_open = end.table.get(&id).is_some_and(|channel| {
                    matches!(channel.receive.state(), ReceiveState::Open | ReceiveState::Reset)
                });
                if is_open {
                    end.stop(ChannelId(id), code);
                    let direction = self.direction(id, 1 - at);
                    (direction.stopped, direction.is_over) = (Some(code), true);
                }
            }
            Step::Message { from, len } => {
                let message: Bytes = vec![len as u8; len].into();
                pair.messages[from].push(message.clone());
                self.messages[from].push(message);
            }
            Step::Send { from, size } => _ = pair.send(from, size),
            Step::HandUp { from, at } => pair.hand_up(from, at),
            Step::Take { from } => pair.take(from),
        }
        for at in [0, 1] {
            while let Some(message) = pair.reassemblies[at].pop() {
                assert_eq!(message, self.messages[1 - at][self.received[at]]);
                self.received[at] += 1;
                pair.ends[at].on_message_taken(message.len());
            }
        }
    }

    /// Returns whether the call was not blocked.
    fn read(&mut self, pair: &mut Pair, at: usize, id: u64, len: usize) -> bool {
        let from = 1 - at;
        let direction = self.direction(id, from);
        let mut out = vec![0; len];
        match pair.ends[at].read(ChannelId(id), &mut out) {
            Ok(Some(got)) => {
                assert!(!direction.is_over);
                for (i, found) in out[..got].iter().enumerate() {
                    assert_eq!(*found, byte(from, id, direction.read + i));
                }
                direction.read += got;
                assert!(direction.read <= direction.written);
                got > 0
            }
            Ok(None) => {
                assert!(direction.is_ended && direction.read == direction.written);
                direction.is_over = true;
                true
            }
            Err(ChannelError::Reset { code }) => {
                assert!(direction.reset == Some(code) || direction.stopped == Some(code));
                direction.is_over = true;
                true
            }
            Err(ChannelError::Blocked | ChannelError::Closed) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

proptest! {
    /// Any interleaving of calls, with symbols handed up in any order: applications see the peer's
    /// bytes in order, ends and resets; when all has arrived and is read, nothing is left.
    #[test]
    fn channels_agree_with_a_naive_model(
        steps in prop::collection::vec(step(), 1..400),
        small in any::<bool>(),
    ) {
        let mut pair = Pair::new(limits(8, if small { 40_000 } else { BUDGET }));
        let mut model = Model::default();
        for step in steps {
            model.apply(&mut pair, step);
            for end in &pair.ends {
                let window = end.limits.session_window;
                let [consumed, received, granted] = end.receive_window.totals();
                prop_assert!(received - consumed <= window);
                prop_assert!(consumed <= received && received <= granted);
            }
        }
        // Both applications end everything and read to the end.
        for _ in 0..2_000 {
            pair.settle();
            let mut progress = false;
            for id in model.ids.clone() {
                for at in [0, 1] {
                    if pair.ends[at].finish(ChannelId(id)).is_ok() {
                        model.direction(id, at).is_ended = true;
                        progress = true;
                    }
                    progress |= model.read(&mut pair, at, id, 10_000);
                }
            }
            for from in [0, 1] {
                model.apply(&mut pair, Step::Take { from });
            }
            if !progress && !pair.ends.iter().any(Channels::is_sendable) {
                break;
            }
        }
        for end in &pair.ends {
            let held = (end.send_window.queued(), end.receive_window.early(), end.control.len());
            prop_assert_eq!(held, (0, 0, 0));
            prop_assert_eq!(end.receive_window.unread(), 0);
            prop_assert_eq!(end.table.len(), 0);
        }
        prop_assert!([0, 1].iter().all(|&at| model.received[at] == model.messages[1 - at].len()));
    }

    /// What a peer sends is accepted, or is a violation, within the memory that it was granted.
    #[test]
    fn any_symbols_are_an_error_or_bounded(
        symbols in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(prop_oneof![5_u8..12, 0_u8..70], 0..200)),
            0..60,
        ),
    ) {
        let limits = limits(8, 40_000);
        let mut end = Channels::new(true, limits, limits.parameters());
        let mut reassembly = Reassembly::new(limits.max_message());
        for (early, symbol) in symbols {
            let result = if early && end.takes_early() {
                end.feed_early(&symbol).map(drop)
            } else {
                reassembly.feed_with(&symbol, Some(&mut end), false)
            };
            if result.is_err() {
                break;
            }
            prop_assert!(end.table.len() <= 8);
            prop_assert!(end.receive_window.unread() <= limits.session_window);
            let most = limits.early_budget() + 200 * 130;
            prop_assert!(end.receive_window.early() <= most, "{} bytes early", end.receive_window.early());
        }
    }
}

/// A pair with this many channels of the client, all known to both ends.
fn opened(channels: u64, budget: usize) -> (Pair, Vec<ChannelId>) {
    let mut pair = Pair::new(limits(channels, budget));
    let ids = (0..channels).map(|_| pair.ends[0].open_channel().unwrap()).collect();
    (pair, ids)
}

#[test]
fn turns_are_shared_by_weight() {
    let (mut pair, ids) = opened(4, BUDGET);
    let weights = [1, 16, 32, 255];
    for (&id, weight) in ids.iter().zip(weights) {
        pair.ends[0].set_weight(id, weight).unwrap();
    }
    let mut sent = [0_usize; 4];
    for _ in 0..12_000 {
        for &id in &ids {
            let _ = pair.ends[0].write(id, &[1; 4_000]);
        }
        assert!(pair.send(0, 1_400));
        pair.take(0);
        for (&id, sent) in ids.iter().zip(&mut sent) {
            let mut out = [0; 8_000];
            if let Ok(Some(len)) = pair.ends[1].read(id, &mut out) {
                *sent += len;
            }
        }
        pair.send(1, SYMBOL);
        pair.take(1);
    }
    let total: usize = sent.iter().sum();
    let weight: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    for (sent, weight_of) in sent.iter().zip(weights) {
        let share = *sent as f64 / total as f64 / (f64::from(weight_of) / weight);
        assert!((0.97..1.03).contains(&share), "weight {weight_of}: {share} of its share");
    }
}

/// Messages have the share of a channel of the default weight.
#[test]
fn messages_take_turns_with_channels() {
    let (mut pair, ids) = opened(1, BUDGET);
    for _ in 0..200 {
        pair.messages[0].push(vec![2; 1_000].into());
    }
    let mut message_bytes = 0;
    let mut channel_bytes = 0;
    while message_bytes < 100_000 {
        let _ = pair.ends[0].write(ids[0], &[1; 4_000]);
        assert!(pair.send(0, 1_400));
        pair.take(0);
        let mut out = [0; 8_000];
        channel_bytes += pair.ends[1].read(ids[0], &mut out).unwrap_or(None).unwrap_or(0);
        while let Some(message) = pair.reassemblies[1].pop() {
            message_bytes += message.len();
            pair.ends[1].on_message_taken(message.len());
        }
        pair.send(1, SYMBOL);
        pair.take(1);
    }
    let ratio = f64::from(channel_bytes as u32) / message_bytes as f64;
    assert!((0.95..1.1).contains(&ratio), "{ratio}");
}

/// The reader of one channel stalls: its bytes stop at its window, and the other goes on.
#[test]
fn a_stalled_reader_takes_its_window_only() {
    let (mut pair, ids) = opened(2, BUDGET);
    let window = pair.ends[0].limits.channel_window(0, 8);
    let mut read = 0;
    for _ in 0..200 {
        for &id in &ids {
            let _ = pair.ends[0].write(id, &vec![1; 100_000]);
        }
        pair.settle();
        let mut out = vec![0; 200_000];
        read += pair.ends[1].read(ids[1], &mut out).unwrap_or(None).unwrap_or(0);
    }
    assert_eq!(pair.ends[1].receive_window.unread(), window);
    assert!(read as u64 > 4 * window, "{read} bytes read");
    // Messages go on, too, and do not need the reader of a channel.
    pair.messages[0].push(Bytes::from_static(b"on"));
    pair.settle();
    assert_eq!(pair.reassemblies[1].pop().as_deref(), Some(&b"on"[..]));
}

/// With the window of the session a channel that is not read takes half of what is free at a time.
#[test]
fn a_channel_may_get_a_larger_share_of_the_window() {
    let (mut pair, ids) = opened(1, BUDGET);
    let window = pair.ends[0].limits.session_window;
    assert_eq!(pair.ends[0].stats(ids[0]).unwrap().credit, window / 8);
    pair.ends[0].write(ids[0], b"x").unwrap();
    pair.settle();
    assert_eq!(pair.ends[1].read(ids[0], &mut [0; 8]), Ok(Some(1)));
    pair.ends[1].set_receive_share(ids[0], 1).unwrap();
    pair.settle();
    assert_eq!(pair.ends[0].stats(ids[0]).unwrap().credit, window);
    for _ in 0..200 {
        let _ = pair.ends[0].write(ids[0], &vec![1; 100_000]);
        pair.settle();
    }
    // The byte that was read is too little for more credit of the session.
    assert_eq!(pair.ends[1].receive_window.unread(), window - 1);
    assert_eq!(pair.ends[1].set_receive_share(ChannelId(88), 1), Err(ChannelError::Closed));
}

/// Frames of messages wait for their turn; a symbol without them need not be opened again.
#[test]
fn symbols_handed_up_early_say_whether_they_have_messages() {
    let (mut pair, ids) = opened(1, BUDGET);
    pair.settle();
    for (has_messages, number) in [(false, 1), (true, 2)] {
        pair.ends[0].write(ids[0], &[number; 10]).unwrap();
        if has_messages {
            pair.messages[0].push(Bytes::from_static(b"on"));
        }
        assert!(pair.send(0, SYMBOL));
        let (symbol, _) = pair.symbols[0].back().unwrap();
        assert_eq!(pair.ends[1].feed_early(symbol), Ok(has_messages));
        pair.symbols[0].back_mut().unwrap().1 = true;
    }
    assert!(pair.reassemblies[1].pop().is_none());
    pair.take(0);
    pair.take(0);
    assert_eq!(pair.reassemblies[1].pop().as_deref(), Some(&b"on"[..]));
}

/// The application takes no messages: they stop at their credit, and the channel goes on.
#[test]
fn unread_messages_do_not_delay_channels() {
    let (mut pair, ids) = opened(1, BUDGET);
    let window = pair.ends[0].limits.message_window;
    for _ in 0..window / 1_000 + 1_000 {
        pair.messages[0].push(vec![0; 1_000].into());
    }
    pair.settle();
    assert!(!pair.messages[0].is_empty() && !pair.messages[0].is_sendable());
    let held = pair.reassemblies[1].bytes_held() as u64;
    assert!((window * 9 / 10..window + 1_000).contains(&held), "{held} bytes of {window}");
    pair.ends[0].write(ids[0], b"on").unwrap();
    pair.settle();
    let mut out = [0; 8];
    assert_eq!(pair.ends[1].read(ids[0], &mut out), Ok(Some(2)));
    // The rest follows when they are taken.
    while !pair.messages[0].is_empty() {
        while let Some(message) = pair.reassemblies[1].pop() {
            pair.ends[1].on_message_taken(message.len());
        }
        pair.settle();
    }
}

/// A symbol is missing: only the channel with bytes in it waits.
#[test]
fn only_channels_of_a_missing_symbol_wait() {
    let (mut pair, ids) = opened(2, BUDGET);
    pair.ends[0].write(ids[0], b"first").unwrap();
    assert!(pair.send(0, SYMBOL));
    for (id, data) in [(ids[0], &b"second"[..]), (ids[1], b"other")] {
        pair.ends[0].write(id, data).unwrap();
    }
    assert!(pair.send(0, SYMBOL));
    pair.hand_up(0, 1);
    let mut out = [0; 32];
    assert_eq!(pair.ends[1].read(ids[1], &mut out), Ok(Some(5)));
    assert_eq!(pair.ends[1].read(ids[0], &mut out), Err(ChannelError::Blocked));
    assert!(pair.ends[1].receive_window.early() > 6);
    pair.take(0);
    pair.take(0);
    assert_eq!(pair.ends[1].read(ids[0], &mut out), Ok(Some(11)));
    assert_eq!((&out[..11], pair.ends[1].receive_window.early()), (&b"firstsecond"[..], 0));
}

/// Numbers are never used again, and frames for closed channels have no effect.
#[test]
fn closed_channels_are_forgotten_and_make_room() {
    let (mut pair, _) = opened(0, BUDGET);
    pair = Pair { ends: pair.ends, ..Pair::new(limits(2, BUDGET)) };
    pair.ends[0].own_channels.set_limit(2);
    pair.ends[1].limits.channels = 2;
    pair.ends[1].peer_channels.grant().set_granted(2);
    let mut newest = 0;
    for _ in 0..100 {
        let id = pair.ends[0].open_channel().unwrap();
        assert!(id.number() > newest);
        newest = id.number();
        pair.ends[0].finish(id).unwrap();
        pair.ends[0].stop(id, 3);
        pair.settle();
        let mut out = [0; 8];
        assert_eq!(pair.ends[1].accept_channel(), Some(id));
        assert_eq!(pair.ends[1].read(id, &mut out), Ok(None));
        pair.settle();
        assert_eq!(pair.ends.iter().map(Channels::open).sum::<usize>(), 0);
        let late = ChannelFrame::Data { id: newest, offset: 50, data: &[1], end: false };
        assert_eq!(pair.ends[1].feed(late), Ok(()));
    }
    assert!(pair.ends[1].peer_channels.is_seen(99) && !pair.ends[1].peer_channels.is_seen(100));
}

/// A connection may begin with a small budget, which grows.
#[test]
fn a_raised_budget_allows_more_channels_and_bytes() {
    let (small, large) = (limits(8, 1 << 20), limits(50, BUDGET));
    let mut pair = Pair::new(small);
    while pair.ends[0].open_channel().is_ok() {}
    pair.ends[1].raise_limits(large);
    pair.settle();
    assert_eq!(pair.ends[0].pop_event(), Some(ChannelEvent::Available));
    assert_eq!(pair.ends[0].own_channels.limit(), 50);
    assert_eq!(pair.ends[0].send_window.credit(), large.session_window);
}

#[test]
fn violations_of_channels_have_a_reason() {
    let limits = limits(2, BUDGET);
    let window = limits.parameters().channel_credit;
    let data = |id, offset, data: &'static [u8], end| ChannelFrame::Data { id, offset, data, end };
    let cases: [(&[ChannelFrame<'_>], ChannelViolation); 12] = [
        (&[data(0, 0, b"a", false)], ChannelViolation::MessageChannel),
        (&[ChannelFrame::Stop { id: 0, code: 0 }], ChannelViolation::MessageChannel),
        (&[data(1, 0, b"a", false)], ChannelViolation::NotOpened(1)),
        (&[data(6, 0, b"a", false)], ChannelViolation::TooMany(6)),
        (&[data(2, window, b"a", false)], ChannelViolation::BeyondCredit(2)),
        (
            &[ChannelFrame::Reset { id: 2, code: 0, size: window + 1 }],
            ChannelViolation::BeyondCredit(2),
        ),
        (&[data(2, 1, b"a", false)], ChannelViolation::Sequence(2)),
        (&[data(2, 0, b"ab", false), data(2, 1, b"b", false)], ChannelViolation::Sequence(2)),
        (&[data(2, 0, b"ab", true), data(2, 2, b"c", false)], ChannelViolation::Size(2)),
        (&[data(2, 0, b"ab", true), data(2, 2, b"c", true)], ChannelViolation::Size(2)),
        (
            &[data(2, 0, b"ab", false), ChannelFrame::Reset { id: 2, code: 0, size: 1 }],
            ChannelViolation::Size(2),
        ),
        (&[data(2, (1 << 62) - 1, b"a", true)], ChannelViolation::BeyondCredit(2)),
    ];
    for (frames, violation) in cases {
        let mut end = Channels::new(true, limits, limits.parameters());
        let (last, first) = frames.split_last().unwrap();
        first.iter().for_each(|frame| end.feed(*frame).unwrap());
        assert_eq!(end.feed(*last), Err(violation), "{frames:?}");
    }
    // All channels together have a credit, too.
    let mut end = Channels::new(true, limits, limits.parameters());
    end.receive_window.grant().set_granted(10);
    let reset = |id| ChannelFrame::Reset { id, code: 0, size: 6 };
    assert_eq!(end.feed(reset(2)), Ok(()));
    assert_eq!(end.feed(reset(4)), Err(ChannelViolation::BeyondCredit(4)));
    // Without channels there are no such frames.
    let mut reassembly = Reassembly::new(100);
    let error = reassembly.feed(&[11, 3]).unwrap_err();
    assert_eq!(error, ChannelViolation::Unsupported.into());
    // Messages beyond their credit.
    let mut end = Channels::new(true, limits, limits.parameters());
    end.message_grant.set_granted(60);
    reassembly.feed_with(&[1, 1, 1, 9], Some(&mut end), false).unwrap();
    let again = reassembly.feed_with(&[1, 1, 1, 9], Some(&mut end), false);
    assert_eq!(again, Err(SessionError::BeyondCredit));
}

/// Parts behind gaps are charged with their overhead; at the limit symbols wait in the decoder.
#[test]
fn parts_behind_gaps_are_bounded() {
    let limits = limits(2, 40_000);
    let mut end = Channels::new(true, limits, limits.parameters());
    let mut offset = 1;
    while end.takes_early() {
        let mut symbol = [0; 8];
        let mut writer = crate::wire::varint::Writer::new(&mut symbol);
        let frame = ChannelFrame::Data { id: 2, offset, data: &[1], end: false };
        crate::wire::channel::encode(&mut writer, &frame).unwrap();
        end.feed_early(&symbol).unwrap();
        offset += 2;
    }
    let most = limits.early_budget();
    assert!(
        (most..most + 200).contains(&end.receive_window.early()),
        "{} bytes of {most}",
        end.receive_window.early()
    );
}

#[test]
fn channels_are_sendable_with_bytes_and_credit_or_a_control_frame() {
    let (mut pair, ids) = opened(2, BUDGET);
    assert!(!pair.ends[0].is_sendable(), "nothing to send");
    pair.ends[0].write(ids[0], b"first").unwrap();
    assert!(pair.ends[0].is_sendable());
    pair.settle();
    assert!(!pair.ends[0].is_sendable() && !pair.ends[1].is_sendable());
    // Messages that wait for their turn are not channels.
    pair.messages[0].push(vec![2; 3 * SYMBOL].into());
    assert!(pair.send(0, SYMBOL));
    assert!(!pair.ends[0].is_sendable());
    pair.ends[0].write(ids[1], b"second").unwrap();
    assert!(pair.ends[0].is_sendable());
    pair.settle();
    // A channel without credit of the session waits, and its control frames do not.
    pair.ends[0].send_window.set_room(1);
    pair.ends[0].write(ids[0], b"ab").unwrap();
    assert!(pair.ends[0].is_sendable() && pair.send(0, SYMBOL));
    assert!(!pair.ends[0].is_sendable() && !pair.send(0, SYMBOL));
    pair.ends[0].reset(ids[0], 3);
    assert!(pair.ends[0].is_sendable() && pair.send(0, SYMBOL));
    assert!(!pair.ends[0].is_sendable());
}

/// Credit is due for an eighth of a window.
#[test]
fn credit_is_given_in_steps() {
    let (pair, _) = opened(16, BUDGET);
    let limits = pair.ends[1].limits;
    let step = limits.message_window / CREDIT_STEP;
    for (len, is_due) in [(step - MESSAGE_CHARGE - 1, false), (step - MESSAGE_CHARGE, true)] {
        let (mut pair, _) = opened(16, BUDGET);
        pair.ends[1].on_message_taken(len as usize);
        assert_eq!(pair.ends[1].is_sendable(), is_due, "message of {len} bytes");
        pair.settle();
        let credit = limits.message_window + if is_due { step } else { 0 };
        assert_eq!(pair.ends[1].granted_messages(), credit);
        assert_eq!(pair.ends[0].message_credit(), credit);
    }
    let step = limits.session_window / CREDIT_STEP;
    for (len, is_due) in [(step - 1, false), (step, true)] {
        let (mut pair, ids) = opened(16, BUDGET);
        let half = len as usize / 2;
        for (&id, len) in ids.iter().zip([half, len as usize - half]) {
            let mut left = len;
            while left > 0 {
                left -= pair.ends[0].write(id, &vec![1; left]).unwrap();
                pair.settle();
            }
            assert_eq!(pair.ends[1].read(id, &mut vec![0; len]), Ok(Some(len)));
        }
        assert_eq!(pair.ends[1].receive_window.is_grant_due(), is_due, "{len} bytes are read");
        pair.settle();
        let credit = limits.session_window + if is_due { step } else { 0 };
        let granted = pair.ends[1].receive_window.grant().granted();
        assert_eq!((granted, pair.ends[0].send_window.credit()), (credit, credit));
    }
    for (closed, is_due) in [(1, false), (2, true)] {
        let (mut pair, ids) = opened(16, BUDGET);
        for &id in &ids[..closed] {
            pair.ends[0].finish(id).unwrap();
            pair.settle();
            assert_eq!(pair.ends[1].read(id, &mut [0; 9]), Ok(None));
            pair.ends[1].finish(id).unwrap();
            pair.settle();
            assert_eq!(pair.ends[0].read(id, &mut [0; 9]), Ok(None));
        }
        assert_eq!(pair.ends[0].open_channel().is_ok(), is_due, "{closed} are closed");
    }
}
