//! The names, flags and file of the original: `bats_protocol`, `bats_cli` and
//! `/etc/bats-protocol/bats-protocol-settings.ini`. They are translated into a configuration of `batsd`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod identity;
mod ini;
mod translate;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;

pub(crate) use identity::NetworkKey;
pub(crate) use translate::configuration;
pub use translate::{Translated, translate};

/// Default path of the file.
const DEFAULT_PATH: &str = "/etc/bats-protocol/bats-protocol-settings.ini";
/// The network's key, the same file on all nodes.
const KEY: &str = "server.key";
/// Flags that are taken: `bats_protocol` runs in the foreground, and the control socket is always there;
/// routes and links come from the file.
const WITHOUT_MEANING: &[&str] = &[
    "daemon_enabled",
    "api_enabled",
    "olsr_adaption_enabled",
    "use_netlink_routing_table",
    "use_user_routing_table",
    "use_system_link_config",
    "use_user_link_config",
];

/// Flags that change what the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `BTP` or `BRTP`, in place of `tun.mode`.
    tun_protocol: Option<String>,
    /// Flags without a meaning here, with a value that asks for something.
    ignored: Vec<String>,
}

/// Whether a program of this name is the original's.
pub(crate) fn is_its_name(name: Option<&OsString>) -> bool {
    let file = name.map(Path::new).and_then(Path::file_name);
    file.is_some_and(|name| name == "bats_protocol")
}

/// The control socket of a node with the original's file.
#[must_use]
pub fn control() -> PathBuf {
    crate::config::default_control()
}

/// The path of the network's key: it is in the folder of the file.
fn key(file: &Path) -> PathBuf {
    file.with_file_name(KEY)
}

/// What the owner of a node with this file must know at each start.
pub(crate) fn warning(file: &Path) -> String {
    format!(
        "WARNING: all nodes share the secret {}: its holder can act as any node, read and change the traffic of \
         all nodes, and reach all ports of their hosts; if a copy is stolen, all nodes need a new one",
        key(file).display()
    )
}

/// Parses `--name=value`, `--name value` for `--config`, and `--name`. Returns the path of the file, too.
///
/// # Errors
/// A flag is unknown or has a wrong value.
pub fn parse_flags(words: &[String]) -> anyhow::Result<(PathBuf, Flags)> {
    let (mut path, mut flags) = (PathBuf::from(DEFAULT_PATH), Flags::default());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else {
            bail!("'{word}' is no flag: flags are --NAME=VALUE");
        };
        let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
        match name {
            "config" if !value.is_empty() => path = value.into(),
            "config" => match words.next() {
                Some(value) => path = value.into(),
                None => bail!("--config needs the path of a file"),
            },
            "tun_protocol" if ["BTP", "BRTP"].contains(&value) => {
                flags.tun_protocol = Some(value.to_owned());
            }
            "tun_protocol" => bail!("--tun_protocol={value} is not BTP or BRTP"),
            name if WITHOUT_MEANING.contains(&name) => {
                let asks_nothing = match name {
                    "daemon_enabled" | "api_enabled" => true,
                    name => (value == "false") != name.starts_with("use_user"),
                };
                if !asks_nothing {
                    flags.ignored.push(word.clone());
                }
            }
            _ => bail!("--{name} is an unknown flag: known are config, tun_protocol, {}", {
                WITHOUT_MEANING.join(", ")
            }),
        }
    }
    Ok((path, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> anyhow::Result<(PathBuf, Flags)> {
        parse_flags(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_of_the_original_are_taken_and_others_are_errors() {
        let (path, flags) = parsed("--daemon_enabled=true --api_enabled=true").unwrap();
        assert_eq!((path.to_str(), flags), (Some(DEFAULT_PATH), Flags::default()));
        let (path, flags) = parsed("--config x.ini --tun_protocol=BRTP").unwrap();
        assert_eq!((path.to_str(), flags.tun_protocol.as_deref()), (Some("x.ini"), Some("BRTP")));
        let (_, flags) = parsed(
            "--olsr_adaption_enabled=true --use_user_routing_table=false --use_system_link_config=true",
        )
        .unwrap();
        let ignored = [
            "--olsr_adaption_enabled=true",
            "--use_user_routing_table=false",
            "--use_system_link_config=true",
        ];
        assert_eq!(flags.ignored, ignored);
        for (words, error) in [
            ("--tun_protocol=TCP", "not BTP or BRTP"),
            ("--explode=true", "unknown flag"),
            ("x.ini", "is no flag"),
            ("--config", "needs the path"),
        ] {
            assert!(parsed(words).unwrap_err().to_string().contains(error), "{words}");
        }
    }
}
