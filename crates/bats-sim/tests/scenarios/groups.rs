//! Messages to groups across relays: one source and several members, each hop with its own losses.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::relay::RelayConfig;
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    GroupHandle, GroupOptions, GroupReceiverStats, PresharedKey, Timestamp, TransportConfig,
};
use bats_sim::matrix::Cell;
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

const GROUP: NodeId = NodeId(0xe000_0007);
/// Bytes of a message; the first eight are its number.
const SIZE: usize = 1_000;
/// Time between two looks at the members.
const TICK: Duration = Duration::from_millis(1);

fn key() -> PresharedKey {
    PresharedKey::new([7; 32])
}

/// A link of 20 Mbit/s with a delay of 10 ms and independent loss.
fn link(loss: f64) -> LinkConfig {
    Cell::over(20, 10, loss, 1).link()
}

struct Member {
    node: usize,
    handle: GroupHandle,
    /// Number and time of each message.
    received: Vec<(u64, Timestamp)>,
}

impl Member {
    fn longest_gap(&self, from: Timestamp) -> Duration {
        let times = self.received.iter().map(|(_, at)| *at).filter(|&at| at > from);
        let times: Vec<Timestamp> = times.collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(Duration::MAX)
    }
}

/// A stream of messages from node 0 to a group.
struct Stream {
    network: RelayNetwork,
    sender: GroupHandle,
    members: Vec<Member>,
    sent: u64,
    due: f64,
}

impl Stream {
    fn new(links: Vec<LinkConfig>, edges: Vec<(usize, usize)>, members: &[usize]) -> Self {
        let mut network = RelayNetwork::mesh(
            RelayNetworkConfig {
                links,
                relay: RelayConfig::new(node_id(0)),
                transport: TransportConfig::default(),
                seed: 11,
            },
            edges,
        );
        let now = network.now();
        let sender = network.node(0).open_group_sender(now, GROUP, &key(), GroupOptions::default());
        let mut stream =
            Self { network, sender: sender.unwrap(), members: Vec::new(), sent: 0, due: 0.0 };
        members.iter().for_each(|&node| stream.join(node));
        stream
    }

    fn join(&mut self, node: usize) {
        let options = GroupOptions::default();
        let handle = self.network.node(node).join_group(GROUP, &key(), options).unwrap();
        self.members.push(Member { node, handle, received: Vec::new() });
    }

    /// Sends so many messages a second for some time.
    fn run(&mut self, time: Duration, rate: f64) {
        let end = self.network.now() + time;
        while self.network.now() < end {
            let next = self.network.now() + TICK;
            self.due += rate * TICK.as_secs_f64();
            while self.due >= 1.0 {
                self.due -= 1.0;
                let mut message = vec![self.sent as u8; SIZE];
                message[..8].copy_from_slice(&self.sent.to_le_bytes());
                let now = self.network.now();
                let sent = self.network.node(0).send_to_group(now, self.sender, message.into());
                self.sent += u64::from(sent.is_ok());
            }
            self.network.wake(0);
            while self.network.step(next) {}
            for member in &mut self.members {
                while let Some(got) = self.network.node(member.node).recv_from_group(member.handle)
                {
                    assert_eq!(got.source, node_id(0));
                    let (number, rest) = got.message.split_first_chunk().unwrap();
                    let number = u64::from_le_bytes(*number);
                    assert!(
                        rest.iter().all(|&byte| byte == number as u8) && rest.len() == SIZE - 8
                    );
                    member.received.push((number, next));
                }
            }
        }
    }

    fn stats(&mut self, member: usize) -> GroupReceiverStats {
        let Member { node, handle, .. } = self.members[member];
        self.network.node(node).group_receiver_stats(handle).unwrap()
    }

    /// Fraction of the messages that a member has received.
    fn share(&self, member: usize) -> f64 {
        let mut numbers: Vec<u64> = self.members[member].received.iter().map(|r| r.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), self.members[member].received.len(), "none is delivered twice");
        numbers.len() as f64 / self.sent as f64
    }
}

