//! Keep-alives at intervals below the RTT do not prevent the detection of lost data.

use std::time::Duration;

use crate::common::link;
use bats_netem::LinkConfig;
use bats_proto::{Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

#[test]
fn a_completely_lost_message_is_repaired_although_keep_alives_are_acknowledged() {
    let path = link(10, 100);
    let transport = TransportConfig {
        keep_alive: Some(Duration::from_millis(50)),
        ..TransportConfig::default()
    };
    let mut network = Network::new(endpoints(&transport, 1), [path.clone(), path.clone()], 1);
    let client = network.connect(&transport);
    let advance = |network: &mut Network, time: Duration| {
        let until = network.now() + time;
        let mut arrived = false;
        while network.now() < until {
            network.step(until);
            let now = network.now();
            for (host, handle, event) in core::mem::take(&mut network.events) {
                if (host, event) == (Host::Server, Event::Readable) {
                    arrived |= network.endpoint(host).recv(now, handle).is_some();
                    network.wake(host);
                }
            }
        }
        arrived
    };
    // Path MTU discovery is complete, and keep-alives are exchanged.
    assert!(!advance(&mut network, Duration::from_secs(2)));

    // All packets of the message that are sent now are lost; later ones are not.
    network.set_link(Host::Client, LinkConfig { black_hole: true, ..path.clone() });
    let now = network.now();
    let message = Bytes::from_static(b"first transmission is lost");
    network.endpoint(Host::Client).send(now, client, message).expect("room");
    network.wake(Host::Client);
    assert!(!advance(&mut network, Duration::from_millis(30)));
    network.set_link(Host::Client, path);
    assert!(advance(&mut network, Duration::from_secs(2)), "keep-alives delay the repair");
}
