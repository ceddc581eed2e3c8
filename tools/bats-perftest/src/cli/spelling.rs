//! The original's spelling rules: one hyphen, any case, any prefix.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use anyhow::{Result, bail, ensure};

/// Who an option is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Publisher,
    Subscriber,
    Both,
}

/// An option.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    /// Placeholder of its value, if it has one.
    pub(crate) value: Option<&'static str>,
    pub(crate) role: Role,
    pub(crate) help: &'static str,
    /// Why it is refused, if it is.
    pub(crate) refusal: Option<&'static str>,
    /// The original does not have it. Its options come first if a prefix is ambiguous.
    pub(crate) is_new: bool,
}

/// The options of a command line with their values.
#[derive(Debug, Default)]
pub(crate) struct Given(Vec<(&'static Spec, String)>);

/// Finds the option with this name or prefix of a name.
fn find(table: &'static [Spec], word: &str) -> Option<&'static Spec> {
    let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    let matches = |spec: &&Spec| {
        let start = spec.name.as_bytes().get(..bare.len());
        !bare.is_empty() && start.is_some_and(|start| start.eq_ignore_ascii_case(bare.as_bytes()))
    };
    let of_original = table.iter().filter(|spec| !spec.is_new || spec.name.len() == bare.len());
    of_original.chain(table).find(matches)
}

/// Parses a command line without the program's name.
///
/// # Errors
/// An unknown or refused option, a missing value, or a word that is no option.
pub(crate) fn parse(table: &'static [Spec], words: &[String]) -> Result<Given> {
    let mut given = Given::default();
    // Help is asked for when the other words are not known.
    let is_help = |spec: &&Spec| spec.name == "help";
    if let Some(help) = words.iter().filter_map(|word| find(table, word)).find(is_help) {
        return Ok(Given(vec![(help, String::new())]));
    }
    let mut words = words.iter();
    while let Some(word) = words.next() {
        ensure!(word.starts_with('-'), "unexpected word '{word}': options begin with '-'");
        let Some(spec) = find(table, word) else {
            bail!("unknown option '{word}': see -help");
        };
        if let Some(reason) = spec.refusal {
            bail!("-{} is not supported: {reason}", spec.name);
        }
        let value = match spec.value {
            None => String::new(),
            Some(placeholder) => match words.next() {
                Some(value) if find(table, value).is_some() => {
                    bail!("-{} needs a value: -{0} {placeholder}, but '{value}' follows", spec.name)
                }
                Some(value) => value.clone(),
                None => bail!("-{} needs a value: -{0} {placeholder}", spec.name),
            },
        };
        given.0.push((spec, value));
    }
    Ok(given)
}

impl Given {
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(spec, _)| spec.name == name)
    }

    /// The last value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.values(name).last()
    }

    /// The last value of any of these options.
    pub(crate) fn last_of(&self, names: &[&str]) -> Option<&str> {
        let given = self.0.iter().rev().find(|(spec, _)| names.contains(&spec.name));
        given.map(|(_, value)| value.as_str())
    }

    /// All values of a repeatable option.
    pub(crate) fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(spec, _)| spec.name == name).map(|(_, value)| value.as_str())
    }

    /// The first option that is only for this role.
    pub(crate) fn only_for(&self, role: Role) -> Option<&'static str> {
        self.0.iter().find(|(spec, _)| spec.role == role).map(|(spec, _)| spec.name)
    }

    /// The last value of an option as a number within a range.
    ///
    /// # Errors
    /// The value is not a number, or out of the range.
    pub(crate) fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>> {
        let Some(text) = self.value(name) else { return Ok(None) };
        number(name, text, min, max).map(Some)
    }
}

pub(crate) fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Ok(_) => bail!("-{name} {text} is out of range: {min} to {max}"),
        Err(_) => bail!("-{name} '{text}' is not a whole number from {min} to {max}"),
    }
}

/// The help text of a table.
pub(crate) fn help(table: &'static [Spec]) -> String {
    let mut text = String::new();
    for spec in table.iter().filter(|spec| spec.refusal.is_none()) {
        let value = spec.value.map(|value| format!(" {value}")).unwrap_or_default();
        let role = match spec.role {
            Role::Publisher => " (publisher)",
            Role::Subscriber => " (subscriber)",
            Role::Both => "",
        };
        text += &format!("  -{}{value}{role}\n      {}\n", spec.name, spec.help);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::table::OPTIONS;
    use super::*;

    fn name(word: &str) -> &'static str {
        find(OPTIONS, word).map_or("", |spec| spec.name)
    }

    #[test]
    fn names_match_without_case_and_by_prefix() {
        assert_eq!(name("-noPrint"), "noPrintIntervals");
        assert_eq!(name("-raw"), "rawTransport");
        assert_eq!(name("-exec"), "executionTime");
        assert_eq!(name("-datalen"), "dataLen");
        assert_eq!(name("--DATALEN"), "dataLen");
        assert_eq!(name("-PUB"), "pub");
        assert_eq!(name("-pubrate"), "pubRate");
        assert_eq!(name("-multicast"), "multicast");
        // Ambiguous prefixes select the first in alphabetical order.
        assert_eq!(name("-pubR"), "pubRate");
        assert_eq!(name("-lat"), "latencyCount");
        assert_eq!(name("-no"), "noBlockingSockets");
        // Options that the original does not have come last, unless the whole name is given.
        assert_eq!(name("-n"), "networkCapture");
        assert_eq!(name("-ni"), "nic");
        assert_eq!(name("-f"), "flatData");
        assert_eq!(name("-fi"), "fingerprint");
        assert_eq!(name("-na"), "nanosecondResolution");
        assert_eq!(name("-goal"), "goal");
        assert_eq!(name("-"), "");
        assert_eq!(name("-μ"), "");
        assert_eq!(name("-pubs"), "");
    }

    #[test]
    fn the_table_is_sorted_and_every_option_works_or_has_a_reason() {
        let names: Vec<String> = OPTIONS.iter().map(|spec| spec.name.to_lowercase()).collect();
        assert!(names.is_sorted(), "{:?}", names.windows(2).find(|pair| pair[0] > pair[1]));
        for spec in OPTIONS {
            assert_eq!(name(&format!("-{}", spec.name)), spec.name);
            assert!(spec.help.is_empty() == spec.refusal.is_some(), "{}", spec.name);
        }
    }
}
