//! A source and a member, without relays between them.

use bats_types::Timestamp;
use bytes::Bytes;

use super::*;
use crate::config::PresharedKey;
use crate::error::SendError;
use crate::wire::announcement::{Announcement, AnnouncementHeader};
use crate::wire::coding::SourceHeader;
use crate::wire::flow::FlowKey;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

const FLOW: FlowKey =
    FlowKey { destination: NodeId(0xe000_0001), source: NodeId(5), flow: 0x0102_0304 };
const START: Timestamp = Timestamp::from_millis(1_000);
/// Bytes of a packet of the link.
const PACKET: u64 = 1_200;

fn key(byte: u8) -> PresharedKey {
    PresharedKey::new([byte; 32])
}

/// A source whose salt has this byte, of this instance of its node.
fn sender(flow: FlowKey, salt: u8, instance: u64) -> GroupSender {
    let random = ([salt; 16], 9, instance);
    GroupSender::new(START, flow, &key(1), GroupOptions::default(), random).unwrap()
}

fn member() -> GroupReceiver {
    GroupReceiver::new(key(1), GroupOptions::default())
}

/// Sends a message, and returns its packets.
fn packets(sender: &mut GroupSender, now: Timestamp, message: Bytes) -> Vec<(PacketKind, Vec<u8>)> {
    sender.send(now, message).unwrap();
    let mut packets = Vec::new();
    let mut out = Vec::new();
    while let Some(kind) = sender.poll(now, PACKET, &mut out) {
        assert!(out.len() as u64 <= PACKET);
        packets.push((kind, out.clone()));
    }
    packets
}

fn transfer(sender: &mut GroupSender, member: &mut GroupReceiver, now: Timestamp, message: Bytes) {
    for (kind, packet) in packets(sender, now, message) {
        member.on_coded(now, sender.flow(), kind, &packet);
    }
}

fn message(number: u8, len: usize) -> Bytes {
    vec![number; len].into()
}

fn received(member: &mut GroupReceiver) -> Vec<(u32, u8, usize)> {
    let messages = core::iter::from_fn(|| member.recv());
    messages.map(|got| (got.source.0, got.message[0], got.message.len())).collect()
}

#[test]
fn member_reads_what_follows_the_announcement() {
    let (mut sender, mut member) = (sender(FLOW, 1, 0), member());
    let announcement = sender.announcement(START).unwrap();
    assert_eq!(sender.announcement(START), None, "the next one is due later");
    transfer(&mut sender, &mut member, START, message(1, 100));
    assert_eq!((received(&mut member), member.stats().unknown), (vec![], 1));
    member.on_control(START, FLOW, &announcement);
    // Longer messages take several symbols.
    for (number, len) in [(2, 100), (3, 5_000), (4, 1)] {
        transfer(&mut sender, &mut member, START, message(number, len));
    }
    assert_eq!(received(&mut member), [(5, 2, 100), (5, 3, 5_000), (5, 4, 1)]);
    let stats = member.stats();
    assert_eq!((stats.sources, stats.messages, stats.messages_lost, stats.polluted), (1, 3, 0, 0));
}

/// A member that joins while a long message is sent begins with the next one.
#[test]
fn late_member_begins_with_a_whole_message_and_counts_no_losses() {
    let (mut sender, mut late) = (sender(FLOW, 1, 0), member());
    for number in 0..250 {
        packets(&mut sender, START, message(number, 1_000));
    }
    // A part of this one is in a symbol when the announcement is made.
    sender.send(START, message(250, 60_000)).unwrap();
    let mut out = Vec::new();
    sender.poll(START, PACKET, &mut out).unwrap();
    let now = START + Duration::from_millis(10);
    late.on_control(now, FLOW, &sender.announcement(now).unwrap());
    while let Some(kind) = sender.poll(now, PACKET, &mut out) {
        late.on_coded(now, FLOW, kind, &out);
    }
    for number in 251..255 {
        transfer(&mut sender, &mut late, now, message(number, 1_000));
    }
    let expected: Vec<_> = (251..255).map(|number| (5, number, 1_000)).collect();
    assert_eq!((received(&mut late), late.stats().messages_lost), (expected, 0));
    // After the end, what is missing is lost.
    packets(&mut sender, now, message(255, 1_000));
    sender.finish(now);
    late.on_control(now, FLOW, &sender.announcement(now).unwrap());
    let later = late.next_timeout().unwrap();
    assert!(later <= now + Duration::from_secs(1));
    late.handle_timeout(later);
    assert_eq!(late.stats().messages_lost, 1);
}

