//! Relays that lie, strangers that forge, relays that restart, links that break: what is delivered is
//! what was sent (`Hops` checks each message), and afterwards things go on.

use std::time::Duration;

use bats_proto::fuzzing::{open_short, seal_as};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::{Input, Received};
use bats_sim::hops::Hops;
use bats_sim::line::{Line, Way};
use bats_sim::matrix::Cell;

fn hops(count: usize, loss: f64, seconds: u64) -> Hops {
    let cell = Cell { seed: 3, ..Cell::over(20, 5, loss, seconds) };
    Hops::new(count, cell, true)
}

/// Row 30, insider: the second relay flips a byte of one in a thousand coded packets. Its link's
/// seal is right; the symbols' is not.
#[test]
fn a_relay_that_lies_is_seen_and_nothing_of_it_is_delivered() {
    let run = hops(3, 0.02, 6);
    let honest = run.run().goodput();
    let mut line = Line::new(run.line());
    let mut count = 0_u64;
    let (told, flips) = (std::rc::Rc::new(std::cell::Cell::new(0)), 1_000);
    let flipped = told.clone();
    line.tamper = Some(Box::new(move |link, way, bytes| {
        if link != 1 || way != Way::Forth {
            return;
        }
        let Some((header, mut payload)) = open_short(true, 0, bytes) else { return };
        if !header.carried || header.kind == PacketKind::Control {
            return;
        }
        count += 1;
        if count.is_multiple_of(flips) {
            let last = payload.len() - 1;
            payload[last] ^= 0x40;
            *bytes = seal_as(true, 0, header, &payload);
            flipped.set(flipped.get() + 1);
        }
    }));
    let outcome = run.run_on(&mut line, |_, _| {});
    let altered = outcome.receiver.symbols_altered;
    let goodput = outcome.goodput();
    println!(
        "{} packets altered, {altered} symbols refused, {goodput:.1} of {honest:.1} Mbit/s",
        told.get()
    );
    assert!(told.get() >= 5, "the relay did lie");
    assert!(altered >= 1, "and was found out");
    assert!(goodput > 0.3 * honest, "what is altered is sent again");
}

/// Row 30, outsider: forged and replayed packets on the middle link change nothing.
#[test]
fn strangers_get_nothing_into_a_flow() {
    let run = hops(3, 0.0, 2);
    let mut line = Line::new(run.line());
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::<Vec<u8>>::new()));
    let copies = seen.clone();
    line.tamper = Some(Box::new(move |link, way, bytes| {
        if link == 1 && way == Way::Forth && copies.borrow().len() < 200 {
            copies.borrow_mut().push(bytes.clone());
        }
    }));
    let outcome = run.run_on(&mut line, |_, _| {});
    assert_eq!(outcome.receiver.symbols_altered, 0);
    let now = line.now();
    let before = line.relay_stats(2);
    let remote = "10.0.1.1:4000".parse().expect("an address");
    let mut forged = 0;
    for round in 0..500_usize {
        for bytes in seen.borrow().iter() {
            let mut bytes = bytes.clone();
            // The first round replays; the others change a byte.
            if round > 0 {
                let at = 5 + (round * 7 + forged) % (bytes.len() - 5);
                bytes[at] ^= 1 + (round % 255) as u8;
            }
            forged += 1;
            let payload = &mut bytes[..];
            let received = Received { remote, local_ip: None, ecn: 0, payload };
            line.node(2).handle(now, Input::Datagram(received));
        }
    }
    assert!(forged >= 100_000);
    assert_eq!(line.relay_stats(2), before, "not one was taken");
    // Nor does anything of a network pass for a packet between the ends.
    let remote = "[100::1:1:1]:1".parse().expect("an address");
    let mut bytes = seen.borrow()[0].clone();
    let dropped = line.node(2).endpoint_stats().datagrams_dropped;
    let received = Received { remote, local_ip: None, ecn: 0, payload: &mut bytes };
    line.node(2).handle(now, Input::Datagram(received));
    assert_eq!(line.node(2).endpoint_stats().datagrams_dropped, dropped + 1);
}

/// Mbit/s in the second from `at` on.
fn rate_from(delivered: &[u64], at: f64) -> f64 {
    let index = |second: f64| (second / Hops::SAMPLE.as_secs_f64()).round() as usize;
    (delivered[index(at + 1.0)] - delivered[index(at)]) as f64 * 8e-6
}

/// A relay loses all its state in the middle of a transfer and comes back.
#[test]
fn a_relay_that_restarts_costs_what_was_under_way() {
    let run = hops(3, 0.05, 8);
    let mut line = Line::new(run.line());
    let mut restarted = false;
    let outcome = run.run_on(&mut line, |line, time| {
        if !restarted && time >= Duration::from_secs(3) {
            restarted = true;
            line.restart(1);
        }
    });
    assert!(restarted);
    let second = |at: f64| rate_from(&outcome.delivered, at);
    let (before, after) = (second(1.8), second(5.0));
    println!("{before:.1} Mbit/s before, {after:.1} after");
    assert!(after > 0.9 * before, "{after} after {before}");
    // Back within a second: the links' handshakes, then reports and repairs.
    assert!(second(4.0) > 0.5 * before, "{}", second(4.0));
}

/// Row 8 for a middle link: it is dead for a while, then the flow goes on.
#[test]
fn a_link_in_the_middle_may_be_dead_for_a_while() {
    let run = hops(3, 0.05, 8);
    let mut line = Line::new(run.line());
    let link = run.cell.link();
    let mut steps = 0;
    let outcome = run.run_on(&mut line, |line, time| {
        if steps == 0 && time >= Duration::from_secs(3) {
            line.set_link(1, &bats_netem::LinkConfig { black_hole: true, ..link.clone() });
            steps = 1;
        }
        if steps == 1 && time >= Duration::from_secs(5) {
            line.set_link(1, &link);
            steps = 2;
        }
    });
    assert_eq!(steps, 2);
    let rate = |at: f64| rate_from(&outcome.delivered, at);
    let (before, hole, after) = (rate(1.5), rate(3.8), rate(6.5));
    println!("{before:.1}, {hole:.1}, {after:.1} Mbit/s");
    assert!(hole < 0.1 * before && after > 0.9 * before);
}

/// When nobody speaks, relays forget.
#[test]
fn relays_forget_silent_flows() {
    let mut run = hops(3, 0.05, 1);
    run.cell.duration = Duration::from_millis(500);
    let mut config = run.line();
    config.relay.idle_timeout = Duration::from_secs(5);
    config.transport.idle_timeout = Duration::from_secs(3_000);
    config.transport.keep_alive = None;
    let mut line = Line::new(config);
    run.run_on(&mut line, |_, _| {});
    assert!(line.relay_stats(1).flows >= 2);
    // The source goes on with what it was given; then it is silent.
    let end = line.now() + Duration::from_secs(120);
    while line.now() < end {
        line.step(end);
        for (node, handle, event) in core::mem::take(&mut line.events) {
            if event == bats_proto::Event::Readable {
                let now = line.now();
                while line.node(node).recv(now, handle).is_some() {}
                line.touch(node);
            }
        }
    }
    for node in 1..3 {
        let stats = line.relay_stats(node);
        assert_eq!((stats.flows, stats.bytes_held), (0, 0), "node {node}");
        assert!(stats.flows_expired >= 2);
    }
}
