//! Two sessions and a byte stream between them that is cut at arbitrary positions.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::contextualize_config;

use super::*;
use crate::session::max_message;
use crate::stream::frame::{self, HEADER_LEN, MAX_PART};
use crate::stream::incoming::{SPARE_CREDIT, window};

fn at(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(1_000 + ms)
}

fn config() -> TransportConfig {
    TransportConfig { receive_budget: 3 << 20, ..TransportConfig::default() }
}

fn pair_of(config: &TransportConfig) -> [Session; 2] {
    [Session::new(at(0), true, config), Session::new(at(0), false, config)]
}

fn pair() -> [Session; 2] {
    let mut pair = pair_of(&config());
    run(&mut pair, at(0));
    pair
}

/// Transfers bytes until both sessions have nothing to send.
fn run(pair: &mut [Session; 2], now: Timestamp) {
    loop {
        let mut is_idle = true;
        for from in 0..2 {
            let mut bytes = Vec::new();
            pair[from].transmit(now, &mut bytes, 100_000);
            is_idle &= bytes.is_empty();
            pair[1 - from].receive(now, &bytes);
        }
        if is_idle {
            return;
        }
    }
}

fn events(session: &mut Session) -> Vec<Event> {
    core::iter::from_fn(|| session.pop_event()).collect()
}

fn frames(controls: &[Control]) -> Vec<u8> {
    let mut bytes = Vec::new();
    controls.iter().for_each(|control| control.encode(&mut bytes));
    bytes
}

const HELLO: Control = Control::Hello(Hello {
    max_message: 1 << 20,
    credit: 1 << 20,
    idle_ms: 30_000,
    application: 0,
});

/// A server that has received a hand-made Hello.
fn server_after_hello() -> Session {
    let mut session = Session::new(at(0), false, &config());
    session.receive(at(0), &frames(&[HELLO]));
    assert_eq!(events(&mut session), [Event::Accepted]);
    session.transmit(at(0), &mut Vec::new(), 1_000);
    session
}

#[test]
fn both_ends_report_the_connection_after_hello() {
    let mut pair = pair();
    assert_eq!(events(&mut pair[0]), [Event::Connected]);
    assert_eq!(events(&mut pair[1]), [Event::Accepted]);
}

#[test]
fn messages_keep_boundaries_and_finish_is_acknowledged() {
    let mut pair = pair();
    let lengths = [0, 1, MAX_PART - 1, MAX_PART, MAX_PART + 1, 1 << 20, 0];
    for len in lengths {
        pair[0].send(Bytes::from(vec![len as u8; len])).unwrap();
    }
    assert!(!pair[0].is_all_acknowledged());
    pair[0].finish().unwrap();
    assert_eq!(pair[0].finish(), Err(SendError::Finished));
    assert_eq!(pair[0].send(Bytes::new()), Err(SendError::Finished));
    run(&mut pair, at(1));
    // The peer has acknowledged everything although its application received nothing.
    assert!(pair[0].is_all_acknowledged());
    assert_eq!(events(&mut pair[0]), [Event::Connected, Event::AllAcknowledged]);
    assert_eq!(pair[0].stats(at(1)).buffers.send_bytes, 0);
    assert!(!pair[1].is_finished());
    for len in lengths {
        assert_eq!(pair[1].recv().unwrap(), vec![len as u8; len]);
    }
    assert_eq!(pair[1].recv(), None);
    assert!(pair[1].is_finished());
    assert_eq!(pair[1].stats(at(1)).buffers.receive_bytes, 0);
}

#[test]
fn unread_messages_block_only_their_direction_at_the_budget() {
    let mut pair = pair();
    let message = Bytes::from(vec![1; 100_000]);
    let mut sent = 0;
    for _ in 0..1_000 {
        match pair[0].send(message.clone()) {
            Ok(()) => sent += 1,
            Err(SendError::Blocked(back)) => assert_eq!(back, message),
            Err(error) => panic!("{error}"),
        }
        run(&mut pair, at(1));
    }
    let held = pair[1].stats(at(1)).buffers.receive_bytes;
    assert!(held <= pair[1].incoming.window(), "{held}");
    assert!(held + 200_000 > pair[1].incoming.window(), "{held}");
    // The other direction, receipts and the end mark are not blocked.
    pair[1].send(Bytes::from_static(b"back")).unwrap();
    run(&mut pair, at(2));
    assert!(pair[1].is_all_acknowledged());
    assert_eq!(pair[0].recv().unwrap(), "back");
    events(&mut pair[0]);
    let mut taken = 0;
    while pair[1].recv().is_some() {
        taken += 1;
        run(&mut pair, at(3));
    }
    assert_eq!(taken, sent);
    assert!(events(&mut pair[0]).contains(&Event::Writable));
}

