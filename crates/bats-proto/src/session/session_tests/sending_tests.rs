//! What a session takes for sending, and when.

use super::*;

/// Bytes that a queued message of `len` bytes takes.
fn charged(len: usize) -> usize {
    len + MESSAGE_OVERHEAD
}

fn send(pair: &mut Pair, len: usize, capacity: &LinkCapacity) -> Result<(), SendError> {
    pair.ends[0].send(pair.now, Bytes::from(vec![1; len]), None, capacity)
}

#[test]
fn nothing_is_sent_before_the_session_is_established() {
    let mut session = Session::new(Arc::new(TransportConfig::default()), 1, None);
    let now = Timestamp::from_millis(1);
    let message = Bytes::from_static(b"early");
    assert!(matches!(session.send(now, message, None, &CAPACITY), Err(SendError::Closed)));
    assert!(matches!(session.finish(), Err(SendError::Closed)));
    assert!(!session.has_streams() && !session.has_data() && !session.is_all_acknowledged());
    assert!(session.next_coded(now, 1_440, &PATH, &mut Vec::new()).is_none());
    assert_eq!((session.max_payload(), session.memory_demand()), (0, None));
    assert_eq!((session.mode(), session.peer_limits()), (None, None));
    assert_eq!((session.end_to_end_backlog(), session.receive_buffer_bytes()), (0, 0));
    assert!(session.recv(now, RTT.smoothed).0.is_none() && !session.is_finished());
    assert_eq!(session.may_take_packet(now), Ok(true));
}

#[test]
fn messages_are_refused_beyond_the_window_until_it_is_free_again() {
    const LEN: usize = 100_000;
    for mode in OWN_MODES {
        // Two congestion windows are the most that is accepted.
        let capacity = LinkCapacity { window: 1 << 20, ..CAPACITY };
        let mut pair = Pair::of_mode(mode, Over::Link);
        let accepted = (0..1_000).take_while(|_| send(&mut pair, LEN, &capacity).is_ok()).count();
        assert_eq!(accepted, (2_usize << 20).div_ceil(charged(LEN)), "{mode:?}");
        let refused = pair.ends[0].send(pair.now, Bytes::from(vec![1; LEN]), None, &capacity);
        assert!(matches!(refused, Err(SendError::Blocked(message)) if message.len() == LEN));
        assert_eq!(pair.stats(0).messages.sent, accepted as u64, "{mode:?}");
        assert!(pair.events(0).is_empty());
        let mut step = 0;
        while !pair.events(0).contains(&Event::Writable) {
            let held =
                pair.ends[0].streams.as_ref().map_or(0, |streams| streams.outgoing.bytes_held());
            assert!(held > 3 << 19, "{mode:?}: {held} bytes are held");
            pair.step();
            pair.read(1);
            pair.ends[0].on_nothing_sent(|| capacity);
            step += 1;
            assert!(step < 200, "{mode:?}");
        }
        assert!(send(&mut pair, LEN, &capacity).is_ok());
    }
}

#[test]
fn the_window_has_a_least_size_and_is_larger_before_the_path_is_measured() {
    let small = LinkCapacity { window: 1_000, ..CAPACITY };
    let unmeasured = LinkCapacity { bytes_acked: (64 << 10) - 1, ..small };
    for (capacity, window) in [(small, 128 << 10), (unmeasured, 4 << 20)] {
        let mut pair = Pair::of_mode(Mode::Brtp, Over::Link);
        let accepted = (0..10_000).take_while(|_| send(&mut pair, 1_000, &capacity).is_ok());
        assert_eq!(accepted.count(), usize::div_ceil(window, charged(1_000)));
    }
}

#[test]
fn the_send_budget_limits_messages_and_records_together() {
    const BUDGET: usize = 3 << 20;
    let config = TransportConfig { send_budget: BUDGET, ..TransportConfig::default() };
    let capacity = LinkCapacity { window: 1 << 40, record_bytes: 1 << 20, ..CAPACITY };
    let mut pair = Pair::new(config.clone(), Over::Link);
    // One message is accepted whatever its length, if nothing else is held.
    let room = BUDGET - (1 << 20) - charged(1_000);
    assert!(send(&mut pair, 1_000, &capacity).is_ok());
    assert!(matches!(send(&mut pair, room + 1, &capacity), Err(SendError::Blocked(_))));
    assert!(send(&mut pair, room, &capacity).is_ok());
    let mut pair = Pair::new(config.clone(), Over::Link);
    assert!(send(&mut pair, 2 * BUDGET, &capacity).is_ok());
    let full = LinkCapacity { record_bytes: BUDGET, ..capacity };
    let mut pair = Pair::new(config, Over::Link);
    assert!(matches!(send(&mut pair, 1, &full), Err(SendError::Blocked(_))));
    pair.ends[0].update_application(&full);
    assert!(pair.events(0).is_empty(), "records fill the budget");
    let nearly = LinkCapacity { record_bytes: BUDGET - 1, ..capacity };
    pair.ends[0].update_application(&nearly);
    assert_eq!(pair.events(0), [Event::Writable]);
}

