//! Row 30 of the goals, insider: a relay with right seals of its links alters what it carries. Nothing
//! of that is delivered (`Hops` compares each message); the way over it is found and left where there
//! is another, and where there is none the session gets on, or ends and says why.

use std::cell::Cell as Counter;
use std::rc::Rc;
use std::time::Duration;

use bats_proto::error::CloseReason;
use bats_proto::fuzzing::{open_short, seal_as};
use bats_proto::relay::RelayEvent;
use bats_proto::wire::short_header::PacketKind;
use bats_proto::{Event, Mode};
use bats_sim::hops::Hops;
use bats_sim::line::{Line, Way};
use bats_sim::matrix::Cell;

/// The link that leaves the relay that lies, in the diamond and in the line.
const OF_LIAR: usize = 2;

fn hops(count: usize, loss: f64, seconds: u64) -> Hops {
    let cell = Cell { seed: 3, ..Cell::over(20, 5, loss, seconds) };
    Hops::new(count, cell, true)
}

/// Which packets the relay alters.
#[derive(Clone, Copy, Debug)]
struct Lies {
    /// Combinations only.
    recoded: bool,
    /// One of so many.
    every: u64,
}

/// Makes the relay before `OF_LIAR` lie; the number of its lies.
fn lie(line: &mut Line, lies: Lies) -> Rc<Counter<u64>> {
    let told = Rc::new(Counter::new(0));
    let (mut count, counter) = (0_u64, told.clone());
    line.tamper = Some(Box::new(move |link, way, bytes| {
        if link != OF_LIAR || way != Way::Forth {
            return;
        }
        let Some((header, mut payload)) = open_short(true, 0, bytes) else { return };
        let is_coded = header.carried && header.kind != PacketKind::Control;
        if !is_coded || lies.recoded && header.kind != PacketKind::Recoded {
            return;
        }
        count += 1;
        if count.is_multiple_of(lies.every) {
            let middle = payload.len() - 20;
            payload[middle] ^= 0x40;
            *bytes = seal_as(true, 0, header, &payload);
            counter.set(counter.get() + 1);
        }
    }));
    told
}

/// Two relays side by side between source and destination.
fn diamond(run: &Hops, mode: Mode) -> Line {
    let mut config = run.line();
    config.links = vec![run.cell.link(); 4];
    config.transport.mode = mode;
    Line::mesh(config, vec![(0, 1), (0, 2), (1, 3), (2, 3)])
}

/// What a receiver may have refused before the way is left: three blocks, or as many symbols as
/// are under way meanwhile, of which a block has 512.
fn most_refused(mode: Mode) -> u64 {
    if mode == Mode::Brctp { 3 } else { 256 }
}

#[test]
fn a_way_over_a_liar_is_left_for_another() {
    leave_the_liar(
        Mode::Brtp,
        &[
            Lies { recoded: false, every: 1_000 },
            Lies { recoded: true, every: 20 },
            Lies { recoded: false, every: 1 },
        ],
    );
}

#[test]
fn a_way_over_a_liar_is_left_for_another_with_blocks() {
    let seldom = Lies { recoded: false, every: 1_000 };
    leave_the_liar(Mode::Brctp, &[seldom, Lies { every: 1, ..seldom }]);
}

fn leave_the_liar(mode: Mode, all: &[Lies]) {
    let run = hops(2, 0.05, 6);
    let mut single = run.line();
    single.transport.mode = mode;
    let one_way = run.run_on(&mut Line::new(single), |_, _| {}).goodput();
    for &lies in all {
        let mut line = diamond(&run, mode);
        let told = lie(&mut line, lies);
        let mut at_exclusion = None;
        let lies_told = told.clone();
        let outcome = run.run_on(&mut line, |line, time| {
            if at_exclusion.is_none() && line.relay_stats(0).ways_lying > 0 {
                at_exclusion = Some((time, lies_told.get()));
            }
        });
        let altered = outcome.receiver.symbols_altered;
        println!(
            "{mode:?} {lies:?}: {} lies, {altered} refused, left after {at_exclusion:?}, {:.1} of \
             {one_way:.1} Mbit/s",
            told.get(),
            outcome.goodput(),
        );
        let (time, lies_by_then) = at_exclusion.expect("the liar is found");
        assert!(time <= Duration::from_millis(2_500), "{time:?}");
        // What is under way when the news arrives still comes.
        assert!(told.get() <= lies_by_then + 40 + 400 / lies.every, "{} lies", told.get());
        let stats = line.relay_stats(0);
        assert_eq!((stats.ways_lying, line.relay_stats(3).ways_lying), (1, 0));
        let link = line.downlink(0).expect("the link to the liar").0;
        let mut lying = Vec::new();
        while let Some(event) = line.node(0).poll_relay_event() {
            if let RelayEvent::PollutingPath(link, node) = event {
                lying.push((link.0, node));
            }
        }
        assert_eq!(lying, [(link, bats_sim::line::node_id(3))], "and no other");
        assert!((1..=most_refused(mode)).contains(&altered), "{altered} refused");
        assert!(outcome.goodput() >= 0.8 * one_way, "{} of {one_way}", outcome.goodput());
    }
}

