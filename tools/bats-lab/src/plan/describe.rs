//! Describes the plan, for `check` and `--dry-run`.

use std::fmt::Write as _;

use super::{Case, ProtocolKind, Suite, ToolKind};
use crate::backend::sim;
use crate::config::model::BackendName;
use crate::protocol::programs;
use crate::tool::not_installed;

/// Describes the measurements that would be made; with `all` each has a line.
pub(crate) fn describe(suite: &Suite, backend: Option<BackendName>, all: bool) -> String {
    let mut text = String::new();
    for note in &suite.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for case in &suite.cases {
        let backend = backend.or(case.backend).unwrap_or(BackendName::Netns);
        let _ = writeln!(
            text,
            "{}: {} on {}, about {}",
            case.name,
            count(case.measurements(), "measurement"),
            backend.name(),
            if backend == BackendName::Sim {
                "as fast as it computes".to_owned()
            } else {
                time(case.seconds())
            }
        );
        if !case.description.is_empty() {
            let _ = writeln!(text, "  {}", case.description.trim());
        }
        for protocol in &case.protocols {
            if let ProtocolKind::Missing { why } = &protocol.kind {
                let _ = writeln!(text, "  {}: {why}", protocol.name);
            }
        }
        if backend.is_local() {
            for missing in missing_programs(case) {
                let _ = writeln!(text, "  {missing}");
            }
            for tool in &case.tools {
                if let ToolKind::Command { words, .. } = &tool.kind
                    && let Some(why) = words.first().and_then(|program| not_installed(program))
                {
                    let _ = writeln!(text, "  {}: {why}", tool.name);
                }
            }
        }
        if all {
            measurements(&mut text, case, backend);
        }
    }
    text
}

/// Programs of protocols, and congestion controls, that this machine lacks.
fn missing_programs(case: &Case) -> Vec<String> {
    let mut all = Vec::new();
    for protocol in case.protocols.iter().chain(case.flows.iter().map(|flow| &flow.protocol)) {
        let needed: Vec<&String> = match &protocol.kind {
            ProtocolKind::Tunnel { client, server, .. } => {
                client.first().into_iter().chain(server.first()).collect()
            }
            ProtocolKind::Daemon { words } => words.first().into_iter().collect(),
            ProtocolKind::Tcp { congestion } if !crate::protocol::kernel_has(congestion) => {
                all.push(format!(
                    "{}: the kernel has no congestion control `{congestion}` (modprobe tcp_{congestion}?)",
                    protocol.name
                ));
                continue;
            }
            ProtocolKind::WireGuard { .. } if programs::wireguard_go().is_none() => {
                all.push(format!("{}: {}", protocol.name, programs::no_wireguard_go()));
                continue;
            }
            _ => continue,
        };
        for program in needed {
            if programs::find(program).is_none() {
                all.push(format!("{}: the program `{program}` is not installed", protocol.name));
            }
        }
    }
    let needed = case.needed_programs();
    for (is_needed, program, package) in
        [(needed.bats_iperf, "bats_iperf", "bats-iperf"), (needed.batsd, "batsd", "batsd")]
    {
        let next_to = std::env::current_exe().map(|own| own.with_file_name(program));
        if is_needed && !next_to.is_ok_and(|path| path.exists()) {
            all.push(format!(
                "{program} is not next to batslab: build it with cargo build --release -p {package}"
            ));
        }
    }
    if case.tools.iter().any(|tool| matches!(tool.kind, ToolKind::Scp { .. })) {
        for program in ["scp", "sshd", "ssh-keygen"] {
            if programs::find(program).is_none() {
                all.push(format!("scp: the program `{program}` is not installed"));
            }
        }
    }
    all.sort();
    all.dedup();
    all
}

fn measurements(text: &mut String, case: &Case, backend: BackendName) {
    for (index, network) in case.networks.iter().enumerate() {
        let _ = writeln!(text, "  topology-{index}: {}", network.label);
        for protocol in &case.protocols {
            for tool in &case.tools {
                let unsupported_reason = (backend == BackendName::Sim)
                    .then(|| sim::unsupported_reason(case, network, protocol, tool))
                    .flatten();
                if let Some(why) = unsupported_reason {
                    let _ =
                        writeln!(text, "    {} {}: unsupported: {why}", protocol.name, tool.name);
                    continue;
                }
                let what = match &tool.kind {
                    ToolKind::Throughput { .. } => "throughput",
                    ToolKind::Rtt { count: 1, .. } => "first round trip",
                    ToolKind::Rtt { .. } => "round trips",
                    ToolKind::Ping { .. } => "pings",
                    ToolKind::Scp { .. } => "a file",
                    ToolKind::Command { .. } => "a command",
                };
                let _ = writeln!(
                    text,
                    "    {} {}: {what} from node {} to node {}, {} s{}{}",
                    protocol.name,
                    tool.name,
                    tool.client,
                    tool.server,
                    tool.seconds(),
                    if case.repetitions > 1 {
                        format!(", {} times", case.repetitions)
                    } else {
                        String::new()
                    },
                    if case.flows.is_empty() || !tool.has_competing_flows() {
                        String::new()
                    } else {
                        format!(", {}", count(case.flows.len(), "more flow"))
                    },
                );
            }
        }
    }
}

/// A count with a noun in singular or plural.
pub(crate) fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// Formats seconds.
pub(crate) fn time(seconds: f64) -> String {
    let seconds = seconds.round().max(0.0) as u64;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