#[test]
fn space_for_what_was_refused_is_awaited() {
    const BUDGET: usize = 3 << 20;
    let config = TransportConfig { send_budget: BUDGET, ..TransportConfig::default() };
    let mut pair = Pair::new(config, Over::Link);
    let capacity = LinkCapacity { window: 1 << 40, ..CAPACITY };
    assert!(send(&mut pair, 1_000, &capacity).is_ok());
    let refused = BUDGET - charged(1_000) + 1;
    assert!(send(&mut pair, refused, &capacity).is_err());
    pair.ends[0].update_application(&capacity);
    assert!(pair.events(0).is_empty(), "one byte is missing");
    assert!(send(&mut pair, refused - 1, &LinkCapacity { record_bytes: 1, ..capacity }).is_err());
    pair.ends[0].update_application(&capacity);
    assert_eq!(pair.events(0), [Event::Writable]);
}

#[test]
fn messages_longer_than_the_peer_accepts_are_refused_with_both_lengths() {
    let config =
        TransportConfig { max_message_size: 5_000, application: 3, ..TransportConfig::default() };
    let mut pair = Pair::new(config, Over::Link);
    let limits = pair.ends[0].peer_limits();
    assert_eq!(limits, Some(PeerLimits { max_message_size: 5_000, application: 3 }));
    let error = send(&mut pair, 5_001, &CAPACITY);
    assert!(matches!(error, Err(SendError::TooLarge { size: 5_001, limit: 5_000 })), "{error:?}");
    assert!(send(&mut pair, 5_000, &CAPACITY).is_ok());
}

#[test]
fn messages_expire_after_their_deadline_or_the_default_and_free_space() {
    let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
    let ms = |ms: u64| Some(Duration::from_millis(ms));
    let default = pair.ends[0].config().deadline;
    let hour = Duration::from_secs(3_600);
    for (deadline, expected) in [(None, default), (ms(7), MS * 7), (Some(hour * 2), hour)] {
        let expires = pair.ends[0].early_expiry(pair.now, deadline);
        assert_eq!(expires, pair.now + expected);
    }
    let small = LinkCapacity { window: 0, ..CAPACITY };
    for (len, deadline) in [(5_000, ms(50)), (5_000, None), (200_000, None), (5_000, ms(1_000))] {
        let message = Bytes::from(vec![1; len]);
        pair.ends[0].send(pair.now, message, deadline, &CAPACITY).expect("there is space");
    }
    assert!(send(&mut pair, 1, &small).is_err());
    let expired = |pair: &mut Pair, after: u64| {
        let at = pair.now + MS * after as u32;
        pair.ends[0].handle_timeout(at, &PATH);
        pair.ends[0].on_nothing_sent(|| small);
        (pair.stats(0).messages.expired, pair.events(0))
    };
    assert_eq!(expired(&mut pair, 50), (0, vec![]));
    assert_eq!(expired(&mut pair, 51), (1, vec![]));
    assert_eq!(expired(&mut pair, 200), (1, vec![]));
    assert_eq!(expired(&mut pair, 201), (3, vec![Event::Writable]));
    let at = pair.now + MS * 1_001;
    assert!(pair.ends[0].next_coded(at, 1_440, &PATH, &mut Vec::new()).is_none());
    assert_eq!(pair.stats(0).messages.expired, 4);
    assert!(pair.ends[0].is_all_acknowledged());
}

