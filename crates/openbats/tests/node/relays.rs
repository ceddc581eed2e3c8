//! Sessions across relays on links with emulated loss.

use std::time::Duration;

use openbats::node::{LinkPolicy, RouteSet};
use openbats::{Mode, Wait};

use crate::emulated::lossy;
use crate::world::{Chain, LIMIT, World, id, transfer};

#[test]
fn content_crosses_two_lossy_relays_that_recode() {
    let chain = Chain::start(4, &lossy(100, Duration::from_millis(3), 0.1));
    let (near, far) = chain.ends();
    for mode in [Mode::Brtp, Mode::Brctp] {
        let (from, to) = chain.world.session(near, far, mode);
        assert_eq!((from.mode(), to.mode()), (mode, mode));
        transfer(from, to, 40, 50_000);
    }
    // The other direction, whose links the neighbours have opened.
    let (from, to) = chain.world.session(far, near, Mode::Brtp);
    transfer(from, to, 20, 50_000);
    for relay in &chain.nodes[1..3] {
        let stats = relay.relay_stats();
        assert!(stats.forwarded > 1_000, "{stats:?}");
        assert!(stats.top_ups + stats.extras > 100, "they recode: {stats:?}");
        assert_eq!((stats.dropped.refused, stats.dropped.malformed), (0, 0), "{stats:?}");
        // Three sessions with a flow in each direction.
        let flows = relay.flows();
        assert_eq!((flows.len(), stats.flows), (6, 6));
        let forward = flows.iter().filter(|flow| flow.key.destination == far.id());
        let received: Vec<u64> = forward.map(|flow| flow.bytes_received).collect();
        assert!(received.iter().filter(|&&bytes| bytes > 40 * 50_000).count() >= 2, "{received:?}");
        let packets: u64 = flows.iter().map(|flow| flow.packets_received).sum();
        assert_eq!(packets, stats.received, "{flows:?}");
        let links = relay.links();
        for link in links.list() {
            let queue = links.queue(link.id).unwrap();
            assert!(queue.flows >= 3 && !queue.demoted, "{queue:?}");
        }
    }
}

#[test]
fn btp_messages_cross_lossy_relays_and_all_are_accounted_for() {
    let chain = Chain::start(3, &lossy(100, Duration::from_millis(3), 0.05));
    let (near, far) = chain.ends();
    let (from, to) = chain.world.session(near, far, Mode::Btp);
    const MESSAGES: u64 = 500;
    for number in 0..MESSAGES {
        let message = number.to_be_bytes().repeat(50);
        from.send_within(message, LIMIT).wait_for(LIMIT).unwrap().unwrap();
    }
    let finishing = {
        let from = from.clone();
        std::thread::spawn(move || from.finish().wait_for(LIMIT).unwrap().unwrap())
    };
    let mut received = 0;
    while let Some(message) = to.recv().wait_for(LIMIT).unwrap().unwrap() {
        let number = u64::from_be_bytes(message[..8].try_into().unwrap());
        assert!(number < MESSAGES && message == number.to_be_bytes().repeat(50));
        received += 1;
    }
    finishing.join().unwrap();
    assert_eq!(received + to.stats().messages.lost, MESSAGES);
    assert!(received >= MESSAGES * 9 / 10, "{received} of {MESSAGES}");
}

#[test]
fn a_hundred_sessions_share_a_link() {
    let world = World::new(2);
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    let link = world.link(&near, &far, None);
    near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    let sessions: Vec<_> = (0..100).map(|_| world.session(&near, &far, Mode::Brtp)).collect();
    for (number, (from, to)) in sessions.iter().enumerate() {
        from.send(vec![number as u8; 10_000]).wait_for(LIMIT).unwrap().unwrap();
        to.send(vec![number as u8 + 100; 10_000]).wait_for(LIMIT).unwrap().unwrap();
    }
    for (number, (from, to)) in sessions.iter().enumerate() {
        let got = to.recv().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(got.unwrap(), vec![number as u8; 10_000]);
        let got = from.recv().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(got.unwrap(), vec![number as u8 + 100; 10_000]);
    }
    assert_eq!((near.links().list().len(), far.links().list().len()), (1, 1));
    drop(sessions);
    assert!(link.status().is_some_and(|status| status.established == 1));
}
