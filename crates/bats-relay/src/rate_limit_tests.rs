//! Rates of neighbours at a relay.

use core::num::NonZeroU64;
use core::time::Duration;

use super::tests::{KEY, LINK_DOWN, LINK_UP, Line, line, symbol, view};
use super::*;
use bats_wire::coding::SourceHeader;

const NOW: Timestamp = Timestamp::from_millis(1);
const OTHER_UP: LinkId = LinkId(3);
/// Bytes of a packet of the tests behind its flow header, and of an end-to-end packet.
const PACKET: usize = 1_004;
const BITS_PER_SECOND: u64 = 1_000_000;
/// Bytes that the bucket of this rate lets through at once: three full packets, and a part of one.
const BURST: usize = 4_500 + PACKET;

fn limited(bits_per_second: u64, group: u64) -> LinkPolicy {
    let bits_per_second = NonZeroU64::new(bits_per_second).unwrap();
    let rate = Some(RateLimit { bits_per_second, group: LimitGroup(group) });
    LinkPolicy { rate, ..LinkPolicy::default() }
}

fn relay() -> Relay {
    let mut relay = Relay::new(RelayConfig::new(NodeId(1)), 1);
    for link in [LINK_UP, OTHER_UP, LINK_DOWN] {
        // Without reports, and without loss, a packet is sent once.
        relay.add_link(link, false);
        relay.set_view(NOW, link, &view(100_000_000, 20));
    }
    relay.set_route(NOW, KEY.destination, LINK_DOWN);
    relay
}

fn receive(relay: &mut Relay, now: Timestamp, link: LinkId, key: FlowKey, number: u64) {
    let mut packet = vec![0; FLOW_HEADER_LEN + 4];
    let mut writer = Writer::new(&mut packet);
    FlowHeader { key, hop_limit: 9 }.encode(&mut writer).unwrap();
    SourceHeader::new(number).encode(&mut writer).unwrap();
    packet.extend(symbol(number).iter().cycle().take(PACKET - 4));
    relay.on_packet(now, link, &view(100_000_000, 20), PacketKind::Source, &packet);
}

/// Sends everything that may leave now; returns the payload bytes by source.
fn send(relay: &mut Relay, now: Timestamp, sent: &mut BTreeMap<NodeId, usize>) {
    let mut out = Vec::new();
    let view = view(100_000_000, 20);
    while relay.pull(now, LINK_DOWN, &view, now.as_nanos(), &mut out).is_some() {
        let header = FlowHeader::decode(&mut bats_wire::varint::Reader::new(&out)).unwrap();
        *sent.entry(header.key.source).or_default() += out.len() - FLOW_HEADER_LEN;
    }
}

/// Runs the timers for this time and sends what is due. Fails if a timer makes no progress.
fn run(relay: &mut Relay, time: Duration, sent: &mut BTreeMap<NodeId, usize>) {
    let (mut now, end) = (NOW, NOW + time);
    let mut at_once = 0;
    while now <= end {
        send(relay, now, sent);
        let Some(next) = relay.next_timeout().filter(|at| *at <= end) else { break };
        at_once = if next > now { 0 } else { at_once + 1 };
        assert!(at_once < 10, "a timer stays due at {now}");
        now = now.max(next);
        relay.handle_timeout(now);
    }
}

fn from(source: u32) -> FlowKey {
    FlowKey { source: NodeId(source), ..KEY }
}

