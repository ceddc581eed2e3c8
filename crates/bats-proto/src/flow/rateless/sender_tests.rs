use super::*;
use crate::wire::rank::RankEntry;
use crate::wire::varint::Reader;

const SYMBOL: usize = 45;
/// Bytes of a source packet of a flow without relays, and of one with relays.
const PACKET: usize = 40;
const RELAYED_PACKET: usize = 29;
const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// Reports within 13.25 ms may not count a packet.
fn path(loss: f64) -> PathView {
    PathView {
        rate_bytes_per_second: 1_000_000,
        smoothed_rtt: MS * 10,
        ack_interval: MS,
        loss,
        burst_factor: 1.0,
        loss_packets: 1_000,
        queue_delay: Duration::ZERO,
    }
}

fn parameters() -> RatelessSenderParameters {
    RatelessSenderParameters {
        max_symbol_size: SYMBOL,
        initial_credit: 1_000,
        goal: Goal::Balanced,
        budget: 1 << 20,
        receivers: 1,
        over_relays: false,
    }
}

fn sender() -> RatelessSender {
    RatelessSender::new(parameters())
}

fn relayed() -> RatelessSender {
    RatelessSender::new(RatelessSenderParameters { over_relays: true, ..parameters() })
}

/// Pushes a block of this many source packets.
fn push(sender: &mut RatelessSender, packets: usize, more: bool, loss: f64) {
    let size = if sender.parameters.over_relays { RELAYED_PACKET } else { PACKET };
    assert!(sender.push_block(SYMBOL, &path(loss), |bytes| {
        let data = content(packets * size - 1);
        bytes[..data.len()].copy_from_slice(&data);
        (data.len(), more)
    }));
}

fn poll(sender: &mut RatelessSender, now: Timestamp) -> bool {
    sender.poll(now, &mut Vec::new()).is_some()
}

fn send_all(sender: &mut RatelessSender, now: Timestamp) -> u64 {
    let mut sent = 0;
    while poll(sender, now) {
        sent += 1;
    }
    sent
}

fn report(decoded_below: u64, seen_end: u64, missing: &[(u64, u64)]) -> RankFeedback {
    let entry = |&(first, missing): &(u64, u64)| RankEntry { first, span: 1, missing };
    let entries = missing.iter().map(entry).collect();
    RankFeedback { decoded_below, seen_end, entries, ..RankFeedback::default() }
}

#[test]
fn blocks_have_half_the_initial_credit_while_there_is_that_much() {
    let mut sender = sender();
    assert_eq!(sender.room(), 500);
    push(&mut sender, 499, false, 0.0);
    assert_eq!((sender.cut, sender.room()), (499, 500));
    push(&mut sender, 2, false, 0.0);
    assert_eq!(sender.room(), 0, "499 are left");
    send_all(&mut sender, at(1));
    assert!(!sender.wants_block());
    sender.on_credit(1_001);
    assert_eq!(sender.room(), 500);
    sender.on_credit(900);
    assert_eq!(sender.room(), 500, "credit never shrinks");
    assert!(sender.wants_block());
    sender.on_polluted();
    assert_eq!(sender.room(), 64);
    let room = |initial_credit| {
        RatelessSender::new(RatelessSenderParameters { initial_credit, ..parameters() }).room()
    };
    assert_eq!([1, 3, 1_024, 9_000].map(room), [1, 1, 512, 512]);
}

/// A block takes 10 ms or a quarter of a round trip at the rate of the path, and has a batch at least.
#[test]
fn blocks_are_bounded_by_the_rate_if_asked_for() {
    let mut sender = sender();
    assert_eq!(sender.room(), 500);
    for (rate, rtt, expected) in [
        (1_000_000, 20, 16),
        (1_000_000, 40, 16),
        (2_000_000, 40, 20),
        (2_000_000, 400, 200),
        (1_000_000_000, 400, 500),
        (0, 400, 16),
    ] {
        let rtt = Duration::from_millis(rtt);
        let view = PathView { rate_bytes_per_second: rate, smoothed_rtt: rtt, ..path(0.0) };
        sender.bound_blocks(1_000, &view);
        assert_eq!(sender.room(), expected, "{rate} bytes/s, {rtt:?}");
    }
    sender.bound_blocks(1_000, &PathView { rate_bytes_per_second: 0, ..path(0.0) });
    let mut cut = 0;
    while sender.wants_block() {
        push(&mut sender, 10, true, 0.0);
        cut += 10;
    }
    assert_eq!(cut, 20, "as many as a block has wait at least");
}