/// A source, two relays and three members: 0 - 1 - 2, member 3 at the first relay, 4 and 5 at the second one.
fn tree(loss: f64, members: &[usize]) -> Stream {
    let mut stream =
        Stream::new(vec![link(loss); 5], vec![(0, 1), (1, 2), (1, 3), (2, 4), (2, 5)], members);
    set_tree_entries(&mut stream.network);
    stream
}

fn set_tree_entries(network: &mut RelayNetwork) {
    network.set_group_entry(0, (0, GROUP), &[], &[&[0]]);
    network.set_group_entry(1, (0, GROUP), &[0], &[&[1], &[2]]);
    network.set_group_entry(2, (0, GROUP), &[1], &[&[3], &[4]]);
    for (member, link) in [(3, 2), (4, 3), (5, 4)] {
        network.set_group_entry(member, (0, GROUP), &[link], &[]);
    }
}

#[test]
fn three_members_behind_two_relays_get_99_per_cent_at_10_per_cent_loss() {
    let loss = 0.1;
    let mut stream = tree(loss, &[3, 4, 5]);
    stream.run(Duration::from_secs(20), 1_500.0);
    stream.run(Duration::from_secs(2), 0.0);
    for member in 0..3 {
        let (share, stats) = (stream.share(member), stream.stats(member));
        println!("member {member}: {share:.4}, {stats:?}");
        assert!(share >= 0.99, "member {member}: {share:.4}");
    }
    let source = stream.network.relay_stats(0);
    let packets = source.forwarded + source.top_ups + source.extras;
    let symbols = stream.network.node(0).group_sender_stats(stream.sender).unwrap().symbols;
    let ratio = packets as f64 / (symbols as f64 / (1.0 - loss));
    // In idle slots a hop covers the expected losses of a batch plus three standard deviations (ADR 0025).
    let expected = 16.0 * loss;
    let extras = ((expected + 3.0 * expected.sqrt()) / (1.0 - loss)).ceil();
    let computed = (16.0 + extras) / (16.0 / (1.0 - loss));
    println!(
        "{packets} packets for {symbols} symbols: {ratio:.3} of the least, computed {computed:.3}"
    );
    assert!(ratio < computed, "the source sends once for all members: {ratio:.3}, {computed:.3}");
}

#[test]
fn slow_or_cut_branch_leaves_the_others_95_per_cent() {
    let slow = LinkConfig { rate_bps: Some(200_000), ..link(0.0) };
    for (name, branch) in [("cut", link(1.0)), ("slow", slow)] {
        let mut stream = tree(0.0, &[3, 4, 5]);
        stream.run(Duration::from_secs(2), 1_500.0);
        for index in [2, 4] {
            stream.network.set_link(index, &branch);
        }
        let (before, start) = (stream.members[1].received.len(), stream.sent);
        stream.run(Duration::from_secs(10), 1_500.0);
        let got = (stream.members[1].received.len() - before) as f64;
        let share = got / (stream.sent - start) as f64;
        println!("{name}: {share:.4} of {}, {:?}", stream.sent - start, stream.stats(1));
        assert!(share > 0.95 && stream.sent - start > 14_900, "{share:.4} of {}", stream.sent);
        assert!(stream.share(0) < 0.5, "the branch of the first member is {name}");
    }
}

#[test]
fn flap_between_two_links_of_a_neighbour_interrupts_for_a_round_trip() {
    let mut stream = Stream::new(vec![link(0.0); 3], vec![(0, 1), (0, 1), (1, 2)], &[2]);
    stream.network.set_group_entry(0, (0, GROUP), &[], &[&[0, 1]]);
    stream.network.set_group_entry(1, (0, GROUP), &[0, 1], &[&[2]]);
    stream.network.set_group_entry(2, (0, GROUP), &[2], &[]);
    stream.run(Duration::from_secs(2), 1_000.0);
    let start = stream.network.now();
    for turn in 0..6 {
        let loss = if turn % 2 == 0 { 1.0 } else { 0.0 };
        stream.network.set_link(0, &link(loss));
        stream.run(Duration::from_secs(3), 1_000.0);
    }
    stream.run(Duration::from_secs(1), 0.0);
    let gap = stream.members[0].longest_gap(start);
    println!("{gap:?}, {:.4}", stream.share(0));
    assert!(gap <= Duration::from_millis(20 + 60), "{gap:?}");
    assert!(stream.share(0) > 0.99);
}