/// What the application takes while the longest message arrives is credit that its sender needs.
#[test]
fn longest_message_does_not_wait_for_a_timeout() {
    let mut pair = pair();
    for len in [900, 1_000, 50_000] {
        (0..100_000 / len).for_each(|_| pair[0].send(vec![1; len].into()).unwrap());
        let longest = pair[0].peer_limits().unwrap().max_message_size;
        pair[0].send(vec![2; longest].into()).unwrap();
        run(&mut pair, at(1));
        for _ in 0..100_000 / len {
            assert_eq!(pair[1].recv().map(|message| message.len()), Some(len));
            run(&mut pair, at(1));
        }
        assert_eq!(pair[1].recv().map(|message| message.len()), Some(longest), "after {len}");
        run(&mut pair, at(1));
    }
}

#[test]
fn credit_leaves_room_for_a_message_that_is_completed() {
    for (budget, longest) in [(3 << 20, 64 << 20), (192 << 20, 64 << 20), (192 << 20, 1_000)] {
        let config = TransportConfig {
            receive_budget: budget,
            max_message_size: longest,
            ..TransportConfig::default()
        };
        let held = window(&config) + max_message(&config);
        assert!(held <= budget + SPARE_CREDIT && held >= budget, "{held} of {budget}");
        assert!(window(&config) >= max_message(&config) + SPARE_CREDIT);
    }
}

#[test]
fn empty_messages_consume_credit() {
    let mut pair = pair();
    for _ in 0..200_000 {
        let _ = pair[0].send(Bytes::new());
        if pair[0].outgoing.queued() > 100_000 {
            run(&mut pair, at(1));
        }
    }
    run(&mut pair, at(1));
    assert!(pair[1].stats(at(1)).buffers.receive_bytes <= pair[1].incoming.window());
}

#[test]
fn messages_above_the_peer_limit_are_refused_locally() {
    let small = TransportConfig { max_message_size: 10, ..config() };
    let mut pair = [Session::new(at(0), true, &config()), Session::new(at(0), false, &small)];
    run(&mut pair, at(0));
    let refused = pair[0].send(Bytes::from(vec![0; 11]));
    assert_eq!(refused, Err(SendError::TooLarge { size: 11, limit: 10 }));
    pair[0].send(Bytes::from(vec![0; 10])).unwrap();
}

#[test]
fn close_transfers_code_and_reason() {
    let mut pair = pair();
    pair[0].send(Bytes::from_static(b"lost")).unwrap();
    pair[0].close(7, "enough");
    assert_eq!(events(&mut pair[0]), [Event::Connected, Event::Closed(CloseReason::Local)]);
    run(&mut pair, at(1));
    let expected = CloseReason::Peer { code: 7, reason: "enough".into() };
    assert_eq!(events(&mut pair[1]), [Event::Accepted, Event::Closed(expected)]);
    assert_eq!(pair[1].send(Bytes::new()), Err(SendError::Closed));
}

#[test]
fn stream_end_without_close_is_a_lost_connection() {
    let mut session = server_after_hello();
    session.on_lost("gone");
    assert_eq!(events(&mut session), [Event::Closed(CloseReason::Lost("gone".into()))]);
    session.on_lost("again");
    assert_eq!(events(&mut session), []);
    let mut handshaking = Session::new(at(0), true, &config());
    handshaking.on_lost("gone");
    assert_eq!(events(&mut handshaking), [Event::Closed(CloseReason::Handshake("gone".into()))]);
}

