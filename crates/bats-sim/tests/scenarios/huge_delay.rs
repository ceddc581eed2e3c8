//! Interplanetary paths: one-way delays of minutes, so additional round trips must be avoided.

use std::time::Duration;

use crate::common::link;
use bats_netem::{LinkConfig, Loss};
use bats_proto::{Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

const MESSAGES: u64 = 10;
const BYTES: usize = 2_000;

/// Transfers ten messages. Returns the duration in one-way delays, and the packets sent by both
/// ends.
fn crossing(one_way: Duration, loss: f64, seed: u64) -> (f64, u64) {
    let link = LinkConfig { delay: one_way, loss: Loss::Iid(loss), ..link(10, 15) };
    let transport = TransportConfig {
        initial_rtt: one_way * 2,
        handshake_timeout: one_way * 20,
        idle_timeout: one_way * 40,
        ..TransportConfig::default()
    };
    let mut network = Network::new(endpoints(&transport, seed), [link.clone(), link], seed);
    let began = network.now();
    let client = network.connect(&transport);
    let (mut arrived, mut finished) = (0, None);
    while finished.is_none() && network.now() - began < one_way * 40 {
        network.step(began + one_way * 40);
        let now = network.now();
        for (host, handle, event) in core::mem::take(&mut network.events) {
            match (host, event) {
                (Host::Client, Event::Connected) => {
                    for number in 0..MESSAGES {
                        let message = Bytes::from(vec![number as u8; BYTES]);
                        network.endpoint(host).send(now, client, message).expect("room");
                    }
                    network.endpoint(host).finish(now, client).expect("a connection");
                }
                (Host::Client, Event::Closed(reason)) => panic!("seed {seed}: {reason:?}"),
                (Host::Server, Event::Readable) => {
                    while let Some(message) = network.endpoint(host).recv(now, handle) {
                        assert!(message.len() == BYTES && message[0] == arrived as u8);
                        arrived += 1;
                    }
                    if network.endpoint(host).is_finished(handle) {
                        finished = Some(now);
                    }
                }
                _ => continue,
            }
            network.wake(host);
        }
    }
    assert_eq!(arrived, MESSAGES, "{one_way:?}, loss {loss}, seed {seed}");
    let took = finished.expect("everything arrives") - began;
    // Packets that the sender sends until it gets the last acknowledgement count too.
    let end = network.now() + one_way * 2;
    while network.now() < end {
        network.step(end);
        network.events.clear();
    }
    let sent = |host| network.link_stats(host).offered;
    (took.as_secs_f64() / one_way.as_secs_f64(), sent(Host::Client) + sent(Host::Server))
}

#[test]
fn messages_over_minutes_of_delay_take_one_additional_round_trip() {
    for (minutes, most) in [(1, 120), (20, 190)] {
        let one_way = Duration::from_secs(minutes * 60);
        let (took, packets) = crossing(one_way, 0.0, 1);
        // One round trip for the handshake, one for the first flight, which does not hold all messages.
        println!("{minutes} min: {took:.2} one-way delays, {packets} packets");
        assert!(took <= 5.1 && packets <= most, "{minutes} min: {took} delays, {packets} packets");
        let mut late = Vec::new();
        for seed in 1..201 {
            let (took, packets) = crossing(one_way, 0.1, seed);
            assert!(packets <= most, "{minutes} min, seed {seed}: {packets} packets");
            // A lost flight is retransmitted well before its answer would have arrived.
            if took > 5.5 {
                late.push((seed, took));
            }
        }
        // The repairs cover three standard deviations of the losses, not every case.
        println!("{minutes} min, 10 % loss: {} of 200 seeds waited a round trip", late.len());
        assert!(late.len() <= 4, "{minutes} min, seeds that waited a round trip: {late:?}");
    }
}
