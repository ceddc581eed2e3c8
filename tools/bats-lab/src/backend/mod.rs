//! Where tests run: in namespaces over our emulator or the kernel's, on real hosts, in virtual time.

pub(crate) mod doctor;
pub(crate) mod local;
pub(crate) mod netem;
pub(crate) mod sim;
pub(crate) mod ssh;

use std::fs::File;

use anyhow::Result;

use crate::process::Guarded;
use crate::settings::Link;
use crate::state::{Home, Lab};

/// Hosts that run programs.
pub(crate) trait Ground: Sync {
    /// The address by which the others know a node.
    fn address(&self, node: u32) -> String;

    /// Starts a program on a node. It ends when what is returned is dropped.
    ///
    /// # Errors
    /// Where it cannot be started.
    fn start(&self, node: u32, words: &[String], output: File, errors: File) -> Result<Guarded>;

    /// Makes links behave otherwise from now on.
    ///
    /// # Errors
    /// Where the backend cannot.
    fn change(&self, links: &[Link]) -> Result<()>;

    /// The lab, where there is one.
    fn lab(&self) -> Option<(&Home, &Lab)>;

    /// Ends what may still run on the hosts of a measurement.
    fn settle(&self) {}

    /// What a reader has to know of the hosts.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}
