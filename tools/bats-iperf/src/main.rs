//! `bats_iperf`: measures what OpenBATS connections carry, and sends files over them.
#![forbid(unsafe_code)]

mod carrier;
mod cli;
mod client;
mod clock;
mod console;
mod control;
mod emulator;
mod excerpt;
mod files;
mod generate;
mod latency;
mod limit;
mod logging;
mod message;
mod meter;
mod pidfile;
mod processor;
mod receiver;
mod report;
mod sender;
mod sending;
mod sentence;
mod server;
mod signals;
mod test;
mod transport;
mod units;

use std::io::Write;
use std::process::ExitCode;

use cli::Role;
use console::Console;

fn main() -> ExitCode {
    let (options, role) = match cli::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(problem) => problem.exit(),
    };
    if let Role::Generate(what) = role {
        return generate::print(what);
    }
    if options.daemon {
        let left = match options.detached {
            false => return server::daemon::start().unwrap_or_else(|error| failed(&error)),
            true => server::daemon::leave_terminal(),
        };
        if let Err(error) = left {
            return failed(&error);
        }
    }
    if let Some(format) = options.format {
        units::set_format(format);
    }
    if let Some(processor) = options.affinity
        && let Err(error) = processor::bind(processor)
    {
        return failed(&error);
    }
    let console = match Console::new(&options) {
        Ok(console) => console,
        Err(error) => return failed(&error),
    };
    // A daemon says it itself, not the process that starts it.
    options.notes.iter().for_each(|note| console.note(note));
    let result = logging::start(&options).and_then(|()| match role {
        Role::Client(host) => client::run(&options, &console, &host),
        _ => server::run(&options, &console),
    });
    match result {
        Ok(code) => match console.take_lost() {
            Some(error) => failed(&error),
            None => code,
        },
        Err(error) => {
            console.error(&sentence::of(&error));
            failed(&error)
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // Nothing can be done where even this cannot be written.
    let _ = writeln!(std::io::stderr(), "bats_iperf: error - {}", sentence::of(error));
    ExitCode::FAILURE
}