#[test]
fn announcements_are_repeated_quickly_at_first_and_then_each_second() {
    let mut sender = sender(FLOW, 1, 0);
    let times = |sender: &mut GroupSender, from: Timestamp, seconds: u64| {
        let mut times = Vec::new();
        for ms in 0..seconds * 1_000 {
            let now = from + Duration::from_millis(ms);
            if sender.next_timeout() <= now {
                sender.handle_timeout(now);
                times.extend(sender.announcement(now).map(|_| ms));
            }
        }
        times
    };
    let quick = [0, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_280, 3_280];
    assert_eq!(times(&mut sender, START, 4), quick);
    // The first message may be sent long after the sender was opened.
    let first = START + Duration::from_secs(100);
    packets(&mut sender, first, message(1, 9));
    assert_eq!(times(&mut sender, first, 4), quick);
    // The end is announced some times.
    let last = first + Duration::from_secs(100);
    sender.finish(last);
    assert_eq!(times(&mut sender, last, 4), quick[..7]);
    assert!(sender.is_over());
    assert_eq!(sender.send(last, message(2, 1)), Err(SendError::Finished));
    assert_eq!(sender.stats().announcements, 29);
}

#[test]
fn forged_or_foreign_announcements_have_no_effect() {
    let (mut sender, mut member) = (sender(FLOW, 1, 3), member());
    let announcement = sender.announcement(START).unwrap();
    // Any changed byte, another flow, and another key.
    for at in 0..announcement.len() {
        let mut forged = announcement.clone();
        forged[at] ^= 1;
        member.on_control(START, FLOW, &forged);
        member.on_control(START, FLOW, &announcement[..at]);
    }
    for foreign in [
        FlowKey { source: NodeId(6), ..FLOW },
        FlowKey { flow: 7, ..FLOW },
        FlowKey { destination: NodeId(0xe000_0002), ..FLOW },
    ] {
        member.on_control(START, foreign, &announcement);
    }
    GroupReceiver::new(key(2), GroupOptions::default()).on_control(START, FLOW, &announcement);
    let refused = 2 * announcement.len() as u64 + 3;
    assert_eq!((member.stats().announcements_refused, member.stats().sources), (refused, 0));
    member.on_control(START, FLOW, &announcement);
    assert_eq!((member.stats().announcements_refused, member.stats().sources), (refused, 1));
    // A forgery of a known flow does not keep it alive.
    let mut forged = announcement.clone();
    *forged.last_mut().unwrap() ^= 1;
    member.on_control(START + GROUP_SOURCE_TIMEOUT / 2, FLOW, &forged);
    member.handle_timeout(START + GROUP_SOURCE_TIMEOUT);
    assert_eq!(member.stats().sources, 0);
}

