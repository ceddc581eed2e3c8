//! Faults of a host and its network on real kernels: what must happen to transfers on a bad day.
//!
//! Each case runs in a process of its own with its own network, mount and process namespaces, all at the
//! same time: most of them wait for 20 s. In each, all messages of a BRTP transfer arrive in order and
//! unchanged, which their hash shows, and the transfer resumes in time after the fault's end: see
//! [`transfer::Transfer::outage`].
#![cfg(target_os = "linux")]

mod host;
mod link;
mod network;
#[path = "../common/skip.rs"]
mod skip;
mod stalls;
mod transfer;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::network::{V4, V6};
use crate::skip::skipped;

/// The name of the test of all faults.
const TEST: &str = "faults_of_hosts_and_networks_lose_nothing";
/// Selects the case in a child process.
const CASE: &str = "OPENBATS_BAD_DAY_CASE";
/// A case waits at most this long for its faults and transfers: a failed test, not a speed.
const LIMIT: Duration = Duration::from_secs(240);

/// Exit status of a case of which the kernel delayed a fault for longer than a connection waits; it is repeated.
const DELAYED: i32 = 75;
/// How often such a case is repeated at most.
const REPEATS: usize = 2;

/// Late resumptions that nothing explains, in all cases together; see [`transfer::attempt`].
const UNEXPLAINED: usize = 3;
/// Begins the line that a case prints for each of them.
const UNEXPLAINED_LINE: &str = "unexplained";

/// The name of a case, what it does, and a program that it needs.
type Case = (&'static str, fn(), Option<&'static str>);

const CASES: [Case; 23] = [
    ("interface down and up", || link::interface_down_and_up(&V4), None),
    ("interface down and up, IPv6", || link::interface_down_and_up(&V6), None),
    ("address removed and given back", || link::address_removed_and_given_back(&V4), None),
    ("address removed and given back, IPv6", || link::address_removed_and_given_back(&V6), None),
    ("server sends, interface down and up", || link::interface_down_and_up_at_receiver(&V4), None),
    (
        "server sends, interface down and up, IPv6",
        || link::interface_down_and_up_at_receiver(&V6),
        None,
    ),
    (
        "server sends, address removed and given back",
        || link::address_removed_from_receiver(&V4),
        None,
    ),
    (
        "server sends, address removed and given back, IPv6",
        || link::address_removed_from_receiver(&V6),
        None,
    ),
    ("server sends, all packets dropped", link::all_packets_dropped_at_receiver, Some("nft")),
    ("server sends, MTU lowered", || link::mtu_lowered_at_receiver(&V4), None),
    ("server sends, MTU lowered, IPv6", || link::mtu_lowered_at_receiver(&V6), None),
    ("route flap", || link::route_flap(&V4), None),
    ("route flap, IPv6", || link::route_flap(&V6), None),
    ("all packets dropped for 20 s", link::all_packets_dropped, Some("nft")),
    ("MTU below 1,280", || link::mtu_lowered(&V4), None),
    ("MTU lowered, IPv6", || link::mtu_lowered(&V6), None),
    ("MTU below the smallest packets", link::mtu_below_the_smallest, None),
    ("ICMP errors of every code", link::icmp_errors_of_every_code, None),
    ("clock stepped by an hour", host::clock_stepped, Some("faketime")),
    ("peer stopped for 20 s", host::peer_stopped, None),
    ("out of file descriptors", host::out_of_file_descriptors, None),
    ("disk full while receiving", host::disk_full, None),
    ("lack of kernel memory", host::lack_of_kernel_memory, Some("strace")),
];

#[test]
fn faults_of_hosts_and_networks_lose_nothing() {
    if let Ok(name) = std::env::var(CASE) {
        if name == host::PEER {
            return host::peer();
        }
        let (_, run, _) = CASES.iter().find(|(case, ..)| *case == name).expect("a case");
        return match std::panic::catch_unwind(run) {
            Err(panic) if panic.is::<network::Delayed>() => std::process::exit(DELAYED),
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => (),
        };
    }
    let can_isolate = isolated("true").output().is_ok_and(|output| output.status.success());
    if !can_isolate {
        return skipped("all faults", "this user cannot make namespaces with unshare(1)");
    }
    let started = CASES.iter().filter_map(|(name, _, needs)| match needs {
        Some(program) if !is_installed(program) => {
            skipped(name, &format!("{program} is not installed"));
            None
        }
        _ => Some((name, start(name))),
    });
    let running: Vec<_> = started.collect();
    let mut failed = Vec::new();
    let mut unexplained = Vec::new();
    for (name, child) in running {
        let (is_success, text) = finish(name, child);
        let late = text.lines().filter(|line| line.starts_with(UNEXPLAINED_LINE));
        unexplained.extend(late.map(|line| format!("{name}: {line}")));
        if is_success {
            text.lines().filter(|line| line.starts_with("measured")).for_each(print_line);
        } else {
            failed.push(format!("--- {name}\n{text}"));
        }
    }
    unexplained.iter().for_each(|line| print_line(line));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(unexplained.len() <= UNEXPLAINED, "late resumptions: {}", unexplained.join("\n"));
}

/// Runs a program in namespaces of its own; it dies with this process.
fn isolated(program: &str) -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", program]);
    command
}

/// Waits for a case, which is repeated if the kernel delayed its faults; returns whether it succeeded and what all
/// attempts printed.
fn finish(name: &str, mut child: std::process::Child) -> (bool, String) {
    let mut text = String::new();
    let mut repeats = 0;
    loop {
        let output = child.wait_with_output().unwrap();
        text += &String::from_utf8_lossy(&output.stdout);
        text += &String::from_utf8_lossy(&output.stderr);
        text += &format!("\n{}\n", output.status);
        if output.status.code() != Some(DELAYED) || repeats == REPEATS {
            return (output.status.success(), text);
        }
        repeats += 1;
        print_line(&format!("{name}: the kernel delayed faults; repeat {repeats}"));
        child = start(name);
    }
}

fn start(name: &str) -> std::process::Child {
    let mut command = isolated(std::env::current_exe().unwrap().to_str().unwrap());
    if name == "clock stepped by an hour" {
        host::preload_stepped_clock(&mut command);
    }
    command.args([TEST, "--exact", "--nocapture"]);
    command.env(CASE, name).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Writes a line that is shown even if the test passes.
fn print_line(line: &str) {
    let _ = std::io::stderr().write_all(format!("\n{line}\n").as_bytes());
}

/// Waits for a condition; panics after [`LIMIT`].
#[expect(clippy::disallowed_methods, reason = "a limit of waiting, not a measurement")]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
