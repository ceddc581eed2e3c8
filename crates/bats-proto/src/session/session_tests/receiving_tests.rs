//! Memory and credit of received data, what the application reads, early data and channels.

use super::*;
use crate::wire::message::MessageFrame;
use crate::wire::varint::Writer;

/// Source packets of a message of so many bytes.
fn packets(pair: &mut Pair, bytes: usize) -> Vec<(PacketKind, Vec<u8>)> {
    pair.send(0, &vec![3; bytes]);
    core::iter::from_fn(|| pair.next(0)).collect()
}

#[test]
fn packets_are_refused_without_memory_and_the_session_ends_after_30_seconds() {
    let mut pair = Pair::of_mode(Mode::Brtp, Over::Link);
    let sent = packets(&mut pair, 300_000);
    pair.ends[1].set_memory(pair.now, 128 << 10, true, RTT.smoothed);
    assert!(pair.ends[1].is_short_of_memory());
    assert_eq!(pair.ends[1].memory(), 128 << 10);
    let mut taken = 0;
    for (kind, payload) in &sent {
        if pair.ends[1].may_take_packet(pair.now) != Ok(true) {
            break;
        }
        assert_eq!(pair.ends[1].on_coded(pair.now, *kind, payload, RTT), Ok(()));
        taken += 1;
    }
    let held = pair.ends[1].receive_buffer_bytes();
    assert!(taken > 20 && held <= 128 << 10 && held > 32 << 10, "{taken} packets, {held} bytes");
    assert_eq!(pair.stats(1).packets.refused, 1);
    let later = pair.now + Duration::from_secs(30);
    assert_eq!(pair.ends[1].may_take_packet(pair.now + MS * 29_999), Ok(false));
    let Err(SessionFailure::Memory(missing)) = pair.ends[1].may_take_packet(later) else {
        panic!("refused for too long")
    };
    assert!(missing > 0 && missing < 100 << 10, "{missing} bytes");
    assert_eq!(pair.stats(1).packets.refused, 3);
    let demand = pair.ends[1].memory_demand().expect("it is established");
    assert!((300_000..500_000).contains(&demand), "the rest of the message, too: {demand}");
    pair.ends[1].set_memory(later, 1 << 20, false, RTT.smoothed);
    assert!(!pair.ends[1].is_short_of_memory());
    for (kind, payload) in &sent[taken..] {
        pair.hand_over(1, *kind, payload).expect("there is memory again");
    }
    assert_eq!(pair.read(1), [vec![3; 300_000]]);
}

#[test]
fn an_application_that_does_not_read_is_no_lack_of_memory() {
    let mut pair = Pair::of_mode(Mode::Brtp, Over::Link);
    pair.ends[1].set_memory(pair.now, 128 << 10, true, RTT.smoothed);
    for _ in 0..200 {
        for (kind, payload) in packets(&mut pair, 1_000) {
            if pair.ends[1].may_take_packet(pair.now) == Ok(true) {
                assert_eq!(pair.ends[1].on_coded(pair.now, kind, &payload, RTT), Ok(()));
            }
        }
    }
    assert!(pair.stats(1).packets.refused > 0);
    assert_eq!(pair.ends[1].may_take_packet(pair.now + Duration::from_secs(60)), Ok(false));
    assert!(pair.read(1).len() > 20);
}

