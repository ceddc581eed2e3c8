//! Runs the throughput tests of a test file as cells of the arena, in virtual time.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bats_proto::CongestionAlgorithm;
use bats_sim::arena::cell::{Algorithm, Cell, Change, FlowSpec, Hop, Who, Work};
use bats_sim::arena::contest::{Contest, Plan};
use bats_sim::arena::table;

use crate::backend::sim;
use crate::cli::ArenaOptions;
use crate::config;
use crate::plan::{Case, Network, Protocol, ProtocolKind, Tool, ToolKind};
use crate::protocol::load::UDP_RATE;
use crate::run::schedule::{Times, times};

/// Warm-up before the measured time, as for the figure `steady`.
const SETTLE: Duration = Duration::from_secs(5);
/// Message of an application-limited flow of BTP, as `iperf` sends them.
const MESSAGE: usize = 1_200;
/// Maximum number of seeds.
const MAX_SEEDS: u32 = 1_000;

/// Runs the command `arena`.
///
/// # Errors
/// If the file is invalid, or nothing of it can run.
pub(crate) fn run(options: &ArenaOptions) -> Result<ExitCode> {
    let suite = config::load::suite(&options.file, options.only.as_deref())?;
    let mut has_run = false;
    for case in &suite.cases {
        let (plans, skipped) = plans(case, options.seeds);
        for reason in skipped {
            eprintln!("{}: skipped: {reason}", case.name);
        }
        if !case.assertions.is_empty() {
            eprintln!("{}: assertions are not evaluated: use `batslab run`", case.name);
        }
        for plan in plans {
            has_run = true;
            outln!("{}", case.name);
            out!("{}", table::table(&plan.run(|| {})));
        }
    }
    if !has_run {
        bail!("{}: nothing in it runs in the arena", options.file);
    }
    Ok(ExitCode::SUCCESS)
}

/// The plans of a test, one for each set of protocols with the same use of relays, and the reasons why
/// other protocols are left out.
fn plans(case: &Case, seeds: Option<u32>) -> (Vec<Plan>, Vec<String>) {
    let (mut plans, mut skipped): (Vec<Plan>, Vec<String>) = (Vec::new(), Vec::new());
    for (index, network) in case.networks.iter().enumerate() {
        for tool in &case.tools {
            for recodes in [false, true] {
                let mut algorithms = Vec::new();
                for protocol in &case.protocols {
                    match algorithm(case, network, protocol, tool) {
                        Ok((algorithm, relays)) if relays == recodes => algorithms.push(algorithm),
                        Ok(_) => {}
                        Err(reason) => {
                            let text = format!("{} with {}: {reason}", protocol.name, tool.name);
                            if !skipped.contains(&text) {
                                skipped.push(text);
                            }
                        }
                    }
                }
                if algorithms.is_empty() {
                    continue;
                }
                let name = format!("{index}");
                match contest(case, network, tool, name, recodes) {
                    Ok(contest) => add(&mut plans, contest, algorithms, case, seeds),
                    Err(error) => skipped.push(format!("{}: {error:#}", tool.name)),
                }
            }
        }
    }
    (plans, skipped)
}

fn add(
    plans: &mut Vec<Plan>,
    contest: Contest,
    algorithms: Vec<Algorithm>,
    case: &Case,
    seeds: Option<u32>,
) {
    if let Some(plan) = plans.iter_mut().find(|plan| plan.algorithms == algorithms) {
        plan.contests.push(contest);
        return;
    }
    let count = seeds.unwrap_or(case.repetitions).clamp(1, MAX_SEEDS);
    plans.push(Plan {
        contests: vec![contest],
        algorithms,
        seeds: (0..count).map(|repetition| case.seed.wrapping_add(repetition.into())).collect(),
        held_out: None,
        judge: false,
        all_peers: false,
        threads: 0,
    });
}

/// The algorithm for a protocol, and whether relays recode for it.
fn algorithm(
    case: &Case,
    network: &Network,
    protocol: &Protocol,
    tool: &Tool,
) -> Result<(Algorithm, bool), String> {
    if let Some(reason) = sim::unsupported_reason(case, network, protocol, tool) {
        return Err(reason);
    }
    let ToolKind::Throughput { bitrate, parallel, .. } = tool.kind else {
        return Err("the arena measures throughput".into());
    };
    let algorithm = of_protocol(protocol)?;
    if matches!(algorithm, Algorithm::Btp(_)) != (bitrate > 0.0) || algorithm == Algorithm::Udp {
        return Err(
            "the arena judges brtp and models of TCP without `bitrate`, and btp with it".into()
        );
    }
    match sim::recoding(case, network, protocol, tool) {
        Some(true)
            if matches!(algorithm, Algorithm::Brtp(_))
                && parallel <= 1
                && case.flows.is_empty() =>
        {
            Ok((algorithm, true))
        }
        Some(_) => Err("in the arena relays recode one flow of brtp, or are routers".into()),
        _ => Ok((algorithm, false)),
    }
}

