//! Real hosts, reached by `ssh`. Whatever is started there is noted in a folder of its own, which is
//! gone in the end together with what still runs.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use super::Ground;
use crate::plan::{Case, Host, ProtocolKind, ToolKind};
use crate::process::Guarded;
use crate::protocol::programs::{BATS_IPERF, BATSLAB, find};
use crate::settings::Link;
use crate::state::{Home, Lab};

/// Hosts of a testbed; node N of a test is host N.
pub(crate) struct SshGround {
    hosts: Vec<Host>,
    /// Folder on the hosts.
    folder: String,
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
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let folder = format!("/tmp/batslab-{}-{time}", std::process::id());
        let ground = Self { hosts: hosts.to_vec(), folder };
        let needed = programs(case);
        for host in &ground.hosts {
            ground.check(host, &needed)?;
        }
        Ok(ground)
    }

    /// What has to be on a host, seen there.
    fn check(&self, host: &Host, needed: &[&str]) -> Result<()> {
        let mut script = format!("mkdir -p {} && uname -m", self.folder);
        for program in needed {
            script += &format!("; command -v {program} >/dev/null || echo missing {program}");
        }
        if let Some(interface) = &host.interface {
            let quoted = quote(interface);
            script +=
                &format!("; test -e /sys/class/net/{quoted} || echo missing interface {quoted}");
        }
        let output =
            self.ssh(host, &script).stdin(Stdio::null()).output().context("cannot run ssh")?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            let last = error.lines().last().unwrap_or("it said nothing").trim().to_owned();
            bail!("cannot log in to {}: {last}", host.ip);
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(line) = text.lines().find(|line| line.starts_with("missing")) {
            bail!("{}: {line}", host.ip);
        }
        let arch = text.lines().next().unwrap_or_default().trim();
        if host.arch.as_deref().is_some_and(|wanted| wanted != arch) {
            bail!("{} is {arch}, not {}", host.ip, host.arch.as_deref().unwrap_or_default());
        }
        Ok(())
    }

    fn ssh(&self, host: &Host, script: &str) -> Command {
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]);
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
        command.arg(script);
        command
    }

    fn end_all(&self, last: bool) {
        for host in &self.hosts {
            let folder = &self.folder;
            let mut script = format!(
                "test -f {folder}/pids && kill $(cat {folder}/pids) 2>/dev/null; rm -f {folder}/pids"
            );
            if last {
                script += &format!("; rm -rf {folder}");
            }
            let _ = self
                .ssh(host, &script)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Drop for SshGround {
    fn drop(&mut self) {
        self.end_all(true);
    }
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
    if measures_throughput && kinds.iter().any(|kind| matches!(kind, ProtocolKind::Bats { .. })) {
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
        self.hosts.get(node as usize).map_or_else(String::new, |host| host.address.clone())
    }

    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<Guarded> {
        let host = self.hosts.get(node as usize).context("the testbed has no such host")?;
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
        let script = format!("echo $$ >> {}/pids && exec {}", self.folder, words.join(" "));
        let child = self
            .ssh(host, &script)
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
        self.end_all(false);
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
