//! Daemons on loopback, without root and without a TUN device, and `batsctl` for them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Time for links and sessions to be there.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
const SCHEMA: &str = include_str!("../../schema/batsctl.schema.json");

/// Checks what a verb printed against its schema. Verbs that were checked are in [`checked`].
pub(crate) fn check(verb: &str, output: &Value) {
    static VALIDATORS: OnceLock<Mutex<BTreeMap<String, jsonschema::Validator>>> = OnceLock::new();
    let mut validators =
        VALIDATORS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let validator = validators.entry(verb.to_owned()).or_insert_with(|| {
        let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
        assert!(schema["$defs"][verb].is_object(), "no schema for {verb}");
        schema["$ref"] = json!(format!("#/$defs/{verb}"));
        jsonschema::validator_for(&schema).unwrap()
    });
    let errors: Vec<String> = validator
        .iter_errors(output)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{verb}: {errors:#?}\n{output:#}");
}

/// The name of the schema for these words of a command line.
fn verb(call: &str) -> String {
    let mut words = call.split(' ');
    let first = words.next().unwrap_or_default();
    match first {
        "link" | "route" => format!("{first}-{}", words.next().unwrap_or_default()),
        _ => first.to_owned(),
    }
}

pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) config: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    /// Runs batsctl; its standard output, its errors and its status.
    pub(crate) fn run(&self, words: &str) -> (String, String, ExitStatus) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        command.arg("--config").arg(&self.config).args(words.split(' '));
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr), output.status)
    }

    /// Runs a verb with `--json`, checks its output against the schema, and returns it.
    pub(crate) fn ctl(&self, call: &str) -> Result<Value, String> {
        let (output, error, status) = self.run(&format!("--json {call}"));
        if !status.success() && output.is_empty() {
            return Err(error);
        }
        let output = serde_json::from_str(&output).unwrap();
        check(&verb(call), &output);
        Ok(output)
    }

    /// Sends a signal to the keeper.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }

    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }
}

/// Waits for `probe` to be true.
pub(crate) fn wait_for(what: &str, mut probe: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !probe() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A UDP port of loopback that nothing has now.
pub(crate) fn free_udp_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A TCP port of loopback that nothing has now.
pub(crate) fn free_tcp_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes an identity and returns its fingerprint.
pub(crate) fn identity(path: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
    let output = command.args(["--json", "keygen"]).arg(path).output().unwrap();
    let output: Value = serde_json::from_slice(&output.stdout).unwrap();
    check("keygen", &output);
    output["fingerprint"].as_str().unwrap().to_owned()
}

/// The `[node]` table of a daemon in a folder. Hosts have the IDs 10.255.0.1, 10.255.0.2 and so on.
pub(crate) fn node(folder: &Path, host: usize, port: u16, more: &str) -> String {
    let folder = folder.display();
    format!(
        "[node]\nid = \"10.255.0.{}\"\nidentity = \"{folder}/{host}.pem\"\nlisten = [\"127.0.0.1:{port}\"]\n\
         control = \"{folder}/{host}.sock\"\n{more}",
        host + 1
    )
}

/// Starts a daemon with this configuration.
pub(crate) fn start(folder: &Path, host: usize, text: &str) -> Daemon {
    start_by(Command::new(env!("CARGO_BIN_EXE_batsd")), folder, host, text)
}

/// Starts a daemon by a command that needs nothing but the configuration.
pub(crate) fn start_by(mut command: Command, folder: &Path, host: usize, text: &str) -> Daemon {
    let config = folder.join(format!("{host}.toml"));
    std::fs::write(&config, text).unwrap();
    let mut child = command.arg("--config").arg(&config).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().and_then(Result::ok).unwrap_or_default();
    assert_eq!(first, "state: started", "the error of batsd is above");
    std::thread::spawn(move || lines.for_each(drop));
    Daemon { child, config }
}

/// Two daemons that are peers, with these lines added to the configuration and to the entry of the other
/// node. The first one opens the link.
pub(crate) fn pair(folder: &Path, more: [&str; 2], of_peer: [&str; 2]) -> [Daemon; 2] {
    let prints = [0, 1].map(|host| identity(&folder.join(format!("{host}.pem"))));
    let ports = [free_udp_port(), free_udp_port()];
    let daemons = [0, 1].map(|host| {
        let remote = match host {
            0 => format!("remote = \"127.0.0.1:{}\"\n", ports[1]),
            _ => String::new(),
        };
        let text = node(folder, host, ports[host], "")
            + &format!(
                "[[peer]]\nid = \"10.255.0.{}\"\nfingerprint = \"{}\"\n{remote}{}{}",
                2 - host,
                prints[1 - host],
                of_peer[host],
                more[host]
            );
        start(folder, host, &text)
    });
    for daemon in &daemons {
        wait_for("sessions in both directions", || {
            daemon.ctl("sessions").unwrap()["sessions"].as_array().unwrap().len() == 4
        });
    }
    daemons
}
