//! The command line of `batsd` and `bats_protocol`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::keeper::Source;
use crate::original;
use crate::quick::Options;
use crate::{config, keeper, worker};

/// Transports IP packets of this host to other hosts over lossy links and relays. See docs/node.md.
#[derive(Parser)]
#[command(name = "batsd", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Configuration file; one that ends with .ini has the original's format.
    #[arg(long, default_value = config::DEFAULT_PATH, conflicts_with = "node")]
    config: PathBuf,
    /// Check the configuration and the files that it names, and exit.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    quick: Options,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// The unprivileged process, which batsd starts itself.
    #[command(hide = true)]
    Worker,
    /// The unprivileged process that asks a neighbour for its certificate, which batsd starts itself.
    #[command(hide = true)]
    FirstUse,
}

fn parse(words: &[OsString]) -> Arguments {
    let matches = Arguments::command().get_matches_from(words);
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Some(Command::Worker) => return worker::run(),
        Some(Command::FirstUse) => return worker::first_use::run(),
        None => {}
    }
    let source = if arguments.quick.is_used() {
        let mut is_printed = false;
        let quick = arguments.quick.configure(arguments.check, |entry| {
            // The exit needs it before it answers.
            println!("fingerprint: sha256:{}", entry.fingerprint);
            is_printed = true;
            keeper::learn(entry)
        })?;
        if quick.identity.is_none() && !is_printed {
            println!("fingerprint: sha256:{}", quick.fingerprint);
        }
        Source::CommandLine(quick.text, quick.identity)
    } else {
        Source::of(&arguments.config)
    };
    start(source, arguments.check)
}

fn start(source: Source, is_check: bool) -> anyhow::Result<()> {
    if is_check {
        keeper::check_source(&source)?;
        println!("{}: good", source.path().display());
        return Ok(());
    }
    keeper::run(source)
}

fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("batsd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `batsd` with the arguments of the process.
#[must_use]
pub fn batsd() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if original::is_its_name(words.first()) {
        return bats_protocol();
    }
    exit_code(run(&parse(&words)))
}

/// Runs `bats_protocol`: the same daemon with the original's flags and file.
#[must_use]
pub fn bats_protocol() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "worker") {
        return exit_code(worker::run());
    }
    match original::parse_flags(&words) {
        Ok((path, flags)) => exit_code(start(Source::Original(path, flags), false)),
        Err(error) => {
            eprintln!("bats_protocol: {error:#}");
            ExitCode::from(2)
        }
    }
}
