//! The catalogue of cells, by group.

mod competing;
mod disorder;
mod fixed;
mod media;
mod queues;
mod sky;
mod slow;
mod variable;

use core::time::Duration;

use bats_netem::{ETHERNET_OVERHEAD, IPV4_UDP_HEADERS, LinkConfig, Loss};

use super::cell::{Cell, FlowSpec, Hop};
use super::draw::Draw;

/// An entry of the catalogue: its name, and the function that builds the cell.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Group and number, such as `F1`.
    pub name: &'static str,
    /// Description in a few words.
    pub title: &'static str,
    /// Builds the cell.
    pub build: fn(&mut Draw) -> Cell,
}

impl Entry {
    /// The cell with the parameters of `draw`.
    pub fn cell(&self, draw: &mut Draw) -> Cell {
        Cell { name: self.name.into(), title: self.title.into(), ..(self.build)(draw) }
    }

    /// The group: the letter of the name.
    pub fn group(&self) -> char {
        self.name.chars().next().unwrap_or('?')
    }
}

/// All cells.
pub fn all() -> Vec<Entry> {
    [
        fixed::FIXED,
        fixed::LOSS,
        fixed::BURSTS,
        variable::VARIABLE,
        queues::POLICERS,
        queues::QUEUES,
        disorder::DISORDER,
        slow::SLOW,
        competing::OWN,
        competing::COMPETING,
        media::MEDIA,
        sky::RELAYS,
    ]
    .concat()
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Minimum queue: ten full packets.
const LEAST_QUEUE: usize = 10 * 1_538;

/// Both directions of a link of `mbps` and `one_way_ms`, with a queue of `bdp` BDP.
fn hop(draw: &mut Draw, mbps: f64, one_way_ms: f64, bdp: f64) -> Hop {
    let rate = (draw.of(mbps) * 1e6) as u64;
    let one_way = Duration::from_secs_f64(draw.of(one_way_ms) * 1e-3);
    let queue = LinkConfig::queue_for(rate, one_way * 2, draw.of(bdp)).max(LEAST_QUEUE);
    let link = LinkConfig {
        rate_bps: Some(rate),
        queue_bytes: Some(queue),
        delay: one_way,
        frame_overhead: IPV4_UDP_HEADERS + ETHERNET_OVERHEAD,
        ..LinkConfig::default()
    };
    Hop { up: link.clone(), down: link }
}

/// The same link with independent loss in both directions.
fn lossy(mut hop: Hop, loss: f64) -> Hop {
    hop.up.loss = Loss::Iid(loss);
    hop.down.loss = Loss::Iid(loss);
    hop
}

/// A cell with one hop and these flows: 10 s of warm-up, 30 s of measurement.
fn cell(hop: Hop, flows: Vec<FlowSpec>) -> Cell {
    Cell {
        name: String::new(),
        title: String::new(),
        hops: vec![hop],
        changes: Vec::new(),
        flows,
        warm_up: Duration::from_secs(10),
        measure: Duration::from_secs(30),
    }
}

/// A cell with one bulk transfer.
fn alone(hop: Hop) -> Cell {
    cell(hop, vec![FlowSpec::subject()])
}

/// Shortens a run on links with many packets per second.
fn short(cell: Cell, warm_up: u64, measure: u64) -> Cell {
    Cell { warm_up: Duration::from_secs(warm_up), measure: Duration::from_secs(measure), ..cell }
}
