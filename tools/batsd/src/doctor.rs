//! `batsctl doctor`: names what keeps a node from working, and what to do.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::config::Config;
use crate::{control, keeper};

/// Settings of the interfaces, of the network namespace of this process.
const INTERFACES: &str = "/proc/sys/net/ipv4/conf";

/// The result of a check.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// What was checked.
    pub check: String,
    /// What is wrong and what to do; `None` if nothing is wrong.
    pub problem: Option<String>,
}

fn finding(check: impl Into<String>, problem: Option<String>) -> Finding {
    Finding { check: check.into(), problem }
}

/// Checks the configuration, the host and the running daemon, and stops where later checks need what
/// is wrong. `socket` is the control socket, if it is not the one of the configuration.
#[must_use]
pub fn examine(config: &Path, socket: Option<&Path>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = format!("configuration {}", config.display());
    let config = match keeper::check(config) {
        Ok((config, _)) => config,
        Err(error) => {
            findings.push(finding(name, Some(format!("{error:#}"))));
            return findings;
        }
    };
    findings.push(finding(name, None));
    if config.tun.is_some() {
        let opened = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
        let problem = opened.err().map(|error| {
            format!(
                "cannot open it: {error}; load the module (`modprobe tun`), give the container the \
                 device, or run this as root"
            )
        });
        findings.push(finding("device /dev/net/tun", problem));
    }
    reverse_paths(Path::new(INTERFACES), &config, &mut findings);
    let socket = socket.unwrap_or(&config.control);
    for (method, examine) in
        [("Status", status as fn(&Value, &mut Vec<Finding>)), ("Links", links), ("Peers", peers)]
    {
        match control::call(socket, method) {
            Ok(answer) => examine(&answer, &mut findings),
            Err(error) => {
                findings.push(finding("daemon", Some(format!("{error:#}"))));
                break;
            }
        }
    }
    findings
}

/// Whether the kernel drops packets that arrive at this interface, but whose source it would reach over another one. It
/// uses the larger value of the interface's and that of all: 1 is strict, 2 loose (ip-sysctl.rst, rp_filter).
fn is_strict(interfaces: &Path, name: &str) -> bool {
    let value = |name: &str| -> Option<u8> {
        let path = interfaces.join(name).join("rp_filter");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    // Without the interface there is nothing to say about it.
    value(name).is_some_and(|own| own.max(value("all").unwrap_or(0)) == 1)
}

/// Looks at the interfaces that links are bound to: the kernel's routes may prefer others.
fn reverse_paths(interfaces: &Path, config: &Config, findings: &mut Vec<Finding>) {
    let plan = &config.plan;
    let bound = plan.links.values().map(|link| &link.interface);
    let bound = bound.chain(plan.hosts.values().map(|link| &link.interface));
    let names: BTreeSet<&String> = bound.flatten().collect();
    for name in names {
        if is_strict(interfaces, name) {
            let problem = format!(
                "strict: the kernel drops packets from {name} whose source it reaches over another interface; \
                 `sysctl -w net/ipv4/conf/{name}/rp_filter=2`"
            );
            findings.push(finding(format!("rp_filter of {name}"), Some(problem)));
        }
    }
}

fn status(answer: &Value, findings: &mut Vec<Finding>) {
    findings.push(finding("daemon", None));
    // Packets without an owner are no problem: the kernel sends multicast to any device.
    for (counter, advice) in [
        ("dropped_foreign_source", "peers sent from addresses outside their `prefixes`: add them"),
        ("dropped_malformed", "peers sent messages that are no packets: use the same version"),
        ("refused_by_kernel", "the kernel refused packets: try `offload = false` in [tun]"),
    ] {
        let count =
            answer.pointer(&format!("/status/tun/{counter}")).and_then(Value::as_u64).unwrap_or(0);
        if count > 0 {
            findings.push(finding(
                format!("tunnel: {counter} {count} since the worker started"),
                Some(advice.into()),
            ));
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn links(answer: &Value, findings: &mut Vec<Finding>) {
    for link in answer["links"].as_array().into_iter().flatten() {
        // Links that neighbours open are theirs to open again.
        if link["opened_here"] != true {
            continue;
        }
        let (state, remote) = (text(&link["state"]), text(&link["remote"]));
        let problem = (state != "up").then(|| {
            format!(
                "it is {state}, last end: {}; check the address or host name, that UDP passes firewalls, \
                 that batsd runs there, and both fingerprints",
                text(&link["last_end"])
            )
        });
        findings.push(finding(format!("link {} to {remote}", text(&link["name"])), problem));
    }
}

fn peers(answer: &Value, findings: &mut Vec<Finding>) {
    for peer in answer["peers"].as_array().into_iter().flatten() {
        for class in ["stream", "datagram"] {
            let state = text(&peer[class]);
            let problem = (state != "open").then(|| {
                format!(
                    "{state}; check links, `routes.static`, and that it lists this node as [[peer]]"
                )
            });
            findings.push(finding(format!("session {class} of {}", text(&peer["id"])), problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_reverse_path_filters_of_bound_links_are_named() {
        let print = "01".repeat(32);
        let text = format!(
            "[node]\nid = \"10.255.0.1\"\n[tun]\naddress = [\"10.66.0.1/24\"]\n[[peer]]\nid = \"10.255.0.2\"\n\
             fingerprint = \"{print}\"\nremote = \"192.0.2.7:4900\"\ninterface = \"eth1\"\n"
        );
        let config = Config::parse(Path::new("node.toml"), &text).unwrap();
        for (all, device, bound, expected) in [
            (0, Some(0), Some(0), &[][..]),
            (0, Some(1), Some(0), &[]),
            (1, Some(0), Some(2), &[]),
            (1, Some(1), Some(0), &["eth1"]),
            (0, Some(0), Some(1), &["eth1"]),
            (2, Some(1), Some(1), &[]),
            // The interfaces are missing.
            (1, None, None, &[]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let set = |name: &str, value: Option<u8>| {
                let Some(value) = value else { return };
                let path = folder.path().join(name);
                std::fs::create_dir(&path).unwrap();
                std::fs::write(path.join("rp_filter"), format!("{value}\n")).unwrap();
            };
            set("all", Some(all));
            set("bats0", device);
            set("eth1", bound);
            // That of an interface of no link.
            set("eth0", Some(1));
            let mut findings = Vec::new();
            reverse_paths(folder.path(), &config, &mut findings);
            let names: Vec<&str> = findings.iter().map(|one| one.check.as_str()).collect();
            let expected: Vec<String> =
                expected.iter().map(|name| format!("rp_filter of {name}")).collect();
            assert_eq!(names, expected, "{all} {device:?} {bound:?}");
            assert!(findings.iter().all(|one| {
                one.problem.as_ref().is_some_and(|text| text.contains("sysctl -w net/ipv4/conf/"))
            }));
        }
    }
}
