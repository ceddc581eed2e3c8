//! Replays the corpora of the fuzz targets of this crate, and runs mutations of them.

#[path = "../../../fuzz/mutation.rs"]
mod mutation;

use batsd::fuzzing::{node_config_run, node_control_run};

/// Words of configurations, and of the original's files and flags.
const CONFIG_TOKENS: &[&str] = &[
    "[node]\n",
    "[tun]\n",
    "[[link]]\n",
    "[[peer]]\n",
    "[[proxy]]\n",
    "[[forward]]\n",
    "[exit]\n",
    "[routes]\n",
    " = ",
    "\"",
    "'",
    "'''",
    "[",
    "]",
    "{ ",
    " }",
    ", ",
    "\n",
    "# ",
    "\\u0000",
    "true",
    "id = \"10.255.0.1\"\n",
    "remote = \"node.example.org:4900\"\n",
    "rate = \"inf Gbit/s\"\n",
    "prefixes = [\"0.0.0.0/0\"]\n",
    "transit = true\n",
    "interface = \"eth1\"\n",
    "tier = 256\n",
    "listen = []\n",
    "sha256:",
    "[fe80::1%eth0]:1",
    "::ffff:10.0.0.1",
    "*.example.org:443",
    "link.item0.remote = ",
    "tun.name = ",
    "mode = BTP\n",
    "--tun_protocol=BTP ",
    "--config ",
    "-----BEGIN PRIVATE KEY-----\n",
];

#[test]
fn node_config() {
    let (mut configs, mut originals, mut flags, mut refused) = (0, 0, 0, 0);
    let inputs = mutation::replay("node_config", CONFIG_TOKENS, 20_000, 16 << 10, |data| {
        let report = node_config_run(data);
        configs += u64::from(report.is_config);
        originals += u64::from(report.is_original);
        flags += u64::from(report.is_flags);
        refused += u64::from(!(report.is_config || report.is_original || report.is_flags));
    });
    let counts = format!(
        "{inputs} inputs: {configs} configurations, {originals} files and {flags} flags of the original, {refused} refused"
    );
    println!("{counts}");
    assert!(configs > 600 && originals > 200 && flags > 150 && refused > 5_000, "{counts}");
}

/// Words of calls and heads, and bytes of messages.
const CONTROL_TOKENS: &[&str] = &[
    "{\"method\":\"org.openbats.node.",
    "\"parameters\":{",
    "\"node\":\"10.255.0.2\"",
    "\"via\":[\"north\"]",
    "\"seconds\":",
    "null",
    "true",
    "-1e400",
    "\"",
    ",",
    "{",
    "}",
    "[",
    "]",
    "\\ud800",
    "\0",
    "\u{1}",
    "\u{2}",
    "\u{3}",
    "\u{4}",
    "\u{8}",
    "\u{10}",
    "\u{7f}",
    "\0\0\0\0\0\0\0\0",
    "CONNECT ",
    " HTTP/1.1\r\n",
    "\r\n\r\n",
    "Proxy-Authorization: Basic ",
    ":443",
    "%00",
    "::",
    "xn--",
];

#[test]
fn node_control() {
    let (mut calls, mut changes, mut parts, mut messages, mut requests) = (0, 0, 0, 0, 0);
    let mut refused = 0;
    let inputs = mutation::replay("node_control", CONTROL_TOKENS, 20_000, 70_000, |data| {
        let report = node_control_run(data);
        calls += u64::from(report.is_call);
        changes += u64::from(report.is_change);
        parts += u64::from(report.parts);
        messages += u64::from(report.messages);
        requests += u64::from(report.requests);
        let is_valid = report.is_call || report.parts + report.messages + report.requests > 0;
        refused += u64::from(!is_valid);
    });
    let counts = format!(
        "{inputs} inputs: {calls} calls, {changes} changes, {parts} parts of tunnel messages, {messages} messages, \
         {requests} requests, {refused} refused"
    );
    println!("{counts}");
    assert!(
        calls > 700
            && changes > 200
            && parts > 10_000
            && messages > 500
            && requests > 2_000
            && refused > 2_000,
        "{counts}"
    );
}
