//! Keep-alive packets that come more often than a round trip takes do not hide that data are missing.

use std::time::Duration;

use crate::common::link;
use bats_netem::LinkConfig;
use bats_proto::{Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

#[test]
fn what_was_lost_whole_is_repaired_although_keep_alives_are_answered() {
    let way = link(10, 100);
    let transport = TransportConfig {
        keep_alive: Some(Duration::from_millis(50)),
        ..TransportConfig::default()
    };
    let mut network = Network::new(endpoints(&transport, 1), [way.clone(), way.clone()], 1);
    let client = network.connect(&transport);
    let pass = |network: &mut Network, time: Duration| {
        let until = network.now() + time;
        let mut arrived = false;
        while network.now() < until {
            network.step(until);
            let now = network.now();
            for (host, handle, event) in core::mem::take(&mut network.events) {
                if (host, event) == (Host::Server, Event::Readable) {
                    arrived |= network.endpoint(host).recv(now, handle).is_some();
                    network.touch(host);
                }
            }
        }
        arrived
    };
    // The search for the MTU is over, and keep-alives go to and fro.
    assert!(!pass(&mut network, Duration::from_secs(2)));

    // All that is sent of the message in this moment is lost, what follows is not.
    network.set_link(Host::Client, LinkConfig { black_hole: true, ..way.clone() });
    let now = network.now();
    let message = Bytes::from_static(b"all of it is lost at first");
    network.endpoint(Host::Client).send(now, client, message).expect("room");
    network.touch(Host::Client);
    assert!(!pass(&mut network, Duration::from_millis(30)));
    network.set_link(Host::Client, way);
    assert!(pass(&mut network, Duration::from_secs(2)), "keep-alives put the repair off");
}
