//! Trust on first use: neighbours without a fingerprint in the configuration or on the command line.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::node::{Daemon, free_tcp_port, free_udp_port, identity, node, start, wait_for};

/// The entry of the other node, without a fingerprint.
fn peer(host: usize, remote: &str) -> String {
    format!("[[peer]]\nid = \"10.255.0.{}\"\nremote = \"{remote}\"\n", host + 1)
}

fn admits(host: usize, print: &str) -> String {
    format!("[[peer]]\nid = \"10.255.0.{}\"\nfingerprint = \"{print}\"\n", host + 1)
}

fn link(daemon: &Daemon) -> Value {
    let links = daemon.ctl("links").unwrap();
    let all = links["links"].as_array().unwrap();
    all.iter().find(|link| link["name"] == "peer-10.255.0.2").cloned().unwrap_or_default()
}

fn sessions(daemon: &Daemon) -> usize {
    daemon.ctl("sessions").unwrap()["sessions"].as_array().unwrap().len()
}

#[test]
fn first_certificate_is_recorded_and_a_changed_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prints = [0, 1].map(|host| identity(&folder.join(format!("{host}.pem"))));
    let ports = [free_udp_port(), free_udp_port()];
    let file = folder.join("state/known_hosts");
    let known_hosts = format!("known_hosts = \"{}\"\n", file.display());
    let remote = format!("127.0.0.1:{}", ports[1]);
    let near = node(folder, 0, ports[0], &known_hosts) + &peer(1, &remote);
    let daemon = start(folder, 0, &near);
    let waiting = link(&daemon);
    assert_eq!((&waiting["state"], &waiting["first_use"]), (&"waiting".into(), &true.into()));
    assert_eq!(
        (&waiting["remote"], &waiting["fingerprint"]),
        (&remote.clone().into(), &Value::Null)
    );
    assert!(daemon.ctl("peers").unwrap()["peers"].as_array().unwrap().is_empty());

    let far = node(folder, 1, ports[1], "") + &admits(0, &prints[0]);
    let mut other = start(folder, 1, &far);
    wait_for("sessions in both directions", || sessions(&daemon) == 4);
    let up = link(&daemon);
    assert_eq!((&up["fingerprint"], &up["first_use"]), (&prints[1].clone().into(), &true.into()));
    let recorded = std::fs::read_to_string(&file).unwrap();
    assert_eq!(recorded, format!("{remote} {}\n", prints[1]));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // Another node has the address: its certificate is not the recorded one.
    other.signal(rustix::process::Signal::TERM);
    wait_for("it ends", || other.status().is_some());
    std::fs::remove_file(folder.join("1.pem")).unwrap();
    let new = identity(&folder.join("1.pem"));
    let _other = start(folder, 1, &far);
    wait_for("the changed certificate is named", || {
        link(&daemon)["last_end"].as_str().is_some_and(|end| {
            end.contains("does not trust the certificate")
                && end.contains("has changed since the first use")
                && end.contains(&format!("remove the line of {remote} from {}", file.display()))
        })
    });
    assert_ne!(link(&daemon)["state"], "up");
    assert_eq!(sessions(&daemon), 0);
    // Nor after a restart.
    drop(daemon);
    let daemon = start(folder, 0, &near);
    wait_for("it is refused", || link(&daemon)["last_end"].as_str().is_some());
    assert_eq!((link(&daemon)["established"].as_u64(), sessions(&daemon)), (Some(0), 0));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), recorded);

    // The owner of the node decides.
    std::fs::remove_file(&file).unwrap();
    daemon.ctl("reload").unwrap();
    wait_for("sessions with the new certificate", || sessions(&daemon) == 4);
    assert_eq!(link(&daemon)["fingerprint"], new);
}

#[test]
fn links_to_a_host_name_are_trusted_at_their_first_use() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prints = [0, 1].map(|host| identity(&folder.join(format!("{host}.pem"))));
    let ports = [free_udp_port(), free_udp_port()];
    let file = folder.join("known_hosts");
    let far = node(folder, 1, ports[1], "") + &admits(0, &prints[0]);
    let _other = start(folder, 1, &far);
    // The neighbour is a peer by its fingerprint, and the way to it a link without one.
    let near = node(folder, 0, ports[0], &format!("known_hosts = \"{}\"\n", file.display()))
        + &admits(1, &prints[1])
        + &format!("[[link]]\nname = \"north\"\nremote = \"localhost:{}\"\n", ports[1])
        + "[routes]\nstatic = [{ to = \"10.255.0.2\", via = [\"north\"] }]\n";
    let daemon = start(folder, 0, &near);
    wait_for("sessions in both directions", || sessions(&daemon) == 4);
    let recorded = std::fs::read_to_string(&file).unwrap();
    assert_eq!(recorded, format!("localhost:{} {}\n", ports[1], prints[1]));
}