#[test]
fn no_more_than_the_rate_of_a_neighbour_is_forwarded() {
    let mut relay = relay();
    relay.set_policy(NOW, LINK_UP, limited(BITS_PER_SECOND, 1));
    for number in 0..400 {
        receive(&mut relay, NOW, LINK_UP, from(2), number);
        receive(&mut relay, NOW, OTHER_UP, from(3), number);
    }
    let mut sent = BTreeMap::new();
    send(&mut relay, NOW, &mut sent);
    assert_eq!(sent[&NodeId(3)], 400 * PACKET, "another neighbour has no limit");
    assert!(sent[&NodeId(2)] <= BURST, "{sent:?}");
    assert!(!relay.has_backlog(LINK_DOWN), "a link that a rate keeps idle has no backlog");
    run(&mut relay, Duration::from_secs(1), &mut sent);
    let most = (BITS_PER_SECOND / 8) as usize + BURST;
    assert!((most * 95 / 100..=most).contains(&sent[&NodeId(2)]), "{sent:?}, at most {most}");
    let stats = relay.stats();
    assert_eq!(
        (stats.dropped.overflowed, stats.dropped.rate_limited, stats.batches.dropped),
        (0, 0, 0)
    );

    // Without the limit the rest leaves at once.
    relay.set_policy(NOW, LINK_UP, LinkPolicy::default());
    send(&mut relay, NOW + Duration::from_secs(1), &mut sent);
    assert_eq!(sent[&NodeId(2)], 400 * PACKET);
}

#[test]
fn links_of_a_group_share_a_rate_and_flows_take_turns() {
    for (other_group, shares) in [(1, 1), (2, 2)] {
        let mut relay = relay();
        relay.set_policy(NOW, LINK_UP, limited(BITS_PER_SECOND, 1));
        relay.set_policy(NOW, OTHER_UP, limited(BITS_PER_SECOND, other_group));
        for number in 0..100 {
            for source in 0..10 {
                receive(&mut relay, NOW, LINK_UP, from(10 + source), number);
                receive(&mut relay, NOW, OTHER_UP, from(30 + source), number);
            }
        }
        let mut sent = BTreeMap::new();
        run(&mut relay, Duration::from_secs(1), &mut sent);
        let total: usize = sent.values().sum();
        let most = shares * ((BITS_PER_SECOND / 8) as usize + BURST);
        assert!((most * 95 / 100..=most).contains(&total), "{total} of {most}");
        let (least, most) = (sent.values().min().unwrap(), sent.values().max().unwrap());
        assert!(sent.len() == 20 && most - least <= BURST, "{sent:?}");
    }
}

/// A flow whose packets come from two neighbours is limited in the part that comes from one.
#[test]
fn packets_from_another_neighbour_do_not_wait_behind_limited_ones() {
    let mut relay = relay();
    relay.set_policy(NOW, LINK_UP, limited(8_000, 1));
    for number in 0..160 {
        // Even batches from one, odd ones from the other.
        let link = if number / 16 % 2 == 0 { LINK_UP } else { OTHER_UP };
        receive(&mut relay, NOW, link, KEY, number);
    }
    let mut sent = BTreeMap::new();
    send(&mut relay, NOW, &mut sent);
    let total = sent[&KEY.source];
    assert!((80 * PACKET..=80 * PACKET + BURST).contains(&total), "{total}");
}

#[test]
fn end_to_end_packets_beyond_the_rate_are_dropped_and_counted() {
    let mut relay = relay();
    relay.set_policy(NOW, LINK_UP, limited(BITS_PER_SECOND, 1));
    let kind = PacketKind::Control;
    for number in 0..100_u8 {
        let mut packet = vec![number; FLOW_HEADER_LEN + PACKET];
        FlowHeader { key: KEY, hop_limit: 9 }.encode(&mut Writer::new(&mut packet)).unwrap();
        relay.on_packet(NOW, LINK_UP, &view(100_000_000, 20), kind, &packet);
    }
    let mut sent = BTreeMap::new();
    send(&mut relay, NOW, &mut sent);
    // A second burst is borrowed, so that handshakes do not wait for data.
    assert!(sent[&KEY.source] <= 2 * BURST, "{sent:?}");
    let forwarded = (sent[&KEY.source] / PACKET) as u64;
    assert_eq!(relay.stats().dropped.rate_limited, 100 - forwarded);
    // To this node they are no matter of the rate.
    let here = FlowKey { destination: NodeId(1), ..KEY };
    let mut packet = vec![7; FLOW_HEADER_LEN + PACKET];
    FlowHeader { key: here, hop_limit: 9 }.encode(&mut Writer::new(&mut packet)).unwrap();
    assert!(relay.on_packet(NOW, LINK_UP, &view(1_000_000, 20), kind, &packet).is_some());
}