/// In modes with an END frame, it is repeated until it is acknowledged.
#[test]
fn the_end_is_announced_with_the_totals_and_again_if_it_is_lost() {
    let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
    pair.send(0, &[7; 3_000]);
    pair.ends[0].finish().expect("it is open");
    assert!(!pair.ends[0].is_end_due(), "a message is not sent yet");
    let mut symbols = 0;
    while let Some((kind, payload)) = pair.next(0) {
        symbols += u64::from(kind == PacketKind::Source);
        pair.hand_over(1, kind, &payload).expect("an honest peer");
    }
    for _ in 0..2 {
        assert!(pair.ends[0].is_end_due() && pair.ends[0].is_control_due(pair.now));
        let frames = pair.ends[0].next_control(pair.now, RTT);
        assert_eq!((frames.end, frames.credit), (Some((symbols, 1)), None));
        assert!(!pair.ends[0].is_control_due(pair.now) && !pair.ends[0].is_all_acknowledged());
        pair.ends[0].on_lost(false, true);
    }
    pair.ends[0].on_end_acknowledged();
    pair.now += MS * 1_000;
    pair.ends[0].handle_timeout(pair.now, &PATH);
    assert!(pair.ends[0].is_all_acknowledged());

    let mut idle = Pair::of_mode(Mode::Btp, Over::Link);
    idle.ends[0].finish().expect("it is open");
    assert!(idle.ends[0].is_end_due(), "nothing is to be sent before");
    let mut reliable = Pair::of_mode(Mode::Brtp, Over::Link);
    reliable.ends[0].finish().expect("it is open");
    assert!(!reliable.ends[0].is_end_due(), "the end is in the symbols");
}

#[test]
fn early_messages_that_were_not_accepted_are_sent_with_their_numbers() {
    let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
    for len in [10, 20, 30] {
        pair.ends[0].on_early_sent(len);
    }
    assert!(!pair.ends[0].notifications.awaits_space());
    pair.ends[0].on_early_refused(40);
    assert!(pair.ends[0].notifications.awaits_space());
    let stats = pair.stats(0);
    assert_eq!((stats.messages.sent, stats.messages.bytes_sent, stats.early.messages), (3, 60, 3));
    let expires = pair.now + MS * 500;
    let messages: Vec<_> =
        [10, 20, 30].map(|len| (Bytes::from(vec![len; len.into()]), expires)).into();
    pair.ends[0].resend_unaccepted_early(messages, 1);
    assert_eq!(pair.stats(0).early.messages_accepted, 1);
    // The server has got the first one, and so takes none with its number.
    pair.ends[1].record_early(0b1);
    for _ in 0..20 {
        pair.step();
    }
    assert_eq!(pair.read(1), [vec![20; 20], vec![30; 30]]);
    pair.ends[0].finish().expect("it is open");
    pair.step();
    assert!(pair.ends[1].is_finished(), "all three are accounted for");
    assert_eq!(pair.stats(1).messages.lost, 0);
}

#[test]
fn an_unaccepted_early_message_that_is_too_long_now_counts_as_expired() {
    let config =
        TransportConfig { mode: Mode::Btp, max_message_size: 15, ..TransportConfig::default() };
    let mut pair = Pair::new(config, Over::Link);
    let expires = pair.now + MS * 500;
    let messages: Vec<_> =
        [10, 20, 15].map(|len| (Bytes::from(vec![len; len.into()]), expires)).into();
    pair.ends[0].resend_unaccepted_early(messages, 0);
    (0..5).for_each(|_| pair.step());
    assert_eq!(pair.read(1), [vec![10; 10], vec![15; 15]]);
    assert_eq!(pair.stats(0).messages.expired, 1);
}

#[test]
fn a_probe_timeout_or_a_lost_path_sends_again_what_is_not_reported() {
    for mode in OWN_MODES {
        for by_probe in [true, false] {
            let mut pair = Pair::of_mode(mode, Over::Link);
            pair.send(0, &[7; 4_000]);
            while pair.next(0).is_some() {}
            assert_eq!(pair.ends[0].awaits_decoding(), is_reliable(mode), "{mode:?}");
            pair.now += MS * 100;
            if by_probe {
                assert_eq!(pair.ends[0].on_probe_timeout(10), is_reliable(mode), "{mode:?}");
            } else {
                pair.ends[0].on_path_lost(pair.now, &PATH, false);
            }
            assert_eq!(pair.ends[0].has_data(), is_reliable(mode), "{mode:?}");
            let mut again = 0;
            while let Some((kind, payload)) = pair.next(0) {
                again += 1;
                pair.hand_over(1, kind, &payload).expect("an honest peer");
            }
            assert_eq!(again > 0, is_reliable(mode), "{mode:?}");
        }
    }
}

#[test]
fn modes_are_agreed_on_if_the_server_accepts_them() {
    let server = |also_accepted: Vec<Mode>| {
        let config =
            TransportConfig { mode: Mode::Btp, also_accepted, ..TransportConfig::default() };
        Session::new(Arc::new(config), 1, None)
    };
    for mode in Mode::ALL {
        let agreed = server(Mode::ALL.to_vec()).agreed_mode(true, mode as u8);
        assert_eq!(agreed, mode.is_own().then_some(mode));
        let only = server(Vec::new()).agreed_mode(true, mode as u8);
        assert_eq!(only, (mode == Mode::Btp).then_some(mode));
        assert_eq!(server(Vec::new()).agreed_mode(false, mode as u8), Some(Mode::Btp));
    }
    assert_eq!(server(Vec::new()).agreed_mode(true, 250), None);
    assert_eq!(server(Vec::new()).agreed_mode(false, 250), None);
}

