//! Trust on first use: neighbours without a fingerprint in the configuration or on the command line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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

/// Two hosts with their identities.
struct Hosts {
    folder: tempfile::TempDir,
    prints: [String; 2],
    ports: [u16; 2],
    /// Where the first one records certificates.
    file: PathBuf,
}

impl Hosts {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let prints = [0, 1].map(|host| identity(&folder.path().join(format!("{host}.pem"))));
        let file = folder.path().join("state/known_hosts");
        Self { prints, ports: [free_udp_port(), free_udp_port()], file, folder }
    }

    /// The `[node]` table of the first one.
    fn near(&self) -> String {
        let more = format!("known_hosts = \"{}\"\n", self.file.display());
        node(self.folder.path(), 0, self.ports[0], &more)
    }
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
    let hosts = Hosts::new();
    let Hosts { prints, ports, file, .. } = &hosts;
    let folder = hosts.folder.path();
    let remote = format!("127.0.0.1:{}", ports[1]);
    let near = hosts.near() + &peer(1, &remote);
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
    let recorded = std::fs::read_to_string(file).unwrap();
    assert_eq!(recorded, format!("{remote} {}\n", prints[1]));
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);

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
    assert_eq!(std::fs::read_to_string(file).unwrap(), recorded);

    // The owner of the node decides.
    std::fs::remove_file(file).unwrap();
    daemon.ctl("reload").unwrap();
    wait_for("sessions with the new certificate", || sessions(&daemon) == 4);
    assert_eq!(link(&daemon)["fingerprint"], new);
}

#[test]
fn links_to_a_host_name_are_trusted_at_their_first_use() {
    let hosts = Hosts::new();
    let Hosts { prints, ports, file, .. } = &hosts;
    let folder = hosts.folder.path();
    let far = node(folder, 1, ports[1], "") + &admits(0, &prints[0]);
    let _other = start(folder, 1, &far);
    // The neighbour is a peer by its fingerprint, and the way to it a link without one.
    let near = hosts.near()
        + &admits(1, &prints[1])
        + &format!("[[link]]\nname = \"north\"\nremote = \"localhost:{}\"\n", ports[1])
        + "[routes]\nstatic = [{ to = \"10.255.0.2\", via = [\"north\"] }]\n";
    let daemon = start(folder, 0, &near);
    wait_for("sessions in both directions", || sessions(&daemon) == 4);
    let recorded = std::fs::read_to_string(file).unwrap();
    assert_eq!(recorded, format!("localhost:{} {}\n", ports[1], prints[1]));
}

#[test]
fn files_of_known_servers_that_others_can_change_are_refused() {
    let hosts = Hosts::new();
    let (folder, file) = (hosts.folder.path(), &hosts.file);
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let text = hosts.near() + &peer(1, "127.0.0.1:9");
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
        std::fs::write(file, content).unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
        let (is_good, error) = check();
        assert!(!is_good && error.contains(words), "{error}");
    }
}

/// What a second link to a neighbour finds out must not disturb the first one.
#[test]
fn first_use_of_a_neighbour_that_is_connected_interrupts_nothing() {
    let hosts = Hosts::new();
    let Hosts { prints, ports, file, .. } = &hosts;
    let folder = hosts.folder.path();
    let echo = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = echo.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in echo.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                std::io::copy(&mut stream.try_clone().unwrap(), &mut stream)
            });
        }
    });
    // The other node opens the link.
    let far = node(folder, 1, ports[1], "")
        + &admits(0, &prints[0])
        + &format!("remote = \"127.0.0.1:{}\"\n[exit]\nallow = [\"{to}\"]\n", ports[0]);
    let _other = start(folder, 1, &far);
    let listen = format!("127.0.0.1:{}", free_tcp_port());
    let near = hosts.near()
        + &admits(1, &prints[1])
        + &format!("[[forward]]\nlisten = \"{listen}\"\nexit = \"10.255.0.2\"\nto = \"{to}\"\n");
    let daemon = start(folder, 0, &near);
    wait_for("sessions in both directions", || sessions(&daemon) == 4);
    let mut stream = TcpStream::connect(&listen).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let mut echoed = |text: &[u8; 6]| {
        let mut buffer = [0; 6];
        stream.write_all(text).and_then(|()| stream.read_exact(&mut buffer)).unwrap();
        assert_eq!(&buffer, text);
    };
    echoed(b"before");
    let link = format!("[[link]]\nname = \"north\"\nremote = \"127.0.0.1:{}\"\n", ports[1]);
    std::fs::write(&daemon.config, near + &link).unwrap();
    daemon.ctl("reload").unwrap();
    wait_for("it is recorded", || std::fs::read_to_string(file).is_ok_and(|text| !text.is_empty()));
    wait_for("the neighbour has a link", || {
        let links = daemon.ctl("links").unwrap();
        links["links"].as_array().unwrap().iter().any(|link| link["state"] == "up")
    });
    echoed(b"after_");
}

