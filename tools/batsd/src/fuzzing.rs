//! Bodies of fuzz targets; `tests/replay.rs` replays their corpora. Not part of the API.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use bats_node::Hop;
use openbats::Fingerprint;

use crate::config::{Config, FirstUse, Known, MAX_LISTENERS, MAX_PEERS, share};
use crate::original::{self, Flags, NetworkKey};

pub use crate::worker::fuzzing::{ControlReport, node_control_run};

/// What a text is.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConfigReport {
    /// Whether it is a valid configuration.
    pub is_config: bool,
    /// Whether it is a valid file of the original.
    pub is_original: bool,
    /// Whether its words are valid flags of the original.
    pub is_flags: bool,
}

/// Parses `data` as a configuration and as a file, flags and a key of the original. A valid configuration is
/// consistent, and the lines that `batsctl share` prints of it parse in the file of another node to the same. A file of
/// the original that is translated gives TOML. Errors name the file and a cause.
///
/// # Panics
/// A property is violated.
#[must_use]
pub fn node_config_run(data: &[u8]) -> ConfigReport {
    let mut report = ConfigReport::default();
    let _ = NetworkKey::from_pem(data);
    let Ok(text) = std::str::from_utf8(data) else { return report };
    match Config::parse(Path::new("batsd.toml"), text) {
        Ok(config) => {
            report.is_config = true;
            check_config(&config);
            share_config(&config);
            know_neighbours(text, &config);
        }
        Err(error) => check_error("batsd.toml", &error.to_string()),
    }
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let flags = match original::parse_flags(&words) {
        Ok((_, flags)) if !words.is_empty() => {
            report.is_flags = true;
            flags
        }
        Ok((_, flags)) => flags,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Flags::default()
        }
    };
    match original::configuration(Path::new("x.ini"), text, &flags, network()) {
        Ok((translated, ..)) => {
            assert!(toml::from_str::<toml::Table>(&translated).is_ok(), "{translated}");
            match Config::parse_translated(Path::new("x.ini"), &translated) {
                Ok(config) => {
                    report.is_original = true;
                    check_config(&config);
                }
                // The lines of the translation are not those of the file.
                Err(error) => assert!(error.to_string().starts_with("x.ini: "), "{error}"),
            }
        }
        Err(error) => check_error("x.ini", &error.to_string()),
    }
    report
}

/// A configuration that waits for certificates is one, too, when they are known.
fn know_neighbours(text: &str, config: &Config) {
    let names = config.first_use.iter().map(FirstUse::name);
    let known: Known = names.zip(1u64..).map(|(name, number)| (name, print(number))).collect();
    let config = match Config::parse_with(Path::new("batsd.toml"), text, &known) {
        Ok(config) => config,
        // The file may have one of these certificates.
        Err(_) if text.contains("a5a5a5") => return,
        Err(error) => panic!("{error}"),
    };
    assert!(config.first_use.iter().all(|entry| entry.is_known));
    check_config(&config);
}

fn print(number: u64) -> [u8; 32] {
    let mut print = [0xa5; 32];
    let (first, _) = print.split_at_mut(8);
    first.copy_from_slice(&number.to_be_bytes());
    print
}

/// The key of the network of the files of the original.
fn network() -> &'static NetworkKey {
    static KEY: OnceLock<NetworkKey> = OnceLock::new();
    KEY.get_or_init(|| {
        let pem = pem::encode(&pem::Pem::new("PRIVATE KEY", vec![7; 40]));
        NetworkKey::from_pem(pem.as_bytes()).expect("a key")
    })
}

/// An error has the name of the file, and says something.
fn check_error(file: &str, text: &str) {
    let cause = text.strip_prefix(file).and_then(|rest| rest.split_once(": "));
    assert!(cause.is_some_and(|(_, cause)| !cause.trim().is_empty()), "{text:?}");
}

fn check_config(config: &Config) {
    let plan = &config.plan;
    assert!(plan.check().is_ok(), "{plan:?}");
    assert!(plan.peers.len() <= MAX_PEERS && config.listeners.len() <= MAX_LISTENERS);
    assert!(!config.listen.is_empty());
    let in_both: Vec<&String> =
        plan.links.keys().filter(|name| plan.hosts.contains_key(*name)).collect();
    assert!(in_both.is_empty(), "{in_both:?}");
    for hop in plan.routes.values().flat_map(|hops| hops.keys()) {
        if let Hop::Link(name) = hop {
            assert!(plan.opens(name), "{name}");
        }
    }
    assert!(config.listeners.iter().all(|one| plan.peers.contains_key(&one.exit)));
}

/// The lines for other nodes give another node this one as a peer.
fn share_config(config: &Config) {
    let print = Fingerprint([0xab; 32]);
    let lines = share(config, print, None).expect("lines without an address");
    let id = if config.plan.id.to_string() == "10.1.2.3" { "10.1.2.4" } else { "10.1.2.3" };
    let text = format!("[node]\nid = \"{id}\"\n{lines}");
    let other = match Config::parse(Path::new("other.toml"), &text) {
        Ok(other) => other,
        Err(error) => panic!("{error}\n{text}"),
    };
    let peer = other.plan.peers.get(&config.plan.id).expect("the node that shares");
    assert_eq!(peer.fingerprint, print.0);
    let addresses = config.tun.iter().flat_map(|tun| &tun.addresses);
    let own: BTreeSet<_> = addresses.map(|net| ipnet::IpNet::from(net.addr())).collect();
    assert_eq!(peer.prefixes, own);
}