#[test]
fn congestion_is_controlled_for_own_links_in_all_modes_but_transparent() {
    let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 0 };
    let config = Arc::new(TransportConfig::default());
    for mode in OWN_MODES {
        let own = Session::new(Arc::clone(&config), 1, None).algorithm(mode);
        let expected = match mode {
            Mode::Transparent => CongestionAlgorithm::None,
            _ => config.congestion,
        };
        assert_eq!(own, expected);
        let relays = Session::new(Arc::clone(&config), 1, Some((key, true)));
        assert_eq!(relays.algorithm(mode), CongestionAlgorithm::None);
        assert_eq!(relays.flow_key(), Some(key));
    }
}

#[test]
fn transport_parameters_are_those_of_the_configuration() {
    let config = TransportConfig {
        mode: Mode::Btp,
        max_message_size: 9_000,
        idle_timeout: Duration::from_secs(17),
        max_udp_payload: 1_300,
        application: 5,
        ..TransportConfig::default()
    };
    let parameters = local_parameters(&config, 77);
    assert_eq!((parameters.mode, parameters.max_message_size), (Mode::Btp as u8, 9_000));
    assert_eq!((parameters.idle_timeout, parameters.code_seed), (config.idle_timeout, 77));
    assert_eq!((parameters.max_udp_payload, parameters.application), (1_300, 5));
    assert_eq!(usize::from(parameters.max_symbol_size), symbol_size_for(1_300));
    assert_eq!((parameters.window_cap, parameters.channels.is_none()), (256, true));
    let symbols = parameters.initial_credit;
    assert!(symbols > 100 && symbols < (192 << 20) / 1_000, "{symbols} symbols");
    let with_channels = TransportConfig { channels: Some(8), ..config.clone() };
    let channels = local_parameters(&with_channels, 1).channels.expect("they are configured");
    assert_eq!(channels.channels, 8);
    // The least budgets: 4 windows of 512 symbols, or 16 with channels.
    let window = 512 * bats_code::rows::padded_length(symbol_size_for(1_300));
    let tiny = |channels| TransportConfig { receive_budget: 1, channels, ..config.clone() };
    assert_eq!(receive_budget(&tiny(None)), 4 * window);
    assert_eq!(receive_budget(&tiny(Some(1))), 16 * window);
    assert_eq!(
        max_message(&TransportConfig { max_message_size: usize::MAX, ..tiny(None) }),
        2 * window
    );
    let huge = TransportConfig { max_message_size: usize::MAX, ..config.clone() };
    assert_eq!(max_message(&huge), 64 << 20);
}

#[test]
fn feedback_is_read_within_its_budget() {
    let mut pair = Pair::of_mode(Mode::Brtp, Over::Link);
    pair.send(0, &[7; 40_000]);
    while pair.next(0).is_some() {}
    let symbols = pair.stats(0).coding.source_packets_sent;
    let report = RankFeedback {
        decoded_below: symbols,
        seen_end: symbols,
        repair_seen: None,
        coded: symbols,
        wasted: 0,
        entries: Vec::new(),
    };
    assert!(!pair.ends[0].is_all_acknowledged());
    let frame = SessionFrame::Rank(report.clone(), PATH);
    assert_eq!(pair.ends[0].on_frame(pair.now, frame), Ok(()));
    assert!(pair.ends[0].is_all_acknowledged());
    let unsent = RankFeedback { seen_end: 1_000, ..report.clone() };
    let result = pair.ends[0].on_frame(pair.now, SessionFrame::Rank(unsent.clone(), PATH));
    assert!(matches!(result, Err(SessionFailure::Violation(_))), "{result:?}");
    let mut reports = 0;
    while pair.ends[0].may_read_ranks(pair.now) {
        let frame = SessionFrame::Rank(report.clone(), PATH);
        assert_eq!(pair.ends[0].on_frame(pair.now, frame), Ok(()));
        reports += 1;
        assert!(reports < 10_000);
    }
    assert_eq!(
        pair.ends[0].on_frame(pair.now, SessionFrame::Rank(unsent, PATH)),
        Ok(()),
        "not read"
    );
    assert!(pair.ends[0].may_read_ranks(pair.now + Duration::from_secs(10)));
}
