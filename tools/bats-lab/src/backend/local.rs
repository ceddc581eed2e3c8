//! Hosts in network namespaces of this machine.

use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{Ground, netem};
use crate::emulator::{self, report::Request};
use crate::lab::{OwnLab, Plan};
use crate::namespace::private_mounts;
use crate::plan::Network;
use crate::process::Guarded;
use crate::protocol::programs::Programs;
use crate::settings::Link;
use crate::state::{Home, Lab};
use crate::topology::{self, Shape};

/// Hosts in namespaces, joined by an emulator.
pub(crate) struct LocalGround<'a> {
    own: OwnLab,
    programs: &'a Programs,
    /// Whether the kernel's netem is the emulator.
    is_netem: bool,
}

impl<'a> LocalGround<'a> {
    /// Builds a network.
    ///
    /// # Errors
    /// Where this machine cannot, with what to do about it.
    pub(crate) fn build(
        home: &Home,
        name: &str,
        network: &Network,
        seed: u64,
        programs: &'a Programs,
        is_netem: bool,
    ) -> Result<Self> {
        let plan = Plan {
            name: name.to_owned(),
            shape: Shape::mesh(network.nodes, network.edges.clone()),
            mtu: 1500,
            seed: Some(seed),
            links: network.links.clone(),
            is_emulated: !is_netem,
        };
        let own = OwnLab::build(home, &plan)?;
        let ground = Self { own, programs, is_netem };
        if is_netem {
            netem::apply(&ground.own.home, &ground.own.lab, &network.links)?;
        }
        Ok(ground)
    }
}

impl Ground for LocalGround<'_> {
    fn address(&self, node: u32) -> String {
        self.own.lab.shape.address_of(node).to_string()
    }

    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<Guarded> {
        let words = self.programs.place(words)?;
        let (Some((program, arguments)), Some(host)) =
            (words.split_first(), self.own.lab.shape.hosts.get(node as usize))
        else {
            anyhow::bail!("there is no node {node}, or nothing to start on it");
        };
        let lab = &self.own.lab;
        let hosts = self.own.home.hosts_file(&lab.name);
        self.own.home.namespaces(&lab.name).within(&topology::namespace(&lab.name, host), || {
            // Names of hosts, where they can be had.
            let _ = private_mounts(Some(&hosts));
            Command::new(program)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(errors)
                .spawn()
                .map(Guarded::new)
                .with_context(|| format!("cannot run {program}"))
        })
    }

    fn change(&self, links: &[Link]) -> Result<()> {
        if self.is_netem {
            return netem::apply(&self.own.home, &self.own.lab, links);
        }
        let socket = self.own.home.control_socket(&self.own.lab.name);
        for (hop, link) in (1..).zip(links) {
            emulator::control::ask(&socket, &Request::Set { hop, link: Box::new(*link) })?;
        }
        Ok(())
    }

    fn lab(&self) -> Option<(&Home, &Lab)> {
        Some((&self.own.home, &self.own.lab))
    }
}