#[test]
fn block_has_one_byte_less_than_its_packets() {
    for (mut sender, size) in [(sender(), PACKET), (relayed(), RELAYED_PACKET)] {
        let mut len = 0;
        let pushed = sender.push_block(SYMBOL + 100, &path(0.0), |bytes| {
            len = bytes.len();
            (0, false)
        });
        assert_eq!((pushed, len), (false, 500 * size - 1));
        assert!(sender.all_acknowledged());
        for (bytes, held) in [(10, 11), (size - 1, size), (size, 2 * size)] {
            let before = sender.bytes_held();
            assert!(sender.push_block(SYMBOL, &path(0.0), |_| (bytes, false)));
            assert_eq!(sender.bytes_held() - before, held, "{bytes} bytes");
        }
        assert_eq!(sender.next_number(), 3);
    }
}

#[test]
fn further_block_is_wanted_when_fewer_than_64_packets_wait() {
    let mut sender = sender();
    push(&mut sender, 60, true, 0.0);
    assert!(sender.wants_block());
    push(&mut sender, 4, true, 0.0);
    assert!(!sender.wants_block());
    sender.set_link(Some(1));
    assert!(poll(&mut sender, at(1)));
    assert!(sender.wants_block());
    sender.set_link(Some(2));
    push(&mut sender, 59, true, 0.0);
    assert!(sender.wants_block(), "the first block is for the other link");
    push(&mut sender, 1, true, 0.0);
    assert!(!sender.wants_block());
}

#[test]
fn number_and_bytes_of_open_blocks_are_limited() {
    let mut sender = sender();
    for _ in 0..64 {
        assert!(sender.wants_block());
        push(&mut sender, 1, true, 0.0);
        send_all(&mut sender, at(1));
    }
    assert!(!sender.wants_block());
    sender.on_rank_feedback(0, at(2), &report(1, 64, &[]), &path(0.0)).unwrap();
    assert!(sender.wants_block());

    let budget = 10 * PACKET;
    let mut small = RatelessSender::new(RatelessSenderParameters { budget, ..parameters() });
    push(&mut small, 9, true, 0.0);
    send_all(&mut small, at(1));
    assert!(small.wants_block());
    push(&mut small, 1, true, 0.0);
    send_all(&mut small, at(1));
    assert!(!small.wants_block());
    let none = RatelessSender::new(RatelessSenderParameters { budget: 0, ..parameters() });
    assert!(none.wants_block(), "one block is always possible");
}

