//! `bats_perftest`: measures samples per second, latency and loss between publishers and
//! subscribers, over OpenBATS connections, TCP, QUIC and raw UDP.
#![forbid(unsafe_code)]

mod beacon;
mod candidates;
mod channel;
mod cli;
mod clock;
mod completions;
mod console;
mod cpu;
mod latency;
mod loss;
mod manual;
mod output;
mod ports;
mod publisher;
mod signals;
mod subscriber;
mod sweep;
mod trust;
mod wire;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;

use cli::{Command, Common};

/// Exit code of the original for every error: -1.
const FAILURE: u8 = 255;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::print(&format!("bats_perftest: error - {error:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.into_string().ok())
        .collect::<Option<_>>()
        .context("the command line is not valid UTF-8")?;
    if words.first().is_some_and(|word| word == "sweep") {
        return sweep::run(&words[1..]);
    }
    if words.first().is_some_and(|word| word == "manual") {
        let page = manual::page();
        return std::io::stdout().write_all(page.as_bytes()).context("cannot write");
    }
    if words.first().is_some_and(|word| word == "completions") {
        let script = completions::script(words.get(1).map(String::as_str))?;
        return std::io::stdout().write_all(script.as_bytes()).context("cannot write");
    }
    match cli::parse(&words)? {
        Command::Print(text) => {
            std::io::stdout().write_all(text.as_bytes()).context("cannot write")
        }
        Command::Publish(options) => {
            prepare(&options.common)?;
            publisher::run(&options)
        }
        Command::Subscribe(options) => {
            prepare(&options.common)?;
            subscriber::run(&options)
        }
    }
}

/// Sets up the log, the CPUs and the signal handlers of a test.
fn prepare(options: &Common) -> Result<()> {
    let level = match options.verbosity {
        0 => LevelFilter::OFF,
        1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        _ => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    tracing::debug!(?options, "settings");
    if !options.cpus.is_empty() {
        cpu::pin(&options.cpus)?;
    }
    signals::watch()
}

/// A number that identifies this process.
fn process_number() -> Result<u64> {
    getrandom::u64().context("no random numbers")
}
