//! What a daemon may change on a host: interfaces, addresses, routes, rules, packet filter, sockets.

use std::process::Command;

use crate::wan::run;

/// What programs print about a network namespace.
const COMMANDS: [&str; 9] = [
    "ip -o link",
    "ip -o addr",
    "ip rule",
    "ip -6 rule",
    "ip route show table all",
    "ip -6 route show table all",
    "nft list ruleset",
    "ss -Hlntu",
    "ip -o neigh show proxy",
];

/// The lines that only one of two states has.
pub(crate) fn difference(one: &str, other: &str) -> Vec<String> {
    let only = |sign: char, these: &str, those: &str| {
        let those: Vec<&str> = those.lines().collect();
        let lines = these.lines().filter(|line| !those.contains(line));
        lines.map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [only('-', one, other), only('+', other, one)].concat()
}

/// The state of a host, in words. `on` makes a command whose program is its first argument.
pub(crate) fn host_state(on: impl Fn() -> Command) -> String {
    let mut state = String::new();
    for command in COMMANDS {
        let output = run(on().args(command.split(' ')));
        let text = String::from_utf8_lossy(&output.stdout);
        // Of sockets only protocol and local address: the lengths of their queues change.
        let socket = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{} {}", words[0], words[4])
        };
        let is_sockets = command.starts_with("ss ");
        let lines =
            text.lines().map(|line| if is_sockets { socket(line) } else { line.to_owned() });
        let mut lines: Vec<String> = lines.collect();
        // The kernel lists sockets and local routes in no order that lasts.
        lines.sort_unstable();
        state += &format!("# {command}\n{}\n", lines.join("\n"));
    }
    state
}
