//! A relay in a process of its own, which is killed and started again.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use openbats::node::{Event, LinkOptions, LinkPolicy, Node, NodeId, RouteSet};
use openbats::{Fingerprint, Identity, Mode, Trust, Wait};

use crate::world::{LIMIT, World, id, transfer, wait_event};

/// What the process is given: its address, its identity file, the neighbour that links to it, the
/// neighbour that it links to and that one's address.
const VARIABLE: &str = "OPENBATS_TEST_RELAY";
const READY: &str = "the relay is ready";
const NAME: &str = "relay_process::relay";

/// The process. Run without `VARIABLE` it has nothing to relay.
#[test]
#[ignore = "the relay of the other test, which starts it as a process"]
fn relay() {
    let Ok(given) = std::env::var(VARIABLE) else { return };
    let [address, identity, left, right, onwards] = given.split(';').collect::<Vec<_>>()[..] else {
        panic!("five values in {VARIABLE}: {given}")
    };
    let (left, right): (Fingerprint, Fingerprint) = (left.parse().unwrap(), right.parse().unwrap());
    let identity = Identity::load_or_generate(identity, &["relay"]).unwrap();
    let node = Node::builder(NodeId(2), identity)
        .listen(address.parse().unwrap())
        .relaying(true)
        .neighbour(left, LinkPolicy::transit())
        .start()
        .unwrap();
    let options = LinkOptions::new(onwards.parse().unwrap(), Trust::fingerprint(right));
    let link = node.links().open(options.policy(LinkPolicy::transit())).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    node.routes().replace(RouteSet::new().to(id(0), left).to(id(2), link.id())).unwrap();
    println!("\n{READY}");
    // Ends with the test, at the latest.
    let _ = std::io::stdin().read_line(&mut String::new());
}

struct Relay {
    process: Child,
}

impl Relay {
    fn start(given: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", NAME, "--nocapture"])
            .env(VARIABLE, given)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == READY), "it has started");
        Self { process }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn session_continues_after_its_relay_was_killed_and_restarted() {
    let world = World::new(3);
    let file: PathBuf =
        std::env::temp_dir().join(format!("openbats-relay-{}.pem", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let relay_print = Identity::load_or_generate(&file, &["relay"]).unwrap().fingerprint();
    let far = world.node(2).neighbour(relay_print, LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    far.routes().replace(RouteSet::new().to(id(0), relay_print)).unwrap();
    let address: SocketAddr = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let given = format!(
        "{address};{};{};{};{}",
        file.display(),
        world.print(0),
        world.print(2),
        far.local_addrs()[0],
    );
    let relay = Relay::start(&given);
    let link =
        near.links().open(LinkOptions::new(address, Trust::fingerprint(relay_print))).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    near.routes().replace(RouteSet::new().to(id(2), link.id())).unwrap();

    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let (first, second) = (vec![1; 300_000], vec![2; 300_000]);
    from.send(first.clone()).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), first);
    // Killed while data is under way.
    from.send(second.clone()).wait_for(LIMIT).unwrap().unwrap();
    drop(relay);
    std::thread::sleep(Duration::from_millis(300));
    let _relay = Relay::start(&given);
    assert_eq!(to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), second);
    transfer(from, to, 10, 50_000);
    let status = link.status().unwrap();
    assert!(status.established >= 2, "the same link: {status:?}");
    let events = near.events();
    wait_event(&events, |event| matches!(event, Event::LinkDown { .. }).then_some(()));
    let _ = std::fs::remove_file(&file);
}