fn of_protocol(protocol: &Protocol) -> Result<Algorithm, String> {
    let controller = CongestionAlgorithm::default();
    match &protocol.kind {
        ProtocolKind::Bats { mode, .. } => match mode.as_str() {
            "1" | "brtp" => Ok(Algorithm::Brtp(controller)),
            "0" | "btp" => Ok(Algorithm::Btp(controller)),
            "11" | "udp" => Ok(Algorithm::Udp),
            other => Err(format!("the arena has no model of mode {other}")),
        },
        ProtocolKind::Udp => Ok(Algorithm::Udp),
        ProtocolKind::Tcp { congestion, .. } => match congestion.as_str() {
            "bbr" => Ok(Algorithm::Bbr1),
            "cubic" => Ok(Algorithm::Cubic),
            "reno" => Ok(Algorithm::Reno),
            other => Err(format!("the arena has no model of tcp-{other}")),
        },
        _ => Err("the arena has no model of it".into()),
    }
}

fn contest(
    case: &Case,
    network: &Network,
    tool: &Tool,
    name: String,
    relays: bool,
) -> Result<Contest> {
    // Flows that start at random times start at other ones with each seed.
    let cells = |seed: u64| cell(case, network, tool, relays, seed);
    cells(case.seed)?;
    let (case, network, tool) = (case.clone(), network.clone(), tool.clone());
    Ok(Contest {
        name,
        title: network.label.chars().take(36).collect(),
        goals: Vec::new(),
        build: Arc::new(move |draw| {
            let built = cell(&case, &network, &tool, relays, draw.seed);
            built.unwrap_or_else(|_| Cell::new(Vec::new(), vec![FlowSpec::subject()]))
        }),
    })
}

