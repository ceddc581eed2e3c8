//! Real hosts, reached by `ssh`. A remote shell on each host creates a directory and records every
//! started program in it. At the end it removes the directory and terminates programs that still
//! run.

mod remote_shell;

use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};

use super::HostBackend;
use crate::plan::{Case, Host, ProtocolKind, ToolKind};
use crate::process::ChildGuard;
use crate::protocol::programs::{BATS_IPERF, BATSLAB, find};
use crate::settings::Link;
use crate::state::{Home, Lab};
use remote_shell::RemoteShell;

/// Clock difference in seconds above which a warning is given.
const MAX_CLOCK_OFFSET_S: f64 = 0.5;

/// Hosts of a testbed; node N of a test is host N.
pub(crate) struct SshBackend {
    hosts: Vec<(Host, Mutex<RemoteShell>)>,
    warnings: Vec<String>,
}

impl SshBackend {
    /// Checks whether the hosts can run the test, and creates a directory on each.
    ///
    /// # Errors
    /// If a host cannot; the error says what is missing.
    pub(crate) fn prepare(hosts: &[Host], case: &Case) -> Result<Self> {
        if find("ssh").is_none() {
            bail!("the backend ssh needs `ssh` (Debian: openssh-client)");
        }
        let nodes = case.networks.first().map_or(0, |network| network.nodes);
        if hosts.len() < nodes as usize {
            bail!("the test needs {nodes} hosts and the testbed has {}", hosts.len());
        }
        if !case.events.is_empty() {
            bail!("`events` need emulated links: the backend ssh cannot change links");
        }
        let mut requests: Vec<String> =
            programs(case).iter().map(|program| format!("program {program}")).collect();
        requests.extend(
            congestion_controls(case).iter().map(|control| format!("congestion {control}")),
        );
        let mut backend = Self { hosts: Vec::new(), warnings: Vec::new() };
        for host in hosts {
            let remote = backend.check(host, &requests)?;
            backend.hosts.push((host.clone(), Mutex::new(remote)));
        }
        Ok(backend)
    }

    /// Starts the remote shell on a host and checks the requirements.
    fn check(&mut self, host: &Host, requests: &[String]) -> Result<RemoteShell> {
        let mut remote = RemoteShell::begin(ssh(host), &host.ip)?;
        if let Some(wanted) = host.arch.as_ref().filter(|wanted| **wanted != remote.arch) {
            bail!("{} is {}, not {wanted}", host.ip, remote.arch);
        }
        let interface = host.interface.iter().map(|interface| format!("interface {interface}"));
        for request in requests.iter().cloned().chain(interface) {
            if let Some(missing) = remote.request(&request)?.first() {
                bail!("{}: {missing}", host.ip);
            }
        }
        let (offset, uncertainty) = remote.clock()?;
        if offset.abs() > MAX_CLOCK_OFFSET_S + uncertainty {
            self.warnings.push(format!(
                "the clock of {} is {:.1} s {} the clock of this machine: times in its logs and one-way delays are off by that",
                host.ip,
                offset.abs(),
                if offset > 0.0 { "ahead of" } else { "behind" }
            ));
        }
        Ok(remote)
    }
}

/// The `ssh` command for a host; the remote command is its last argument.
fn ssh(host: &Host) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
    // Detect an unreachable host, so that it does not block the end.
    command.args(["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]);
    if let Some(file) = &host.ssh_config {
        command.arg("-F").arg(file);
    }
    if let Some(port) = host.port {
        command.arg("-p").arg(port.to_string());
    }
    if let Some(key) = &host.key {
        command.arg("-i").arg(key);
    }
    match &host.user {
        Some(user) => command.arg(format!("{user}@{}", host.ip)),
        None => command.arg(&host.ip),
    };
    command
}

fn lock(remote: &Mutex<RemoteShell>) -> MutexGuard<'_, RemoteShell> {
    remote.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for SshBackend {
    fn drop(&mut self) {
        // Start all cleanups first; dropping each shell waits for its cleanup.
        self.hosts.iter().for_each(|(_, remote)| lock(remote).start_cleanup());
    }
}

/// The congestion control algorithms that a test needs on its hosts.
fn congestion_controls(case: &Case) -> Vec<String> {
    let protocols = case.protocols.iter().chain(case.flows.iter().map(|flow| &flow.protocol));
    let mut controls: Vec<String> = protocols
        .filter_map(|protocol| match &protocol.kind {
            ProtocolKind::Tcp { congestion } => Some(congestion.clone()),
            _ => None,
        })
        .collect();
    controls.sort();
    controls.dedup();
    controls
}

/// The programs that a test needs on its hosts.
fn programs(case: &Case) -> Vec<&'static str> {
    let mut needed = Vec::new();
    let protocols = case.protocols.iter().chain(case.flows.iter().map(|flow| &flow.protocol));
    let kinds: Vec<&ProtocolKind> = protocols.map(|protocol| &protocol.kind).collect();
    let tools: Vec<&ToolKind> = case.tools.iter().map(|tool| &tool.kind).collect();
    let measures_throughput = tools.iter().any(|kind| matches!(kind, ToolKind::Throughput { .. }));
    let echoes =
        tools.iter().any(|kind| matches!(kind, ToolKind::Rtt { .. } | ToolKind::Ping { .. }));
    if case.needs_bats_iperf() {
        needed.push("bats_iperf");
    }
    if measures_throughput && kinds.iter().any(|kind| matches!(kind, ProtocolKind::Tcp { .. })) {
        needed.push("iperf3");
    }
    let own =
        kinds.iter().any(|kind| matches!(kind, ProtocolKind::Udp | ProtocolKind::Quic { .. }));
    if echoes || own {
        needed.push("batslab");
    }
    needed
}

/// Quotes a word for a shell.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

impl HostBackend for SshBackend {
    fn address(&self, node: u32) -> String {
        self.hosts.get(node as usize).map_or_else(String::new, |(host, _)| host.address.clone())
    }

    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<ChildGuard> {
        let (host, remote) =
            self.hosts.get(node as usize).context("the testbed has no such host")?;
        let words: Vec<String> = words
            .iter()
            .enumerate()
            .map(|(index, word)| match (index, word.as_str()) {
                (0, BATSLAB) => "batslab".to_owned(),
                (0, BATS_IPERF) => "bats_iperf".to_owned(),
                _ => quote(word),
            })
            .collect();
        // The shell replaces itself by the program, so its process ID is that of the program.
        let notes = quote(&format!("{}/pids", lock(remote).folder));
        let script = format!("umask 077; echo $$ >> {notes} && exec {}", words.join(" "));
        let child = ssh(host)
            .arg(script)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .context("cannot run ssh")?;
        Ok(ChildGuard::new(child))
    }

    fn change_links(&self, _: &[Link]) -> Result<()> {
        bail!("the links of real hosts cannot be changed")
    }

    fn lab(&self) -> Option<(&Home, &Lab)> {
        None
    }

    fn stop_programs(&self) {
        for (_, remote) in &self.hosts {
            // A host that does not answer is cleaned up at the end.
            let _ = lock(remote).request("settle");
        }
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_pass_a_shell_unchanged() {
        for word in ["plain", "a b", "it's", "", "$HOME", "`x`", "a;b"] {
            let output =
                Command::new("sh").arg("-c").arg(format!("printf %s {}", quote(word))).output();
            assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), word);
        }
    }
}