#[test]
fn the_oldest_messages_are_dropped_for_newer_ones_in_modes_with_deadlines() {
    let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
    // The newest 1,024 symbols are kept for repair.
    pair.ends[1].set_memory(pair.now, 4 << 20, true, RTT.smoothed);
    for number in 0..5_000_u16 {
        pair.send(0, &number.to_be_bytes().repeat(500));
        while let Some((kind, payload)) = pair.next(0) {
            pair.hand_over(1, kind, &payload).expect("there is room for the newest");
        }
        // Nothing is kept for repair.
        pair.now += MS * 300;
        pair.ends.iter_mut().for_each(|end| end.handle_timeout(pair.now, &PATH));
    }
    let before = pair.stats(1);
    assert_eq!(
        before.messages.received, 0,
        "dropped messages are not received, not even until then"
    );
    let read = pair.read(1);
    let stats = pair.stats(1);
    let newest: Vec<u16> =
        read.iter().map(|message| u16::from_be_bytes([message[0], message[1]])).collect();
    let kept = newest.len() as u16;
    assert!(kept > 100 && kept < 4_000, "{kept} messages");
    assert_eq!(newest, (5_000 - kept..5_000).collect::<Vec<_>>());
    assert_eq!(stats.messages.received, u64::from(kept));
    assert_eq!(stats.messages.lost, u64::from(5_000 - kept));
}

#[test]
fn credit_follows_what_the_application_reads() {
    let config = TransportConfig { receive_budget: 1, ..TransportConfig::default() };
    for mode in [Mode::Brtp, Mode::Brctp] {
        let mut pair = Pair::new(TransportConfig { mode, ..config.clone() }, Over::Link);
        let budget = pair.ends[1].memory_limit();
        let mut queued = 0;
        // The application does not read: the credit is used up.
        for _ in 0..300 {
            while queued < 40_000_000
                && pair.ends[0]
                    .send(pair.now, Bytes::from(vec![5; 20_000]), None, &CAPACITY)
                    .is_ok()
            {
                queued += 20_000;
            }
            pair.step();
        }
        let sent = pair.sent[0];
        (0..20).for_each(|_| pair.step());
        assert_eq!(pair.sent[0], sent, "{mode:?}: no credit is left");
        let held = pair.ends[1].receive_buffer_bytes();
        assert!(held > budget / 4 && held <= budget, "{mode:?}: {held} of {budget}");
        let mut read = 0;
        for _ in 0..2_000 {
            let messages = pair.read(1);
            read += messages.len();
            while queued < 40_000_000
                && pair.ends[0]
                    .send(pair.now, Bytes::from(vec![5; 20_000]), None, &CAPACITY)
                    .is_ok()
            {
                queued += 20_000;
            }
            pair.step();
        }
        read += pair.read(1).len();
        assert_eq!((queued, read), (40_000_000, 2_000), "{mode:?}");
        assert!(pair.ends[0].is_all_acknowledged());
    }
}

#[test]
fn a_raised_budget_is_announced_as_credit() {
    let config = TransportConfig { receive_budget: 4 << 20, ..TransportConfig::default() };
    let mut pair = Pair::new(config, Over::Link);
    assert!(!pair.ends[1].is_control_due(pair.now));
    pair.ends[1].raise_receive_budget(pair.now, 64 << 20, RTT.smoothed);
    assert_eq!(pair.ends[1].memory_limit(), 64 << 20);
    pair.ends[1].raise_receive_budget(pair.now, 64 << 20, RTT.smoothed);
    assert!(pair.ends[1].is_control_due(pair.now));
    assert!(pair.ends[1].next_control(pair.now, RTT).credit.is_some());
    pair.ends[1].on_lost(true, false);
    assert!(pair.ends[1].next_control(pair.now, RTT).credit.is_some(), "it is sent again");
    pair.ends[1].raise_receive_budget(pair.now, 1, RTT.smoothed);
    assert_eq!(pair.ends[1].memory_limit(), min_receive_budget(pair.ends[1].config()));
}

