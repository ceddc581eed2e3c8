//! Many concurrent clients on one pair of ports.

use serde_json::Value;

use crate::support::{Scratch, Server, client, free_port, noise, text};

#[test]
fn thirty_two_clients_are_served_at_once() {
    let scratch = Scratch::new("clients");
    std::fs::write(scratch.0.join("file"), noise(100_000, 3)).unwrap();
    let port = free_port();
    let directory = scratch.path("in");
    let _server = Server::start(port, &["--directory", &directory, "--existing", "rename"]);
    let file = scratch.path("file");
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..32)
            .map(|number| {
                let file = &file;
                scope.spawn(move || {
                    let common = ["--connect-timeout", "30s", "-J"];
                    let options = match number % 4 {
                        0 => vec!["-t", "1", "-b", "1M"],
                        1 => vec!["-t", "1", "-b", "1M", "-r"],
                        2 => vec!["-t", "1", "-b", "500k", "--bidir", "-P", "2"],
                        _ => vec!["-f", file],
                    };
                    client(port, &[&options[..], &common].concat())
                })
            })
            .collect();
        for (number, client) in clients.into_iter().enumerate() {
            let output = client.join().unwrap();
            assert!(output.status.success(), "{number}: {}", text(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            if number % 4 != 3 {
                let end = &report["end"];
                assert_eq!(end["sum_sent"]["bytes"], end["sum_received"]["bytes"]);
                assert!(end["sum_sent"]["bytes"].as_u64().unwrap() > 10_000);
            }
        }
    });
    // Eight clients sent the same name with the same content: stored once.
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
}