#[test]
fn first_round_has_the_repairs_of_the_expected_loss() {
    let rate = RateController::new(Goal::Balanced);
    for (more, class) in [(true, RepairClass::Bulk), (false, RepairClass::Tail)] {
        let repairs = rate.proactive(class, 100, &path(0.2)).ceil() as u64;
        let mut sender = sender();
        push(&mut sender, 100, more, 0.2);
        assert_eq!(send_all(&mut sender, at(1)), 100 + repairs);
        let counters = sender.counters();
        assert_eq!((counters.source_packets, counters.proactive_packets), (100, repairs));
        assert_eq!(counters.top_up_packets, 0);
        let mut relayed = relayed();
        push(&mut relayed, 100, more, 0.2);
        assert_eq!(send_all(&mut relayed, at(1)), 100 + repairs);
    }
    for (packets, spare) in [(255, 1), (256, 2)] {
        let mut relayed = relayed();
        push(&mut relayed, packets, false, 0.0);
        assert_eq!(send_all(&mut relayed, at(1)), packets as u64 + spare);
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

/// Packets of a batch of a block, by an encoder of its own.
fn batch_of(source_packets: u16, packet_size: usize, bid: u32) -> Vec<Vec<u8>> {
    let cache = Caches::new(64 << 20).open(u32::from(source_packets)).unwrap();
    let data = content(usize::from(source_packets) * packet_size - 1);
    let mut encoder = Encoder::new(cache, &data, packet_size).unwrap();
    let mut packets = vec![vec![0; encoder.coded_packet_len()]; BATCH];
    let mut outputs: Vec<&mut [u8]> = packets.iter_mut().map(Vec::as_mut_slice).collect();
    encoder.encode(bid, 0, &mut outputs).unwrap();
    packets
}

/// A receiver that asks for ever more packets of all blocks makes the sender hold no more than four caches.
#[test]
fn open_blocks_hold_no_batches() {
    let mut sender = sender();
    for packets in 20..28 {
        push(&mut sender, packets, true, 0.0);
    }
    for block in &mut sender.blocks {
        block.target = 200 * BATCH as u64;
    }
    let mut out = Vec::new();
    while sender.poll(at(1), &mut out).is_some() {}
    for block in &sender.blocks {
        let (packets, size) = (block.encoder.code().source_packets(), block.encoder.packet_size());
        let cache = Caches::new(0).open(packets).unwrap();
        let alone = Encoder::new(cache, &content(packets as usize * size - 1), size).unwrap();
        assert_eq!(block.encoder.bytes(), alone.bytes());
    }
    let (cached, most) = (sender.caches.bytes(), parameters().budget / 8);
    assert!(most / 10 * 9 < cached && cached <= most, "{cached}");
    sender.trim();
    assert_eq!(sender.caches.bytes(), 0);
}

#[test]
fn packets_count_through_the_flow_and_batches_through_each_block() {
    let mut sender = sender();
    push(&mut sender, 20, true, 0.0);
    push(&mut sender, 18, true, 0.0);
    let mut out = Vec::new();
    for sequence in 0..38_u32 {
        assert_eq!(sender.poll(at(1), &mut out), Some(PacketKind::Repair));
        let header = RatelessHeader::decode(&mut Reader::new(&out)).unwrap();
        let (block, packets, index) =
            if sequence < 20 { (0, 20, sequence) } else { (1, 18, sequence - 20) };
        let expected = RatelessHeader {
            sequence,
            block,
            source_packets: packets,
            packet_size: PACKET as u16,
            batch: index / 16,
        };
        assert_eq!(header, expected);
        let batch = batch_of(packets, PACKET, index / 16);
        assert_eq!(out[RATELESS_HEADER_LEN - BATCH..], batch[index as usize % 16]);
        let newest = sender.blocks[block as usize].in_flight.back();
        assert_eq!(newest, Some(&(u64::from(sequence), at(1))));
    }
    assert!(!sender.wants_to_send());
    assert!(sender.poll(at(1), &mut out).is_none());
}

#[test]
fn batches_of_a_relayed_flow_count_through_the_flow() {
    let mut sender = relayed();
    push(&mut sender, 20, true, 0.0);
    push(&mut sender, 18, true, 0.0);
    let mut out = Vec::new();
    for index in 0..40_u32 {
        assert_eq!(sender.poll(at(1), &mut out), Some(PacketKind::Repair));
        let header = RepairHeader::decode(&mut Reader::new(&out)).unwrap();
        // A spare packet each; the rest of the batch at the end of a block is not sent.
        let (block, count, position) =
            if index < 21 { (0, 20, index) } else { (1, 18, index - 21 + 32) };
        let (batch, column) = (position / 16, (position % 16) as u8);
        assert_eq!(header, RepairHeader { batch, column, first: block, count });
        let packets = batch_of(count, RELAYED_PACKET, batch);
        assert_eq!(out[REPAIR_HEADER_LEN..], packets[usize::from(column)]);
        let newest = sender.blocks[block as usize].in_flight.back();
        assert_eq!(newest, Some(&(u64::from(position), at(1))));
    }
    assert!(!sender.wants_to_send());
    assert!(sender.blocks.iter().all(|block| block.ready.is_empty()));
}

#[test]
fn batch_identifiers_have_24_bits() {
    let mut sender = sender();
    push(&mut sender, 20, true, 0.0);
    sender.blocks[0].next_batch = (1 << 24) + 5;
    let mut out = Vec::new();
    sender.poll(at(1), &mut out);
    assert_eq!(RatelessHeader::decode(&mut Reader::new(&out)).unwrap().batch, 5);
    assert_eq!(out[RATELESS_HEADER_LEN - BATCH..], batch_of(20, PACKET, 5)[0]);
    let mut relayed = relayed();
    push(&mut relayed, 20, true, 0.0);
    relayed.next_batch = (1 << 24) + 5;
    relayed.poll(at(1), &mut out);
    assert_eq!(RepairHeader::decode(&mut Reader::new(&out)).unwrap().batch, 5);
    assert_eq!(relayed.blocks[0].in_flight.back(), Some(&((1 << 28) + 80, at(1))));
}

/// The block that the next packet is from.
fn next_block(sender: &mut RatelessSender) -> u32 {
    let mut out = Vec::new();
    sender.poll(at(50), &mut out).unwrap();
    if sender.parameters.over_relays {
        RepairHeader::decode(&mut Reader::new(&out)).unwrap().first
    } else {
        RatelessHeader::decode(&mut Reader::new(&out)).unwrap().block
    }
}

#[test]
fn relayed_batch_is_sent_as_a_whole_before_another_block() {
    for (mut sender, over_relays) in [(sender(), false), (relayed(), true)] {
        push(&mut sender, 20, true, 0.0);
        while sender.wants_to_send() {
            poll(&mut sender, at(1));
        }
        push(&mut sender, 20, true, 0.0);
        for _ in 0..3 {
            assert_eq!(next_block(&mut sender), 1);
        }
        sender.on_rank_feedback(0, at(50), &report(0, 2, &[(0, 5)]), &path(0.0)).unwrap();
        if over_relays {
            for _ in 3..16 {
                assert_eq!(next_block(&mut sender), 1);
            }
        }
        for _ in 0..5 {
            assert_eq!(next_block(&mut sender), 0);
        }
        assert_eq!(next_block(&mut sender), 1);
    }
}

#[test]
fn each_link_sends_blocks_of_its_own() {
    let mut sender = sender();
    for _ in 0..3 {
        push(&mut sender, 3, true, 0.0);
    }
    sender.set_link(Some(1));
    assert_eq!(next_block(&mut sender), 0);
    assert!(sender.has_assigned(1) && !sender.has_assigned(2));
    sender.set_link(Some(2));
    assert_eq!(next_block(&mut sender), 1);
    assert!(sender.has_assigned(1) && sender.has_assigned(2));
    sender.set_link(Some(1));
    assert_eq!(next_block(&mut sender), 0);
    assert_eq!(next_block(&mut sender), 0);
    assert!(!sender.has_assigned(1), "all of its packets are sent");
    sender.release_assigned(1);
    assert!(sender.has_assigned(2));
    sender.release_assigned(2);
    assert!(!sender.has_assigned(2));
    assert_eq!(next_block(&mut sender), 1, "it is available to any link");
    assert!(sender.has_assigned(1));
    sender.set_link(None);
    assert_eq!(next_block(&mut sender), 1, "a single link sends all");
}

#[test]
fn reports_of_blocks_that_were_not_cut_are_errors() {
    let mut sender = sender();
    push(&mut sender, 2, true, 0.0);
    push(&mut sender, 2, true, 0.0);
    send_all(&mut sender, at(1));
    let mut answer = |report: RankFeedback| sender.on_rank_feedback(0, at(2), &report, &path(0.0));
    assert_eq!(answer(report(0, 3, &[])), Err(FlowError::NotSent(2)));
    assert_eq!(answer(report(3, 0, &[])), Err(FlowError::NotSent(2)));
    assert_eq!(answer(report(0, 2, &[(0, 1), (4, 1)])), Err(FlowError::NotSent(4)));
    assert_eq!(answer(report(0, 2, &[(1, 1)])), Ok(()));
    assert_eq!(answer(report(2, 2, &[])), Ok(()));
}

#[test]
fn block_is_done_when_every_receiver_has_decoded_it() {
    let mut sender = RatelessSender::new(RatelessSenderParameters { receivers: 2, ..parameters() });
    for _ in 0..3 {
        push(&mut sender, 2, true, 0.0);
    }
    send_all(&mut sender, at(1));
    let mut answer = |receiver, decoded_below, coded| {
        let report = RankFeedback { coded, wasted: coded / 10, ..report(decoded_below, 3, &[]) };
        sender.on_rank_feedback(receiver, at(2), &report, &path(0.0)).unwrap();
        (sender.blocks.len(), sender.bytes_held() / PACKET, sender.counters().peer_coded)
    };
    assert_eq!(answer(0, 3, 50), (3, 6, 50));
    assert_eq!(answer(1, 1, 40), (2, 4, 50));
    assert_eq!(answer(0, 1, 60), (2, 4, 60), "a report that was overtaken");
    assert_eq!(answer(1, 2, 60), (1, 2, 60));
    assert_eq!(answer(7, 3, 70), (1, 2, 70), "no such receiver");
    assert!(!sender.all_acknowledged());
    assert_eq!(sender.counters().peer_wasted, 7);
    sender.on_rank_feedback(1, at(2), &report(3, 3, &[]), &path(0.0)).unwrap();
    assert!(sender.all_acknowledged());
    assert_eq!(sender.bytes_held(), 0);
}

/// A sender that has sent a block of 40 packets at 100 ms, the last one at 101 ms.
fn after_first_round(more: bool) -> RatelessSender {
    let mut sender = sender();
    push(&mut sender, 40, more, 0.0);
    for _ in 0..39 {
        assert!(poll(&mut sender, at(100)));
    }
    assert!(poll(&mut sender, at(101)));
    assert!(!poll(&mut sender, at(101)));
    sender
}

/// Packets to send after a report that `missing` packets are missing and `seen` is the newest one.
fn top_up(sender: &mut RatelessSender, now: Timestamp, missing: u64, seen: Option<u64>) -> u64 {
    let report = RankFeedback { repair_seen: seen, ..report(0, 1, &[(0, missing)]) };
    sender.on_rank_feedback(0, now, &report, &path(0.2)).unwrap();
    sender.blocks[0].target - sender.blocks[0].sent
}

#[test]
fn first_round_ends_when_a_report_counts_its_last_packet() {
    let rate = RateController::new(Goal::Balanced);
    for (more, class) in [(true, RepairClass::Bulk), (false, RepairClass::Tail)] {
        let wanted = rate.top_up(class, 10, 1, &path(0.2));
        let mut sender = after_first_round(more);
        assert_eq!(top_up(&mut sender, at(102), 10, None), 0);
        assert_eq!(top_up(&mut sender, at(102), 10, Some(38)), 0, "one is in flight");
        assert_eq!(top_up(&mut sender, at(102), 10, Some(39)), wanted);
        assert_eq!(top_up(&mut sender, at(102), 10, Some(39)), wanted, "they are to be sent");
        assert!(poll(&mut sender, at(103)) && poll(&mut sender, at(103)));
        assert_eq!(top_up(&mut sender, at(103), 10, Some(40)), wanted - 1, "one has arrived");
        assert_eq!(sender.counters().top_up_packets, 2);
    }
}

#[test]
fn packets_count_as_lost_after_a_round_trip_and_the_delay_of_reports() {
    let horizon = Duration::from_micros(13_250);
    let mut sender = after_first_round(true);
    let before = (at(101) + horizon).saturating_sub(Duration::from_nanos(1));
    assert_eq!(top_up(&mut sender, before, 10, None), 0);
    assert!(top_up(&mut sender, at(101) + horizon, 10, None) > 10);
    assert_eq!(sender.blocks[0].rounds, 1);
}

#[test]
fn over_relays_only_the_age_of_a_packet_shows_that_it_is_lost() {
    let mut sender = after_first_round(true);
    sender.set_feedback_delay(MS * 70);
    assert_eq!(top_up(&mut sender, at(170), 10, Some(39)), 0);
    assert!(top_up(&mut sender, at(171), 10, Some(39)) > 10);
}

#[test]
fn each_round_without_packets_in_flight_has_a_larger_margin() {
    let rate = RateController::new(Goal::Balanced);
    let mut sender = after_first_round(true);
    for round in 1..4 {
        let now = at(1_000 * u64::from(round));
        let wanted = rate.top_up(RepairClass::Bulk, 30, round, &path(0.2));
        assert_eq!(top_up(&mut sender, now, 30, None), wanted);
        assert_eq!(send_all(&mut sender, now), wanted);
    }
    let wanted = rate.top_up(RepairClass::Bulk, 1_024, 4, &path(0.2));
    assert_eq!(top_up(&mut sender, at(9_000), 1 << 40, None), wanted, "more than a block needs");
}

#[test]
fn probe_sends_two_packets_of_the_oldest_block() {
    let mut sender = sender();
    assert!(!sender.on_probe_timeout(), "nothing is open");
    push(&mut sender, 3, true, 0.0);
    push(&mut sender, 3, true, 0.0);
    assert!(sender.on_probe_timeout());
    assert_eq!(send_all(&mut sender, at(1)), 6, "they were to be sent anyway");
    assert!(sender.on_probe_timeout());
    assert!(sender.blocks[0].in_flight.is_empty());
    assert_eq!((next_block(&mut sender), next_block(&mut sender)), (0, 0));
    assert!(!sender.wants_to_send());
}

#[test]
fn spare_buffers_are_limited_to_two_batches() {
    let mut sender = relayed();
    push(&mut sender, 2, true, 0.0);
    sender.spare = vec![Vec::new(); 60];
    send_all(&mut sender, at(1));
    assert_eq!(sender.spare.len(), 32);
    sender.spare = vec![Vec::new(); 60];
    sender.on_rank_feedback(0, at(2), &report(0, 1, &[]), &path(0.0)).unwrap();
    assert_eq!(sender.spare.len(), 32);
    sender.spare = vec![Vec::new(); 20];
    sender.blocks[0].ready = vec![Vec::new(); 4];
    sender.on_rank_feedback(0, at(2), &report(1, 1, &[]), &path(0.0)).unwrap();
    assert_eq!(sender.spare.len(), 24);
}
