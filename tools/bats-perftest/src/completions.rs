//! Shell completions, made from the tables of options.

use std::fmt::Write;

use anyhow::{Result, bail};

use crate::cli::spelling::Spec;
use crate::cli::table;
use crate::sweep::options;

/// Words that may come first instead of an option.
const COMMANDS: [&str; 3] = ["sweep", "manual", "completions"];

/// The completions for a shell.
///
/// # Errors
/// The shell is unknown.
pub(crate) fn script(shell: Option<&str>) -> Result<String> {
    match shell {
        Some("bash") => Ok(bash()),
        Some("fish") => Ok(fish()),
        Some("zsh") => Ok(zsh()),
        _ => bail!("completions: name a shell: bash, fish or zsh"),
    }
}

/// The options that work.
fn working(specs: &'static [Spec]) -> impl Iterator<Item = &'static Spec> {
    specs.iter().filter(|spec| spec.refusal.is_none())
}

/// What a value can be.
enum Values {
    None,
    File,
    Words(&'static str),
    Any,
}

fn values(spec: &Spec) -> Values {
    match (spec.name, spec.value) {
        (_, None) => Values::None,
        ("outputFormat", _) => Values::Words("csv json legacy"),
        ("transport", _) => Values::Words("brtp btp brctp transparent tcp quic UDPv4 UDPv6"),
        ("goal", _) => Values::Words("latency balanced throughput"),
        (_, Some("FILE" | "DIR")) => Values::File,
        _ => Values::Any,
    }
}

fn bash() -> String {
    let names = |specs| working(specs).map(|spec| format!("-{}", spec.name)).collect::<Vec<_>>();
    let mut cases = String::new();
    for spec in working(table::OPTIONS).chain(working(options::OPTIONS)) {
        let reply = match values(spec) {
            Values::None => continue,
            Values::File => "COMPREPLY=($(compgen -f -- \"$cur\"))".to_owned(),
            Values::Words(words) => format!("COMPREPLY=($(compgen -W '{words}' -- \"$cur\"))"),
            Values::Any => ":".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(cases, "        -{}) {reply}; return ;;", spec.name);
    }
    format!(
        "_bats_perftest() {{\n    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} \
         words\n    COMPREPLY=()\n    case $prev in\n{cases}    esac\n    if [[ ${{COMP_WORDS[1]}} == sweep \
         && $COMP_CWORD -gt 1 ]]; then\n        words='{}'\n    elif [[ ${{COMP_WORDS[1]}} == completions && \
         $COMP_CWORD -gt 1 ]]; then\n        words='bash fish zsh'\n    else\n        words='{}'\n        [[ \
         $COMP_CWORD -gt 1 ]] || words+=' {}'\n    fi\n    COMPREPLY=($(compgen -W \"$words\" -- \
         \"$cur\"))\n}}\ncomplete -o filenames -F _bats_perftest bats_perftest\n",
        names(options::OPTIONS).join(" "),
        names(table::OPTIONS).join(" "),
        COMMANDS.join(" ")
    )
}

fn fish() -> String {
    let mut text = String::new();
    let quoted = |help: &str| help.replace('\\', "\\\\").replace('\'', "\\'");
    let first = COMMANDS.join(" ");
    let _ = writeln!(
        text,
        "complete -c bats_perftest -f -n '__fish_is_first_arg' -a '{first}'\ncomplete -c bats_perftest -f -n \
         '__fish_seen_subcommand_from completions' -a 'bash fish zsh'"
    );
    for (condition, specs) in [
        (format!("not __fish_seen_subcommand_from {first}"), table::OPTIONS),
        ("__fish_seen_subcommand_from sweep".to_owned(), options::OPTIONS),
    ] {
        for spec in working(specs) {
            let value = match values(spec) {
                Values::None => String::new(),
                Values::File => " -r -F".to_owned(),
                Values::Words(words) => format!(" -x -a '{words}'"),
                Values::Any => " -x".to_owned(),
            };
            let (name, help) = (spec.name, quoted(spec.help));
            let _ = writeln!(
                text,
                "complete -c bats_perftest -n '{condition}' -o {name}{value} -d '{help}'"
            );
        }
    }
    text
}

fn zsh() -> String {
    let arguments = |specs| {
        let mut text = String::new();
        for spec in working(specs) {
            let help = spec.help.replace('\'', "'\\''").replace('[', "\\[").replace(']', "\\]");
            let value = match (
                values(spec),
                spec.value.unwrap_or_default().replace([':', '[', ']'], " "),
            ) {
                (Values::None, _) => String::new(),
                (Values::File, name) => format!(":{name}:_files"),
                (Values::Words(words), name) => format!(":{name}:({words})"),
                (Values::Any, name) => format!(":{name}: "),
            };
            let _ = write!(text, " \\\n            '*-{}[{help}]{value}'", spec.name);
        }
        text
    };
    format!(
        "#compdef bats_perftest\n_bats_perftest() {{\n    case $words[2] in\n        sweep) shift words; (( \
         CURRENT-- )); _arguments{} ;;\n        completions) _values shell bash fish zsh ;;\n        *) \
         (( CURRENT > 2 )) || compadd {}\n            _arguments{} ;;\n    esac\n}}\n_bats_perftest \"$@\"\n",
        arguments(options::OPTIONS),
        COMMANDS.join(" "),
        arguments(table::OPTIONS)
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_option_that_works_is_completed() {
        for shell in ["bash", "fish", "zsh"] {
            let text = script(Some(shell)).unwrap();
            for spec in table::OPTIONS.iter().chain(options::OPTIONS) {
                let word = if shell == "fish" { "-o " } else { "-" };
                let has = [" ", "[", "'", "\n"]
                    .iter()
                    .any(|end| text.contains(&format!("{word}{}{end}", spec.name)));
                assert_eq!(has, spec.refusal.is_none(), "{shell}: {}", spec.name);
            }
        }
        assert!(script(None).is_err() && script(Some("csh")).is_err());
    }

    #[test]
    fn bash_completes_options_and_values() {
        let complete = |words: &str| {
            let count = words.matches(' ').count();
            let run = format!(
                "{}\nCOMP_WORDS=(); IFS=' ' read -ra COMP_WORDS <<< '{words}'; COMP_CWORD={count}; \
                 _bats_perftest; echo \"${{COMPREPLY[*]}}\"",
                bash()
            );
            let output = Command::new("bash").args(["-c", &run]).output().unwrap();
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(complete("bats_perftest -latencyT"), "-latencyTest");
        assert_eq!(complete("bats_perftest -pub -outputFormat j"), "json");
        assert_eq!(complete("bats_perftest sw"), "sweep");
        assert_eq!(complete("bats_perftest sweep -re"), "-repeat");
        assert_eq!(complete("bats_perftest -pub -numIter 1"), "");
    }
}
