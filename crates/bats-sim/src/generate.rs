//! Generates the manual pages and shell completions of a program from its clap definition.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

/// Options of the command `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// Existing output directory
    directory: PathBuf,
}

impl Generate {
    /// Writes a manual page for each command of the program, and completions for bash, fish and
    /// zsh.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn run(&self, program: &Command) -> io::Result<()> {
        write_to(program, &self.directory)
    }
}

fn write_to(program: &Command, directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(program.clone(), directory)?;
    let name = program.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut program.clone(), &name, directory)?;
    }
    Ok(())
}

/// The commands and long options of a program that are missing in the files that [`Generate`]
/// writes. Hidden ones are not checked.
///
/// # Errors
///
/// If files cannot be written to a temporary directory or cannot be read.
pub fn missing(program: &Command) -> io::Result<Vec<String>> {
    let name = program.get_name();
    let directory = std::env::temp_dir().join(format!("{name}-generated-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    write_to(program, &directory)?;
    let read = |file: &str| std::fs::read_to_string(directory.join(file));
    let overview = read(&format!("{name}.1"))?.replace("\\-", "-");
    let completions = [
        read(&format!("{name}.bash"))?,
        read(&format!("{name}.fish"))?,
        read(&format!("_{name}"))?,
    ];
    let mut missing = Vec::new();
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let of = command.get_name();
        let in_overview = overview.contains(&format!("{name}-{of}"));
        if !in_overview || completions.iter().any(|text| !text.contains(of)) {
            missing.push(of.to_owned());
        }
        let page = read(&format!("{name}-{of}.1"))?.replace("\\-", "-");
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            missing.extend(
                option
                    .get_long()
                    .filter(|long| !page.contains(&format!("--{long}")))
                    .map(|long| format!("{of} --{long}")),
            );
        }
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn every_command_has_a_manual_page_and_completions() {
        let command = |name: &'static str| {
            Command::new(name).about("Does it").arg(Arg::new("of").long("of-name").help("Whose"))
        };
        let program = Command::new("generated")
            .subcommand(command("first"))
            .subcommand(command("secret").hide(true));
        assert_eq!(missing(&program).unwrap(), Vec::<String>::new());
        let directory = std::env::temp_dir().join(format!("generate-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Generate { directory: directory.clone() }.run(&program).unwrap();
        let files = std::fs::read_dir(&directory).unwrap().flatten().map(|file| file.file_name());
        let mut files: Vec<_> = files.map(|file| file.to_string_lossy().into_owned()).collect();
        files.sort();
        let page = std::fs::read_to_string(directory.join("generated-first.1")).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        for file in ["_generated", "generated.1", "generated.bash", "generated.fish"] {
            assert!(files.iter().any(|one| one == file), "{files:?}");
        }
        assert!(page.contains("Whose"), "{page}");
    }
}
