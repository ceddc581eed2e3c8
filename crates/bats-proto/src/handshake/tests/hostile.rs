//! Packets that nobody honest sends.

use core::time::Duration;

use proptest::prelude::*;

use super::network::{Network, Pair};
use crate::config::{PeerTrust, Security};
use crate::crypto::Side;
use crate::handshake::stateless::seal;
use crate::handshake::{FirstPacket, HandshakeError, ServerStart, parse_first};
use crate::wire::handshake_frame as frame;
use crate::wire::long_header::{self, LongType, TAG_LEN};
use crate::wire::varint::Writer;

fn pair(security: Security) -> Pair {
    Pair::new(security, PeerTrust::DangerousAcceptAny, Network::clean(10), 11)
}

/// Steps until the server has answered and the client has not heard it.
fn midway(security: Security) -> Pair {
    let mut pair = pair(security);
    while pair.sent_by_server.is_empty() {
        assert!(pair.step());
        pair.flush();
    }
    pair
}

#[test]
fn replays_change_nothing() {
    for security in [Security::Tls, Security::DangerousPlain] {
        let mut pair = pair(security);
        let mut buffer = [0; 1_500];
        let len = pair.client.poll_datagram(pair.now, &mut buffer, usize::MAX).unwrap();
        let first = buffer[..len].to_vec();
        pair.inject(true, first.clone());
        while pair.server.is_none() {
            assert!(pair.step());
        }
        let sent = pair.sent_by_server.len();
        let now = pair.now;
        for _ in 0..100 {
            pair.server().handle_datagram(now, &mut first.clone()).unwrap();
        }
        // An identical packet is no new question: not even an acknowledgement is owed.
        assert_eq!(pair.server().counters().duplicated, 100);
        pair.flush();
        assert!(pair.sent_by_server.len() <= sent + 1, "{:?}", pair.sent_by_server);
        pair.run().unwrap();
        let now = pair.now;
        for _ in 0..100 {
            pair.server().handle_datagram(now, &mut first.clone()).unwrap();
        }
        assert!(pair.server().is_complete());
    }
}

#[test]
fn every_changed_bit_of_a_first_packet_is_noticed() {
    let mut pair = pair(Security::DangerousPlain);
    let mut buffer = [0; 1_500];
    let len = pair.client.poll_datagram(pair.now, &mut buffer, usize::MAX).unwrap();
    for at in 0..len {
        let mut copy = buffer[..len].to_vec();
        copy[at] ^= 0x10 >> (at % 5);
        if let Some(FirstPacket::Initial(initial)) = parse_first(&copy) {
            let start = pair.crypto.start(pair.now, pair.remote, &initial, false, false);
            assert!(matches!(start, ServerStart::Drop), "octet {at}: {start:?}");
        }
    }
}

