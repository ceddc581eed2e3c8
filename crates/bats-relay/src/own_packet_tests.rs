//! Packets of this node's own sessions.

use core::time::Duration;

use proptest::prelude::*;

use super::tests::{KEY, LINK_DOWN, NOW, symbol, view};
use super::*;
use bats_wire::batch_rank::Space;
use bats_wire::coding::SourceHeader;

/// What happens at a source.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Its session has a packet, if there is room.
    Own,
    /// The session sends an end-to-end packet.
    EndToEnd(u8),
    /// The link is idle.
    Pull,
    Wait(u16),
    /// The next node reports: ranks that are lower by so much, packets that are not counted, and room.
    Report(u8, u8, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Own),
        1 => any::<u8>().prop_map(Step::EndToEnd),
        4 => Just(Step::Pull),
        4 => (0_u16..3_000).prop_map(Step::Wait),
        2 => (0_u8..4, 0_u8..40, 0_u8..=255).prop_map(|(a, b, c)| Step::Report(a, b, c)),
    ]
}

fn source() -> Relay {
    let mut relay = Relay::new(RelayConfig::new(KEY.source), 1);
    relay.add_link(LINK_DOWN, true);
    relay.set_route(NOW, KEY.destination, LINK_DOWN);
    relay
}

proptest! {
    /// A packet that leaves at once, and that of a model in which it goes through the queue, are the same, and so
    /// is what follows.
    #[test]
    fn packets_that_leave_at_once_are_those_of_the_queue(
        steps in prop::collection::vec(step(), 1..300),
        (loss, rate) in (0_u8..40, 100_000_u64..100_000_000),
    ) {
        let seen = LinkView { loss: f64::from(loss) / 100.0, ..view(rate, 10) };
        let (mut relay, mut model) = (source(), source());
        let (mut now, mut next, mut number) = (NOW, 0_u64, 0_u64);
        for step in steps {
            let (mut out, mut expected) = (Vec::new(), Vec::new());
            let (mut kind, mut expected_kind) = (None, None);
            match step {
                Step::Own => {
                    let room = relay.has_room(now, KEY, LINK_DOWN);
                    prop_assert_eq!(room, model.has_room(now, KEY, LINK_DOWN));
                    if !room {
                        continue;
                    }
                    out.resize(4, 0);
                    SourceHeader::new(next).encode(&mut Writer::new(&mut out)).unwrap();
                    out.extend(symbol(next));
                    next += 1;
                    model.queue_coded(now, KEY, LINK_DOWN, PacketKind::Source, &out);
                    expected_kind = model.pull(now, LINK_DOWN, &seen, number, &mut expected);
                    let sent = (PacketKind::Source, number);
                    kind = relay.send_coded(now, KEY, LINK_DOWN, &seen, sent, &mut out);
                    prop_assert!(kind.is_some());
                }
                Step::EndToEnd(byte) => {
                    relay.send_opaque(now, KEY, &[byte; 40]);
                    model.send_opaque(now, KEY, &[byte; 40]);
                }
                Step::Pull => {
                    kind = relay.pull(now, LINK_DOWN, &seen, number, &mut out);
                    expected_kind = model.pull(now, LINK_DOWN, &seen, number, &mut expected);
                }
                Step::Wait(micros) => {
                    now += Duration::from_micros(micros.into());
                    relay.handle_timeout(now);
                    model.handle_timeout(now);
                }
                Step::Report(lost, missing, room) => {
                    let mark = number.saturating_sub(missing.into());
                    let (room, last) = (room.into(), next / 16);
                    let first = last.saturating_sub(2);
                    let ranks = (first..=last).map(|_| 16 - lost).collect();
                    let first = first as u32;
                    let report = BatchRank { key: KEY, space: Space::Source, mark, room, first, ranks };
                    relay.on_report(now, LINK_DOWN, &seen, &report);
                    model.on_report(now, LINK_DOWN, &seen, &report);
                }
            }
            prop_assert_eq!((kind, kind.map(|_| out)), (expected_kind, expected_kind.map(|_| expected)));
            number += u64::from(kind.is_some());
            // The model counted the packet among those that wait.
            let mut counted = [relay.stats(), model.stats()];
            counted.iter_mut().for_each(|stats| stats.memory.state_bytes = 0);
            prop_assert_eq!(counted[0], counted[1]);
            prop_assert_eq!(relay.next_timeout(), model.next_timeout());
        }
        prop_assert!(relay.flows(now).eq(model.flows(now)));
    }
}

#[test]
fn an_own_packet_leaves_at_once_unless_others_come_first() {
    let (mut relay, seen) = (source(), view(10_000_000, 10));
    let send = |relay: &mut Relay, number: u64| {
        let mut out = vec![0; 4];
        SourceHeader::new(number).encode(&mut Writer::new(&mut out)).unwrap();
        out.extend(symbol(number));
        let sent = (PacketKind::Source, number);
        relay.send_coded(NOW, KEY, LINK_DOWN, &seen, sent, &mut out).unwrap()
    };
    assert_eq!(send(&mut relay, 0), PacketKind::Source);
    assert_eq!(relay.link_queue(LINK_DOWN).unwrap().queued, 0);
    relay.send_opaque(NOW, KEY, &[1; 40]);
    assert_eq!(send(&mut relay, 1), PacketKind::Control, "the end-to-end packet");
    assert_eq!(relay.link_queue(LINK_DOWN).unwrap().queued, 1, "the packet waits");
}
