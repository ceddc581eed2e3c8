//! Row 21 of the goals: ten thousand flows through one relay, by what the allocator counts: payloads,
//! and all that is remembered of batches.

use std::time::Duration;

use bats_proto::Timestamp;
use bats_proto::relay::{LEAST_FLOW_BYTES, LinkId, LinkView, Relay, RelayConfig};
use bats_proto::wire::coding::SourceHeader;
use bats_proto::wire::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;

const UP: LinkId = LinkId(1);
const DOWN: LinkId = LinkId(2);
const NOW: Timestamp = Timestamp::from_millis(1_000);

fn relay() -> Relay {
    let mut relay = Relay::new(RelayConfig::new(NodeId(2)), 1);
    relay.add_link(UP, true);
    relay.add_link(DOWN, true);
    relay.set_route(NOW, NodeId(3), DOWN);
    relay
}

fn push(relay: &mut Relay, packet: &mut [u8], flow: u32, number: u64) {
    let key = FlowKey { destination: NodeId(3), source: NodeId(1), flow };
    let mut writer = Writer::new(packet);
    FlowHeader { key, hop_limit: 9 }.encode(&mut writer).expect("room");
    SourceHeader::new(number).encode(&mut writer).expect("room");
    relay.on_carried(NOW, UP, &LinkView::default(), PacketKind::Source, packet);
}

/// Bytes allocated by `work` and kept.
fn kept(work: impl FnOnce()) -> usize {
    let info = allocation_counter::measure(work);
    usize::try_from(info.bytes_current).expect("nothing of before is freed")
}

#[test]
fn ten_thousand_flows_take_no_more_than_they_are_granted() {
    const FLOWS: u32 = 10_000;
    let mut relay = relay();
    let mut packet = vec![5; FLOW_HEADER_LEN + 4 + 1_408];
    let total = RelayConfig::new(NodeId(2)).total_bytes;
    let bytes = kept(|| {
        for number in 0..24 {
            for flow in 0..FLOWS {
                push(&mut relay, &mut packet, flow, number);
            }
        }
    });
    let stats = relay.stats();
    println!("{bytes} bytes for {} flows: {stats:?}", stats.flows);
    assert_eq!(stats.flows, u64::from(FLOWS));
    assert!(stats.bytes_held as usize <= total && stats.state_bytes as usize <= total);
    // The payloads, what is known of batches, and rows and tables that are half full.
    assert!(bytes <= 3 * total, "{bytes}");
    assert!(bytes / FLOWS as usize <= LEAST_FLOW_BYTES);
    let later = NOW + Duration::from_secs(300);
    let freed = allocation_counter::measure(|| relay.handle_timeout(later));
    assert_eq!((relay.stats().flows, relay.stats().state_bytes), (0, 0));
    let left = bytes as i64 + freed.bytes_current;
    println!("{left} bytes are left after silence");
    assert!(left < bytes as i64 / 20, "{left}");
}

/// Whatever a single flow does: batches far apart, or more than the next hop takes.
#[test]
fn a_flow_has_a_limit_of_its_own() {
    let jumps = |number: u64| number * 16 * 5;
    let full = |number: u64| number;
    for (name, step) in [("jumps", jumps as fn(u64) -> u64), ("full", full)] {
        let mut relay = relay();
        let mut packet = vec![5; FLOW_HEADER_LEN + 4 + 1_408];
        let bytes = kept(|| {
            for number in 0..4_000 {
                push(&mut relay, &mut packet, 7, step(number));
            }
        });
        println!("{name}: {bytes} bytes, {:?}", relay.stats());
        // What waits for a slow hop has 1 MiB; beside it stands what is known of 1,024 batches.
        assert!(relay.stats().bytes_held as usize <= LEAST_FLOW_BYTES);
        assert!(relay.stats().state_bytes as usize <= LEAST_FLOW_BYTES, "{:?}", relay.stats());
        assert!(bytes <= 5 * LEAST_FLOW_BYTES / 2, "{name}: {bytes}");
    }
}
