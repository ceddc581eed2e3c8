//! Backend for hosts in network namespaces of this machine.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{HostBackend, netem};
use crate::emulator::{self, report::Request};
use crate::lab::{LabConfig, ScopedLab};
use crate::namespace::private_mounts;
use crate::plan::Network;
use crate::process::ChildGuard;
use crate::protocol::programs::Programs;
use crate::settings::Link;
use crate::state::{Home, Lab};
use crate::topology::{self, Shape};

/// Hosts in namespaces, connected by an emulator.
pub(crate) struct LocalBackend<'a> {
    lab_guard: ScopedLab,
    programs: &'a Programs,
    /// Whether links are emulated by the netem qdisc of the kernel.
    is_netem: bool,
}

impl<'a> LocalBackend<'a> {
    /// Builds a network.
    ///
    /// # Errors
    /// If this machine cannot; the error says what to do.
    pub(crate) fn build(
        home: &Home,
        name: &str,
        network: &Network,
        seed: u64,
        programs: &'a Programs,
        is_netem: bool,
    ) -> Result<Self> {
        let config = LabConfig {
            name: name.to_owned(),
            shape: Shape::mesh(network.nodes, network.edges.clone()),
            mtu: 1500,
            seed: Some(seed),
            links: network.links.clone(),
            is_emulated: !is_netem,
        };
        let lab_guard = ScopedLab::build(home, &config)?;
        let backend = Self { lab_guard, programs, is_netem };
        if is_netem {
            netem::apply(&backend.lab_guard.home, &backend.lab_guard.lab, &network.links)?;
        }
        Ok(backend)
    }
}

impl HostBackend for LocalBackend<'_> {
    fn address(&self, node: u32) -> String {
        self.lab_guard.lab.shape.address_of(node).to_string()
    }

    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<ChildGuard> {
        let words = self.programs.place(words)?;
        let (Some((program, arguments)), Some(host)) =
            (words.split_first(), self.lab_guard.lab.shape.hosts.get(node as usize))
        else {
            anyhow::bail!("there is no node {node}, or the command line is empty");
        };
        let lab = &self.lab_guard.lab;
        let hosts = self.lab_guard.home.hosts_file(&lab.name);
        self.lab_guard.home.namespaces(&lab.name).within(
            &topology::namespace(&lab.name, host),
            || {
                // Host names are optional: without the mount they do not resolve.
                let _ = private_mounts(Some(&hosts));
                Command::new(program)
                    .args(arguments)
                    .stdin(Stdio::null())
                    .stdout(output)
                    .stderr(errors)
                    .spawn()
                    .map(ChildGuard::new)
                    .with_context(|| format!("cannot run {program}"))
            },
        )
    }

    fn change_links(&self, links: &[Link]) -> Result<()> {
        if self.is_netem {
            return netem::apply(&self.lab_guard.home, &self.lab_guard.lab, links);
        }
        let socket = self.lab_guard.home.control_socket(&self.lab_guard.lab.name);
        for (hop, link) in (1..).zip(links) {
            emulator::control::ask(&socket, &Request::Set { hop, link: Box::new(link.clone()) })?;
        }
        Ok(())
    }

    fn start_schedules(&self) -> Result<()> {
        if !self.is_netem {
            let socket = self.lab_guard.home.control_socket(&self.lab_guard.lab.name);
            emulator::control::ask(&socket, &Request::StartSchedules)?;
        }
        Ok(())
    }

    fn lab(&self) -> Option<(&Home, &Lab)> {
        Some((&self.lab_guard.home, &self.lab_guard.lab))
    }
}
