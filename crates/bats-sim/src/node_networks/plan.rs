//! The topology, the configurations and the events of a seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::config::{Edge, NodeConfig, World};
use crate::swarm::rng::SeededRng;

/// Time for the first links and sessions before the first event.
const QUIET: f64 = 1.5;

/// A change.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Cut an edge, or heal it.
    Cut(usize, bool),
    /// Start the process of a node again.
    Restart(usize),
    /// Admit a neighbour with transit or without, or not at all.
    Policy(usize, usize, Option<bool>),
    /// Whether a node has sessions with another.
    Peer(usize, usize, bool),
    /// Whether a node opens a link over an edge.
    Dial(usize, usize, bool),
    /// The edges to another node.
    Route(usize, usize, BTreeSet<usize>),
    /// All routes follow the shortest paths over the edges that are not cut.
    Routes,
}

/// What happens in a network.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The seed.
    pub seed: u64,
    pub(super) world: World,
    /// The impostor, if there is one: it claims the ID of another node.
    pub(super) impostor: Option<usize>,
    /// Changes by time since the start.
    pub(super) events: Vec<(Duration, Change)>,
}

/// The edges of the shortest paths from each node to each other one.
pub(super) fn shortest_paths(world: &World, count: usize) -> Vec<BTreeMap<usize, BTreeSet<usize>>> {
    let mut routes = vec![BTreeMap::new(); count];
    for to in 0..count {
        let mut distance = BTreeMap::from([(to, 0)]);
        let mut queue = VecDeque::from([to]);
        while let Some(at) = queue.pop_front() {
            for edge in world.edges.iter().filter(|edge| !edge.is_cut) {
                let Some(side) = edge.side(at) else { continue };
                let next = edge.ends[1 - side];
                if next < count && !distance.contains_key(&next) {
                    distance.insert(next, distance[&at] + 1);
                    queue.push_back(next);
                }
            }
        }
        for (from, routes) in routes.iter_mut().enumerate().filter(|(from, _)| *from != to) {
            let is_next = |edge: &Edge| {
                let next = edge.side(from).map(|side| edge.ends[1 - side]);
                let after = next.and_then(|next| distance.get(&next));
                !edge.is_cut && after.is_some_and(|after| distance.get(&from) == Some(&(after + 1)))
            };
            let next = world.edges.iter().enumerate().filter(|(_, edge)| is_next(edge));
            let next: BTreeSet<usize> = next.map(|(index, _)| index).collect();
            if !next.is_empty() {
                routes.insert(to, next);
            }
        }
    }
    routes
}

impl NetworkPlan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed ^ 0x6e6f_6465);
        let mut pick = |low: usize, high: usize| rng.integer(low as u64, high as u64) as usize;
        // Small networks are more frequent: they take less time, and show most.
        let largest = if pick(0, 3) == 0 { 12 } else { 6 };
        let count = pick(3, largest);
        let mut ends: Vec<[usize; 2]> = (1..count).map(|node| [pick(0, node - 1), node]).collect();
        for _ in 0..pick(0, count) {
            let pair = [pick(0, count - 1), pick(0, count - 1)];
            if pair[0] != pair[1] {
                ends.push(pair);
            }
        }
        let impostor = (pick(0, 2) == 0).then_some(count);
        ends.extend(impostor.map(|impostor| [pick(0, count - 1), impostor]));
        let edges: Vec<Edge> = ends
            .iter()
            .map(|&ends| Edge {
                ends,
                delay_ms: pick(1, 15) as u64,
                loss: pick(0, 50) as f64 / 1_000.0,
                is_cut: false,
            })
            .collect();
        let mut nodes: Vec<NodeConfig> = (0..count + usize::from(impostor.is_some()))
            .map(|node| NodeConfig {
                claims: node,
                follows_kernel: pick(0, 1) == 1,
                ..NodeConfig::default()
            })
            .collect();
        for (index, edge) in edges.iter().enumerate() {
            let [a, b] = edge.ends;
            let opens = pick(0, 2);
            for (at, other, opens) in [(a, b, opens != 1), (b, a, opens != 0)] {
                if opens {
                    nodes[at].dials.insert(index);
                }
                nodes[at].transit.entry(other).or_insert(pick(0, 9) > 0);
            }
        }
        for _ in 0..pick(2, 8) {
            let (a, b) = (pick(0, count - 1), pick(0, count - 1));
            if a != b {
                nodes[a].peers.insert(b);
                if pick(0, 15) > 0 {
                    nodes[b].peers.insert(a);
                }
            }
        }
        if let Some(impostor) = impostor {
            let victim = pick(0, count - 1);
            let edge = edges.len() - 1;
            nodes[impostor] = NodeConfig {
                claims: victim,
                dials: [edge].into(),
                transit: [(edges[edge].ends[0], true)].into(),
                peers: (0..count).filter(|node| *node != victim).collect(),
                routes: (0..count).filter(|n| *n != victim).map(|n| (n, [edge].into())).collect(),
                ..NodeConfig::default()
            };
            if pick(0, 2) == 0 {
                nodes[edges[edge].ends[0]].transit.remove(&impostor);
            }
        }
        let mut world = World { nodes, edges };
        for (node, routes) in shortest_paths(&world, count).into_iter().enumerate() {
            world.nodes[node].routes = routes;
        }
        let events = events(&world, count, &mut rng);
        Self { seed, world, impostor, events }
    }
}

fn events(world: &World, count: usize, rng: &mut SeededRng) -> Vec<(Duration, Change)> {
    let mut at = QUIET;
    let mut all = Vec::new();
    let mut cut = BTreeSet::new();
    let add = |all: &mut Vec<_>, at: f64, change| all.push((Duration::from_secs_f64(at), change));
    for _ in 0..rng.integer(3, 8) {
        at += rng.uniform(0.02, 0.9);
        let node = rng.integer(0, count as u64 - 1) as usize;
        let edge = rng.integer(0, world.edges.len() as u64 - 1) as usize;
        let [a, b] = world.edges[edge].ends;
        let (one, other) = if rng.chance(0.5) { (a, b) } else { (b, a) };
        match rng.integer(0, 9) {
            0..=3 => {
                let cuts = cut.insert(edge) || !cut.remove(&edge);
                add(&mut all, at, Change::Cut(edge, cuts));
                if rng.chance(0.8) {
                    // A routing daemon notices it.
                    at += rng.uniform(0.01, 0.2);
                    add(&mut all, at, Change::Routes);
                }
            }
            4 => add(&mut all, at, Change::Restart(node)),
            5 if one < count => {
                let policy = [None, Some(false), Some(true)][rng.integer(0, 2) as usize];
                add(&mut all, at, Change::Policy(one, other, policy));
            }
            6 if one < count => add(&mut all, at, Change::Dial(one, edge, rng.chance(0.5))),
            7 => {
                let peer = rng.integer(0, count as u64 - 1) as usize;
                if peer != node {
                    add(&mut all, at, Change::Peer(node, peer, rng.chance(0.5)));
                }
            }
            8 if one < count => {
                let to = rng.integer(0, count as u64 - 1) as usize;
                let edges = if rng.chance(0.3) { BTreeSet::new() } else { [edge].into() };
                if to != one {
                    add(&mut all, at, Change::Route(one, to, edges));
                }
            }
            _ => add(&mut all, at, Change::Routes),
        }
    }
    all
}
