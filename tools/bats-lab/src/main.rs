//! `batslab`: measures protocols between hosts in network namespaces. See the README of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    bats_lab::main()
}
