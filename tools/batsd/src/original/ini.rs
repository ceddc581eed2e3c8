//! The original's file: sections, and keys with dots such as `link.item0.remote`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Most entries of a list.
const MAX_ITEMS: usize = 1_024;
/// Keys that are used. A `*` stands for the number of an entry.
const KNOWN: &[&str] = &[
    "link.cnt",
    "link.item*.local",
    "link.item*.remote",
    "routes.cnt",
    "routes.item*.src",
    "routes.item*.dst",
    "routes.item*.mask",
    "routes.item*.gw",
    "routes.item*.metric",
    "tun.name",
    "tun.ip",
    "tun.mode",
    "tun.mapping.cnt",
    "tun.mapping.item*.tun_ip",
    "tun.mapping.item*.net_ip",
    "proxies.port_forward.proxy.cnt",
    "proxies.port_forward.proxy.item*.listen_port",
    "proxies.port_forward.proxy.item*.svr_addr_port",
    "proxies.port_forward.proxy.item*.bats_svr_addr",
    "proxies.port_forward.proxy.item*.forward_protocol",
];

/// An error with its place.
#[derive(Debug)]
pub(super) struct IniError {
    path: PathBuf,
    line: usize,
    text: String,
}

impl fmt::Display for IniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.text)
    }
}

impl std::error::Error for IniError {}

/// A value with its line.
#[derive(Clone, Debug)]
pub(super) struct Value<'a> {
    pub(super) key: String,
    pub(super) text: &'a str,
    line: usize,
}

/// The values of a file.
pub(super) struct Ini<'a> {
    path: &'a Path,
    values: BTreeMap<String, Value<'a>>,
    /// Keys without a meaning here.
    pub(super) ignored: BTreeSet<String>,
}

fn with_star(key: &str) -> String {
    let parts = key.split('.').map(|part| match part.strip_prefix("item") {
        Some(number) if number.parse::<usize>().is_ok() => "item*",
        _ => part,
    });
    parts.collect::<Vec<_>>().join(".")
}

impl<'a> Ini<'a> {
    pub(super) fn parse(path: &'a Path, text: &'a str) -> Result<Self, IniError> {
        let mut ini = Self { path, values: BTreeMap::new(), ignored: BTreeSet::new() };
        let mut section = "";
        for (line, number) in text.lines().zip(1..) {
            let line = line.trim();
            let error = |text: String| IniError { path: path.to_owned(), line: number, text };
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[') {
                section = name
                    .strip_suffix(']')
                    .ok_or_else(|| error(format!("'{line}' is no section: [NAME]")))?;
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(error(format!("'{line}' is not KEY = VALUE")));
            };
            let (key, text) = (key.trim(), value.trim());
            // Sections group keys, or are their first part.
            let names = [key.to_owned(), format!("{section}.{key}")];
            let known = names.iter().find(|name| KNOWN.contains(&with_star(name).as_str()));
            let Some(known) = known else {
                ini.ignored.insert(with_star(key));
                continue;
            };
            let value = Value { key: known.clone(), text, line: number };
            if ini.values.insert(known.clone(), value).is_some() {
                return Err(error(format!("{known} stands there twice: remove one")));
            }
        }
        Ok(ini)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.values.get(key).filter(|value| !value.text.is_empty())
    }

    /// An error about a value.
    pub(super) fn error(&self, value: &Value<'_>, text: impl fmt::Display) -> IniError {
        let text = format!("{} = {} {text}", value.key, value.text);
        IniError { path: self.path.to_owned(), line: value.line, text }
    }

    /// Parses a value; `wanted` says what it must be.
    pub(super) fn parsed<T: std::str::FromStr>(
        &self,
        value: &Value<'_>,
        wanted: &str,
    ) -> Result<T, IniError> {
        value.text.parse().map_err(|_| self.error(value, format!("is not {wanted}")))
    }

    /// The value that an entry of a list needs.
    pub(super) fn required(
        &self,
        list: &str,
        item: usize,
        key: &str,
    ) -> Result<&Value<'a>, IniError> {
        let name = format!("{list}.item{item}.{key}");
        self.get(&name).ok_or_else(|| {
            let count = self.get(&format!("{list}.cnt"));
            let line = count.map_or(0, |count| count.line);
            IniError { path: self.path.to_owned(), line, text: format!("{name} is missing") }
        })
    }

    /// The number of entries of a list.
    pub(super) fn count(&self, list: &str) -> Result<usize, IniError> {
        let Some(value) = self.get(&format!("{list}.cnt")) else { return Ok(0) };
        let count: usize = self.parsed(value, "a number")?;
        match count {
            0..=MAX_ITEMS => Ok(count),
            _ => Err(self.error(value, format!("is more than {MAX_ITEMS}"))),
        }
    }
}