#[test]
fn protocol_violations_close_with_a_reason() {
    let receipt = |units, bytes, credit| Control::Receipt(Receipt { units, bytes, credit });
    let mut too_long = Vec::new();
    for _ in 0..(2 << 20) / MAX_PART {
        frame::put_part(&mut too_long, &[0; MAX_PART], false);
    }
    let mut beyond_credit = Vec::new();
    for _ in 0..(4 << 20) / MAX_PART {
        frame::put_part(&mut beyond_credit, &[0; MAX_PART], true);
    }
    let mut half = Vec::new();
    frame::put_part(&mut half, &[0; 9], false);
    half.extend(frames(&[Control::Finish]));
    let mut after = frames(&[Control::Finish]);
    frame::put_part(&mut after, &[], true);
    for (bytes, rule) in [
        (frames(&[HELLO]), "unexpected frame"),
        (frames(&[Control::Finish, Control::Finish]), "unexpected frame"),
        (frames(&[receipt(1, 0, 1 << 20)]), "not sent"),
        (frames(&[receipt(0, 1, 1 << 20)]), "not sent"),
        (frames(&[receipt(0, 0, 1)]), "decreases"),
        (too_long, "longer than accepted"),
        (beyond_credit, "credit"),
        (half, "within a message"),
        (after, "after the end"),
        (vec![0x3f, 0, 0, 0], "unknown kind"),
        (vec![1, 0xff, 0xff, 0xff], "bytes"),
    ] {
        let mut session = server_after_hello();
        session.receive(at(1), &bytes);
        let found = events(&mut session);
        let Some(Event::Closed(CloseReason::PeerMisbehaved(text))) = found.last() else {
            panic!("{rule}: {found:?}")
        };
        assert!(text.contains(rule), "{text}");
        // The peer receives the reason.
        let mut last = Vec::new();
        session.transmit(at(1), &mut last, 10_000);
        let mut peer = server_after_hello();
        peer.receive(at(1), &last);
        assert_eq!(events(&mut peer), [Event::Closed(CloseReason::ReportedByPeer(text.clone()))]);
    }
    let mut uninitialised = Session::new(at(0), false, &config());
    let mut bytes = Vec::new();
    frame::put_part(&mut bytes, b"x", true);
    uninitialised.receive(at(0), &bytes);
    assert!(uninitialised.is_closed());
}

#[test]
fn unknown_optional_frames_are_skipped() {
    let mut session = server_after_hello();
    let mut bytes = vec![0x40, 0, 0, 5];
    bytes.extend([9; 5]);
    bytes.extend([0xff, 0, 0, 0]);
    frame::put_part(&mut bytes, b"x", true);
    for byte in bytes {
        session.receive(at(1), &[byte]);
    }
    assert_eq!(session.recv().unwrap(), "x");
}

/// Advances the clock until `until` or until both ends have closed. Returns the time.
fn wait(
    pair: &mut [Session; 2],
    mut now: Timestamp,
    until: Timestamp,
    is_lossy: bool,
) -> Timestamp {
    while let Some(next) = pair.iter().filter_map(Session::next_timeout).min() {
        assert!(next > now || pair.iter().any(Session::is_closed) || next == now, "time advances");
        if next > until {
            return until;
        }
        now = next.max(now + Duration::from_millis(1));
        pair.iter_mut().for_each(|session| session.handle_timeout(now));
        if is_lossy {
            pair.iter_mut().for_each(|session| session.transmit(now, &mut Vec::new(), 1_000));
        } else {
            run(pair, now);
        }
        if pair.iter().all(Session::is_closed) {
            return now;
        }
    }
    now
}

#[test]
fn idle_timeout_closes_and_keep_alive_prevents_it() {
    let mut idle_pair = pair();
    let end = wait(&mut idle_pair, at(0), at(100_000), false);
    assert_eq!(end, at(30_000));
    assert!(idle_pair.iter().all(Session::is_closed));
    let idle = CloseReason::IdleTimeout(Duration::from_secs(30));
    assert_eq!(events(&mut idle_pair[0]).last(), Some(&Event::Closed(idle)));

    let kept = TransportConfig { keep_alive: Some(Duration::from_secs(10)), ..config() };
    let mut kept = [Session::new(at(0), true, &kept), Session::new(at(0), false, &config())];
    run(&mut kept, at(0));
    wait(&mut kept, at(0), at(100_000), false);
    assert!(kept.iter().all(Session::is_open));
}

/// Otherwise a timer would always be due.
#[test]
fn keep_alives_of_a_zero_interval_are_ten_milliseconds_apart() {
    let kept = TransportConfig { keep_alive: Some(Duration::ZERO), ..config() };
    let mut pair = [Session::new(at(0), true, &kept), Session::new(at(0), false, &config())];
    run(&mut pair, at(0));
    for ms in [0, 10, 20] {
        assert_eq!(pair[0].next_timeout(), Some(at(ms + 10)));
        pair[0].handle_timeout(at(ms + 10));
        run(&mut pair, at(ms + 10));
    }
    assert!(pair[0].is_open());
}

