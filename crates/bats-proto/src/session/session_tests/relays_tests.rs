//! Sessions over relays: pollution, links that are to blame, and what the links of a path say.

use super::*;

/// A pair over relays of which the client has sent `count` packets that have not arrived.
fn with_packets(mode: Mode, links: usize, count: usize) -> (Pair, Vec<(PacketKind, Vec<u8>)>) {
    let mut pair = Pair::of_mode(mode, Over::Relays(links));
    let mut packets = Vec::new();
    for number in 0..count {
        // Before a link has asked for packets, little is accepted.
        if number % 50 == 49 {
            packets.extend(pair.next(0));
        }
        pair.send(0, &[number as u8; 1_200]);
    }
    packets.extend(core::iter::from_fn(|| pair.next(0)));
    (pair, packets)
}

fn polluted(payload: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    *payload.last_mut().expect("it has content") ^= 1;
    payload
}

#[test]
fn a_polluted_symbol_is_reported_repaired_and_its_first_link_blamed() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        let (mut pair, packets) = with_packets(mode, 2, 30);
        for (number, (kind, payload)) in packets.iter().enumerate() {
            let payload = if number == 3 { polluted(payload) } else { payload.clone() };
            pair.hand_over(1, *kind, &payload).expect("one is tolerated");
        }
        let mut blamed = Vec::new();
        for _ in 0..300 {
            pair.exchange_control(1);
            blamed.extend(pair.ends[0].take_polluting_link());
            assert_eq!(pair.ends[0].take_polluting_link(), None, "each report once");
            pair.step();
        }
        // The fourth packet took the second link. A block took both.
        assert_eq!(blamed, if mode == Mode::Brtp { vec![1] } else { vec![] });
        let stats = pair.stats(1);
        assert!(stats.coding.symbols_polluted > 0, "{mode:?}");
        assert_eq!(pair.read(1).len(), 30, "{mode:?}");
        let events = pair.events(1);
        let detected = events.iter().filter(|event| **event == Event::PollutionDetected);
        assert_eq!(detected.count(), 1, "{mode:?}: {events:?}");
        assert!(pair.ends[0].is_all_acknowledged(), "{mode:?}");
    }
}

/// So they cannot pollute repairs.
#[test]
fn source_symbols_are_checked_on_arrival_after_the_first_pollution() {
    let (mut pair, packets) = with_packets(Mode::Brtp, 1, 10);
    let sources: Vec<_> = packets.iter().filter(|(kind, _)| *kind == PacketKind::Source).collect();
    pair.hand_over(1, PacketKind::Source, &polluted(&sources[0].1)).expect("one is tolerated");
    assert_eq!(pair.stats(1).coding.symbols_polluted, 1);
    let decoded = pair.stats(1).coding.symbols_decoded;
    pair.hand_over(1, PacketKind::Source, &polluted(&sources[2].1)).expect("one is tolerated");
    assert_eq!(
        (pair.stats(1).coding.symbols_polluted, pair.stats(1).coding.symbols_decoded),
        (2, decoded)
    );
    // The authentic symbol arrives later, and the one before is repaired by its source.
    for number in [2, 0, 1] {
        pair.hand_over(1, PacketKind::Source, &sources[number].1).expect("they are authentic");
    }
    assert_eq!(pair.stats(1).coding.symbols_polluted, 2);
    assert!(pair.read(1).len() >= 2);
}

#[test]
fn a_session_ends_after_256_polluted_symbols_in_a_row_and_not_before() {
    for mode in [Mode::Brtp, Mode::Btp] {
        for authentic_at in [None, Some(200)] {
            let (mut pair, packets) = with_packets(mode, 1, 400);
            let sources = packets.iter().filter(|(kind, _)| *kind == PacketKind::Source);
            let mut failed = None;
            for (number, (kind, payload)) in sources.enumerate().take(300) {
                let is_authentic = authentic_at == Some(number) || number == 0;
                let payload = if is_authentic { payload.clone() } else { polluted(payload) };
                assert_eq!(pair.ends[1].may_take_packet(pair.now), Ok(true));
                if let Err(failure) = pair.ends[1].on_coded(pair.now, *kind, &payload, RTT) {
                    failed = Some((number, failure));
                    break;
                }
                pair.read(1);
            }
            // In order, an authentic symbol after a polluted one is not taken before that is repaired.
            let expected = match (mode, authentic_at) {
                (Mode::Btp, Some(_)) => None,
                _ => Some(SessionFailure::Pollution(256)),
            };
            assert_eq!(failed.as_ref().map(|(_, failure)| failure.clone()), expected, "{mode:?}");
            let last = 256 + usize::from(authentic_at.is_some());
            assert!(failed.is_none_or(|(number, _)| number == last), "{mode:?}");
        }
    }
}

