//! Many small generated test files in virtual time: none may panic, hang or damage data.

use std::path::Path;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Run, unsupported_reason};
use crate::config::load;
use crate::config::source::Source;
use crate::run::progress::Progress;
use crate::run::schedule;

/// Number of generated files.
const FILES: u64 = 300;

/// Keys of a link beyond rate, delay and queue.
const ELEMENTS: [&str; 32] = [
    "loss: 10%",
    "loss: 60%/90%",
    "loss: 'ge:1%,10%'",
    "loss: 'ge:2%,5%,80%,1%'",
    "loss: '4state:2%,20%,10%,30%,1%'",
    "jitter: 5ms",
    "jitter: 20ms, reorder: true",
    "duplicate: 5%",
    "corrupt: 2%",
    "down: true",
    "queue_packets: 3",
    "discipline: codel",
    "discipline: fq_codel",
    "discipline: { fq_codel: { flows: 1, quantum: 256, target: 1ms } }",
    "discipline: pie",
    "discipline: { pie: { target: 1ms, update: 1ms, max_burst: 0 } }",
    "discipline: step_mark",
    "policer: { rate: 1M, burst: 3k }",
    "policer: { rate: 0, burst: 1 }",
    "policer: { rate: 500k, burst: 20k, per_flow: true }",
    "ack_thinning: { keep_one_of: 8 }",
    "ack_thinning: { keep_one_of: 2, window: 50ms, max_size: 1500 }",
    "flow_delays: [0, 5ms, 40ms]",
    "contention: { jitter: 7ms }",
    "slots: { interval: 5ms, limit: 2 }",
    "alternate_loss: { loss: 50%, every: 100ms }",
    "holes: { periodic: { period: 100ms, length: 30ms } }",
    "holes: { random: { mean_gap: 50ms, mean_length: 20ms } }",
    "fade: { high: 5M, low: 1M, loss: 50% }",
    "ethernet_overhead: true",
    "delay_schedule: { spikes: { extra: 100ms, length: 20ms, period: 100ms } }",
    "delay_schedule: { leo: { span: 50ms, period: 30ms } }",
];

const RATES: [&str; 10] = [
    "rate: 64k",
    "rate: 500k",
    "rate: 2M",
    "rate: 10M/1M",
    "rate: 20M",
    "rate_schedule: { steps: [{ rate: 10M, for: 50ms }, { rate: 0, for: 50ms }] }",
    "rate_schedule: { steps_once: [{ rate: 10M, for: 100ms }, { rate: 100k, for: 1ms }] }",
    "rate_schedule: { saw: { low: 0, high: 8M, rise: 70ms } }",
    "rate_schedule: { lte: { mean: 5M, step: 10ms } }",
    "rate_schedule: { leo: { base: 8M, low: 0, period: 40ms } }",
];

const PROTOCOLS: [&str; 8] =
    ["btp", "brtp", "brctp", "transparent", "udp", "tcp-bbr", "tcp-cubic", "brtp-direct"];

fn link(random: &mut ChaCha8Rng) -> String {
    let mut keys = vec![(*RATES.choose(random).unwrap()).to_owned()];
    keys.push(format!("delay: {}ms", [0, 1, 10, 50].choose(random).unwrap()));
    let queue = ["1bdp", "0.1bdp", "3000", "20k", "500k"].choose(random).unwrap();
    keys.push(format!("queue: {queue}"));
    for _ in 0..random.random_range(0..4) {
        let element = *ELEMENTS.choose(random).unwrap();
        let key = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        // Some in one direction only.
        let side = ["", "", "forward", "backward"].choose(random).unwrap();
        let text = match *side {
            "" => element.to_owned(),
            _ if element.contains('/') => continue,
            side => format!("{side}: {{ {element} }}"),
        };
        if keys.iter().all(|one| key(one) != key(&text)) {
            keys.push(text);
        }
    }
    format!("{{ {} }}", keys.join(", "))
}