#[test]
fn malformed_packets_and_frames_of_a_link_violate_the_protocol() {
    for mode in OWN_MODES {
        let mut pair = Pair::of_mode(mode, Over::Link);
        let kind = if mode == Mode::Brctp { PacketKind::Repair } else { PacketKind::Source };
        let result = pair.ends[1].on_coded(pair.now, kind, &[1], RTT);
        assert!(matches!(result, Err(SessionFailure::Violation(_))), "{mode:?}: {result:?}");
        assert_eq!(pair.stats(1).packets.malformed, 1, "{mode:?}");
    }
    let mut pair = Pair::of_mode(Mode::Brtp, Over::Link);
    // A symbol whose first byte is no type of frame.
    let result = pair.hand_over(1, PacketKind::Source, &[0, 0, 0, 0, 99, 99]);
    assert!(matches!(result, Err(SessionFailure::Violation(_))), "{result:?}");
    let result = pair.ends[1].on_frame(pair.now, SessionFrame::SymbolPolluted(3));
    assert!(matches!(result, Err(SessionFailure::Violation(_))), "{result:?}");
}

#[test]
fn packets_have_room_for_a_symbol_and_its_coding_header() {
    let pair = Pair::of_mode(Mode::Brtp, Over::Link);
    assert_eq!(pair.ends[0].max_payload(), symbol_size_for(1_472) + 64);
    let half = TransportConfig { max_udp_payload: 1_200, ..TransportConfig::default() };
    let mut pair = Pair::new(half, Over::Link);
    assert_eq!(pair.ends[0].max_payload(), symbol_size_for(1_200) + 64);
    pair.send(0, &[1; 5_000]);
    let (_, payload) = pair.next(0).expect("a packet");
    assert!(payload.len() <= pair.ends[0].max_payload());
}

#[test]
fn missing_symbols_are_awaited_until_the_deadline_after_the_end() {
    let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
    let sent = packets(&mut pair, 4_000);
    let (kind, payload) = &sent[0];
    pair.hand_over(1, *kind, payload).expect("an honest peer");
    let end = SessionFrame::End { symbols: 3, messages: 1 };
    assert_eq!(pair.ends[1].next_timeout(true), None);
    assert_eq!(pair.ends[1].on_frame(pair.now, end.clone()), Ok(()));
    let until = pair.now + pair.ends[1].config().deadline;
    assert_eq!(pair.ends[1].next_timeout(false), Some(until));
    // The first END counts.
    pair.ends[1].on_frame(pair.now + MS * 50, end).expect("an honest peer");
    assert_eq!(pair.ends[1].next_timeout(true), Some(until));
    pair.ends[1].handle_timeout(pair.now + MS * 199, &PATH);
    assert!(!pair.ends[1].is_finished());
    pair.ends[1].handle_timeout(until, &PATH);
    assert!(pair.ends[1].is_finished());
    assert_eq!(pair.ends[1].next_timeout(true), None);
    let stats = pair.stats(1);
    assert_eq!((stats.messages.lost, stats.coding.symbols_lost), (1, 2));
    pair.ends[1].update_application(&CAPACITY);
    assert_eq!(pair.events(1), [Event::Readable], "the end can be read");
}

#[test]
fn a_peer_that_closes_leaves_nothing_to_wait_for() {
    for with_end in [true, false] {
        let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
        if with_end {
            let end = SessionFrame::End { symbols: 3, messages: 1 };
            pair.ends[1].on_frame(pair.now, end).expect("an honest peer");
        }
        pair.ends[1].on_closed_by_peer();
        assert_eq!(pair.ends[1].is_finished(), with_end);
        pair.ends[1].on_closed(CloseReason::Local);
        assert!(pair.ends[1].has_events());
        assert_eq!(pair.events(1), [Event::Closed(CloseReason::Local)]);
    }
}

fn datagram(id: u64, content: &'static [u8]) -> Vec<u8> {
    let mut payload = vec![0; 100];
    let mut writer = Writer::new(&mut payload);
    let total = content.len() as u64;
    [4, id, total, 0, total].into_iter().try_for_each(|field| writer.varint(field)).expect("room");
    writer.bytes(content).expect("room");
    let len = writer.written();
    payload.truncate(len);
    let mut reader = crate::wire::varint::Reader::new(&payload);
    let frame = crate::wire::message::decode(&mut reader).ok().flatten();
    assert!(matches!(frame, Some(MessageFrame::Datagram { data, .. }) if data == content));
    payload
}

