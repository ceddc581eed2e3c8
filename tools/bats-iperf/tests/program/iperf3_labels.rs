//! The labels of the lines of a report, compared with those that iperf3 itself prints.

use std::process::{Command, Stdio};

use crate::support::{Server, client, free_port, skipped, text};

/// What a line describes: a stream by its order of appearance or the sum, its role, and which end
/// measured it.
type Label = (String, String, String);

/// The labels of the first interval and of the summary.
fn labels(report: &str) -> (Vec<Label>, Vec<Label>) {
    let (mut first, mut summary) = (Vec::new(), Vec::new());
    let mut ids: Vec<String> = Vec::new();
    let mut headers = 0;
    for line in report.lines() {
        let Some((id, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) else {
            continue;
        };
        if id.trim() == "ID" {
            headers += 1;
            assert!(rest.starts_with("[Role]"), "{line}");
            continue;
        }
        // Lines about the connection of a stream come before the first heading.
        let Some(role) = rest.get(..6).filter(|role| role.starts_with('[')) else { continue };
        let subject = match id.trim() {
            "SUM" => "sum".to_owned(),
            id => {
                let place = ids.iter().position(|known| known == id).unwrap_or_else(|| {
                    ids.push(id.to_owned());
                    ids.len() - 1
                });
                format!("stream {place}")
            }
        };
        let last = line.split_whitespace().last().unwrap_or_default();
        let word = if ["sender", "receiver"].contains(&last) { last } else { "" };
        let label = (subject, role.to_owned(), word.to_owned());
        match headers {
            1 if rest.contains(" 0.00-") => first.push(label),
            2 => summary.push(label),
            _ => {}
        }
    }
    (first, summary)
}

/// The reports of client and server of iperf3.
fn iperf3(options: &[&str]) -> [String; 2] {
    let port = free_port().to_string();
    let mut server = Command::new("iperf3")
        .args(["-s", "-1", "-B", "127.0.0.1", "-p", &port])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..100 {
        let mut client = Command::new("iperf3");
        let output = client.args(["-c", "127.0.0.1", "-p", &port]).args(options).output().unwrap();
        if output.status.success() {
            let server = server.wait_with_output().unwrap();
            return [text(&output.stdout), text(&server.stdout)];
        }
        // It does not listen yet.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    server.kill().unwrap();
    server.wait().unwrap();
    panic!("iperf3 does not run");
}

#[test]
fn labels_of_bidirectional_tests_are_those_of_iperf3() {
    if !Command::new("iperf3").arg("-v").output().is_ok_and(|output| output.status.success()) {
        return skipped("labels of bidirectional tests", "iperf3 is not installed");
    }
    for streams in ["1", "2"] {
        let options = ["--bidir", "-P", streams, "-t", "2", "-i", "1", "-b", "10M"];
        let [client3, server3] = iperf3(&options).map(|report| labels(&report));
        let port = free_port();
        let server = Server::start(port, &["-1"]);
        let output = client(port, &options);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let ours = labels(&text(&output.stdout));
        assert_eq!(client3.1.len(), if streams == "1" { 4 } else { 12 }, "{client3:?}");
        assert_eq!(ours, client3, "client, {streams} streams");
        let (first, summary) = labels(&server.finish().1);
        assert_eq!(first, server3.0, "server, {streams} streams");
        // The server of iperf3 does not know what its client measured; ours shows that, too.
        let own = |label: &&Label| label.1.starts_with("[TX") == (label.2 == "sender");
        let own: Vec<Label> = summary.iter().filter(own).cloned().collect();
        assert_eq!(own, server3.1, "server, {streams} streams");
        assert_eq!(summary.len(), 2 * own.len());
    }
}
