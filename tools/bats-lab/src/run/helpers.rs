//! The programs on hosts that a protocol needs besides those of a tool: tunnels, daemons, nodes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::host_run::{CompetingFlow, HostRun, Program, wait};
use crate::config::model::NodeEntry;
use crate::plan::{Protocol, ProtocolKind, Tool};
use crate::protocol::incompatible;
use crate::protocol::node::{Forward, NodeFiles, NodePlan};
use crate::protocol::wireguard::Tunnels;
use crate::tool::PORT;
use crate::topology;

/// Maximum time until wireguard-go listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);

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
        match files.wait_until_open() {
            Ok(()) => Ok((Some(files), daemons)),
            Err(error) => Err(ended(&mut daemons)?.unwrap_or(error)),
        }
    }

    /// Starts wireguard-go at the ends of the tool and the competing flows that use it, and waits for the
    /// sessions.
    pub(super) fn tunnels(
        &self,
        flows: &[CompetingFlow<'_>],
        commands: &mut Vec<String>,
    ) -> Result<(Option<Tunnels>, Vec<Program>)> {
        let of_flows =
            flows.iter().map(|one| (&one.flow.protocol, one.flow.client, one.flow.server));
        let main = (self.protocol, self.tool.client, self.tool.server);
        let uses_it =
            |of: &(&Protocol, u32, u32)| matches!(of.0.kind, ProtocolKind::WireGuard { .. });
        let ends = std::iter::once(main).chain(of_flows).filter(uses_it);
        let hosts: BTreeSet<u32> = ends.flat_map(|(_, client, server)| [client, server]).collect();
        if hosts.is_empty() {
            return Ok((None, Vec::new()));
        }
        let Some((home, lab)) = self.backend.lab() else {
            incompatible!("wireguard-go runs in namespaces of this machine only");
        };
        // The lower host of a pair opens the session, so the others must listen before. A lost handshake takes five seconds.
        let hosts: Vec<_> =
            hosts.into_iter().rev().map(|host| (host, lab.shape.address_of(host))).collect();
        let tunnels = Tunnels::prepare(&hosts)?;
        let mut daemons = Vec::new();
        for (host, words) in tunnels.commands() {
            let mut daemon = self.start(host, &words, &format!("wireguard-go-{host}"), commands)?;
            let deadline = Instant::now() + START_TIMEOUT;
            while !tunnels.configure(host)? {
                if let Some(error) = ended(std::slice::from_mut(&mut daemon))? {
                    return Err(error);
                }
                if Instant::now() > deadline {
                    bail!("{} does not listen: {}", daemon.name, daemon.last_error());
                }
                wait(Duration::from_millis(20))?;
            }
            let namespace =
                lab.shape.hosts.get(host as usize).map(|name| topology::namespace(&lab.name, name));
            let namespace = namespace.with_context(|| format!("there is no node {host}"))?;
            home.namespaces(&lab.name).within(&namespace, || tunnels.set_up_device(host))?;
            daemons.push(daemon);
        }
        match tunnels.wait_until_open() {
            Ok(()) => Ok((Some(tunnels), daemons)),
            Err(error) => Err(ended(&mut daemons)?.unwrap_or(error)),
        }
    }
}

/// The error of a daemon that has ended.
fn ended(daemons: &mut [Program]) -> Result<Option<anyhow::Error>> {
    for daemon in daemons {
        if let Some((status, _)) = daemon.guard.try_wait()? {
            let (name, error) = (&daemon.name, daemon.last_error());
            return Ok(Some(anyhow!("{name} ended ({status}): {error}")));
        }
    }
    Ok(None)
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
