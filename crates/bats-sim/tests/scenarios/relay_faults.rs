//! Faults of relays: pollution, forged packets, restarts, link failures. Sessions deliver only
//! correct messages (`Hops` checks each one) and continue after the fault.

use std::time::Duration;

use bats_proto::fuzzing::{open_short, seal_as};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::{Input, Received};
use bats_sim::hops::Hops;
use bats_sim::matrix::Cell;
use bats_sim::relay_network::{LinkDirection, RelayNetwork};

fn hops(count: usize, loss: f64, seconds: u64) -> Hops {
    let cell = Cell { seed: 3, ..Cell::over(20, 5, loss, seconds) };
    Hops::new(count, cell, true)
}

/// Pollution by an insider: the first relay flips a bit in one of a thousand coded packets. The
/// link packets are authentic, but the symbols fail their authentication.
#[test]
fn polluted_symbols_are_counted_discarded_and_repaired() {
    let run = hops(3, 0.02, 6);
    let honest = run.run().goodput();
    let mut network = RelayNetwork::new(run.network_config());
    let mut count = 0_u64;
    let (polluted, interval) = (std::rc::Rc::new(std::cell::Cell::new(0)), 1_000);
    let counter = polluted.clone();
    network.tamper(Box::new(move |link, direction, bytes| {
        if link != 1 || direction != LinkDirection::Forward {
            return;
        }
        let Some((header, mut payload)) = open_short(true, 0, bytes) else { return };
        if !header.relayed || header.kind == PacketKind::Control {
            return;
        }
        count += 1;
        if count.is_multiple_of(interval) {
            let last = payload.len() - 1;
            payload[last] ^= 0x40;
            *bytes = seal_as(true, 0, header, &payload);
            counter.set(counter.get() + 1);
        }
    }));
    let outcome = run.run_on(&mut network, |_, _| {});
    let discarded = outcome.receiver.coding.symbols_polluted;
    let goodput = outcome.goodput();
    println!(
        "{} packets polluted, {discarded} symbols discarded, {goodput:.1} of {honest:.1} Mbit/s",
        polluted.get()
    );
    assert!(polluted.get() >= 5, "the relay pollutes packets");
    assert!(discarded >= 1, "polluted symbols are detected");
    assert!(goodput > 0.3 * honest, "polluted symbols are repaired");
}

/// An attacker without keys: forged and replayed packets on the middle link.
#[test]
fn forged_and_replayed_packets_change_no_relay_state() {
    let run = hops(3, 0.0, 2);
    let mut network = RelayNetwork::new(run.network_config());
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::<Vec<u8>>::new()));
    let copies = seen.clone();
    network.tamper(Box::new(move |link, direction, bytes| {
        if link == 1 && direction == LinkDirection::Forward && copies.borrow().len() < 200 {
            copies.borrow_mut().push(bytes.clone());
        }
    }));
    let outcome = run.run_on(&mut network, |_, _| {});
    assert_eq!(outcome.receiver.coding.symbols_polluted, 0);
    let now = network.now();
    let before = network.relay_stats(2);
    let remote = "10.0.1.1:4000".parse().expect("an address");
    let mut forged = 0;
    for round in 0..500_usize {
        for bytes in seen.borrow().iter() {
            let mut bytes = bytes.clone();
            // The first round replays the packets; the others corrupt a byte.
            if round > 0 {
                let at = 5 + (round * 7 + forged) % (bytes.len() - 5);
                bytes[at] ^= 1 + (round % 255) as u8;
            }
            forged += 1;
            let payload = &mut bytes[..];
            let received = Received { remote, local_ip: None, ecn: 0, payload };
            network.node(2).handle(now, Input::Datagram(received));
        }
    }
    assert!(forged >= 100_000);
    assert_eq!(network.relay_stats(2), before, "no packet is accepted");
}

/// Goodput in the second from `at` on, in Mbit/s.
fn rate_from(delivered: &[u64], at: f64) -> f64 {
    let index = |second: f64| (second / Hops::SAMPLE.as_secs_f64()).round() as usize;
    (delivered[index(at + 1.0)] - delivered[index(at)]) as f64 * 8e-6
}

/// A relay restarts during a transfer and loses all its state.
#[test]
fn goodput_recovers_within_two_seconds_after_a_relay_restart() {
    let run = hops(3, 0.05, 8);
    let mut network = RelayNetwork::new(run.network_config());
    let mut restarted = false;
    let outcome = run.run_on(&mut network, |network, time| {
        if !restarted && time >= Duration::from_secs(3) {
            restarted = true;
            network.restart(1);
        }
    });
    assert!(restarted);
    let second = |at: f64| rate_from(&outcome.delivered, at);
    let (before, after) = (second(1.8), second(5.0));
    println!("{before:.1} Mbit/s before, {after:.1} after");
    assert!(after > 0.9 * before, "{after} after {before}");
    // Half of the goodput returns within 1 s: link handshakes, then feedback and repairs.
    assert!(second(4.0) > 0.5 * before, "{}", second(4.0));
}

/// The blackout of the scenario `blackout`, on a link between relays.
#[test]
fn goodput_recovers_after_a_blackout_of_two_seconds_on_a_middle_link() {
    let run = hops(3, 0.05, 8);
    let mut network = RelayNetwork::new(run.network_config());
    let link = run.cell.link();
    let mut steps = 0;
    let outcome = run.run_on(&mut network, |network, time| {
        if steps == 0 && time >= Duration::from_secs(3) {
            network.set_link(1, &bats_netem::LinkConfig { black_hole: true, ..link.clone() });
            steps = 1;
        }
        if steps == 1 && time >= Duration::from_secs(5) {
            network.set_link(1, &link);
            steps = 2;
        }
    });
    assert_eq!(steps, 2);
    let rate = |at: f64| rate_from(&outcome.delivered, at);
    let (before, during, after) = (rate(1.5), rate(3.8), rate(6.5));
    println!("{before:.1} Mbit/s before, {during:.1} during, {after:.1} after the blackout");
    assert!(during < 0.1 * before && after > 0.9 * before);
}

#[test]
fn relays_delete_idle_flows_after_the_idle_timeout() {
    let mut run = hops(3, 0.05, 1);
    run.cell.duration = Duration::from_millis(500);
    let mut config = run.network_config();
    config.relay.idle_timeout = Duration::from_secs(5);
    config.transport.idle_timeout = Duration::from_secs(3_000);
    config.transport.keep_alive = None;
    let mut network = RelayNetwork::new(config);
    run.run_on(&mut network, |_, _| {});
    assert!(network.relay_stats(1).flows >= 2);
    // The source sends the data that it has accepted, and is idle afterwards.
    let end = network.now() + Duration::from_secs(120);
    while network.now() < end {
        network.step(end);
        for (node, handle, event) in core::mem::take(&mut network.events) {
            if event == bats_proto::Event::Readable {
                let now = network.now();
                while network.node(node).recv(now, handle).is_some() {}
                network.wake(node);
            }
        }
    }
    for node in 1..3 {
        let stats = network.relay_stats(node);
        assert_eq!((stats.flows, stats.memory.bytes_held), (0, 0), "node {node}");
        assert!(stats.flows_expired >= 2);
    }
}
