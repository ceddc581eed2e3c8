//! The key log that `SSLKEYLOGFILE` asks for.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use openbats::{
    ClientOptions, Endpoint, Identity, Mode, PresharedKey, ServerOptions, TransportConfig, Trust,
    Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
/// The modes with a handshake.
const MODES: [Mode; 6] =
    [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];
/// Secrets that both ends of a TLS connection log.
const TLS_LABELS: [&str; 5] = [
    "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
    "SERVER_HANDSHAKE_TRAFFIC_SECRET",
    "CLIENT_TRAFFIC_SECRET_0",
    "SERVER_TRAFFIC_SECRET_0",
    "EXPORTER_SECRET",
];
/// Further secrets of PSK mode, with the length of their identifier in bytes.
const INITIAL_LABELS: [(&str, usize); 2] =
    [("OPENBATS_CLIENT_INITIAL", 8), ("OPENBATS_SERVER_INITIAL", 16)];

fn exchange(modes: &[Mode], key: Option<PresharedKey>) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let transport = || TransportConfig { psk: key.clone(), ..TransportConfig::default() };
    let options = ServerOptions::new(identity.clone()).transport(transport()).modes(modes.to_vec());
    let builder = Endpoint::builder().bind(([127, 0, 0, 1], 0).into());
    let server = builder.server(options).start().unwrap();
    let client = Endpoint::builder().start().unwrap();
    for &mode in modes {
        let trust = Trust::fingerprint(identity.fingerprint());
        let options = ClientOptions::new(trust).transport(transport()).mode(mode);
        let near = client.connect(server.local_addr(), "localhost", options);
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        near.send_within("hello", LIMIT).wait_for(LIMIT).unwrap().unwrap();
        let got = far.recv().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(got.as_deref(), Some(&b"hello"[..]), "{mode:?}");
    }
}

#[test]
fn connections_of_every_mode_with_a_handshake() {
    exchange(&MODES, None);
    exchange(&[Mode::Brtp], Some(PresharedKey::new([1; PresharedKey::LEN])));
}

/// Runs the test above in a process of its own.
fn run_in_child(log: Option<&Path>) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "connections_of_every_mode_with_a_handshake"]);
    match log {
        Some(path) => child.env("SSLKEYLOGFILE", path),
        None => child.env_remove("SSLKEYLOGFILE"),
    };
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn is_hexadecimal(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[test]
fn secrets_of_every_mode_are_logged_only_if_the_variable_is_set() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("key-log");
    let _old = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    run_in_child(None);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);

    let path = directory.join("keys");
    std::fs::write(&path, "# kept\n").unwrap();
    run_in_child(Some(&path));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("# kept\n"), "appended");
    let mut labels: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let [label, identifier, secret] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let length =
            INITIAL_LABELS.iter().find(|(own, _)| *own == label).map_or(32, |(_, length)| *length);
        assert!(is_hexadecimal(identifier, length), "{line}");
        assert!(is_hexadecimal(secret, secret.len() / 2) && secret.len() >= 64, "{line}");
        // Both ends log the same secret.
        let other = labels.entry(label).or_default().insert(identifier, secret);
        assert!(other.is_none_or(|other| other == secret), "{line}");
    }
    for label in TLS_LABELS {
        assert_eq!(labels.get(label).map(BTreeMap::len), Some(MODES.len() + 1), "{label}");
    }
    for (label, _) in INITIAL_LABELS {
        assert_eq!(labels.get(label).map(BTreeMap::len), Some(1), "{label}");
    }

    #[cfg(unix)]
    {
        let path = directory.join("new");
        run_in_child(Some(&path));
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600, "readable by the owner only");
    }
}