fn file(seed: u64) -> String {
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let nodes = [2, 2, 2, 3, 4].choose(random).unwrap();
    let links: Vec<String> = (1..*nodes).map(|_| link(random)).collect();
    let protocol = PROTOCOLS.choose(random).unwrap();
    let intervals = random.random_range(2..5);
    let tool = match random.random_range(0..5) {
        0 => "rtt: { interval: 0.02, packet_count: 10, packet_size: 300 }".to_owned(),
        1 => "rtt: { packet_count: 1, packet_size: 16 }".to_owned(),
        _ => {
            let bitrate = [0.0, 0.0, 0.05, 0.5, 1.9, 7.5, 9.7, 30.0].choose(random).unwrap();
            let parallel = [1, 1, 2, 5].choose(random).unwrap();
            format!(
                "iperf: {{ interval: 0.1, interval_num: {intervals}, bitrate: {bitrate}, parallel: {parallel} }}"
            )
        }
    };
    let is_bulk = tool.starts_with("iperf");
    let mut more = String::new();
    if is_bulk && random.random_bool(0.4) {
        let flow = ["tcp-reno", "brtp", "udp", "btp"].choose(random).unwrap();
        let (client, server) =
            if random.random_bool(0.5) { (0, nodes - 1) } else { (nodes - 1, 0) };
        more += &format!(
            "\n    competition_flows: [{{ flow_type: {flow}, client_host: {client}, server_host: {server}, delay: 0.05, duration: 0.1 }}]"
        );
    }
    if is_bulk && random.random_bool(0.4) {
        let change = ELEMENTS.choose(random).unwrap();
        let rate = RATES.choose(random).unwrap();
        more += &format!(
            "\n    events: [{{ at: 0.05, set: {{ {change} }} }}, {{ at: 0.1, set: {{ {rate} }} }}, {{ at: 0.15, set: {{ down: false, policer: none, holes: none, rate: 3M }} }}]"
        );
    }
    format!(
        "tests:\n  fuzz:\n    topology: {{ topology_type: linear, nodes: {nodes}, links: [{}] }}\n    target_protocols: [{protocol}]\n    test_tools: {{ {tool} }}\n    seed: {seed}{more}\n",
        links.join(", ")
    )
}

/// Runs all measurements of a file. Returns their number and their errors.
fn run(text: &str, folder: &Path) -> (usize, Vec<String>) {
    let suite = load::parse(&Source::shipped("fuzz.yaml", text))
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let (mut count, mut errors) = (0, Vec::new());
    for case in &suite.cases {
        let (network, protocol, tool) = (&case.networks[0], &case.protocols[0], &case.tools[0]);
        if unsupported_reason(case, network, protocol, tool).is_some() {
            continue;
        }
        let times = schedule::times(&case.flows, tool, case.seed);
        let progress = Progress::new(folder, 1.0, true, true).unwrap();
        let (seed, times) = (case.seed, times.as_slice());
        let run = Run { case, network, protocol, tool, seed, folder, times, progress: &progress };
        count += 1;
        errors.extend(run.measure().err().map(|error| format!("{error:#}")));
    }
    (count, errors)
}

#[test]
fn generated_files_do_not_panic_the_simulator() {
    let folder = tempfile::tempdir().unwrap();
    // Links that let too little pass fail a measurement. Anything else is a defect.
    const OF_THE_LINK: [&str; 4] = [
        "no connection was established",
        "the connection ended early",
        "do not come up",
        "no reply to any",
    ];
    let (mut ran, mut measured, mut defects) = (0, 0, Vec::new());
    for seed in 0..FILES {
        let text = file(seed);
        let (count, errors) = run(&text, folder.path());
        ran += count;
        measured += count - errors.len();
        for error in errors {
            if !OF_THE_LINK.iter().any(|words| error.contains(words)) {
                defects.push(format!("{error}\n{text}"));
            }
        }
    }
    assert!(defects.is_empty(), "{} defects:\n{}", defects.len(), defects.join("\n"));
    // Most files must have measured something, or this test shows little.
    assert!(ran > FILES as usize * 2 / 3 && measured > FILES as usize / 2, "{ran} {measured}");
}

#[test]
fn virtual_time_advances_although_messages_are_overdue_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=2 {
        let text = format!(
            "tests:\n  bound:\n    topology: {{ topology_type: linear, nodes: 2, link: {{ rate: 100M, delay: 10ms, loss: 20% }} }}\n    target_protocols: [btp]\n    test_tools: {{ iperf: {{ interval_num: 2, bitrate: 75, packet_type: udp }} }}\n    seed: {seed}\n"
        );
        assert_eq!(run(&text, folder.path()), (1, Vec::new()));
    }
}