/// The cell of a network and a tool.
fn cell(case: &Case, network: &Network, tool: &Tool, relays: bool, seed: u64) -> Result<Cell> {
    let ToolKind::Throughput { parallel, bitrate, .. } = tool.kind else {
        bail!("the arena measures throughput");
    };
    let path = |client, server| {
        network.path(client, server).context("no path between the hosts of a flow")
    };
    let links = |links: &[crate::settings::Link]| -> Result<Vec<Hop>> {
        let hop = |link: &crate::settings::Link| {
            let up = sim::link_config(link, &link.forward)?;
            Ok(Hop { up, down: sim::link_config(link, &link.backward)? })
        };
        links.iter().map(hop).collect()
    };
    let mut cell = Cell::new(links(&network.links)?, Vec::new());
    let route = path(tool.client, tool.server)?;
    cell.relays = relays && route.len() == network.links.len();
    let subject = if bitrate > 0.0 {
        let work = Work::Rate { bits_per_second: bitrate * 1e6, message: MESSAGE };
        FlowSpec { who: Who::SubjectMedia, work, ..FlowSpec::subject() }
    } else {
        FlowSpec::subject()
    };
    for _ in 0..parallel.max(1) {
        cell.flows.push(subject);
        // A route that is all hops in order is what a flow has without one.
        let is_plain = route.iter().enumerate().all(|(at, hop)| *hop == (at, true));
        let is_all = is_plain && route.len() == network.links.len();
        cell.routes.push((!is_all).then(|| route.clone()));
    }
    for (flow, Times { delay, duration }) in case.flows.iter().zip(times(&case.flows, tool, seed)) {
        let algorithm = of_protocol(&flow.protocol).map_err(anyhow::Error::msg)?;
        let work = match algorithm {
            Algorithm::Udp => Work::Rate { bits_per_second: UDP_RATE * 1e6, message: MESSAGE },
            _ => Work::Bulk,
        };
        cell.flows.push(FlowSpec {
            work,
            start: Duration::from_secs_f64(delay),
            end: Some(Duration::from_secs_f64(delay + duration)),
            ..FlowSpec::competing(algorithm)
        });
        cell.routes.push(Some(path(flow.client, flow.server)?));
    }
    let mut now = network.links.clone();
    for event in &case.events {
        for (hop, link) in now.iter_mut().enumerate() {
            if event.link.is_none_or(|chosen| chosen == hop) {
                event.changes.apply(link);
                let at = Duration::from_secs_f64(event.at);
                let up = sim::link_config(link, &link.forward)?;
                let down = sim::link_config(link, &link.backward)?;
                cell.changes.push(Change { at, hop, reverse: false, link: up });
                cell.changes.push(Change { at, hop, reverse: true, link: down });
            }
        }
    }
    let length = Duration::from_secs_f64(tool.seconds());
    cell.warm_up = SETTLE.min(length / 2);
    cell.measure = length - cell.warm_up;
    Ok(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(text: &str) -> Vec<Case> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.yaml");
        std::fs::write(&path, text).unwrap();
        config::load::suite(path.to_str().unwrap(), None).unwrap().cases
    }

    const FILE: &str = "
topologies:
  - name: chain
    topology_type: linear
    nodes: 3
    links:
      - { rate: 20M/5M, delay: 10ms/4ms, loss: \"ge:1%,9%\", queue: 50k }
      - { rate: 30M, delay: 5ms }
tests:
  one:
    topology: { config_name: chain }
    target_protocols: [brtp, brtp-direct, tcp-cubic, kcp]
    test_tools:
      iperf: { interval: 1, interval_num: 8 }
      rtt: { interval: 0.01, packet_count: 10 }
    events:
      - { at: 3, link: 2, set: { rate: 10M, loss: 2% } }
    seed: 5
    repetitions: 2
";

    #[test]
    fn arena_cells_keep_links_events_and_repetitions_of_the_file() {
        let cases = suite(FILE);
        let (plans, skipped) = plans(&cases[0], None);
        assert!(skipped.iter().any(|reason| reason.contains("kcp")), "{skipped:?}");
        assert!(skipped.iter().any(|reason| reason.contains("rtt")), "{skipped:?}");
        // Without relays: brtp-direct and TCP. With them: brtp.
        assert_eq!(plans.len(), 2);
        assert_eq!((plans[0].algorithms.len(), plans[1].algorithms.len()), (2, 1));
        assert_eq!(plans[0].seeds, [5, 6]);
        let relayed = cell(&cases[0], &cases[0].networks[0], &cases[0].tools[0], true, 5).unwrap();
        assert!(relayed.relays && relayed.flows.len() == 1);
        let (up, down) = (&relayed.hops[0].up, &relayed.hops[0].down);
        assert_eq!((up.rate_bps, down.rate_bps), (Some(20_000_000), Some(5_000_000)));
        assert_eq!((up.delay.as_millis(), down.delay.as_millis()), (10, 4));
        assert_eq!((up.queue_bytes, up.frame_overhead), (Some(50_000), 42));
        assert!((up.loss.mean() - 0.1).abs() < 1e-9);
        let change = &relayed.changes[0];
        assert_eq!((change.at, change.hop, change.reverse), (Duration::from_secs(3), 1, false));
        assert_eq!(change.link.rate_bps, Some(10_000_000));
        assert!((change.link.loss.mean() - 0.02).abs() < 1e-9);
        assert_eq!((relayed.warm_up.as_secs(), relayed.measure.as_secs()), (4, 4));
    }

    #[test]
    fn a_test_reaches_the_capacity_of_its_links() {
        let text = FILE.replace("\"ge:1%,9%\"", "1%").replace("loss: 2%", "loss: 0%");
        let cases = suite(&text);
        let (plans, _) = plans(&cases[0], Some(1));
        for plan in plans {
            let report = plan.run(|| {});
            for run in &report.cells[0].runs {
                let name = run.algorithm.as_deref().unwrap();
                let least = if name.starts_with("tcp") { 0.02 } else { 0.6 };
                assert!(run.figures.efficiency > least, "{name}: {:?}", run.figures);
            }
        }
    }

    #[test]
    fn competing_flows_have_their_times_and_routes() {
        let mut cases = config::load::suite("case:competition", None).unwrap().cases;
        let case = cases.remove(0);
        let tool = &case.tools[0];
        let built = cell(&case, &case.networks[0], tool, false, case.seed).unwrap();
        assert!(built.flows.len() > 1 && built.flows.len() == built.routes.len());
        let expected = times(&case.flows, tool, case.seed);
        for (index, (flow, times)) in case.flows.iter().zip(&expected).enumerate() {
            let at = built.flows.len() - case.flows.len() + index;
            assert_eq!(built.flows[at].start, Duration::from_secs_f64(times.delay));
            assert_eq!(built.route(at), case.networks[0].path(flow.client, flow.server).unwrap());
        }
    }
}
