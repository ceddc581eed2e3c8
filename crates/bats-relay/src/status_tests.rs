//! Statistics of the packets that a relay holds and has sent.

use core::time::Duration;

use super::tests::{KEY, LINK_DOWN, LINK_UP, relayed, two_link_relay, view};
use super::*;

#[test]
fn flows_and_queues_count_what_the_relay_has() {
    let (now, seen) = (Timestamp::from_millis(1), view(10_000_000, 20));
    let mut relay = two_link_relay();
    relay.set_view(now, LINK_DOWN, &seen);
    assert_eq!((relay.flows(now).count(), relay.link_queue(LinkId(9))), (0, None));
    for number in 0..5 {
        let packet = relayed(KEY, 5, number, 40);
        relay.on_packet(now, LINK_UP, &seen, PacketKind::Source, &packet);
    }
    let mut out = Vec::new();
    for number in 1..=2 {
        assert!(relay.pull(now, LINK_DOWN, &seen, number, &mut out).is_some());
    }
    let later = now + Duration::from_secs(2);
    let [flow] = relay.flows(later).collect::<Vec<_>>()[..] else { panic!("one flow") };
    assert_eq!((flow.key, flow.idle), (KEY, Duration::from_secs(2)));
    // 4 bytes of coding header and 40 of payload.
    assert_eq!((flow.packets_received, flow.bytes_received), (5, 220));
    assert_eq!((flow.packets_sent, flow.bytes_sent), (2, 88));
    assert_eq!((flow.queued, flow.unreported), (3, 2));
    let queue = relay.link_queue(LINK_DOWN).unwrap();
    assert_eq!((queue.flows, queue.queued, queue.end_to_end_queued), (1, 3, 0));
    assert_eq!(queue.bytes_held, flow.bytes_held);
    assert_eq!(queue.bytes_held, relay.stats().memory.bytes_held);
}
