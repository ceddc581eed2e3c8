//! Runs with the same seed are identical to the byte and nanosecond.

use std::process::Command;
use std::time::Duration;

use bats_code::kernel::{ENVIRONMENT_VARIABLE, Kernel};
use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::TransportConfig;
use bats_sim::recorder::Recorder;
use bats_sim::swarm::{Plan, run};
use bats_sim::transfer::Transfer;

fn hash(seed: u64) -> String {
    let link = LinkConfig {
        rate_bps: Some(50_000_000),
        queue_bytes: Some(200_000),
        delay: Duration::from_millis(20),
        jitter: Some(Jitter { amplitude: Duration::from_millis(3), reorder: true }),
        loss: Loss::bursts(0.1, 4.0),
        duplicate: 0.02,
        corrupt: 0.01,
        frame_overhead: 42,
        ..LinkConfig::default()
    };
    let mut recorder = Recorder::tracing();
    let outcome = Transfer {
        up: link.clone(),
        down: link,
        transport: TransportConfig::default(),
        message_size: 5_000,
        message_interval: None,
        total_bytes: None,
        duration: Duration::from_secs(2),
        sample_interval: Transfer::SAMPLE,
        changes: Vec::new(),
        seed,
    }
    .run_recorded(&mut recorder);
    assert!(outcome.bytes > 1 << 20, "{} bytes", outcome.bytes);
    let trace = recorder.trace.expect("the recorder has a trace");
    assert!(trace.events() > 10_000);
    trace.hash().to_hex().to_string()
}

#[test]
fn equal_seeds_give_equal_traces_and_different_seeds_different_ones() {
    assert_eq!(hash(9), hash(9));
    assert_ne!(hash(9), hash(10));
}

/// Set for the copies of this program that only print their traces.
const PRINT: &str = "OPENBATS_PRINT_TRACES";

/// A transfer with losses, and random runs: together they have all modes, relays and faults.
fn traces() -> Vec<String> {
    let mut traces = vec![hash(9)];
    for seed in [0, 2, 5, 7] {
        let report = run(&Plan::new(seed, Duration::from_secs(2)), true);
        assert_eq!(report.violation, None, "seed {seed}");
        traces.push(report.trace.expect("it is enabled"));
    }
    traces
}

/// The kernel of a process is chosen once, so each runs in a process of its own. `.ci/traces` compares
/// debug and release builds.
#[test]
fn all_kernels_give_equal_traces() {
    if std::env::var_os(PRINT).is_some() {
        println!("kernel {}", Kernel::active().name());
        traces().iter().for_each(|trace| println!("trace {trace}"));
        return;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let expected = traces();
    let mut compared = 0;
    for kernel in Kernel::available() {
        let output = Command::new(&program)
            .args(["--exact", "determinism::all_kernels_give_equal_traces", "--nocapture"])
            .env(PRINT, "1")
            .env(ENVIRONMENT_VARIABLE, kernel.name())
            .output()
            .expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = |word: &str| -> Vec<String> {
            // The harness may write the name of the test before the first line.
            text.lines()
                .filter_map(|line| line.split_once(word))
                .map(|(_, v)| v.to_owned())
                .collect()
        };
        assert_eq!(values("kernel "), [kernel.name()], "{text}");
        assert_eq!(values("trace "), expected, "kernel {}", kernel.name());
        compared += 1;
    }
    #[cfg(target_arch = "x86_64")]
    let has_simd = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_simd = cfg!(target_arch = "aarch64");
    // The scalar kernel is always available. One with SIMD instructions must not go missing unseen.
    let least = 1 + usize::from(has_simd);
    assert!(compared >= least, "{compared} kernels, at least {least} are available");
}
