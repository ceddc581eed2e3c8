//! Checks what this machine supports: namespaces, backends, programs, kernel settings.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::Result;
use nix::sched::{CloneFlags, unshare};
use serde::Serialize;

use crate::backend::doctor;
use crate::state::Home;
use crate::text;

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    found: String,
    /// Whether it is sufficient for good measurements.
    good: bool,
    /// Whether no lab can run without it.
    needed: bool,
}

/// Prints the findings; fails if a requirement of every lab is missing.
pub(crate) fn run(home: &Home, as_json: bool) -> Result<ExitCode> {
    // Entering a user namespace needs a single-threaded process, so this comes first. Failure is a
    // finding, not an error.
    let rights = crate::lab::obtain_privileges(home);
    let refused = rights.as_ref().copied().map_err(|error| format!("{error:#}"));
    let mut findings = vec![
        Finding {
            what: "network namespaces",
            found: match &rights {
                Ok(()) if home.is_unprivileged() => "yes, in a user namespace".to_owned(),
                Ok(()) => "yes, as root".to_owned(),
                Err(error) => format!("{error:#}"),
            },
            good: rights.is_ok(),
            needed: true,
        },
        packet_sockets(rights.is_ok()),
        processors(),
        congestion_controls(rights.is_ok()),
        socket_limit("receive buffers (net.core.rmem_max)", "rmem_max", 4 << 20),
        socket_limit("send buffers (net.core.wmem_max)", "wmem_max", 4 << 20),
        socket_limit("input queue (net.core.netdev_max_backlog)", "netdev_max_backlog", 1000),
        iperf3(),
    ];
    let others = doctor::backends(&refused).into_iter().chain(doctor::programs());
    findings.extend(others.map(|other| Finding {
        what: other.what,
        found: other.found,
        good: other.good,
        needed: false,
    }));
    if as_json {
        outln!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        // The description may be long, so it is the last column.
        let rows: Vec<[&str; 3]> = findings
            .iter()
            .map(|finding| {
                let verdict = match (finding.good, finding.needed) {
                    (true, _) => "ok",
                    (false, true) => "MISSING",
                    (false, false) if finding.what.starts_with("backend") => "unavailable",
                    (false, false) => "suboptimal",
                };
                [finding.what, verdict, finding.found.as_str()]
            })
            .collect();
        out!("{}", text::table(&["", "", "found"], &rows));
    }
    let works = findings.iter().all(|finding| finding.good || !finding.needed);
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn packet_sockets(rights: bool) -> Finding {
    let opened = rights
        && thread::spawn(|| {
            use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
            unshare(CloneFlags::CLONE_NEWNET).is_ok()
                && socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)
                    .is_ok()
        })
        .join()
        .unwrap_or(false);
    Finding {
        what: "packet sockets",
        found: if opened { "yes" } else { "no" }.to_owned(),
        good: opened,
        needed: true,
    }
}

fn processors() -> Finding {
    let count = thread::available_parallelism().map_or(1, usize::from);
    Finding {
        what: "processors",
        found: match count {
            1 => "1: the emulator and the hosts compete for it".to_owned(),
            count => count.to_string(),
        },
        good: count > 1,
        needed: false,
    }
}

/// In a namespace only the listed algorithms can be used; the list includes modules that root can
/// load.
fn congestion_controls(rights: bool) -> Finding {
    let read = || fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    let found = if rights { read().unwrap_or_default() } else { String::new() };
    let good = ["bbr", "cubic"].iter().all(|name| found.split_whitespace().any(|has| has == *name));
    Finding { what: "TCP congestion controls", found: found.trim().to_owned(), good, needed: false }
}

fn socket_limit(what: &'static str, name: &str, enough: u64) -> Finding {
    let value = fs::read_to_string(format!("/proc/sys/net/core/{name}"))
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    Finding {
        what,
        found: value.map_or_else(|| "unknown".to_owned(), |value| value.to_string()),
        good: value.is_some_and(|value| value >= enough),
        needed: false,
    }
}

fn iperf3() -> Finding {
    let there = Command::new("iperf3")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    Finding {
        what: "iperf3",
        found: if there { "yes" } else { "no: the built-in TCP load generator is used" }.to_owned(),
        good: true,
        needed: false,
    }
}
