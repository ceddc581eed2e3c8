//! Backends for tests: namespaces with our emulator or netem, real hosts, simulation in virtual
//! time.

pub(crate) mod doctor;
pub(crate) mod local;
pub(crate) mod netem;
pub(crate) mod sim;
pub(crate) mod ssh;

use std::fs::File;

use anyhow::Result;

use crate::process::ChildGuard;
use crate::settings::Link;
use crate::state::{Home, Lab};

/// A set of hosts that run programs.
pub(crate) trait HostBackend: Sync {
    /// The address of a node for the other nodes.
    fn address(&self, node: u32) -> String;

    /// Starts a program on a node. It ends when the returned guard is dropped.
    ///
    /// # Errors
    /// If it cannot be started.
    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<ChildGuard>;

    /// Changes the settings of all links.
    ///
    /// # Errors
    /// If the backend cannot change links.
    fn change_links(&self, links: &[Link]) -> Result<()>;

    /// Lets the schedules of the links begin: rates, delays and holes that change with time.
    ///
    /// # Errors
    /// If the emulator does not answer.
    fn start_schedules(&self) -> Result<()> {
        Ok(())
    }

    /// The lab, if the backend has one.
    fn lab(&self) -> Option<(&Home, &Lab)>;

    /// Terminates programs of the measurement that still run on the hosts.
    fn stop_programs(&self) {}

    /// Warnings about the hosts for the report.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}
