//! A direct session with a neighbour over two loopback addresses at once. One of the two paths is cut in the middle; the
//! transfer completes over the other.
//!
//!     cargo run --release -p openbats --example multipath

#[path = "emulated/mod.rs"]
#[cfg(not(test))]
mod emulated;
#[cfg(test)]
use super::emulated;

use std::time::Duration;

use emulated::{EmulatedLink, lossy};
use openbats::node::{Event, LinkOptions, LinkPolicy, Node, NodeId};
use openbats::{Identity, TransportConfig, Trust, Wait};

const ADDRESSES: [&str; 2] = ["127.0.0.1:0", "127.0.0.2:0"];
const NEAR: NodeId = NodeId(1);
const FAR: NodeId = NodeId(2);
const MESSAGES: usize = 64;
const MESSAGE_BYTES: usize = 128 << 10;

pub(crate) fn main() -> anyhow::Result<()> {
    let [near_identity, far_identity] =
        [Identity::generate(&["near"])?, Identity::generate(&["far"])?];
    let [near_print, far_print] = [near_identity.fingerprint(), far_identity.fingerprint()];
    // Each node ties the certificate of the other one to its ID.
    let mut near = Node::builder(NEAR, near_identity).peer(FAR, far_print);
    let mut far = Node::builder(FAR, far_identity)
        .neighbour(near_print, LinkPolicy::end())
        .peer(NEAR, near_print);
    for address in ADDRESSES {
        near = near.listen(address.parse()?);
        far = far.listen(address.parse()?);
    }
    let (near, far) = (near.start()?, far.start()?);

    // A link for each address, through an emulated link that can be cut.
    let mut paths = Vec::new();
    for (index, address) in far.local_addrs().into_iter().enumerate() {
        let config = lossy(100, Duration::from_millis(5), 0.01);
        let path = EmulatedLink::start(address, &config, index as u64)?;
        let trust = Trust::fingerprint(far_print);
        let options = LinkOptions::new(path.address(), trust).local_ip(address.ip());
        let link = near.links().open(options)?;
        link.established().wait()?;
        paths.push((path, link));
    }

    let sender = near.connect_neighbour(FAR, TransportConfig::default()).wait()?;
    let receiver = far.accept().wait()?;
    let (half, at_half) = std::sync::mpsc::channel();
    let received = std::thread::spawn(move || -> anyhow::Result<(usize, blake3::Hash)> {
        let (mut bytes, mut hash) = (0, blake3::Hasher::new());
        while let Some(message) = receiver.recv().wait()? {
            bytes += message.len();
            hash.update(&message);
            if bytes == MESSAGES / 2 * MESSAGE_BYTES {
                half.send(())?;
            }
        }
        Ok((bytes, hash.finalize()))
    });
    let sending = std::thread::spawn(move || -> anyhow::Result<blake3::Hash> {
        let mut hash = blake3::Hasher::new();
        for number in 0..MESSAGES {
            let message: Vec<u8> =
                (0..MESSAGE_BYTES).map(|at| (at * 7 + number * 3) as u8).collect();
            hash.update(&message);
            sender.send(message).wait()?;
        }
        sender.finish().wait()?;
        Ok(hash.finalize())
    });
    at_half.recv()?;
    let bytes_over = |index: usize| {
        let stats = paths[index].1.status().and_then(|status| status.stats);
        stats.map_or(0, |stats| stats.packets.bytes_sent)
    };
    let before = [bytes_over(0), bytes_over(1)];
    println!(
        "half of the data is there; {} and {} bytes sent over the paths",
        before[0], before[1]
    );
    assert!(before.iter().all(|&bytes| bytes > 100_000), "both paths are used");
    paths[1].0.cut();

    let hash = sending.join().expect("the sender does not panic")?;
    let received = received.join().expect("the receiver does not panic")?;
    assert_eq!(received, (MESSAGES * MESSAGE_BYTES, hash));
    println!("{} bytes received after the cut of a path, BLAKE3 {hash}", received.0);
    let cut = paths[1].1.id();
    let events = near.events();
    while let Some(event) = events.next().wait_for(Duration::from_secs(60))? {
        match event {
            Event::LinkSilent { link, .. } | Event::LinkDown { link, .. } if link == cut => break,
            _ => {}
        }
    }
    println!("{cut} does not answer any more; {} bytes sent over the other path", bytes_over(0));
    Ok(())
}