#[test]
fn blocked_receiver_stays_connected_and_unresponsive_one_times_out() {
    for is_lossy in [false, true] {
        let mut pair = pair();
        for _ in 0..40 {
            pair[0].send(Bytes::from(vec![0; 100_000])).unwrap();
        }
        run(&mut pair, at(0));
        wait(&mut pair, at(0), at(100_000), is_lossy);
        assert_eq!(pair[0].is_closed(), is_lossy);
    }
}

#[test]
fn handshake_times_out() {
    let mut session = Session::new(at(0), false, &config());
    assert_eq!(session.next_timeout(), Some(at(10_000)));
    session.handle_timeout(at(9_999));
    assert!(!session.is_closed());
    session.handle_timeout(at(10_000));
    assert_eq!(events(&mut session), [Event::Closed(CloseReason::HandshakeTimeout)]);
    let short_idle = TransportConfig { idle_timeout: Duration::from_millis(300), ..config() };
    assert_eq!(Session::new(at(0), true, &short_idle).next_timeout(), Some(at(300)));
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    Recv(usize),
    Transfer(usize, usize),
    Finish(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..2_usize, prop_oneof![0..100_usize, 60_000..200_000_usize])
            .prop_map(|(index, len)| Step::Send(index, len)),
        2 => (0..2_usize).prop_map(Step::Recv),
        5 => (0..2_usize, 1..200_000_usize).prop_map(|(index, len)| Step::Transfer(index, len)),
        1 => (0..2_usize).prop_map(Step::Finish),
    ]
}

proptest! {
    #![proptest_config(contextualize_config(ProptestConfig::with_cases(64)))]

    /// However the stream is cut, each end receives the other's messages, in order and no more.
    #[test]
    fn fragmented_streams_deliver_both_directions_in_order(steps in prop::collection::vec(step(), 0..120)) {
        let mut pair = pair_of(&config());
        let mut wires: [VecDeque<u8>; 2] = Default::default();
        let mut sent: [VecDeque<Bytes>; 2] = Default::default();
        let mut finished = [false; 2];
        for step in steps {
            match step {
                Step::Send(index, len) => {
                    let message = Bytes::from(vec![sent[index].len() as u8; len]);
                    match pair[index].send(message.clone()) {
                        Ok(()) => sent[index].push_back(message),
                        Err(SendError::Finished) => prop_assert!(finished[index]),
                        Err(error) => prop_assert!(matches!(error, SendError::Blocked(_))),
                    }
                }
                Step::Recv(index) => {
                    if let Some(message) = pair[index].recv() {
                        prop_assert_eq!(Some(message), sent[1 - index].pop_front());
                    }
                }
                Step::Transfer(from, len) => {
                    let mut bytes = Vec::new();
                    pair[from].transmit(at(0), &mut bytes, 50_000);
                    wires[from].extend(bytes);
                    let len = len.min(wires[from].len());
                    let piece: Vec<u8> = wires[from].drain(..len).collect();
                    pair[1 - from].receive(at(0), &piece);
                }
                Step::Finish(index) => finished[index] |= pair[index].finish().is_ok(),
            }
        }
        for _ in 0..1_000 {
            for from in 0..2 {
                let mut bytes: Vec<u8> = wires[from].drain(..).collect();
                pair[from].transmit(at(0), &mut bytes, 50_000);
                pair[1 - from].receive(at(0), &bytes);
                while let Some(message) = pair[1 - from].recv() {
                    prop_assert_eq!(Some(message), sent[from].pop_front());
                }
            }
        }
        for index in 0..2 {
            prop_assert!(sent[index].is_empty());
            prop_assert!(pair[index].is_open() && pair[index].is_all_acknowledged());
            prop_assert_eq!(pair[index].is_finished(), finished[1 - index]);
        }
    }

    #[test]
    fn arbitrary_bytes_close_or_are_bounded(bytes: Vec<u8>, cut in 0..40_usize) {
        let mut session = server_after_hello();
        let cut = cut.min(bytes.len());
        session.receive(at(1), &bytes[..cut]);
        session.receive(at(1), &bytes[cut..]);
        session.transmit(at(1), &mut Vec::new(), 1_000);
        prop_assert!(session.stats(at(1)).buffers.receive_bytes <= bytes.len() as u64 * 64);
    }
}

