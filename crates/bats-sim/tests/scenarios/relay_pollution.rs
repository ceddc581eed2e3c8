//! Pollution attack by a relay, whose link packets are valid. No polluted data are delivered (`Hops`
//! compares each message). A session identifies and leaves the polluting path if it has another one.
//! On a single path it tolerates a few polluted packets, or closes with a reason.

use std::cell::Cell as Counter;
use std::rc::Rc;
use std::time::Duration;

use bats_proto::error::CloseReason;
use bats_proto::fuzzing::{open_short, seal_as};
use bats_proto::relay::RelayEvent;
use bats_proto::wire::short_header::PacketKind;
use bats_proto::{Event, Mode};
use bats_sim::hops::Hops;
use bats_sim::matrix::Cell;
use bats_sim::relay_network::{LinkDirection, RelayNetwork};

/// The link from the polluting relay to the destination, in the diamond and in the chain.
const POLLUTED_LINK: usize = 2;

fn hops(count: usize, loss: f64, seconds: u64) -> Hops {
    let cell = Cell { seed: 3, ..Cell::over(20, 5, loss, seconds) };
    Hops::new(count, cell, true)
}

/// The packets that the relay pollutes.
#[derive(Clone, Copy, Debug)]
struct Pollution {
    /// Recoded packets only.
    recoded: bool,
    /// One in this many packets.
    every: u64,
}

/// Makes the relay before `POLLUTED_LINK` pollute packets; returns their count.
fn pollute(network: &mut RelayNetwork, pollution: Pollution) -> Rc<Counter<u64>> {
    let polluted = Rc::new(Counter::new(0));
    let (mut count, counter) = (0_u64, polluted.clone());
    network.tamper(Box::new(move |link, direction, bytes| {
        if link != POLLUTED_LINK || direction != LinkDirection::Forward {
            return;
        }
        let Some((header, mut payload)) = open_short(true, 0, bytes) else { return };
        let is_coded = header.relayed && header.kind != PacketKind::Control;
        if !is_coded || pollution.recoded && header.kind != PacketKind::Recoded {
            return;
        }
        count += 1;
        if count.is_multiple_of(pollution.every) {
            let middle = payload.len() - 20;
            payload[middle] ^= 0x40;
            *bytes = seal_as(true, 0, header, &payload);
            counter.set(counter.get() + 1);
        }
    }));
    polluted
}

/// Two parallel relays between source and destination.
fn diamond(run: &Hops, mode: Mode) -> RelayNetwork {
    let mut config = run.network_config();
    config.links = vec![run.cell.link(); 4];
    config.transport.mode = mode;
    RelayNetwork::mesh(config, vec![(0, 1), (0, 2), (1, 3), (2, 3)])
}

/// Maximum polluted symbols or blocks that the receiver discards until the path is left: three
/// blocks of 512 symbols, or the symbols in flight in that time.
fn most_polluted(mode: Mode) -> u64 {
    if mode == Mode::Brctp { 3 } else { 256 }
}

#[test]
fn brtp_leaves_a_polluting_path_for_another() {
    assert_leaves_polluting_path(
        Mode::Brtp,
        &[
            Pollution { recoded: false, every: 1_000 },
            Pollution { recoded: true, every: 20 },
            Pollution { recoded: false, every: 1 },
        ],
    );
}

#[test]
fn brctp_leaves_a_polluting_path_for_another() {
    let rare = Pollution { recoded: false, every: 1_000 };
    assert_leaves_polluting_path(Mode::Brctp, &[rare, Pollution { every: 1, ..rare }]);
}

fn assert_leaves_polluting_path(mode: Mode, all: &[Pollution]) {
    let run = hops(2, 0.05, 6);
    let mut single = run.network_config();
    single.transport.mode = mode;
    let one_way = run.run_on(&mut RelayNetwork::new(single), |_, _| {}).goodput();
    for &pollution in all {
        let mut network = diamond(&run, mode);
        let polluted = pollute(&mut network, pollution);
        let mut at_exclusion = None;
        let polluted_count = polluted.clone();
        let outcome = run.run_on(&mut network, |network, time| {
            if at_exclusion.is_none() && network.relay_stats(0).polluting_paths > 0 {
                at_exclusion = Some((time, polluted_count.get()));
            }
        });
        let discarded = outcome.receiver.coding.symbols_polluted;
        println!(
            "{mode:?} {pollution:?}: {} packets polluted, {discarded} discarded, path left after \
             {at_exclusion:?}, {:.1} of {one_way:.1} Mbit/s",
            polluted.get(),
            outcome.goodput(),
        );
        let (time, polluted_by_then) = at_exclusion.expect("the polluting path is identified");
        assert!(time <= Duration::from_millis(2_500), "{time:?}");
        // Packets in flight at that time still arrive.
        assert!(
            polluted.get() <= polluted_by_then + 40 + 400 / pollution.every,
            "{} polluted",
            polluted.get()
        );
        let stats = network.relay_stats(0);
        assert_eq!((stats.polluting_paths, network.relay_stats(3).polluting_paths), (1, 0));
        let link = network.link_connection(0).expect("the link to the polluting relay").0;
        let mut paths = Vec::new();
        while let Some(event) = network.node(0).poll_relay_event() {
            if let RelayEvent::PollutingPath(link, node) = event {
                paths.push((link.0, node));
            }
        }
        assert_eq!(paths, [(link, bats_sim::relay_network::node_id(3))], "only this path");
        assert!((1..=most_polluted(mode)).contains(&discarded), "{discarded} discarded");
        assert!(outcome.goodput() >= 0.8 * one_way, "{} of {one_way}", outcome.goodput());
    }
}

