//! `bats_iperf`: measures OpenBATS connections and transfers files. See the README of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bats_iperf::main()
}
