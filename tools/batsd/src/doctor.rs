//! `batsctl doctor`: names what keeps a node from working, and what to do.

use std::fs::OpenOptions;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::{control, keeper};

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

fn status(answer: &Value, findings: &mut Vec<Finding>) {
    findings.push(finding("daemon", None));
    // Packets without an owner are no problem: the kernel sends multicast to any device.
    for (counter, advice) in [
        ("dropped_foreign_source", "peers sent from addresses outside their `prefixes`: add them"),
        ("dropped_malformed", "peers sent messages that are no packets: use the same version"),
        ("refused_by_kernel", "the kernel refused packets: try `offload = false` in [tun]"),
    ] {
        let count = answer["status"]["tun"][counter].as_u64().unwrap_or(0);
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
