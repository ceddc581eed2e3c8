//! Memory of a relay with ten thousand flows, counted by the allocator: payloads and batch state.

use std::time::Duration;

use bats_proto::Timestamp;
use bats_proto::relay::{LinkId, LinkView, Relay, RelayConfig};
use bats_proto::wire::coding::SourceHeader;
use bats_proto::wire::flow::{FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;

const UP: LinkId = LinkId(1);
const DOWN: LinkId = LinkId(2);
const NOW: Timestamp = Timestamp::from_millis(1_000);

fn relay(total_bytes: usize) -> Relay {
    let config = RelayConfig { total_bytes, ..RelayConfig::new(NodeId(2)) };
    let mut relay = Relay::new(config, 1);
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
    relay.on_packet(NOW, UP, &LinkView::default(), PacketKind::Source, packet);
}

/// Bytes that `work` allocates and does not free.
fn kept(work: impl FnOnce()) -> usize {
    let info = allocation_counter::measure(work);
    usize::try_from(info.bytes_current).expect("work frees no older memory")
}

#[test]
fn ten_thousand_flows_stay_within_the_memory_limit_of_the_relay() {
    const FLOWS: u32 = 10_000;
    let total = RelayConfig::new(NodeId(2)).total_bytes;
    let mut relay = relay(total);
    let mut packet = vec![5; FLOW_HEADER_LEN + 4 + 1_408];
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
    assert!(
        stats.memory.bytes_held as usize <= total && stats.memory.state_bytes as usize <= total
    );
    // Payloads, batch state, and rows and tables that are half full.
    assert!(bytes <= 3 * total, "{bytes}");
    let later = NOW + Duration::from_secs(300);
    let freed = allocation_counter::measure(|| relay.handle_timeout(later));
    assert_eq!((relay.stats().flows, relay.stats().memory.state_bytes), (0, 0));
    let left = bytes as i64 + freed.bytes_current;
    println!("{left} bytes remain after the idle time-out");
    assert!(left < bytes as i64 / 20, "{left}");
}

/// The limit holds for batch numbers with gaps and for a flow that the next hop does not drain.
#[test]
fn a_single_flow_stays_within_its_memory_limit() {
    const LIMIT: usize = 4 << 20;
    let jumps = |number: u64| number * 16 * 5;
    let full = |number: u64| number;
    for (name, step) in [("jumps", jumps as fn(u64) -> u64), ("full", full)] {
        let mut relay = relay(2 * LIMIT);
        let mut packet = vec![5; FLOW_HEADER_LEN + 4 + 1_408];
        let bytes = kept(|| {
            for number in 0..16_000 {
                push(&mut relay, &mut packet, 7, step(number));
            }
        });
        println!("{name}: {bytes} bytes, {:?}", relay.stats());
        // Half of the memory for payloads. The state of 4,096 batches is in addition.
        assert!(relay.stats().memory.bytes_held as usize <= LIMIT);
        assert!(relay.stats().memory.state_bytes as usize <= LIMIT, "{:?}", relay.stats());
        assert!(bytes <= 5 * LIMIT / 2, "{name}: {bytes}");
    }
}
