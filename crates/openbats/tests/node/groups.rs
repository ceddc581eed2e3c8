//! Messages to groups over loopback: a source, a relay and two members.

use std::time::Duration;

use openbats::node::{
    GroupError, GroupOptions, GroupReceiver, GroupRoute, GroupSender, LinkPolicy, Node, NodeId,
    RouteError, RouteSet,
};
use openbats::{PresharedKey, RecvError, SendError, Wait};

use crate::world::{LIMIT, World, id};

const GROUP: NodeId = NodeId(0xe000_0001);
const MESSAGES: u32 = 500;

/// Node 0 is the source, node 1 the relay, nodes 2 and 3 are members. Links to the relay, opened by the others.
struct Tree {
    world: World,
    nodes: Vec<Node>,
}

impl Tree {
    fn start() -> Self {
        let world = World::new(4);
        let relay = [0, 2, 3].into_iter().fold(world.node(1).relaying(true), |builder, other| {
            builder.neighbour(world.print(other), LinkPolicy::transit())
        });
        let relay = relay.start().unwrap();
        let ends = [0, 2, 3].map(|index| world.node(index).start().unwrap());
        for end in &ends {
            world.link(end, &relay, None);
        }
        let [source, first, second] = ends;
        Self { world, nodes: vec![source, relay, first, second] }
    }

    fn set_routes(&self) {
        let print = |index| self.world.print(index);
        let routes = [
            GroupRoute::new(id(0), GROUP).to(print(1)),
            GroupRoute::new(id(0), GROUP).from(print(0)).to(print(2)).to(print(3)),
            GroupRoute::new(id(0), GROUP).from(print(1)),
            GroupRoute::new(id(0), GROUP).from(print(1)),
        ];
        for (node, route) in self.nodes.iter().zip(routes) {
            node.routes().replace(RouteSet::new().group(route)).unwrap();
        }
    }
}

fn key() -> PresharedKey {
    PresharedKey::new([3; 32])
}

fn join(node: &Node) -> GroupReceiver {
    node.join_group(GROUP, &key(), GroupOptions::default()).unwrap()
}

/// The numbers of all messages up to the last one.
fn receive(member: &GroupReceiver) -> Vec<u32> {
    let mut numbers = Vec::new();
    while numbers.last() != Some(&MESSAGES) {
        let got = member.recv().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(got.source, id(0));
        let (number, rest) = got.message.split_first_chunk().unwrap();
        let number = u32::from_be_bytes(*number);
        assert!(rest.len() == 1_000 && rest.iter().all(|&byte| byte == number as u8));
        numbers.push(number);
    }
    numbers
}

