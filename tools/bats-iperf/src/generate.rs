//! Generates the manual page and shell completions from the options.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::{Generated, Options};

/// Prints the requested text.
pub(crate) fn print(what: Generated) -> ExitCode {
    match std::io::stdout().lock().write_all(&text(what)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn text(what: Generated) -> Vec<u8> {
    let mut command = Options::command();
    let mut out = Vec::new();
    let shell = match what {
        Generated::Man => {
            // Writing to memory does not fail.
            let _ = clap_mangen::Man::new(command).render(&mut out);
            return out;
        }
        Generated::Bash => Shell::Bash,
        Generated::Elvish => Shell::Elvish,
        Generated::Fish => Shell::Fish,
        Generated::Powershell => Shell::PowerShell,
        Generated::Zsh => Shell::Zsh,
    };
    clap_complete::generate(shell, &mut command, "bats_iperf", &mut out);
    out
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn generated_texts_contain_every_option() {
        for what in Generated::value_variants() {
            let text = String::from_utf8(text(*what)).unwrap().replace("\\-", "-");
            for option in Options::command().get_arguments().filter(|x| !x.is_hide_set()) {
                let long = option.get_long().unwrap();
                assert!(text.contains(long), "{long} is missing in {what:?}");
            }
        }
    }
}