/// Flows that end while they wait for their turn leave nothing behind.
#[test]
fn flows_that_end_give_up_their_turn() {
    let mut relay = relay();
    // Until the flows end, the rate lets only a few packets through.
    relay.set_policy(NOW, LINK_UP, limited(100, 1));
    for number in 0..4 {
        for source in 10..30 {
            receive(&mut relay, NOW, LINK_UP, from(source), number);
        }
    }
    let mut sent = BTreeMap::new();
    send(&mut relay, NOW, &mut sent);
    assert!(sent.len() < 10 && relay.next_timeout().is_some(), "most flows wait: {sent:?}");
    let end = NOW + relay.config.idle_timeout;
    relay.handle_timeout(end);
    assert_eq!((relay.flows.len(), relay.next_timeout()), (0, None));
    receive(&mut relay, end, LINK_UP, from(9), 1);
    send(&mut relay, end, &mut sent);
    assert_eq!(sent[&NodeId(9)], PACKET, "no other flow is before it");
}

/// At 100 bit/s a burst takes six minutes, and the turn of one flow 80 s.
#[test]
fn a_higher_rate_applies_at_once() {
    let mut relay = relay();
    relay.set_policy(NOW, LINK_UP, limited(100, 1));
    for number in 0..10 {
        receive(&mut relay, NOW, LINK_UP, from(2), number);
        receive(&mut relay, NOW, LINK_UP, from(3), number);
    }
    let mut sent = BTreeMap::new();
    send(&mut relay, NOW, &mut sent);
    let now = relay.limits.next_timeout().unwrap();
    assert!(now > NOW + Duration::from_secs(30), "{now:?}");
    relay.handle_timeout(now);
    send(&mut relay, now, &mut sent);
    assert!(sent.values().sum::<usize>() <= BURST + PACKET, "{sent:?}");
    assert!(relay.limits.next_timeout().unwrap() > now + Duration::from_secs(30));

    relay.set_policy(NOW, LINK_UP, limited(BITS_PER_SECOND, 1));
    let mut later = now;
    while let Some(at) = relay.next_timeout().filter(|&at| at < now + Duration::from_secs(1)) {
        later = later.max(at);
        relay.handle_timeout(later);
        send(&mut relay, later, &mut sent);
    }
    assert_eq!(sent.values().sum::<usize>(), 20 * PACKET, "{sent:?}");
}

#[test]
fn limits_without_a_link_are_dropped() {
    let mut relay = relay();
    relay.set_policy(NOW, LINK_UP, limited(8_000, 1));
    for number in 0..20 {
        receive(&mut relay, NOW, LINK_UP, KEY, number);
    }
    let mut sent = BTreeMap::new();
    send(&mut relay, NOW, &mut sent);
    assert!(sent[&KEY.source] <= BURST && relay.limits.next_timeout().is_some());
    relay.remove_link(NOW, LINK_UP);
    assert_eq!(relay.limits.next_timeout(), None);
    send(&mut relay, NOW, &mut sent);
    assert_eq!(sent[&KEY.source], 20 * PACKET);
}

/// Over lines of relays: the second relay limits the first one to a fifth of the links' rate.
fn limited_line(loss: f64) -> Line {
    let mut line = line(3, loss, 20);
    line.nodes[1].set_policy(NOW, LINK_UP, limited(448_000, 1));
    line
}

#[test]
fn a_rate_holds_the_source_back_and_loses_nothing() {
    for (loss, least) in [(0.0, 0.19), (0.1, 0.1)] {
        let mut line = limited_line(loss);
        let goodput = line.run(12_000, 10.0);
        let held = line.next - line.rank() as u64;
        println!("loss {loss}: {goodput} symbols in a slot, {held} held");
        // Recoded packets have longer headers, which count.
        assert!((least..=0.201).contains(&goodput), "{goodput}");
        assert!(held < 300, "{held} symbols wait in the relays");
        let stats = line.nodes[1].stats();
        assert_eq!(
            (stats.batches.dropped, stats.dropped.overflowed, stats.dropped.rate_limited),
            (0, 0, 0)
        );
        line.drain();
        assert_eq!((line.rank() as u64, line.payload_errors), (line.next, 0));
    }
}