/// Each node of a ring or mesh has branches to all its neighbours.
#[test]
fn ring_and_mesh_deliver_each_message_once() {
    let ring = vec![(0, 1), (1, 2), (2, 3), (3, 0)];
    let mesh = vec![(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
    for (edges, upstream) in [(ring, [0, 0, 1, 3]), (mesh, [0, 0, 1, 2])] {
        let mut stream = Stream::new(vec![link(0.0); edges.len()], edges.clone(), &[1, 2, 3]);
        for node in 0..4 {
            let own = (0..edges.len()).filter(|&e| edges[e].0 == node || edges[e].1 == node);
            let own: Vec<[usize; 1]> = own.map(|edge| [edge]).collect();
            let branches: Vec<&[usize]> = own.iter().map(|links| &links[..]).collect();
            let incoming: &[usize] = if node == 0 { &[] } else { &upstream[node..=node] };
            stream.network.set_group_entry(node, (0, GROUP), incoming, &branches);
        }
        stream.run(Duration::from_secs(5), 500.0);
        stream.run(Duration::from_secs(1), 0.0);
        for member in 0..3 {
            assert_eq!(stream.share(member), 1.0, "member {member}");
        }
        for node in 0..4 {
            let stats = stream.network.relay_stats(node);
            let branches =
                edges.iter().filter(|edge| edge.0 == node || edge.1 == node).count() as u64;
            let packets = stats.forwarded + stats.top_ups + stats.extras;
            assert!(packets <= branches * stream.sent, "node {node}: {stats:?}");
        }
    }
}

#[test]
fn late_member_begins_with_the_next_message_and_counts_no_losses() {
    let mut stream = tree(0.0, &[3]);
    stream.run(Duration::from_secs(5), 500.0);
    let joined_at = stream.sent;
    stream.join(5);
    stream.run(Duration::from_secs(3), 500.0);
    stream.run(Duration::from_secs(1), 0.0);
    let received = &stream.members[1].received;
    let (first, count) = (received[0].0, received.len() as u64);
    // An announcement each second.
    assert!((joined_at..joined_at + 550).contains(&first), "{first} after {joined_at}");
    assert_eq!(count, stream.sent - first);
    assert_eq!(stream.stats(1).messages_lost, 0);
    assert_eq!(stream.share(0), 1.0);
}

#[test]
fn members_follow_a_source_that_restarts_and_hear_of_its_end() {
    let mut stream = tree(0.0, &[3, 4]);
    stream.run(Duration::from_secs(2), 500.0);
    stream.network.restart(0);
    let end = stream.network.now() + Duration::from_secs(5);
    while !stream.network.is_established() && stream.network.now() < end {
        stream.network.step(end);
    }
    set_tree_entries(&mut stream.network);
    let now = stream.network.now();
    let options = GroupOptions::default();
    stream.sender = stream.network.node(0).open_group_sender(now, GROUP, &key(), options).unwrap();
    let before = stream.members[1].received.len();
    stream.run(Duration::from_secs(2), 500.0);
    assert!(stream.members[1].received.len() - before > 950);
    assert_eq!(stream.stats(1).sources, 2, "the old flow ends after 30 s");
    let (now, sender) = (stream.network.now(), stream.sender);
    stream.network.node(0).finish_group_sender(now, sender);
    stream.run(Duration::from_secs(40), 0.0);
    assert_eq!(stream.network.node(0).group_sender_stats(sender), None);
    assert_eq!(stream.stats(1).sources, 0);
    let refused = stream.network.node(0).send_to_group(now, sender, Bytes::new());
    assert!(refused.is_err());
}