/// Relays may have changed them, so that the peer is not to blame.
#[test]
fn malformed_packets_from_relays_count_as_polluted() {
    for mode in OWN_MODES {
        let mut pair = Pair::of_mode(mode, Over::Relays(1));
        assert_eq!(pair.ends[1].on_coded(pair.now, PacketKind::Repair, &[1], RTT), Ok(()));
        let stats = pair.stats(1);
        assert_eq!((stats.packets.malformed, stats.coding.symbols_polluted), (1, 1), "{mode:?}");
        let forged = SessionFrame::SymbolPolluted(3);
        assert_eq!(pair.ends[1].on_frame(pair.now, forged), Ok(()));
        assert_eq!(pair.ends[1].take_polluting_link(), None);
    }
}

/// No relay is between the ends of a direct session.
#[test]
fn the_peer_of_a_direct_session_is_to_blame_for_malformed_packets() {
    for mode in OWN_MODES {
        let pair = || Pair::of_mode(mode, Over::Direct);
        let mut malformed = pair();
        let result = malformed.ends[1].on_coded(malformed.now, PacketKind::Repair, &[1], RTT);
        assert!(matches!(result, Err(SessionFailure::Violation(_))), "{mode:?}: {result:?}");
        assert_eq!(malformed.stats(1).coding.symbols_polluted, 0, "{mode:?}");
        let mut polluted = pair();
        let report = SessionFrame::SymbolPolluted(3);
        let result = polluted.ends[1].on_frame(polluted.now, report);
        assert!(matches!(result, Err(SessionFailure::Violation(_))), "{mode:?}: {result:?}");
    }
}

/// The links seal each packet, so symbols and blocks have no seal: 18 bytes less in each.
#[test]
fn symbols_and_blocks_of_direct_sessions_are_not_sealed() {
    for mode in OWN_MODES {
        let [direct, sealed] = [Over::Direct, Over::Relays(1)].map(|over| {
            let mut pair = Pair::of_mode(mode, over);
            let now = pair.now;
            pair.ends[0].send(now, Bytes::from(vec![5; 300]), None, &CAPACITY).unwrap();
            let (kind, payload) = pair.next(0).expect("the message");
            pair.hand_over(1, kind, &payload).unwrap();
            let mut others = Vec::new();
            while let Some((kind, payload)) = pair.next(0).filter(|_| others.len() < 40) {
                pair.hand_over(1, kind, &payload).unwrap();
                others.push(kind);
            }
            assert_eq!(pair.read(1), [Bytes::from(vec![5; 300])], "{mode:?} {over:?}");
            payload.len()
        });
        assert!(direct < sealed, "{mode:?}: {direct} and {sealed} bytes");
        if mode != Mode::Brctp {
            assert_eq!(direct + 18, sealed, "{mode:?}");
        }
    }
}

/// A relay may have forged the numbers that the peer reports.
#[test]
fn reports_of_symbols_that_were_never_sent_are_cut() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        let (mut pair, _) = with_packets(mode, 1, 10);
        let held = pair.stats(0).buffers.send_bytes;
        let entry = |first, span| crate::wire::rank::RankEntry { first, span, missing: span };
        let report = RankFeedback {
            decoded_below: 0,
            seen_end: 1 << 30,
            repair_seen: None,
            coded: 5,
            wasted: 0,
            entries: vec![entry(0, 1), entry(5_000, 1)],
        };
        let frame = SessionFrame::Rank(report, PATH);
        assert_eq!(pair.ends[0].on_frame(pair.now, frame), Ok(()), "{mode:?}");
        assert_eq!(pair.stats(0).buffers.send_bytes, held, "{mode:?}");
    }
}