#[test]
fn files_of_known_servers_that_others_can_change_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    identity(&folder.join("0.pem"));
    let file = folder.join("known_hosts");
    let text = node(folder, 0, free_udp_port(), &format!("known_hosts = \"{}\"\n", file.display()))
        + &peer(1, "127.0.0.1:9");
    std::fs::write(folder.join("0.toml"), text).unwrap();
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsd"));
        let output =
            command.args(["--check", "--config"]).arg(folder.join("0.toml")).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(check().0, "{}", check().1);
    for (content, mode, words) in [
        ("", 0o666, "others than its owner may write to it"),
        ("127.0.0.1:9 sha256:00\n", 0o600, "line 1 is damaged"),
    ] {
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let (is_good, error) = check();
        assert!(!is_good && error.contains(words), "{error}");
    }
}

/// A daemon of a command line, with what it prints.
struct Quick {
    child: Child,
    output: Arc<Mutex<Vec<String>>>,
}

impl Quick {
    fn start(home: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsd"));
        command.args(words).args(["--identity"]).arg(home.join("node.pem"));
        command.args(["--control"]).arg(home.join("control")).stderr(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = Arc::new(Mutex::new(Vec::new()));
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let into = Arc::clone(&output);
        std::thread::spawn(move || read(stdout, &into));
        let into = Arc::clone(&output);
        std::thread::spawn(move || read(stderr, &into));
        Self { child, output }
    }

    fn line(&self, begin: &str) -> Option<String> {
        let lines = self.output.lock().unwrap();
        lines.iter().find(|line| line.contains(begin)).cloned()
    }

    fn waits_for(&self, begin: &str) -> String {
        wait_for(begin, || self.line(begin).is_some());
        self.line(begin).unwrap()
    }
}

fn read(from: impl std::io::Read, into: &Mutex<Vec<String>>) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        into.lock().unwrap().push(line);
    }
}

impl Drop for Quick {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn command_line_trusts_the_exit_at_its_first_use() {
    let folder = tempfile::tempdir().unwrap();
    let homes = ["near", "far", "other"].map(|name| folder.path().join(name));
    homes.iter().for_each(|home| std::fs::create_dir(home).unwrap());
    let (port, socks) = (free_udp_port(), free_tcp_port());
    let (listen, socks) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{socks}"));
    let file = folder.path().join("known_hosts");
    let words = ["--socks", &socks, "--peer", &listen, "--known-hosts", file.to_str().unwrap()];
    let near = Quick::start(&homes[0], &words);
    // The exit needs it before it answers.
    let print = near.waits_for("fingerprint: ").split_off("fingerprint: ".len());
    near.waits_for("is asked for its certificate until it answers");
    let exit = ["--listen", &listen, "--allow", "*:1", "--fingerprint", &print];
    let far = Quick::start(&homes[1], &exit);
    let far_print = far.waits_for("fingerprint: ").split_off("fingerprint: ".len());
    near.waits_for("state: started");
    let recorded = near.waits_for("is trusted from now on");
    assert!(recorded.contains(&far_print), "{recorded}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{listen} {far_print}\n"));
    drop(near);
    // The second start knows it, and a certificate that has changed is refused.
    drop(far);
    let _other = Quick::start(&homes[2], &exit);
    let near = Quick::start(&homes[0], &words);
    near.waits_for("state: started");
    let links = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        let output =
            command.arg("--socket").arg(homes[0].join("control")).args(["--json", "links"]);
        serde_json::from_slice::<Value>(&output.output().unwrap().stdout).unwrap()
    };
    wait_for("it is refused", || {
        links()["links"][0]["last_end"]
            .as_str()
            .is_some_and(|end| end.contains("does not trust the certificate of this server"))
    });
    assert_eq!(links()["links"][0]["established"], 0);
}
