//! `batsd`: the daemon of a node.

use std::path::PathBuf;
use std::process::ExitCode;

use batsd::{config, keeper, worker};
use clap::{Parser, Subcommand};

/// Transports IP packets of this host to other hosts over lossy links and relays. See docs/node.md.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Configuration file.
    #[arg(long, default_value = config::DEFAULT_PATH)]
    config: PathBuf,
    /// Check the configuration and the files that it names, and exit.
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// The unprivileged process, which batsd starts itself.
    #[command(hide = true)]
    Worker,
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Some(Command::Worker) => worker::run(),
        None if arguments.check => {
            keeper::check(&arguments.config)?;
            println!("{}: good", arguments.config.display());
            Ok(())
        }
        None => keeper::run(&arguments.config),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("batsd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