#[test]
fn one_polluted_packet_in_1000_keeps_80_per_cent_of_the_goodput_on_a_single_path() {
    for (mode, least) in [(Mode::Brtp, 0.8), (Mode::Brctp, 0.8)] {
        let run = hops(3, 0.02, 6);
        let mut config = run.network_config();
        config.transport.mode = mode;
        let honest = run.run_on(&mut RelayNetwork::new(config.clone()), |_, _| {}).goodput();
        let mut network = RelayNetwork::new(config);
        let polluted = pollute(&mut network, Pollution { recoded: false, every: 1_000 });
        let outcome = run.run_on(&mut network, |_, _| {});
        let share = outcome.goodput() / honest;
        let discarded = outcome.receiver.coding.symbols_polluted;
        println!(
            "{mode:?}: {} polluted, {discarded} discarded, {share:.3} of the rate",
            polluted.get()
        );
        assert!(polluted.get() >= 5 && discarded >= 1);
        assert!(share >= least, "{mode:?}: {share}");
    }
}

#[test]
fn a_single_path_that_pollutes_all_packets_closes_the_session() {
    for mode in [Mode::Brtp, Mode::Brctp, Mode::Btp] {
        let run = hops(3, 0.02, 8);
        let mut config = run.network_config();
        config.transport.mode = mode;
        let mut network = RelayNetwork::new(config);
        pollute(&mut network, Pollution { recoded: false, every: 1 });
        let client = network.connect_ends();
        let (mut reasons, mut sent) = (Vec::new(), 0_u64);
        let end = network.now() + Duration::from_secs(30);
        while network.now() < end && reasons.len() < 2 {
            network.step(end);
            let now = network.now();
            for (node, handle, event) in core::mem::take(&mut network.events) {
                match event {
                    Event::Connected | Event::Writable if (node, handle) == (0, client) => {
                        while network.node(0).send(now, client, vec![7; 1_000].into()).is_ok() {
                            sent += 1;
                        }
                        network.wake(0);
                    }
                    Event::Readable if node == network.last() => {
                        assert!(
                            network.node(node).recv(now, handle).is_none(),
                            "no message is delivered"
                        );
                    }
                    Event::Closed(reason) => reasons.push((node, reason)),
                    _ => {}
                }
            }
        }
        println!("{mode:?}: {sent} messages, {reasons:?}");
        let of = |node| reasons.iter().find(|(n, _)| *n == node).map(|(_, reason)| reason);
        assert!(matches!(of(3), Some(CloseReason::Pollution(_))), "{reasons:?}");
        assert!(
            matches!(of(0), Some(CloseReason::ReportedByPeer(why)) if why.contains("polluted")),
            "{reasons:?}"
        );
    }
}

/// BTP identifies the polluting path at the second polluted symbol, which fails its own
/// authentication. It has no blocks, and no batches that stay on one path.
#[test]
fn btp_leaves_a_polluting_path_for_another() {
    let run = hops(2, 0.05, 6);
    let mut network = diamond(&run, Mode::Btp);
    let polluted = pollute(&mut network, Pollution { recoded: false, every: 200 });
    let client = network.connect_ends();
    let (mut sent, mut arrived, mut next) = (0_u32, 0_u32, None);
    let end = network.now() + Duration::from_secs(6);
    let mut at_exclusion = None;
    while network.now() < end {
        network.step(next.unwrap_or(end).min(end));
        let now = network.now();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Readable if node == network.last() => {
                    while let Some(message) = network.node(node).recv(now, handle) {
                        let (number, rest) = message.split_first_chunk().expect("a number");
                        let number = u32::from_be_bytes(*number);
                        assert!(number < sent && rest.iter().all(|&o| o == number as u8));
                        arrived += 1;
                    }
                    network.wake(node);
                }
                _ => {}
            }
        }
        if at_exclusion.is_none() && network.relay_stats(0).polluting_paths > 0 {
            at_exclusion = Some(polluted.get());
        }
        if next.is_some_and(|at| at <= now) {
            let mut message = vec![sent as u8; 1_200];
            message[..4].copy_from_slice(&sent.to_be_bytes());
            // Until the rate is known, 12 Mbit/s do not fit in the send budget.
            if network.node(0).send(now, client, message.into()).is_ok() {
                sent += 1;
            }
            network.wake(0);
            next = Some(now + Duration::from_micros(800));
        }
    }
    let polluted = polluted.get();
    println!("{arrived} of {sent} messages, {polluted} polluted, path left after {at_exclusion:?}");
    assert_eq!(network.relay_stats(0).polluting_paths, 1);
    assert!(
        at_exclusion.is_some_and(|then| then <= 3 && polluted <= then + 2),
        "{polluted} polluted"
    );
    assert!(f64::from(arrived) >= 0.98 * f64::from(sent), "{arrived} of {sent}");
}