#[test]
fn links_of_a_path_give_the_rate_and_the_round_trip() {
    for (links, rate, smoothed) in [(1, 10_000_000, 20), (2, 20_000_000, 40)] {
        let (mut pair, packets) = with_packets(Mode::Brtp, links, 3);
        assert!(!packets.is_empty());
        let stats = pair.stats(0);
        assert_eq!(stats.congestion.controller_state, "links");
        assert_eq!(stats.congestion.cwnd_bytes, rate * smoothed / 1_000, "{links} links");
        assert_eq!(
            (stats.congestion.pacing_bps, stats.congestion.delivery_bps),
            (8 * rate, 8 * rate)
        );
        let view = pair.ends[0].transport.view(&PathView { burst_factor: 3.0, ..PATH });
        assert_eq!((view.rate_bytes_per_second, view.burst_factor), (rate, 1.0));
        assert_eq!(view.smoothed_rtt, MS * smoothed as u32);
        assert_eq!((view.loss, view.loss_packets), (0.0, 1), "nothing was reported yet");
        let time = MS * smoothed as u32 * 5 / 2 + MS * 50;
        let window = pair.ends[0].transport.path_window(&CAPACITY);
        assert_eq!(window, (rate as f64 * time.as_secs_f64()) as u64);
        pair.ends[0].set_slowest_inbound(MS * 90, RTT.smoothed);
        assert_eq!(pair.ends[0].transport.round_trip(RTT.smoothed), MS * 90);
    }
}

#[test]
fn symbols_reserved_for_a_link_can_be_released() {
    for mode in [Mode::Brtp, Mode::Brctp, Mode::Btp] {
        let (mut pair, _) = with_packets(mode, 2, 200);
        pair.send(0, &[1; 60_000]);
        pair.next(0);
        let is_assigned = (0..2).any(|link| pair.ends[0].has_assigned(link));
        assert_eq!(is_assigned, mode != Mode::Btp, "{mode:?}");
        for link in 0..2 {
            pair.ends[0].release_assigned(link);
            assert!(!pair.ends[0].has_assigned(link), "{mode:?}");
        }
        // All of them are sent over the link that remains.
        pair.over = Over::Relays(1);
        for _ in 0..400 {
            pair.step();
        }
        let received = pair.read(1).len();
        assert!(mode == Mode::Btp || received >= 201, "{mode:?}: {received}");
    }
}

#[test]
fn packets_before_the_keys_wait_for_them() {
    let config = Arc::new(TransportConfig::default());
    let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 0 };
    let mut session = Session::new(Arc::clone(&config), 1, Some((key, true)));
    session.hold_end_to_end(PacketKind::Source, b"one");
    session.hold_end_to_end(PacketKind::Repair, b"two");
    session.set_slowest_inbound(MS * 70, RTT.smoothed);
    session.establish(Mode::Brtp, &local_parameters(&config, 2), false);
    let (early, slowest) =
        session.establish_end_to_end(Some(SymbolKeys::plain(true)), RTT.smoothed);
    let expected = [(PacketKind::Source, b"one".to_vec()), (PacketKind::Repair, b"two".to_vec())];
    assert_eq!((early, slowest), (expected.into(), MS * 70));
    // Another session has neither.
    let mut own = Session::new(config, 1, None);
    own.hold_end_to_end(PacketKind::Source, b"one");
    assert!(own.establish_end_to_end(None, RTT.smoothed).0.is_empty());
    let now = Timestamp::from_millis(100_000);
    assert!(!own.takes_keep_alive(now, MS) && !own.on_end_to_end_sent(now, (Timestamp::ZERO, MS)));
    assert!(session.on_end_to_end_sent(now, (Timestamp::ZERO, MS)));
    assert!(!session.takes_keep_alive(now, MS * 4) && session.takes_keep_alive(now + MS, MS * 4));
}

/// Where relays recode, they repair first.
#[test]
fn gaps_are_reported_later_if_relays_recode() {
    let first_report = [false, true].map(|recoded| {
        let config = Arc::new(TransportConfig::default());
        let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 0 };
        let mut receiver = Session::new(Arc::clone(&config), 1, Some((key, recoded)));
        receiver.establish(Mode::Brtp, &local_parameters(&config, 7), true);
        receiver.establish_end_to_end(Some(SymbolKeys::plain(false)), RTT.smoothed);
        let (pair, packets) = with_packets(Mode::Brtp, 1, 10);
        let sources = packets.iter().filter(|(kind, _)| *kind == PacketKind::Source);
        for (kind, payload) in sources.skip(1) {
            receiver.on_coded(pair.now, *kind, payload, RTT).expect("an honest peer");
        }
        (0..1_000)
            .find(|&ms| {
                let at = pair.now + MS * ms;
                receiver.handle_timeout(at, &PATH);
                let report = if receiver.is_control_due(at) {
                    receiver.next_control(at, RTT).feedback
                } else {
                    None
                };
                report.is_some_and(|report| !report.entries.is_empty())
            })
            .expect("the gap is reported")
    });
    let [direct, recoded] = first_report;
    assert!(direct < 50 && (100..=150).contains(&recoded), "{direct}, {recoded} ms");
}