/// Frames that cost work without content, as many as fit in a few segments.
#[test]
fn floods_of_short_frames_end_the_connection() {
    let mut part = Vec::new();
    frame::put_part(&mut part, &[7], false);
    for flood in [
        frames(&[Control::Ping]),
        frames(&[Control::Pong]),
        frames(&[Control::Receipt(Receipt { units: 0, bytes: 0, credit: 1 << 20 })]),
        vec![0x40, 0, 0, 0],
        part,
    ] {
        let mut session = Session::new(at(0), false, &config());
        session.receive(at(0), &frames(&[HELLO]));
        session.receive(at(0), &flood.repeat(200));
        assert!(session.is_open(), "some of them are correct: {flood:?}");
        session.receive(at(0), &flood.repeat(200));
        assert_eq!(session.violation_found(), Some("too many short frames"), "{flood:?}");
    }
}

/// Credit that rises by a byte at a time is no progress.
#[test]
fn receipts_of_a_little_more_credit_end_the_connection() {
    let mut session = server_after_hello();
    let receipt =
        |step: u64| Control::Receipt(Receipt { units: 0, bytes: 0, credit: (1 << 20) + step });
    let flood: Vec<u8> = (0..400).flat_map(|step| frames(&[receipt(step)])).collect();
    session.receive(at(0), &flood);
    assert_eq!(session.violation_found(), Some("too many short frames"));
}

#[test]
fn receipts_of_many_messages_are_not_limited() {
    let mut ends = pair();
    for count in 0..3_000 {
        for end in &mut ends {
            end.send(vec![7; 1 + count % 3_000].into()).unwrap();
        }
        run(&mut ends, at(0));
        for end in &mut ends {
            assert!(end.recv().is_some());
        }
    }
    run(&mut ends, at(0));
    assert!(ends.iter().all(Session::is_open), "{:?}", events(&mut ends[0]));
}

/// A sender that has credit for a part of its message only sends this part. The receiver reads many of them at once
/// after a lost segment is repaired, when it has long sent the receipts for them.
#[test]
fn parts_for_little_credit_are_not_limited() {
    let mut ends = pair_of(&config());
    ends[1].incoming.set_window(300);
    run(&mut ends, at(0));
    let [sender, receiver] = &mut ends;
    (0..3_000).for_each(|_| sender.send(vec![7; 200].into()).unwrap());
    let (mut short, mut waiting) = (0, Vec::new());
    for _ in 0..6_000 {
        sender.transmit(at(0), &mut waiting, 100_000);
        short += u32::from(sender.outgoing.is_within_message());
        receiver.receive(at(0), &core::mem::take(&mut waiting));
        while receiver.recv().is_some() {}
        let mut receipts = Vec::new();
        receiver.transmit(at(0), &mut receipts, 100_000);
        sender.receive(at(0), &receipts);
    }
    assert!(short > 1_000, "{short} short parts");
    assert!(receiver.is_open() && sender.is_open(), "{:?}", receiver.violation_found());
    assert!(sender.is_all_acknowledged());
    // Each receipt and each message has allowed another frame, up to a limit.
    let parts = frames(&[Control::Pong]).repeat(1_000);
    receiver.receive(at(0), &parts);
    assert!(receiver.is_open(), "{:?}", receiver.violation_found());
    receiver.receive(at(0), &parts.repeat(17));
    assert_eq!(receiver.violation_found(), Some("too many short frames"));
}

/// PINGs of both ends at the least interval cross, so that each also answers; and those that wait while a process is
/// stopped arrive at once.
#[test]
fn keep_alives_at_the_least_interval_are_not_limited() {
    let often = TransportConfig { keep_alive: Some(Duration::ZERO), ..config() };
    let mut ends = pair_of(&often);
    run(&mut ends, at(0));
    let mut in_transit = [Vec::new(), Vec::new()];
    let mut received = [0; 2];
    let mut exchange = |ends: &mut [Session; 2], ms, is_stopped: bool| {
        for (end, session) in ends.iter_mut().enumerate() {
            if end == 0 || !is_stopped {
                let bytes: Vec<u8> = core::mem::take(&mut in_transit[end]);
                received[end] += bytes.len() / HEADER_LEN;
                session.receive(at(ms), &bytes);
                session.handle_timeout(at(ms));
                session.transmit(at(ms), &mut in_transit[1 - end], 100_000);
            }
        }
    };
    for ms in 0..60_000 {
        exchange(&mut ends, ms, false);
    }
    assert!(ends.iter().all(Session::is_open));
    for ms in 60_000..80_000 {
        exchange(&mut ends, ms, true);
    }
    exchange(&mut ends, 80_000, false);
    assert!(ends.iter().all(Session::is_open), "{:?}", ends[1].violation_found());
    assert!(received.iter().all(|&frames| frames > 6_000), "{received:?}");
}
