//! The programs on hosts that a protocol needs besides those of a tool: tunnels, daemons, nodes.

use std::time::Duration;

use anyhow::{Result, bail};

use super::host_run::{CompetingFlow, HostRun, Program, wait};
use crate::config::model::NodeEntry;
use crate::plan::{Protocol, ProtocolKind, Tool};
use crate::protocol::incompatible;
use crate::protocol::node::{Forward, NodeFiles, NodePlan};
use crate::tool::PORT;

impl HostRun<'_> {
    /// Starts the programs that the protocols of the tool and of the competing flows need.
    pub(super) fn helpers(
        &self,
        flows: &[CompetingFlow<'_>],
        commands: &mut Vec<String>,
    ) -> Result<Vec<Program>> {
        let mut helpers = Vec::new();
        for helper in helpers_of(self.protocol, self.tool, flows)? {
            let to = self.backend.address(helper.server);
            let name = &helper.name;
            let expand_address = |words: &[String]| -> Result<Vec<String>> {
                let words: Vec<String> = words.iter().map(|word| word.replace("%s", &to)).collect();
                let program = words.first().map_or("", String::as_str);
                if self.is_local && crate::protocol::programs::find(program).is_none() {
                    bail!("the program `{program}` of {} is not installed", helper.protocol.name);
                }
                Ok(words)
            };
            match &helper.protocol.kind {
                ProtocolKind::Tunnel { client, server, .. } => {
                    let (client, server) = (expand_address(client)?, expand_address(server)?);
                    let name_of = |end: &str| format!("{name}tunnel-{end}");
                    let started =
                        self.start(helper.server, &server, &name_of("server"), commands)?;
                    helpers.push(started);
                    wait(Duration::from_millis(300))?;
                    let started =
                        self.start(helper.client, &client, &name_of("client"), commands)?;
                    helpers.push(started);
                }
                ProtocolKind::Daemon { words } => {
                    let words = expand_address(words)?;
                    for node in 0..self.network.nodes {
                        let name = format!("{name}daemon-{node}");
                        helpers.push(self.start(node, &words, &name, commands)?);
                    }
                }
                _ => {}
            }
        }
        Ok(helpers)
    }

    /// Starts the daemons of nodes, if the tool or a competing flow uses them, and waits for their
    /// sessions.
    pub(super) fn nodes(
        &self,
        flows: &[CompetingFlow<'_>],
        commands: &mut Vec<String>,
    ) -> Result<(Option<NodeFiles>, Vec<Program>)> {
        let of_flows = flows
            .iter()
            .map(|one| (&one.flow.protocol, one.flow.client, one.flow.server, one.port));
        let main = (self.protocol, self.tool.client, self.tool.server, PORT);
        let (mut ends, mut with_relays) = (Vec::new(), None);
        let (mut forwards, mut has_tun) = (Vec::new(), false);
        for (protocol, client, server, port) in std::iter::once(main).chain(of_flows) {
            let ProtocolKind::Node { relays, entry, .. } = protocol.kind else { continue };
            match entry {
                NodeEntry::Tun => has_tun = true,
                NodeEntry::Forward => forwards.push(Forward { client, server, port }),
            }
            if *with_relays.get_or_insert(relays) != relays {
                incompatible!("nodes with and without relays cannot run at the same time");
            }
            ends.extend([client, server]);
        }
        let Some(relays) = with_relays else { return Ok((None, Vec::new())) };
        if !self.is_local {
            incompatible!("{} runs in namespaces of this machine only", self.protocol.name);
        }
        ends.sort_unstable();
        ends.dedup();
        let plan = NodePlan { ends, relays, has_tun, forwards };
        let files = NodeFiles::write(self.network, plan, &self.programs.batsctl()?)?;
        let mut daemons = Vec::new();
        for (host, words) in files.commands() {
            daemons.push(self.start(host, &words, &format!("batsd-{host}"), commands)?);
        }
        if let Err(error) = files.wait_until_open() {
            for daemon in &mut daemons {
                if let Some((status, _)) = daemon.guard.try_wait()? {
                    bail!("{} ended ({status}): {}", daemon.name, daemon.last_error());
                }
            }
            return Err(error);
        }
        Ok((Some(files), daemons))
    }
}

/// Programs on the nodes that a protocol needs, and the ends between which they run.
struct HelperPrograms<'a> {
    protocol: &'a Protocol,
    client: u32,
    server: u32,
    /// Prefix of the names of its log files.
    name: String,
}

/// The helper programs of the tool and of the competing flows. A daemon of several flows runs once.
fn helpers_of<'a>(
    protocol: &'a Protocol,
    tool: &Tool,
    flows: &[CompetingFlow<'a>],
) -> Result<Vec<HelperPrograms<'a>>> {
    let name = String::new();
    let main = HelperPrograms { protocol, client: tool.client, server: tool.server, name };
    let of_flow = |set_competition_figures: &CompetingFlow<'a>| HelperPrograms {
        protocol: &set_competition_figures.flow.protocol,
        client: set_competition_figures.flow.client,
        server: set_competition_figures.flow.server,
        name: format!("flow-{}-", set_competition_figures.port),
    };
    let mut helpers: Vec<HelperPrograms<'a>> = Vec::new();
    for one in std::iter::once(main).chain(flows.iter().map(of_flow)) {
        match &one.protocol.kind {
            ProtocolKind::Tunnel { .. } => {
                // Its programs listen on fixed ports.
                let nodes = [one.client, one.server];
                let has_conflict = helpers.iter().any(|other| {
                    other.protocol.kind == one.protocol.kind
                        && (nodes.contains(&other.client) || nodes.contains(&other.server))
                });
                if has_conflict {
                    incompatible!(
                        "{} already has a client or server on node {} or {}, on the same ports",
                        one.protocol.name,
                        one.client,
                        one.server
                    );
                }
            }
            ProtocolKind::Daemon { .. } => {
                if helpers.iter().any(|other| other.protocol.kind == one.protocol.kind) {
                    continue;
                }
            }
            _ => continue,
        }
        helpers.push(one);
    }
    Ok(helpers)
}