#[test]
fn certificate_of_another_entry_is_not_recorded() {
    let hosts = Hosts::new();
    let Hosts { prints, ports, file, .. } = &hosts;
    let folder = hosts.folder.path();
    let _other = start(folder, 1, &(node(folder, 1, ports[1], "") + &admits(0, &prints[0])));
    // As if someone had redirected what is sent to the second address.
    let near = hosts.near()
        + &admits(1, &prints[1])
        + &format!("remote = \"127.0.0.1:{}\"\n", ports[1])
        + &peer(2, &format!("localhost:{}", ports[1]));
    let daemon = start(folder, 0, &near);
    wait_for("sessions with the first one", || sessions(&daemon) == 4);
    let entry = || {
        let links = daemon.ctl("links").unwrap();
        let all = links["links"].as_array().unwrap().clone();
        all.into_iter().find(|link| link["name"] == "peer-10.255.0.3").unwrap()
    };
    assert_eq!(entry()["state"], "waiting");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(!file.exists(), "{:?}", std::fs::read_to_string(file));
    // The same in the file does not keep the node from a reload and a start.
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, format!("localhost:{} {}\n", ports[1], prints[1])).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    daemon.ctl("reload").unwrap();
    assert_eq!(entry()["state"], "waiting");
    drop(daemon);
    let daemon = start(folder, 0, &near);
    wait_for("sessions with the first one", || sessions(&daemon) == 4);
}

#[test]
fn first_use_is_no_reload() {
    let hosts = Hosts::new();
    let Hosts { prints, ports, .. } = &hosts;
    let folder = hosts.folder.path();
    let remote = format!("127.0.0.1:{}", ports[1]);
    let near = hosts.near() + &peer(1, &remote);
    let daemon = start(folder, 0, &near);
    let link = |name: &str, remote: &str| {
        format!(
            "[[link]]\nname = \"{name}\"\nremote = \"{remote}\"\nfingerprint = \"{}\"\n",
            prints[0]
        )
    };
    daemon
        .ctl(&format!(
            "link add extra --remote 127.0.0.1:9 --fingerprint sha256:{}",
            "ab".repeat(32)
        ))
        .unwrap();
    // The owner of the node has not reloaded it.
    std::fs::write(&daemon.config, near + &link("edited", "127.0.0.1:9")).unwrap();
    let _other = start(folder, 1, &(node(folder, 1, ports[1], "") + &admits(0, &prints[0])));
    wait_for("sessions in both directions", || sessions(&daemon) == 4);
    let links = daemon.ctl("links").unwrap();
    let has =
        |name: &str| links["links"].as_array().unwrap().iter().any(|link| link["name"] == name);
    assert!(has("extra") && !has("edited"), "{links}");
}

#[test]
fn any_link_to_a_neighbour_finds_its_certificate() {
    let hosts = Hosts::new();
    let Hosts { prints, ports, file, .. } = &hosts;
    let folder = hosts.folder.path();
    let _other = start(folder, 1, &(node(folder, 1, ports[1], "") + &admits(0, &prints[0])));
    let link = |name: &str, more: &str| {
        format!("[[link]]\nname = \"{name}\"\nremote = \"127.0.0.1:{}\"\n{more}", ports[1])
    };
    let near = hosts.near()
        + &link("fibre", "interface = \"bats-none\"\n")
        + &link("radio", "")
        + &admits(1, &prints[1])
        + "[routes]\nstatic = [{ to = \"10.255.0.2\", via = [\"fibre\", \"radio\"] }]\n";
    let daemon = start(folder, 0, &near);
    wait_for("sessions in both directions", || sessions(&daemon) == 4);
    let recorded = std::fs::read_to_string(file).unwrap();
    assert_eq!(recorded, format!("127.0.0.1:{} {}\n", ports[1], prints[1]));
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

fn read(from: impl Read, into: &Mutex<Vec<String>>) {
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
    // Also an exit that does not admit this node yet has a certificate.
    let zero = "00".repeat(32);
    let without = ["--listen", &listen, "--allow", "*:1", "--fingerprint", &zero];
    let exit = ["--listen", &listen, "--allow", "*:1", "--fingerprint", &print];
    let far = Quick::start(&homes[1], &without);
    let far_print = far.waits_for("fingerprint: ").split_off("fingerprint: ".len());
    near.waits_for("state: started");
    let recorded = near.waits_for("is trusted from now on");
    assert!(recorded.contains(&far_print), "{recorded}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{listen} {far_print}\n"));
    drop(near);
    // The second start knows it, and a certificate that has changed is refused.
    drop(far);
    let other = Quick::start(&homes[2], &exit);
    let near = Quick::start(&homes[0], &words);
    near.waits_for("state: started");
    let links = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        let output =
            command.arg("--socket").arg(homes[0].join("control")).args(["--json", "links"]);
        serde_json::from_slice::<Value>(&output.output().unwrap().stdout).unwrap()
    };
    let changed = near.waits_for("has changed since the first use");
    let print = other.waits_for("fingerprint: ").split_off("fingerprint: sha256:".len());
    assert!(changed.contains(&format!("its fingerprint {print} is not")), "{changed}");
    assert!(changed.contains(&format!("remove the line of {listen}")), "{changed}");
    let link = &links()["links"][0];
    assert_eq!((&link["established"], &link["first_use"]), (&0.into(), &true.into()));
}