#[test]
fn on_the_only_way_a_few_lies_cost_little() {
    for (mode, least) in [(Mode::Brtp, 0.8), (Mode::Brctp, 0.8)] {
        let run = hops(3, 0.02, 6);
        let mut config = run.line();
        config.transport.mode = mode;
        let honest = run.run_on(&mut Line::new(config.clone()), |_, _| {}).goodput();
        let mut line = Line::new(config);
        let told = lie(&mut line, Lies { recoded: false, every: 1_000 });
        let outcome = run.run_on(&mut line, |_, _| {});
        let share = outcome.goodput() / honest;
        let altered = outcome.receiver.symbols_altered;
        println!("{mode:?}: {} lies, {altered} refused, {share:.3} of the rate", told.get());
        assert!(told.get() >= 5 && altered >= 1);
        assert!(share >= least, "{mode:?}: {share}");
    }
}

#[test]
fn on_the_only_way_nothing_but_lies_ends_the_session() {
    for mode in [Mode::Brtp, Mode::Brctp, Mode::Btp] {
        let run = hops(3, 0.02, 8);
        let mut config = run.line();
        config.transport.mode = mode;
        let mut line = Line::new(config);
        lie(&mut line, Lies { recoded: false, every: 1 });
        let client = line.connect_ends();
        let (mut reasons, mut sent) = (Vec::new(), 0_u64);
        let end = line.now() + Duration::from_secs(30);
        while line.now() < end && reasons.len() < 2 {
            line.step(end);
            let now = line.now();
            for (node, handle, event) in core::mem::take(&mut line.events) {
                match event {
                    Event::Connected | Event::Writable if (node, handle) == (0, client) => {
                        while line.node(0).send(now, client, vec![7; 1_000].into()).is_ok() {
                            sent += 1;
                        }
                        line.touch(0);
                    }
                    Event::Readable if node == line.last() => {
                        assert!(line.node(node).recv(now, handle).is_none(), "delivered");
                    }
                    Event::Closed(reason) => reasons.push((node, reason)),
                    _ => {}
                }
            }
        }
        println!("{mode:?}: {sent} messages, {reasons:?}");
        let of = |node| reasons.iter().find(|(n, _)| *n == node).map(|(_, reason)| reason);
        assert!(matches!(of(3), Some(CloseReason::Altered(_))), "{reasons:?}");
        assert!(
            matches!(of(0), Some(CloseReason::ReportedByPeer(why)) if why.contains("altered")),
            "{reasons:?}"
        );
    }
}

/// BTP has no blocks and no batches that stay together: the second lie is known by its own seal.
#[test]
fn messages_with_a_deadline_leave_the_liar_too() {
    let run = hops(2, 0.05, 6);
    let mut line = diamond(&run, Mode::Btp);
    let told = lie(&mut line, Lies { recoded: false, every: 200 });
    let client = line.connect_ends();
    let (mut sent, mut arrived, mut next) = (0_u32, 0_u32, None);
    let end = line.now() + Duration::from_secs(6);
    let mut at_exclusion = None;
    while line.now() < end {
        line.step(next.unwrap_or(end).min(end));
        let now = line.now();
        for (node, handle, event) in core::mem::take(&mut line.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Readable if node == line.last() => {
                    while let Some(message) = line.node(node).recv(now, handle) {
                        let (number, rest) = message.split_first_chunk().expect("a number");
                        let number = u32::from_be_bytes(*number);
                        assert!(number < sent && rest.iter().all(|&o| o == number as u8));
                        arrived += 1;
                    }
                    line.touch(node);
                }
                _ => {}
            }
        }
        if at_exclusion.is_none() && line.relay_stats(0).ways_lying > 0 {
            at_exclusion = Some(told.get());
        }
        if next.is_some_and(|at| at <= now) {
            let mut message = vec![sent as u8; 1_200];
            message[..4].copy_from_slice(&sent.to_be_bytes());
            line.node(0).send(now, client, message.into()).expect("12 Mbit/s find room");
            line.touch(0);
            sent += 1;
            next = Some(now + Duration::from_micros(800));
        }
    }
    let lies = told.get();
    println!("{arrived} of {sent} messages, {lies} lies, left after {at_exclusion:?}");
    assert_eq!(line.relay_stats(0).ways_lying, 1);
    assert!(at_exclusion.is_some_and(|then| then <= 3 && lies <= then + 2), "{lies} lies");
    assert!(f64::from(arrived) >= 0.98 * f64::from(sent), "{arrived} of {sent}");
}