/// Symbols of a longer size than a member takes, malformed fields, or the end of a flow that it does not know.
#[test]
fn announcements_that_members_forge_are_checked() {
    let mut member = member();
    let mut announce = |number: u64, change: fn(&mut Announcement)| {
        let keys = crate::crypto::GroupKeys::derive(&key(1), &[1; 16], FLOW).unwrap();
        let mut fields = Announcement {
            instance: 1,
            code_seed: 1,
            max_symbol_size: MAX_GROUP_SYMBOL,
            first_symbol: (1 << 62) - 1,
            first_message: (1 << 62) - 1,
            is_end: false,
        };
        change(&mut fields);
        let mut packet = AnnouncementHeader { salt: [1; 16], number }.encode();
        assert!(keys.seal(number, fields.encode(), &mut packet));
        member.on_control(START, FLOW, &packet);
        (member.stats().announcements_refused, member.stats().sources)
    };
    assert_eq!(announce(1, |fields| fields.max_symbol_size += 1), (1, 0));
    assert_eq!(announce(2, |fields| fields.is_end = true), (2, 0));
    assert_eq!(announce(3, |fields| fields.first_symbol += 1), (3, 0));
    assert_eq!(announce(4, |_| ()), (3, 1), "the largest numbers");
    let symbol = [&[0xff, 0xff, 0xff, 15][..], &[0; 40]].concat();
    member.on_coded(START, FLOW, PacketKind::Source, &symbol);
    assert_eq!(member.recv(), None);
}

#[test]
fn newer_instance_of_a_source_replaces_the_older_one() {
    let mut member = member();
    let other_flow = FlowKey { flow: 9, ..FLOW };
    let (mut old, mut new) = (sender(FLOW, 1, 10), sender(other_flow, 2, 11));
    let recorded = old.announcement(START).unwrap();
    member.on_control(START, FLOW, &recorded);
    transfer(&mut old, &mut member, START, message(1, 9));
    member.on_control(START, other_flow, &new.announcement(START).unwrap());
    transfer(&mut new, &mut member, START, message(2, 9));
    // The older one is not heard any more, though a node may repeat what it has recorded.
    member.on_control(START, FLOW, &recorded);
    transfer(&mut old, &mut member, START, message(3, 9));
    // What it had sent before is not lost.
    assert_eq!(received(&mut member), [(5, 1, 9), (5, 2, 9)]);
    let stats = member.stats();
    assert_eq!((stats.sources, stats.announcements_refused, stats.unknown), (1, 1, 1));
    // The same flow with a new salt.
    let mut newest = sender(other_flow, 3, 12);
    member.on_control(START, other_flow, &newest.announcement(START).unwrap());
    transfer(&mut newest, &mut member, START, message(4, 9));
    assert_eq!(received(&mut member), [(5, 4, 9)]);
}

#[test]
fn sources_of_a_member_are_bounded_and_take_turns() {
    let mut member = member();
    let mut senders: Vec<GroupSender> = (0..=MAX_GROUP_SOURCES as u32)
        .map(|source| sender(FlowKey { source: NodeId(source), ..FLOW }, 1, 0))
        .collect();
    for sender in &mut senders {
        let announcement = sender.announcement(START).unwrap();
        member.on_control(START, sender.flow(), &announcement);
        for number in 0..2 {
            transfer(sender, &mut member, START, message(number, 9));
        }
    }
    let stats = member.stats();
    assert_eq!((stats.sources, stats.announcements_refused, stats.unknown), (16, 1, 2));
    let turns = (0..2).flat_map(|number| (0..16).map(move |source| (source, number, 9)));
    let expected: Vec<_> = turns.collect();
    assert_eq!(received(&mut member), expected);
    // One that has ended makes room.
    senders[3].finish(START);
    let now = START + Duration::from_millis(10);
    member.on_control(now, senders[3].flow(), &senders[3].announcement(now).unwrap());
    member.handle_timeout(now + Duration::from_secs(1));
    let last = &mut senders[16];
    member.on_control(now, last.flow(), &last.announcement(now).unwrap());
    transfer(last, &mut member, now, message(7, 9));
    assert_eq!(received(&mut member), [(16, 7, 9)]);
}