#[test]
fn two_members_get_the_messages_of_a_source_that_sends_them_once() {
    let tree = Tree::start();
    let members = [join(&tree.nodes[2]), join(&tree.nodes[3])];
    tree.set_routes();
    let source = tree.nodes[0].group_sender(GROUP, &key(), GroupOptions::default()).unwrap();
    let threads = members.map(|member| std::thread::spawn(move || (receive(&member), member)));
    // Until the announcement has arrived, members read nothing. The last message is repeated until both have it.
    std::thread::sleep(Duration::from_millis(500));
    for turn in 0.. {
        let number = u32::min(turn, MESSAGES);
        if number == MESSAGES && threads.iter().all(|thread| thread.is_finished()) {
            break;
        }
        assert!(turn < 100 * MESSAGES, "the last message does not arrive");
        let message = [&number.to_be_bytes()[..], &[number as u8; 1_000]].concat();
        source.send(message).wait_for(LIMIT).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    for thread in threads {
        let (numbers, member) = thread.join().unwrap();
        // A machine that is busy for longer than relays hold packets loses some.
        assert!(numbers.len() as u32 > MESSAGES / 2, "{} of {MESSAGES}", numbers.len());
        let stats = member.stats();
        assert_eq!((stats.messages, stats.polluted), (numbers.len() as u64, 0));
    }
    let (sender, relay) = (tree.nodes[0].relay_stats(), tree.nodes[1].relay_stats());
    let symbols = source.stats().unwrap().symbols;
    assert!(sender.forwarded <= symbols, "each packet once: {sender:?}");
    assert!(relay.forwarded <= 2 * symbols, "each packet once for each member: {relay:?}");
}

/// Sends until a member reads: it has the announcement then.
fn begin(sender: &GroupSender, member: &GroupReceiver) {
    let is_read = (0..1_000).any(|_| {
        sender.send("begin").wait_for(LIMIT).unwrap().unwrap();
        member.recv().wait_for(Duration::from_millis(20)).is_ok()
    });
    assert!(is_read, "no message has arrived");
}

#[test]
fn node_that_ends_sends_what_was_queued_for_a_group() {
    let mut tree = Tree::start();
    let member = join(&tree.nodes[2]);
    tree.set_routes();
    let sender = tree.nodes[0].group_sender(GROUP, &key(), GroupOptions::default()).unwrap();
    begin(&sender, &member);
    for number in 0..300_u32 {
        let message = [&number.to_be_bytes()[..], &[0; 1_000]].concat();
        sender.send(message).wait_for(LIMIT).unwrap().unwrap();
    }
    drop(tree.nodes.remove(0));
    drop(sender);
    let last = 299_u32.to_be_bytes();
    while !member.recv().wait_for(LIMIT).unwrap().unwrap().message.starts_with(&last) {}
}

#[test]
fn changed_route_of_a_group_takes_nothing_from_the_former_neighbour() {
    let tree = Tree::start();
    let member = join(&tree.nodes[2]);
    tree.set_routes();
    let sender = tree.nodes[0].group_sender(GROUP, &key(), GroupOptions::default()).unwrap();
    begin(&sender, &member);
    // There is no link with this neighbour.
    let other = openbats::Fingerprint([9; 32]);
    let route = GroupRoute::new(id(0), GROUP).from(other).to(tree.world.print(2));
    let relay = &tree.nodes[1];
    relay.routes().replace(RouteSet::new().group(route)).unwrap();
    let before = relay.relay_stats();
    let is_dropped = (0..1_000).any(|_| {
        sender.send("late").wait_for(LIMIT).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        relay.relay_stats().dropped.not_incoming > before.dropped.not_incoming
    });
    assert!(is_dropped, "{:?}", relay.relay_stats());
    assert_eq!(relay.relay_stats().forwarded, before.forwarded);
}

#[test]
fn calls_of_a_node_that_is_shut_down_fail() {
    let tree = Tree::start();
    let member = join(&tree.nodes[2]);
    let error = tree.nodes[2].join_group(GROUP, &key(), GroupOptions::default()).unwrap_err();
    assert_eq!(error, GroupError::AlreadyJoined(GROUP));
    let error = tree.nodes[2].group_sender(NodeId(5), &key(), GroupOptions::default());
    assert!(error.unwrap_err().to_string().contains("node 5 is no group"));
    let node = tree.nodes[2].clone();
    let waiting = std::thread::spawn(move || {
        let result = member.recv().wait_for(LIMIT).unwrap();
        (member, result)
    });
    std::thread::sleep(Duration::from_millis(100));
    node.shut_down(0, "");
    let (member, result) = waiting.join().unwrap();
    assert!(matches!(result, Err(RecvError::Closed(_))), "{result:?}");
    assert_eq!(member.try_recv(), None);
    // A membership that ended can begin again.
    let member = join(&tree.nodes[3]);
    drop(member);
    join(&tree.nodes[3]);
    let sender = tree.nodes[3].group_sender(GROUP, &key(), GroupOptions::default()).unwrap();
    sender.finish();
    assert_eq!(sender.try_send("late"), Err(SendError::Finished));
    tree.nodes[3].shut_down(0, "");
    assert!(matches!(sender.try_send("late"), Err(SendError::Closed(_))));
}

/// A sender waits while messages without a branch wait for their deadline.
#[test]
fn sender_waits_for_room() {
    let tree = Tree::start();
    let options = GroupOptions { send_budget: 5_000, ..GroupOptions::default() };
    let sender = tree.nodes[0].group_sender(GROUP, &key(), options).unwrap();
    let message = vec![0; 3_000];
    sender.try_send(message.clone()).unwrap();
    assert!(matches!(sender.try_send(message.clone()), Err(SendError::Blocked(_))));
    sender.send(message).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(sender.stats().unwrap().expired, 1);
}

#[test]
fn groups_have_ids_of_their_own() {
    let world = World::new(1);
    let start = Node::builder(GROUP, world.identity(0)).listen("127.0.0.1:0".parse().unwrap());
    let error = start.start().unwrap_err();
    assert!(error.to_string().contains("cannot be the ID of a node"), "{error}");
    let node = world.node(0).recoding(false).start().unwrap();
    let routes = RouteSet::new().group(GroupRoute::new(id(0), GROUP));
    assert_eq!(node.routes().replace(routes), Err(RouteError::NotRecoding));
    let error = node.group_sender(GROUP, &key(), GroupOptions::default()).unwrap_err();
    assert!(error.to_string().contains("does not recode"), "{error}");
}
