//! `bats_iperf`: measures the throughput, latency and loss of OpenBATS connections, and transfers
//! files over them.
#![forbid(unsafe_code)]

mod cli;
mod client;
mod clock;
mod clock_offset;
mod console;
mod control;
mod cpu;
mod emulator;
mod error_text;
mod files;
#[doc(hidden)]
pub mod fuzzing;
mod generate;
mod interrupt;
mod iperf3_keys;
mod latency;
mod logging;
mod loss_note;
mod message;
mod message_length;
mod meter;
mod outcome;
mod path_fit;
mod pidfile;
mod port_probe;
mod printable;
mod progress;
mod rate_limiter;
mod receiver;
mod report;
mod sender;
mod sender_settings;
mod server;
mod signals;
mod state_files;
mod stream;
mod test;
mod transfer_limits;
mod transport_mode;
mod transport_stats;
mod truncate;
mod units;

use std::io::Write;
use std::process::ExitCode;

use cli::Role;
use console::Console;

/// Runs the program with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let (options, role) = match cli::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(problem) => problem.exit(),
    };
    if let Role::Generate(what) = role {
        return generate::print(what);
    }
    if options.service.daemon {
        let left = match options.service.detached {
            false => return server::daemon::start().unwrap_or_else(|error| failed(&error)),
            true => server::daemon::detach(),
        };
        if let Err(error) = left {
            return failed(&error);
        }
    }
    if let Some(format) = options.format {
        units::set_format(format);
    }
    if let Some(processor) = options.affinity
        && let Err(error) = cpu::pin(processor)
    {
        return failed(&error);
    }
    let console = match Console::new(&options) {
        Ok(console) => console,
        Err(error) => return failed(&error),
    };
    // With `-D`, the detached process prints the notes, not the process that starts it.
    options.notes.iter().for_each(|note| console.note(note));
    let result = logging::start(&options).and_then(|()| match role {
        Role::Client(host) => client::run(&options, &console, &host),
        _ => server::run(&options, &console),
    });
    match result {
        Ok(code) => match console.take_write_error() {
            Some(error) => failed(&error),
            None => code,
        },
        Err(error) => {
            console.error(&error_text::join_causes(&error));
            failed(&error)
        }
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // If standard error cannot be written, there is nothing left to do.
    if let Some(line) = error_text::failure(&error_text::join_causes(error)) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    ExitCode::FAILURE
}
