//! Handshakes of a node that is not configured.

use std::process::Command;
use std::time::Instant;

use openbats::node::{LinkOptions, Node, NodeId};
use openbats::{Identity, Trust, Wait};
use serde_json::Value;

use crate::node::{LIMIT, free_udp_port, identity, node, start_by, wait_for};

const HANDSHAKES: u64 = 300;

#[test]
fn refused_handshakes_neither_displace_events_nor_cause_reconciliation() {
    let folder = tempfile::tempdir().unwrap();
    let print = identity(&folder.path().join("0.pem")).trim_start_matches("sha256:").parse();
    let print = print.unwrap();
    let port = free_udp_port();
    // A link that cannot be opened: each reconciliation prints why.
    let text = node(folder.path(), 0, port, "")
        + &format!(
            "[[link]]\nname = \"none\"\nremote = \"127.0.0.1:9\"\nlocal = \"127.0.0.9\"\nfingerprint = \"{print}\"\n"
        );
    let log = folder.path().join("stderr");
    let mut command = Command::new(env!("CARGO_BIN_EXE_batsd"));
    command.stderr(std::fs::File::create(&log).unwrap());
    let daemon = start_by(command, folder.path(), 0, &text);
    let reconciliations = || std::fs::read_to_string(&log).unwrap().lines().count() as u64;
    daemon.ctl("reload").unwrap();
    wait_for("a reconciliation each second", || reconciliations() >= 3);

    let other = Node::builder(NodeId(7), Identity::generate(&["other"]).unwrap());
    let other = other.start().unwrap();
    let (before, start) = (reconciliations(), Instant::now());
    for _ in 0..HANDSHAKES {
        let options = LinkOptions::new(([127, 0, 0, 1], port).into(), Trust::fingerprint(print));
        let link = other.links().open(options).unwrap();
        // Established, or already closed by the daemon.
        let _ = link.established().wait_for(LIMIT).unwrap();
        other.links().close(link.id());
    }
    let is_refusal = |event: &Value| event["event"] == "link_refused";
    let count = |event: &Value| 1 + event["left_out"].as_u64().unwrap_or(0);
    let events = || daemon.ctl("events").unwrap()["events"].as_array().unwrap().clone();
    wait_for("all refusals are reported or counted", || {
        events().iter().filter(|event| is_refusal(event)).map(count).sum::<u64>() >= HANDSHAKES
    });
    let (events, after) = (events(), reconciliations());
    // At most one a second.
    let most = start.elapsed().as_secs() + 2;
    assert!(events.iter().filter(|event| is_refusal(event)).count() as u64 <= most, "{events:?}");
    assert_eq!(events[0]["event"], "reloaded", "{events:?}");
    assert!(after - before <= most, "{} reconciliations in {most} s", after - before);
}