#[test]
fn early_messages_are_delivered_once_and_their_numbers_limited() {
    let mut pair = Pair::of_mode(Mode::Btp, Over::Link);
    let server = &mut pair.ends[1];
    assert_eq!(server.take_early(&datagram(2, b"two")), Ok(Some(0b100)));
    assert_eq!(server.take_early(&datagram(0, b"zero")), Ok(Some(0b101)));
    assert_eq!(server.take_early(&datagram(0, b"again")), Ok(Some(0b101)));
    let last = crate::handshake::MAX_EARLY_MESSAGES as u64;
    let beyond = server.take_early(&datagram(last, b"beyond"));
    assert!(matches!(beyond, Err(SessionFailure::Violation(_))), "{beyond:?}");
    assert!(server.take_early(&datagram(last - 1, b"last")).is_ok());
    assert!(server.take_early(&[99]).is_err());
    let stats = pair.stats(1);
    assert_eq!((stats.early.messages, stats.messages.received), (3, 0));
    assert_eq!(stats.messages.bytes_received, 11);
    assert_eq!(pair.read(1), [&b"two"[..], b"zero", b"last"]);
    assert_eq!(pair.stats(1).messages.received, 3);
    let mut reliable = Pair::of_mode(Mode::Brtp, Over::Link);
    assert!(reliable.ends[1].take_early(&datagram(0, b"x")).is_err());
}

fn pair_with_channels() -> Pair {
    Pair::new(TransportConfig { channels: Some(4), ..TransportConfig::default() }, Over::Link)
}

#[test]
fn channels_carry_bytes_in_addition_to_messages_and_count_as_data() {
    let mut pair = pair_with_channels();
    pair.lost = 7;
    let data: Vec<u8> = (0..50_000).map(|i| (i % 251) as u8).collect();
    let id = pair.ends[0].channels().and_then(Channels::open_channel).expect("there are four");
    let written = pair.ends[0].channels().and_then(|channels| channels.write(id, &data));
    assert_eq!(written, Ok(data.len()));
    pair.ends[0].on_channel_used();
    pair.send(0, b"a message");
    assert!(pair.ends[0].has_data() && !pair.ends[0].is_all_acknowledged());
    assert!(pair.stats(0).buffers.send_bytes >= data.len() as u64 + 9);
    let (mut received, mut accepted, mut events) = (Vec::new(), None, Vec::new());
    for step in 0..100 {
        pair.step();
        events.extend(pair.events(1));
        if step == 20 {
            let held = pair.ends[1].receive_buffer_bytes();
            assert!(held >= data.len(), "{held} bytes are not read");
            assert!(pair.stats(1).buffers.receive_bytes >= data.len() as u64);
        }
        if step < 30 {
            continue;
        }
        let channels = pair.ends[1].channels().expect("there are some");
        accepted = accepted.or_else(|| channels.accept_channel());
        let mut buffer = [0; 9_000];
        while let Some(id) = accepted
            && let Ok(Some(len)) = channels.read(id, &mut buffer)
            && len > 0
        {
            received.extend_from_slice(&buffer[..len]);
        }
    }
    assert_eq!(received, data);
    assert_eq!(pair.read(1), [b"a message".to_vec()]);
    assert!(events.contains(&Event::ChannelIncoming) && events.contains(&Event::Readable));
    let own_events = pair.events(0);
    assert!(own_events.contains(&Event::AllAcknowledged), "{own_events:?}");
    assert!(pair.ends[0].is_all_acknowledged() && !pair.ends[0].has_data());
    assert_eq!(pair.stats(0).buffers.send_bytes, 0);
}

