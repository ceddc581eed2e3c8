//! Trust on first use.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::support::{Scratch, Server, free_port, program, text};

fn connect(port: u16, known_hosts: &str, options: &[&str]) -> Output {
    program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "0.3", "-b", "1M"])
        .args(["--known-hosts", known_hosts])
        .args(options)
        .output()
        .unwrap()
}

#[test]
fn a_new_server_is_recorded_and_a_changed_one_refused() {
    let scratch = Scratch::new("trust");
    let known_hosts = scratch.path("state/known_hosts");
    let port = free_port();
    let server = Server::start(port, &[]);
    let unknown = connect(port, &known_hosts, &["--require-known-host"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains(server.fingerprint()), "{}", text(&unknown.stderr));
    let first = connect(port, &known_hosts, &[]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let note = text(&first.stderr);
    assert!(
        note.contains("recorded the new server") && note.contains(server.fingerprint()),
        "{note}"
    );
    let again = connect(port, &known_hosts, &["--require-known-host"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(!text(&again.stderr).contains("note"), "{}", text(&again.stderr));
    assert_eq!(fs::metadata(&known_hosts).unwrap().permissions().mode() & 0o777, 0o600);
    let fingerprint = server.fingerprint().to_owned();
    drop(server);

    // The identity survives a restart.
    let server = Server::start(port, &[]);
    assert_eq!(server.fingerprint(), fingerprint);
    assert!(connect(port, &known_hosts, &[]).status.success());
    drop(server);

    // Another server at the same address.
    let mut command = program();
    command.env("XDG_STATE_HOME", scratch.0.join("other"));
    command.args(["-s", "-I", "lo", "-p", &port.to_string()]);
    let server = Server::of(command);
    assert_ne!(server.fingerprint(), fingerprint);
    let refused = connect(port, &known_hosts, &["-J"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = text(&refused.stderr);
    for words in ["has changed", &known_hosts, "remove line 1", &fingerprint, server.fingerprint()]
    {
        assert!(error.contains(words), "{words}: {error}");
    }
    let skipping = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "0.3", "-b", "1M"])
        .arg("--no-known-hosts")
        .output()
        .unwrap();
    assert!(skipping.status.success(), "{}", text(&skipping.stderr));
    assert!(text(&skipping.stderr).contains("not authenticated"), "{}", text(&skipping.stderr));
}

/// Runs a client with its own state directory.
fn identified(port: u16, state: &str, options: &[&str]) -> Output {
    let mut command = program();
    command.env("XDG_STATE_HOME", state);
    command.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "0.3", "-b", "1M"]);
    command.args(["--no-known-hosts", "--connect-timeout", "3s"]).args(options).output().unwrap()
}

#[test]
fn a_server_accepts_only_clients_with_an_accepted_fingerprint() {
    let scratch = Scratch::new("client-trust");
    let (state, other) = (scratch.path("state"), scratch.path("other"));
    let port = free_port();
    let refused = |output: Output, words: &str| {
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    };
    let unknown = Server::start(port, &["--client-fingerprint", &"00".repeat(32)]);
    let first = identified(port, &state, &["--identify"]);
    let note = text(&first.stderr);
    refused(first, "does not trust the certificate of this client");
    let fingerprint = note
        .lines()
        .find_map(|line| line.strip_prefix("note: the client's certificate fingerprint: "))
        .unwrap();
    drop(unknown);

    let accepted = ["--client-fingerprint", &"00".repeat(32), "--client-fingerprint", fingerprint];
    let _server = Server::start(port, &accepted);
    for mode in ["0", "1", "2", "3", "10", "11", "12"] {
        let output = identified(port, &state, &["--identify", "-m", mode]);
        assert!(output.status.success(), "{mode}: {}", text(&output.stderr));
    }
    refused(identified(port, &state, &[]), "requires a certificate of its clients");
    refused(identified(port, &other, &["--identify"]), "does not trust the certificate");
}

#[test]
fn a_server_accepts_only_clients_of_an_accepted_authority() {
    let scratch = Scratch::new("client-authorities");
    for name in ["own", "other"] {
        let made = rcgen::generate_simple_self_signed(["client".to_owned()]).unwrap();
        fs::write(scratch.path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        fs::write(scratch.path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    }
    let port = free_port();
    let _server = Server::start(port, &["--client-authorities", &scratch.path("own.pem")]);
    let run = |name: &str| {
        let (certificate, key) =
            (scratch.path(&format!("{name}.pem")), scratch.path(&format!("{name}.key")));
        identified(port, &scratch.path("state"), &["--certificate", &certificate, "--key", &key])
    };
    for (mode, is_exposed) in [(0o644, true), (0o640, false)] {
        fs::set_permissions(scratch.path("own.key"), fs::Permissions::from_mode(mode)).unwrap();
        let output = run("own");
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{errors}");
        assert_eq!(errors.contains("own.key has the mode 0644: all users"), is_exposed, "{errors}");
    }
    let output = run("other");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("does not trust"), "{}", text(&output.stderr));
}
