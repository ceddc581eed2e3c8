//! Real hosts, reached by `ssh`. A keeper on each makes a folder of its own, in which is noted whatever is
//! started; the folder is gone in the end together with what still runs.

mod keeper;

use std::fs::File;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};

use super::Ground;
use crate::plan::{Case, Host, ProtocolKind, ToolKind};
use crate::process::Guarded;
use crate::protocol::programs::{BATS_IPERF, BATSLAB, find};
use crate::settings::Link;
use crate::state::{Home, Lab};
use keeper::Keeper;

/// Clocks may differ by so many seconds before somebody is told.
const CLOCKS: f64 = 0.5;

/// Hosts of a testbed; node N of a test is host N.
pub(crate) struct SshGround {
    hosts: Vec<(Host, Mutex<Keeper>)>,
    warnings: Vec<String>,
}

impl SshGround {
    /// Looks whether the hosts can run the test, and makes a folder on each.
    ///
    /// # Errors
    /// Where one cannot, with what is missing.
    pub(crate) fn prepare(hosts: &[Host], case: &Case) -> Result<Self> {
        if find("ssh").is_none() {
            bail!("the backend ssh needs `ssh` (Debian: openssh-client)");
        }
        let nodes = case.networks.first().map_or(0, |network| network.nodes);
        if hosts.len() < nodes as usize {
            bail!("the test needs {nodes} hosts and the testbed has {}", hosts.len());
        }
        if !case.events.is_empty() {
            bail!("`events` change emulated links, and the links of real hosts are what they are");
        }
        let mut questions: Vec<String> =
            programs(case).iter().map(|program| format!("program {program}")).collect();
        questions.extend(controls(case).iter().map(|control| format!("congestion {control}")));
        let mut ground = Self { hosts: Vec::new(), warnings: Vec::new() };
        for host in hosts {
            let keeper = ground.check(host, &questions)?;
            ground.hosts.push((host.clone(), Mutex::new(keeper)));
        }
        Ok(ground)
    }

    /// Begins on a host, and looks at what has to be there.
    fn check(&mut self, host: &Host, questions: &[String]) -> Result<Keeper> {
        let mut keeper = Keeper::begin(ssh(host), &host.ip)?;
        if let Some(wanted) = host.arch.as_ref().filter(|wanted| **wanted != keeper.arch) {
            bail!("{} is {}, not {wanted}", host.ip, keeper.arch);
        }
        let interface = host.interface.iter().map(|interface| format!("interface {interface}"));
        for question in questions.iter().cloned().chain(interface) {
            if let Some(lack) = keeper.ask(&question)?.first() {
                bail!("{}: {lack}", host.ip);
            }
        }
        let (ahead, wrong) = keeper.clock()?;
        if ahead.abs() > CLOCKS + wrong {
            self.warnings.push(format!(
                "the clock of {} is {:.1} s {} this machine's: times in its logs and one-way times are wrong by that",
                host.ip,
                ahead.abs(),
                if ahead > 0.0 { "ahead of" } else { "behind" }
            ));
        }
        Ok(keeper)
    }
}

/// How a host is reached; what is to be done there is the last word.
fn ssh(host: &Host) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
    // A host that has gone silent does not hold up the end.
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

fn lock(keeper: &Mutex<Keeper>) -> MutexGuard<'_, Keeper> {
    keeper.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for SshGround {
    fn drop(&mut self) {
        // All at once; then each is waited for.
        self.hosts.iter().for_each(|(_, keeper)| lock(keeper).end());
    }
}

/// The congestion controls that a test needs on its hosts.
fn controls(case: &Case) -> Vec<String> {
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

/// A word for a shell.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

impl Ground for SshGround {
    fn address(&self, node: u32) -> String {
        self.hosts.get(node as usize).map_or_else(String::new, |(host, _)| host.address.clone())
    }

    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<Guarded> {
        let (host, keeper) =
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
        // The shell's number is the program's, for it becomes the program.
        let notes = quote(&format!("{}/pids", lock(keeper).folder));
        let script = format!("umask 077; echo $$ >> {notes} && exec {}", words.join(" "));
        let child = ssh(host)
            .arg(script)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .context("cannot run ssh")?;
        Ok(Guarded::new(child))
    }

    fn change(&self, _: &[Link]) -> Result<()> {
        bail!("the links of real hosts cannot be changed")
    }

    fn lab(&self) -> Option<(&Home, &Lab)> {
        None
    }

    fn settle(&self) {
        for (_, keeper) in &self.hosts {
            // Who does not answer any more is cleaned up after at the end.
            let _ = lock(keeper).ask("settle");
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
    fn words_pass_a_shell_as_they_are() {
        for word in ["plain", "a b", "it's", "", "$HOME", "`x`", "a;b"] {
            let output =
                Command::new("sh").arg("-c").arg(format!("printf %s {}", quote(word))).output();
            assert_eq!(String::from_utf8_lossy(&output.unwrap().stdout), word);
        }
    }
}
