//! Limits of what neighbours can make a relay do and store, each tested at the limit and beyond.

use super::*;
use bats_code::recode::Basis;
use bats_wire::coding::SourceHeader;

const KEY: FlowKey = FlowKey { destination: NodeId(100), source: NodeId(0), flow: 7 };
const UP: LinkId = LinkId(1);
const DOWN: LinkId = LinkId(2);
const OTHER: LinkId = LinkId(3);
const NOW: Timestamp = Timestamp::from_millis(1_000);

fn relay() -> Relay {
    let mut relay = Relay::new(RelayConfig::new(NodeId(50)), 1);
    for link in [UP, DOWN, OTHER] {
        relay.add_link(link, true);
    }
    for link in [DOWN, OTHER] {
        assert!(relay.add_route(NOW, KEY.destination, link));
    }
    relay
}

fn packet(key: FlowKey, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; FLOW_HEADER_LEN + 4];
    let mut writer = Writer::new(&mut bytes);
    FlowHeader { key, hop_limit: 9 }.encode(&mut writer).unwrap();
    SourceHeader::new(number).encode(&mut writer).unwrap();
    bytes.resize(FLOW_HEADER_LEN + 44, number as u8 | 1);
    bytes
}

fn push(relay: &mut Relay, link: LinkId, key: FlowKey, number: u64) {
    let bytes = packet(key, number);
    relay.on_packet(NOW, link, &LinkView::default(), PacketKind::Source, &bytes);
}

fn links_in_use(relay: &Relay) -> Vec<LinkId> {
    relay.routes(KEY.destination).collect()
}

/// More than half of 1,000 packets non-innovative: an event. More than 800: the neighbour gets no
/// packets while there is another path.
#[test]
fn non_innovative_neighbour_is_demoted_until_it_recovers() {
    let half = NON_INNOVATIVE_WINDOW / 2;
    let few = NON_INNOVATIVE_WINDOW - MAX_NON_INNOVATIVE;
    for (useful, is_reported, is_left_out) in
        [(half, false, false), (half - 1, true, false), (few, true, false), (few - 1, true, true)]
    {
        let mut relay = relay();
        let back = FlowKey { destination: NodeId(0), source: NodeId(100), flow: 7 };
        relay.set_route(NOW, back.destination, UP);
        for number in 0..useful {
            push(&mut relay, DOWN, back, number);
        }
        for _ in useful..NON_INNOVATIVE_WINDOW {
            push(&mut relay, DOWN, back, 0);
        }
        let expected = if is_left_out { vec![OTHER] } else { vec![DOWN, OTHER] };
        assert_eq!(links_in_use(&relay), expected, "{useful}");
        assert_eq!(relay.stats().links_demoted, u64::from(is_left_out));
        let event = is_reported.then_some(RelayEvent::NonInnovativeNeighbour(DOWN));
        assert_eq!(relay.pop_event(), event);
        if !is_left_out {
            continue;
        }
        // It is used if it is the only link.
        relay.set_view(NOW, OTHER, &LinkView { alive: false, ..LinkView::default() });
        assert_eq!(links_in_use(&relay), [DOWN, OTHER]);
        relay.set_view(NOW, OTHER, &LinkView::default());
        assert_eq!(links_in_use(&relay), [OTHER]);
        for number in useful..useful + NON_INNOVATIVE_WINDOW {
            push(&mut relay, DOWN, back, number);
        }
        assert_eq!(links_in_use(&relay), [DOWN, OTHER]);
        assert_eq!((relay.pop_event(), relay.stats().links_demoted), (None, 1));
    }
}

#[test]
fn polluting_path_is_left_and_its_packets_move() {
    let mut relay = relay();
    for number in 0..16 {
        push(&mut relay, UP, KEY, number);
    }
    let (mut out, view) = (Vec::new(), LinkView::default());
    let first = links_in_use(&relay)[0];
    assert!(relay.pull(NOW, first, &view, 1, &mut out).is_some());
    let held = relay.stats().memory.bytes_held;
    assert!(!relay.mark_polluting(NOW, KEY.destination, UP), "not a path to the node");
    assert!(!relay.mark_polluting(NOW, NodeId(9), first), "no path to that node");
    assert!(relay.mark_polluting(NOW, KEY.destination, first));
    assert!(!relay.mark_polluting(NOW, KEY.destination, first), "marked already");
    let other = if first == DOWN { OTHER } else { DOWN };
    assert_eq!((links_in_use(&relay), relay.stats().memory.bytes_held), (vec![other], held));
    assert_eq!(relay.pop_event(), Some(RelayEvent::PollutingPath(first, KEY.destination)));
    assert!(relay.pull(NOW, first, &view, 2, &mut out).is_none());
    let sent = (1..40).filter(|&n| relay.pull(NOW, other, &view, n, &mut out).is_some()).count();
    assert_eq!(sent, 16);
    // The link may still be used for other nodes. If all paths pollute, all are used.
    relay.set_route(NOW, NodeId(60), first);
    assert_eq!(relay.routes(NodeId(60)).count(), 1);
    assert!(relay.mark_polluting(NOW, KEY.destination, other));
    assert_eq!((links_in_use(&relay).len(), relay.stats().polluting_paths), (2, 2));
    relay.remove_link(NOW, first);
    relay.add_link(first, true);
    assert!(relay.add_route(NOW, KEY.destination, first));
    assert_eq!(links_in_use(&relay), [first], "a new link is not marked");
}

/// A batch takes memory once a packet of it has arrived: its coefficients and its state for the next link.
#[test]
fn batch_state_counts_batches_of_which_packets_arrived() {
    let mut relay = relay();
    push(&mut relay, UP, KEY, 0);
    let first = relay.state;
    push(&mut relay, UP, KEY, 100 * 16);
    let batch = relay.state - first;
    assert!(batch > size_of::<Basis>() + size_of::<batch::Batch>());
    push(&mut relay, UP, KEY, 50 * 16);
    assert_eq!(relay.state - first, 2 * batch);
}

/// Batches of which packets arrived take memory even if their payloads were sent. It is limited, too.
#[test]
fn batch_state_is_bounded_and_freed() {
    let mut relay = relay();
    relay.config.total_bytes = 1 << 20;
    for number in 0..10_000 {
        let key = FlowKey { flow: number, ..KEY };
        for batch in [0, 3_900] {
            push(&mut relay, UP, key, batch * 16);
            let state: usize = relay.flows.values().map(|flow| flow.state).sum();
            assert_eq!(state, relay.state);
            assert!(relay.state <= (1 << 20) + (64 << 10), "{} bytes", relay.state);
        }
    }
    let stats = relay.stats();
    assert!(stats.dropped.overflowed > 5_000 && stats.memory.state_bytes >= 1 << 20, "{stats:?}");
    // Known flows continue with the batches that they have.
    let before = stats.dropped.overflowed;
    push(&mut relay, UP, FlowKey { flow: 99_999, ..KEY }, 1);
    assert_eq!(relay.stats().dropped.overflowed, before + 1, "a new flow is refused");
    push(&mut relay, UP, FlowKey { flow: 0, ..KEY }, 1);
    assert_eq!(relay.stats().dropped.overflowed, before + 1);
    relay.handle_timeout(NOW + relay.config.idle_timeout);
    assert_eq!((relay.flows.len(), relay.state, relay.bytes), (0, 0, 0));
    push(&mut relay, UP, KEY, 1);
    assert_eq!(relay.stats().flows, 1);
}
