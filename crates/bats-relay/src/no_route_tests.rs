//! Packets for nodes to which a relay has no route: the NO_ROUTE packet to their source.

use core::time::Duration;

use super::tests::{KEY, LINK_UP};
use super::*;
use bats_wire::no_route::NoRoute;
use bats_wire::varint::Reader;

const START: Timestamp = Timestamp::from_millis(1_000);

fn opaque(relay: &mut Relay, now: Timestamp, key: FlowKey, payload: &[u8]) {
    let mut packet = vec![0; FLOW_HEADER_LEN];
    FlowHeader { key, hop_limit: 5 }.encode(&mut Writer::new(&mut packet)).unwrap();
    packet.extend_from_slice(payload);
    relay.on_packet(now, LINK_UP, &LinkView::default(), PacketKind::Control, &packet);
}

fn next(relay: &mut Relay, now: Timestamp) -> Option<(FlowHeader, Vec<u8>)> {
    let mut out = Vec::new();
    relay.pull(now, LINK_UP, &LinkView::default(), 1, &mut out)?;
    let mut reader = Reader::new(&out);
    let header = FlowHeader::decode(&mut reader).unwrap();
    Some((header, reader.rest().to_vec()))
}

#[test]
fn no_route_packets_go_to_the_source_once_a_second() {
    let mut relay = Relay::new(RelayConfig::new(NodeId(5)), 1);
    relay.add_link(LINK_UP, true);
    let packet = [3; 60];
    opaque(&mut relay, START, KEY, &packet);
    assert_eq!(next(&mut relay, START), None, "no route back");
    relay.set_route(START, KEY.source, LINK_UP);
    for (ms, other, is_sent) in
        [(1_000, 0, true), (1_500, 0, false), (1_500, 1, true), (2_000, 0, true)]
    {
        let now = START + Duration::from_millis(ms);
        let key = FlowKey { destination: NodeId(KEY.destination.0 + other), ..KEY };
        opaque(&mut relay, now, key, &packet);
        let sent = next(&mut relay, now);
        assert_eq!(sent.is_some(), is_sent, "{ms} ms, {other}");
        let Some((header, hint)) = sent else { continue };
        let back = FlowKey { destination: KEY.source, source: NodeId(5), flow: KEY.flow };
        assert_eq!(header.key, back);
        let hint = NoRoute::decode(&hint).unwrap();
        assert_eq!((hint.destination, hint.quoted), (key.destination, &packet[..32]));
    }
    assert_eq!(relay.stats().no_route_sent, 3);
}

/// Otherwise two relays could answer each other without end, and coded packets would cost more.
#[test]
fn no_answer_to_answers_and_coded_packets() {
    let mut relay = Relay::new(RelayConfig::new(NodeId(5)), 1);
    relay.add_link(LINK_UP, true);
    relay.set_route(START, KEY.source, LINK_UP);
    let hint = NoRoute { destination: NodeId(9), quoted: &[1; 20] }.encode();
    opaque(&mut relay, START, KEY, &hint);
    assert_eq!(next(&mut relay, START), None);
    let mut packet = vec![0; FLOW_HEADER_LEN];
    FlowHeader { key: KEY, hop_limit: 5 }.encode(&mut Writer::new(&mut packet)).unwrap();
    packet.extend([0; 40]);
    relay.on_packet(START, LINK_UP, &LinkView::default(), PacketKind::Source, &packet);
    assert_eq!(next(&mut relay, START), None);
    assert_eq!((relay.stats().dropped.unroutable, relay.stats().no_route_sent), (2, 0));
}
