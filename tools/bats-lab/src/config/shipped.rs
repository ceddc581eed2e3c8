//! Files embedded in this program: topologies, protocols, cases.

use anyhow::{Result, bail};

use super::source::Source;
use super::suggest::nearest;

/// The predefined topologies.
pub(crate) const TOPOLOGIES: &str = "predefined.topology.yaml";
/// The predefined protocols.
pub(crate) const PROTOCOLS: &str = "predefined.protocols.yaml";

macro_rules! files {
    ($($folder:literal / $name:literal),* $(,)?) => {
        &[$(($folder, $name, include_str!(concat!("../../", $folder, "/", $name)))),*]
    };
}

/// Directory, name and content of all files.
const FILES: &[(&str, &str, &str)] = files![
    "topologies" / "predefined.topology.yaml",
    "topologies" / "4-hops-linear-network.json",
    "topologies" / "complex_mesh_net_l3.json",
    "topologies" / "complex_mesh_net.json",
    "protocols" / "predefined.protocols.yaml",
    "cases" / "matrix-1g.yaml",
    "cases" / "matrix-100m.yaml",
    "cases" / "single-hop.yaml",
    "cases" / "three-hops.yaml",
    "cases" / "modes.yaml",
    "cases" / "udp-residual-loss.yaml",
    "cases" / "competition.yaml",
    "cases" / "bbr-cubic.yaml",
    "cases" / "outage.yaml",
    "cases" / "latency-under-load.yaml",
    "cases" / "rrul.yaml",
    "cases" / "variable-rate.yaml",
    "cases" / "long-fat.yaml",
    "cases" / "message-delay.yaml",
    "cases" / "perftest-link.yaml",
    "cases" / "node-figures.yaml",
    "cases" / "node-tun.yaml",
    "cases" / "perftest-lossy.yaml",
    "cases" / "smoke.yaml",
];

/// The content of an embedded file by its name; directories before the name are ignored.
pub(crate) fn file(path: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next()?;
    FILES.iter().find(|file| file.1 == name && file.0 != "cases").map(|file| file.2)
}

/// The names of all embedded files that test files can name.
pub(crate) fn names() -> Vec<String> {
    FILES.iter().filter(|file| file.0 != "cases").map(|file| file.1.to_owned()).collect()
}

/// An embedded file that exists.
pub(crate) fn source(name: &str) -> Source {
    Source::shipped(name, file(name).unwrap_or_default())
}

/// The names of the shipped cases.
pub(crate) fn cases() -> impl Iterator<Item = &'static str> + Clone {
    let cases = FILES.iter().filter(|file| file.0 == "cases");
    cases.filter_map(|file| file.1.strip_suffix(".yaml"))
}

/// The file of a shipped case.
pub(crate) fn case(name: &str) -> Result<Source> {
    let found =
        FILES.iter().find(|file| file.0 == "cases" && file.1.strip_suffix(".yaml") == Some(name));
    match (found, nearest(name, cases())) {
        (Some(file), _) => Ok(Source::shipped(&format!("case:{name}"), file.2)),
        (None, Some(near)) => bail!("there is no case `{name}`; did you mean `case:{near}`?"),
        (None, None) => bail!("there is no case `{name}`; `batslab cases` lists them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_case_is_valid() {
        for name in cases() {
            let suite = crate::config::load::suite(&format!("case:{name}"), None);
            let suite = suite.unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(suite.cases.iter().all(|case| !case.description.is_empty()), "{name}");
        }
    }
}
