//! Two ends and two relays in one program, over links on loopback that lose a tenth of all packets.
//! The relays recode what they forward and repair the losses of their hop.
//!
//!     cargo run --release -p openbats --example relays

#[path = "emulated/mod.rs"]
#[cfg(not(test))]
#[expect(dead_code, reason = "no link is cut here")]
mod emulated;
#[cfg(test)]
use super::emulated;

use std::time::Duration;

use emulated::{EmulatedLink, lossy};
use openbats::node::{LinkOptions, LinkPolicy, Node, NodeId, RouteSet};
use openbats::{ClientOptions, Fingerprint, Identity, Trust, Wait};

/// The nodes of the chain: end, relay, relay, end.
const IDS: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];
const MESSAGES: usize = 32;
const MESSAGE_BYTES: usize = 128 << 10;

/// A node that admits its neighbours in the chain. The inner nodes relay.
fn start(index: usize, identity: Identity, prints: &[Fingerprint; 4]) -> anyhow::Result<Node> {
    let is_relay = index == 1 || index == 2;
    let mut builder =
        Node::builder(IDS[index], identity).listen("127.0.0.1:0".parse()?).relaying(is_relay);
    if index > 0 {
        builder = builder.neighbour(prints[index - 1], LinkPolicy::transit());
    }
    // The ends have sessions with each other only.
    if index == 3 {
        builder = builder.peer(IDS[0], prints[0]);
    }
    Ok(builder.start()?)
}

pub(crate) fn main() -> anyhow::Result<()> {
    let mut identities = Vec::new();
    for name in ["one", "two", "three", "four"] {
        identities.push(Identity::generate(&[name])?);
    }
    let prints: [Fingerprint; 4] = std::array::from_fn(|index| identities[index].fingerprint());
    let mut nodes = Vec::new();
    for (index, identity) in identities.into_iter().enumerate() {
        nodes.push(start(index, identity, &prints)?);
    }

    // Each node but the last opens a link to the next one, through an emulated link.
    let mut hops = Vec::new();
    for (index, pair) in nodes.windows(2).enumerate() {
        let [near, far] = pair else { unreachable!("windows of two nodes") };
        let config = lossy(200, Duration::from_millis(2), 0.1);
        let hop = EmulatedLink::start(far.local_addrs()[0], &config, index as u64)?;
        let trust = Trust::fingerprint(prints[index + 1]);
        let options = LinkOptions::new(hop.address(), trust).policy(LinkPolicy::transit());
        let link = near.links().open(options)?;
        link.established().wait()?;
        hops.push((hop, link));
    }
    // To the nodes on the right over the own link, to those on the left over the neighbour's.
    for (index, node) in nodes.iter().enumerate() {
        let mut routes = RouteSet::new();
        for (other, &id) in IDS.iter().enumerate() {
            if other > index {
                routes.add(id, hops[index].1.id(), 0);
            } else if other < index {
                routes.add(id, prints[index - 1], 0);
            }
        }
        node.routes().replace(routes)?;
    }

    let options = ClientOptions::new(Trust::fingerprint(prints[3]));
    let sender = nodes[0].connect_node(IDS[3], "four", options).wait()?;
    let receiver = nodes[3].accept().wait()?;
    assert_eq!(receiver.remote_node(), IDS[0]);
    let received = std::thread::spawn(move || -> anyhow::Result<(usize, blake3::Hash)> {
        let (mut bytes, mut hash) = (0, blake3::Hasher::new());
        while let Some(message) = receiver.recv().wait()? {
            bytes += message.len();
            hash.update(&message);
        }
        Ok((bytes, hash.finalize()))
    });
    let mut hash = blake3::Hasher::new();
    for number in 0..MESSAGES {
        let message: Vec<u8> = (0..MESSAGE_BYTES).map(|at| (at * 31 + number * 17) as u8).collect();
        hash.update(&message);
        sender.send(message).wait()?;
    }
    sender.finish().wait()?;
    let received = received.join().expect("the receiver does not panic")?;
    assert_eq!(received, (MESSAGES * MESSAGE_BYTES, hash.finalize()));
    println!("{} bytes over two relays, BLAKE3 {}", received.0, received.1);

    for index in 1..=2 {
        let stats = nodes[index].relay_stats();
        println!(
            "{}: {} packets forwarded, {} recoded after reports, {} recoded in advance, {} KiB held",
            IDS[index],
            stats.forwarded,
            stats.top_ups,
            stats.extras,
            stats.memory.bytes_held >> 10,
        );
        assert!(stats.top_ups + stats.extras > 0, "a relay that loses packets recodes");
    }
    Ok(())
}
