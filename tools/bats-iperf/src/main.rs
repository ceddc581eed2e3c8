//! `bats_iperf`: measures what OpenBATS connections carry, and sends files over them.
#![forbid(unsafe_code)]

mod cli;
mod client;
mod clock;
mod console;
mod control;
mod files;
mod interrupt;
mod json;
mod meter;
mod processor;
mod report;
mod server;
mod stream;
mod test;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = cli::Options::parse();
    let role = match options.check() {
        Ok(role) => role,
        Err(problem) => problem.exit(),
    };
    if options.debug {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    }
    let result = match role {
        cli::Role::Server => server::run(&options),
        cli::Role::Client(host) => client::run(&options, &host),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // Nothing can be done where even this cannot be written.
            let _ = writeln!(std::io::stderr(), "bats_iperf: error - {error:#}");
            if options.json {
                println!("{}", serde_json::json!({ "error": format!("{error:#}") }));
            }
            ExitCode::FAILURE
        }
    }
}