#[test]
fn channels_need_both_ends_and_a_reliable_mode() {
    assert_eq!(
        Pair::of_mode(Mode::Brtp, Over::Link).ends[0].channels().err(),
        Some(ChannelError::Unsupported)
    );
    for mode in OWN_MODES {
        let config = TransportConfig { mode, channels: Some(4), ..TransportConfig::default() };
        let refused = (!is_reliable(mode)).then_some(ChannelError::Unsupported);
        assert_eq!(Pair::new(config, Over::Link).ends[0].channels().err(), refused, "{mode:?}");
    }
    let mut pair = pair_with_channels();
    assert!(pair.ends[0].channels().is_ok());
    assert_eq!(pair.ends[0].pop_event(true), None);
    // Events of channels are for open connections.
    let id = pair.ends[0].channels().and_then(Channels::open_channel).expect("there are four");
    pair.ends[0].channels().and_then(|channels| channels.write(id, b"x")).expect("it is open");
    pair.step();
    assert_eq!(pair.ends[1].pop_event(false), None);
    assert_eq!(pair.ends[1].pop_event(true), Some(Event::ChannelIncoming));
}

#[test]
fn raised_budgets_raise_the_credit_of_all_channels() {
    // The application does not read.
    let held = |is_raised: bool| {
        let config = TransportConfig {
            channels: Some(40),
            receive_budget: 16 << 20,
            ..TransportConfig::default()
        };
        let mut pair = Pair::new(config, Over::Link);
        if is_raised {
            let before = pair.ends[1].memory_limit();
            pair.ends[1].raise_receive_budget(pair.now, 128 << 20, RTT.smoothed);
            let limit = pair.ends[1].memory_limit();
            assert!(limit > before);
            pair.ends[1].set_memory(pair.now, limit, false, RTT.smoothed);
        }
        let channels = pair.ends[0].channels().expect("there are some");
        let ids: Vec<_> = core::iter::from_fn(|| channels.open_channel().ok()).collect();
        assert_eq!(ids.len(), 40);
        for _ in 0..600 {
            let channels = pair.ends[0].channels().expect("there are some");
            for &id in &ids {
                // It may have no credit.
                _ = channels.write(id, &[1; 20_000]);
            }
            pair.step();
        }
        pair.ends[1].receive_buffer_bytes()
    };
    let (raised, unchanged) = (held(true), held(false));
    assert!(unchanged > 2 << 20 && unchanged <= 16 << 20, "{unchanged} bytes");
    assert!(raised > 2 * unchanged && raised <= 128 << 20, "{raised} bytes, {unchanged} before");
}

#[test]
fn ranks_are_reported_at_once_if_asked_for_and_in_the_last_packet() {
    for mode in OWN_MODES {
        let mut pair = Pair::of_mode(mode, Over::Link);
        assert_eq!(pair.ends[1].last_feedback(pair.now, RTT).is_some(), is_reliable(mode));
        pair.ends[1].report_soon();
        assert!(pair.ends[1].is_control_due(pair.now));
        let frames = pair.ends[1].next_control(pair.now, RTT);
        assert_eq!(frames.feedback.is_some(), is_reliable(mode), "{mode:?}");
        assert!(!pair.ends[1].is_control_due(pair.now));
    }
    // A gap is reported later, after packets that were only late had time to arrive.
    let mut pair = Pair::of_mode(Mode::Brtp, Over::Link);
    let mut sent = packets(&mut pair, 6_000);
    sent.retain(|(kind, _)| *kind == PacketKind::Source);
    for (kind, payload) in &sent[1..] {
        pair.hand_over(1, *kind, payload).expect("an honest peer");
    }
    let at = pair.ends[1].next_timeout(false).expect("feedback is due");
    pair.ends[1].handle_timeout(at, &PATH);
    let feedback = pair.ends[1].next_control(at, RTT).feedback.expect("a report");
    assert_eq!((feedback.decoded_below, feedback.coded), (0, sent.len() as u64 - 1));
}
