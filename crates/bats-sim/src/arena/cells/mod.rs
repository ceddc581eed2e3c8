//! The catalogue of cells, by group.

mod competing;
mod disorder;
mod fixed;
mod goals;
mod media;
mod queues;
mod sky;
mod slow;
mod variable;

use core::time::Duration;
use std::sync::Arc;

use bats_netem::{ETHERNET_OVERHEAD, IPV4_UDP_HEADERS, LinkConfig, Loss};

use super::cell::{Cell, FlowSpec, Hop};
use super::contest::Contest;
use super::draw::Draw;

/// A cell of the catalogue: its name, and what builds it.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Group and number, such as `F1`.
    name: &'static str,
    /// In a few words.
    title: &'static str,
    /// Builds the cell.
    build: fn(&mut Draw) -> Cell,
}

/// All cells with their goals.
pub fn all() -> Vec<Contest> {
    let entries = [
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
    ];
    let contest = |entry: Entry| Contest {
        name: entry.name.into(),
        title: entry.title.into(),
        goals: goals::of(entry.name),
        build: Arc::new(entry.build),
    };
    entries.concat().into_iter().map(contest).collect()
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The least queue: ten full packets.
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

/// The same with independent loss in both directions.
fn lossy(mut hop: Hop, loss: f64) -> Hop {
    hop.up.loss = Loss::Iid(loss);
    hop.down.loss = Loss::Iid(loss);
    hop
}

/// A cell of one hop and these flows: 10 s to settle, 30 s that count.
fn cell(hop: Hop, flows: Vec<FlowSpec>) -> Cell {
    Cell::new(vec![hop], flows)
}

/// A cell with one bulk transfer.
fn alone(hop: Hop) -> Cell {
    cell(hop, vec![FlowSpec::subject()])
}

/// A shorter run, for links on which a second has many packets.
fn short(cell: Cell, warm_up: u64, measure: u64) -> Cell {
    Cell { warm_up: Duration::from_secs(warm_up), measure: Duration::from_secs(measure), ..cell }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_a_name_of_its_own_and_valid_links() {
        let all = all();
        assert!(all.len() >= 80, "{}", all.len());
        for (index, contest) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other.name != contest.name));
            assert!(contest.title.len() <= 40, "{}", contest.title);
            for held_out in 0..4 {
                let mut draw = Draw::held_out(held_out, &contest.name, 1);
                let cell = contest.cell(&mut draw);
                for hop in &cell.hops {
                    hop.up.validate().unwrap();
                    hop.down.validate().unwrap();
                }
                assert!((0..cell.flows.len()).any(|flow| cell.is_subject(flow)), "{}", cell.name);
            }
        }
    }

    #[test]
    fn every_group_has_cells_and_goals() {
        let all = all();
        for group in "FLBVPAJSOCMR".chars() {
            let of_group = all.iter().filter(|contest| contest.name.starts_with(group));
            assert!(of_group.clone().count() >= 4, "{group}");
            assert!(of_group.clone().all(|one| !one.goals.is_empty() || one.name == "M4"));
        }
    }
}
