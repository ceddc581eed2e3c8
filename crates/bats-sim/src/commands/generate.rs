//! The manual pages and the completions, made from the options themselves.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Arguments;

/// Where they go.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// A directory that is there
    directory: PathBuf,
}

impl Generate {
    /// Writes a page for each command, and the completions of bash, fish and zsh.
    pub(crate) fn run(&self) -> io::Result<()> {
        write_to(&self.directory)
    }
}

fn write_to(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), directory)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "bats-sim", directory)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_stands_in_the_completions() {
        let directory =
            std::env::temp_dir().join(format!("bats-sim-generated-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        write_to(&directory).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        let overview = read("bats-sim.1");
        let completions = [read("bats-sim.bash"), read("bats-sim.fish"), read("_bats-sim")];
        let commands = Arguments::command();
        let mut seen = 0;
        for command in commands.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            assert!(overview.contains(name), "{name}");
            let page = read(&format!("bats-sim-{name}.1")).replace("\\-", "-");
            for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
                if let Some(long) = option.get_long() {
                    assert!(page.contains(long), "{name} --{long}");
                }
            }
            assert!(completions.iter().all(|text| text.contains(name)), "{name}");
            seen += 1;
        }
        assert!(seen > 5);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