#[test]
fn queued_and_unread_messages_are_bounded() {
    let (mut sender, mut member) = (sender(FLOW, 1, 0), member());
    member.on_control(START, FLOW, &sender.announcement(START).unwrap());
    let size = 60_000;
    let accepted = (0..100).take_while(|_| sender.send(START, message(1, size)).is_ok()).count();
    assert_eq!(accepted, (1 << 20) / size);
    assert!(!sender.takes_writable());
    // What has expired makes room, although nothing was sent.
    let later = START + Duration::from_millis(201);
    sender.handle_timeout(later);
    assert!(sender.takes_writable() && !sender.takes_writable(), "reported once");
    assert_eq!(sender.stats().expired, accepted as u64);
    let limit = GroupOptions::default().max_message_size;
    let error = SendError::TooLarge { size: limit + 1, limit };
    assert_eq!(sender.send(later, message(1, limit + 1)), Err(error));
    // Unread messages: the newest stay.
    for number in 0..100 {
        transfer(&mut sender, &mut member, later, message(number, size));
    }
    let left = received(&mut member);
    assert!((15..=18).contains(&left.len()) && left.last() == Some(&(5, 99, size)), "{left:?}");
    let lost = member.stats().messages_lost;
    assert_eq!(lost, 100 - left.len() as u64, "the expired ones had no number in a symbol");
}

/// A relay that changes symbols cannot make a member deliver them, nor end its membership.
#[test]
fn polluted_and_malformed_packets_are_counted() {
    let (mut sender, mut member) = (sender(FLOW, 1, 0), member());
    member.on_control(START, FLOW, &sender.announcement(START).unwrap());
    for number in 0..20 {
        for (kind, mut packet) in packets(&mut sender, START, message(number, 500)) {
            if number < 10 {
                packet[10] ^= 1;
            }
            member.on_coded(START, FLOW, kind, &packet);
        }
        for kind in [PacketKind::Source, PacketKind::Repair, PacketKind::Recoded] {
            member.on_coded(START, FLOW, kind, &[1, 2]);
        }
    }
    let expected: Vec<_> = (10..20).map(|number| (5, number, 500)).collect();
    assert_eq!(received(&mut member), expected);
    let stats = member.stats();
    assert_eq!((stats.polluted, stats.sources), (10, 1));
    assert!(stats.malformed >= 59, "{stats:?}");
}

/// No node without the key can make a flow end: what a relay sends costs neither messages that were received nor, after the
/// next announcement, those that follow.
#[test]
fn packets_without_the_key_end_no_flow() {
    let (mut sender, mut member) = (sender(FLOW, 1, 0), member());
    member.on_control(START, FLOW, &sender.announcement(START).unwrap());
    transfer(&mut sender, &mut member, START, message(1, 9));
    // A symbol far ahead.
    for number in [5_000, 1_000_000] {
        let mut far = vec![0; 4];
        SourceHeader::new(number).encode(&mut Writer::new(&mut far)).unwrap();
        far.extend([0; 40]);
        member.on_coded(START, FLOW, PacketKind::Source, &far);
    }
    transfer(&mut sender, &mut member, START, message(2, 9));
    // Before the first of these, a symbol was authentic; before the second, none.
    for at in [10, 20] {
        let later = START + Duration::from_millis(at);
        member.on_control(later, FLOW, &sender.announcement(later).unwrap());
    }
    transfer(&mut sender, &mut member, START, message(3, 9));
    assert_eq!(received(&mut member), [(5, 1, 9), (5, 3, 9)], "the second was refused");
}

/// Restarts of a source cannot fill the memory of a member that reads nothing.
#[test]
fn unread_messages_of_ended_flows_are_bounded() {
    let mut member = member();
    for instance in 1..40 {
        let mut sender = sender(FLOW, instance, u64::from(instance));
        member.on_control(START, FLOW, &sender.announcement(START).unwrap());
        for _ in 0..4 {
            transfer(&mut sender, &mut member, START, message(instance, 50_000));
        }
    }
    let read = received(&mut member);
    // Those of ended flows, and of the last one.
    let most = (GroupOptions::default().receive_budget / 50_000 + 1) + 4;
    assert!((5..=most).contains(&read.len()), "{} of at most {most}", read.len());
    assert_eq!(member.stats().messages_lost, 39 * 4 - read.len() as u64);
}