/// A packet with these frames, sealed with the keys that `from` has.
fn forge(
    pair: &Pair,
    from: Side,
    packet_type: LongType,
    number: u32,
    write: impl Fn(&mut Writer<'_>) -> Option<()>,
) -> Vec<u8> {
    let sender = match from {
        Side::Client => &pair.client,
        Side::Server => pair.server.as_ref().unwrap(),
    };
    let space = match packet_type {
        LongType::Handshake => &sender.handshake,
        _ => &sender.initial,
    };
    let mut buffer = vec![0; 1_200];
    let mut writer = Writer::new(&mut buffer[..1_200 - TAG_LEN]);
    let (destination, source) = (&sender.destination, &sender.local_cid);
    let open =
        long_header::write_header(&mut writer, packet_type, 0, destination, source, &[]).unwrap();
    write(&mut writer).unwrap();
    let end = writer.written();
    let len = seal(&space.keys.as_ref().unwrap().local, &mut buffer, open, end, number).unwrap();
    buffer.truncate(len);
    buffer
}

#[test]
fn broken_rules_are_fatal_only_where_nobody_else_can_have_broken_them() {
    type Breach = fn(&mut Writer<'_>) -> Option<()>;
    let breaches: [Breach; 4] = [
        |writer| frame::write_ack(writer, Duration::ZERO, &[(900, 1_000)]),
        |writer| frame::write_crypto(writer, 1 << 20, b"far"),
        |writer| writer.u8(0x3f),
        |writer| writer.bytes(&[0x06, 0x40]),
    ];
    for breach in breaches {
        let mut pair = midway(Security::Tls);
        let mut packet = forge(&pair, Side::Client, LongType::Initial, 500, breach);
        let now = pair.now;
        assert_eq!(pair.server().handle_datagram(now, &mut packet), Ok(()));
        assert_eq!(pair.server().counters().malformed, 1);
        // A client that is complete and not confirmed still reads Handshake packets.
        let mut packet = forge(&pair, Side::Server, LongType::Handshake, 500, breach);
        while !pair.client.is_complete() {
            assert!(pair.step());
        }
        let broken = pair.client.handle_datagram(pair.now, &mut packet);
        assert!(matches!(broken, Err(HandshakeError::Protocol(_))), "{broken:?}");
    }
}

#[test]
fn a_close_in_clear_is_believed_only_before_the_server_was_heard() {
    let close: fn(&mut Writer<'_>) -> Option<()> = |w| frame::write_close(w, 2, "go away");
    let mut pair = midway(Security::Tls);
    let late = forge(&pair, Side::Server, LongType::Initial, 500, close);
    let mut early = late.clone();
    let told = pair.client.handle_datagram(pair.now, &mut early);
    assert_eq!(told, Err(HandshakeError::Refused));
    let mut pair = midway(Security::Tls);
    let mut late = forge(&pair, Side::Server, LongType::Initial, 500, close);
    while !pair.client.is_complete() {
        assert!(pair.step());
    }
    assert_eq!(pair.client.handle_datagram(pair.now, &mut late), Ok(()));
}

#[test]
fn early_handshake_packets_wait_and_are_few() {
    let mut pair = midway(Security::DangerousPlain);
    for number in 0..50 {
        let mut packet = forge(&pair, Side::Server, LongType::Handshake, 600 + number, |writer| {
            frame::write_ping(writer)
        });
        pair.client.handle_datagram(pair.now, &mut packet).unwrap();
    }
    assert!(pair.client.early.len() <= 8);
    assert_eq!(pair.client.counters().ignored, 50 - 8);
    while !pair.client.is_complete() {
        assert!(pair.step());
    }
    assert!(pair.client.early.is_empty());
}

#[test]
fn a_client_that_says_nothing_is_given_up() {
    let mut pair = midway(Security::DangerousPlain);
    let server = pair.server();
    let end = bats_types::Timestamp::from_millis(11_000);
    let mut now = bats_types::Timestamp::ZERO;
    let mut calls = 0;
    while let Some(at) = server.next_timeout()
        && now < end
        && !server.has_timed_out(now)
    {
        now = at.max(now);
        server.handle_timeout(now);
        while server.poll_datagram(now, &mut [0; 1_500], 0).is_some() {}
        calls += 1;
        assert!(calls < 100, "busy at {now}");
    }
    assert!(server.has_timed_out(now));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn garbage_and_mutations_never_panic_or_break(
        garbage in proptest::collection::vec(any::<u8>(), 0..200),
        mutations in proptest::collection::vec((0_usize..1_200, any::<u8>()), 1..6),
        cut in 0_usize..1_200,
    ) {
        let mut pair = midway(Security::DangerousPlain);
        let mut buffer = [0; 1_500];
        let now = pair.now + Duration::from_millis(500);
        pair.client.handle_timeout(now);
        let len = pair.client.poll_datagram(now, &mut buffer, usize::MAX).unwrap();
        let mut datagram = buffer[..len].to_vec();
        for (at, octet) in mutations {
            let at = at % len;
            datagram[at] ^= octet.max(1);
        }
        datagram.truncate(len.min(cut.max(1)));
        let mut garbage = garbage;
        if let Some(first) = garbage.first_mut() {
            *first |= 0x80;
        }
        for input in [garbage, datagram] {
            let _ = parse_first(&input);
            prop_assert_eq!(pair.client.handle_datagram(now, &mut input.clone()), Ok(()));
            prop_assert_eq!(pair.server().handle_datagram(now, &mut input.clone()), Ok(()));
        }
        prop_assert!(pair.run().is_some());
    }
}
