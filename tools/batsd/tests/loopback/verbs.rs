//! What `batsctl` prints, and what its verbs do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::node::{
    Daemon, LIMIT, check, free_tcp_port, free_udp_port, identity, node, pair, wait_for,
};
use crate::skip::skipped;
use openbats::node::{LinkOptions, LinkPolicy, Node};
use openbats::{Identity, Trust, Wait};
use serde_json::Value;

/// A forward of the first host to a listener of the test, at the second one.
struct Forwarded {
    daemons: [Daemon; 2],
    folder: tempfile::TempDir,
    far: TcpListener,
    port: u16,
}

fn forwarded() -> Forwarded {
    let folder = tempfile::tempdir().unwrap();
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, to) = (free_tcp_port(), far.local_addr().unwrap());
    let forward = format!(
        "[[forward]]\nlisten = \"127.0.0.1:{port}\"\nexit = \"10.255.0.2\"\nto = \"{to}\"\n"
    );
    let exit = format!("[exit]\nallow = [\"{to}\"]\n");
    let daemons = pair(folder.path(), [&forward, &exit], ["", ""]);
    Forwarded { daemons, folder, far, port }
}

impl Forwarded {
    /// A connection through the forward: its near and its far end.
    fn connect(&self) -> [TcpStream; 2] {
        let near = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let (far, _) = self.far.accept().unwrap();
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        }
        [near, far]
    }
}

#[test]
fn output_of_every_verb_has_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let daemons =
        pair(folder.path(), ["", ""], ["prefixes = [\"10.66.0.2\"]\n", "speedtest = true\n"]);
    let daemon = &daemons[0];
    let print =
        daemon.ctl("links").unwrap()["links"][0]["fingerprint"].as_str().unwrap().to_owned();
    for call in [
        "status",
        "links",
        "peers",
        "sessions",
        "flows",
        "routes",
        "channels",
        "events",
        "metrics",
        "check",
        "share --address 192.0.2.7",
        "doctor",
        "top --interval 0.1 --count 1",
        "ping 10.255.0.2 -c 2 -i 0.1",
        "speedtest 10.255.0.2 -s 1 --direction out",
        &format!("link add more --remote 127.0.0.1:9 --fingerprint {print}"),
        "route add 10.255.0.2 more:1",
        "route del 10.255.0.2 more",
        "link del more",
        "reload",
        "events",
    ] {
        let output = daemon.ctl(call).unwrap();
        eprintln!("{call}: {} bytes", output.to_string().len());
    }
    // Followed events are lines.
    let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
    command.arg("--config").arg(&daemon.config).args(["--json", "events", "-f"]);
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut bytes = vec![0; 1 << 16];
    let length = follower.stdout.as_mut().unwrap().read(&mut bytes).unwrap();
    follower.kill().unwrap();
    follower.wait().unwrap();
    let line = String::from_utf8_lossy(&bytes[..length]).lines().next().unwrap().to_owned();
    check("event", &serde_json::from_str(&line).unwrap());
    assert_eq!(daemon.ctl("drain --limit 0").unwrap()["cut"], 0);
}

#[test]
fn schema_prints_what_the_verbs_have_and_wrong_words_have_exit_code_2() {
    let batsctl =
        |words: &[&str]| Command::new(env!("CARGO_BIN_EXE_batsctl")).args(words).output().unwrap();
    let all: Value = serde_json::from_slice(&batsctl(&["schema"]).stdout).unwrap();
    for verb in ["status", "link-add", "drain", "speedtest", "channels"] {
        let schema: Value = serde_json::from_slice(&batsctl(&["schema", verb]).stdout).unwrap();
        assert_eq!(schema["$ref"], format!("#/$defs/{verb}"));
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert_eq!(validator.is_valid(&serde_json::json!({})), verb == "link-add", "{verb}");
        assert_eq!(schema["$defs"], all["$defs"]);
    }
    let output = batsctl(&["schema", "traffic"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("use one of"));
    for words in [&["explode"][..], &["speedtest"], &["speedtest", "10.0.0.1", "-s", "11"]] {
        assert_eq!(batsctl(words).status.code(), Some(2), "{words:?}");
    }
    // A daemon that does not run.
    let output = batsctl(&["--socket", "/nonexistent/socket", "channels"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn channels_show_bytes_and_what_holds_a_connection_up() {
    let test = forwarded();
    let [near, far] = &test.daemons;
    assert_eq!(near.ctl("channels").unwrap()["channels"].as_array().unwrap().len(), 0);
    let [mut program, mut server] = test.connect();
    program.write_all(b"hello").unwrap();
    let mut bytes = [0; 5];
    server.read_exact(&mut bytes).unwrap();
    let channel = |daemon: &Daemon| daemon.ctl("channels").unwrap()["channels"][0].clone();
    let (out, back) = (channel(near), channel(far));
    assert_eq!((&out["peer"], &back["peer"]), (&"10.255.0.2".into(), &"10.255.0.1".into()));
    assert_eq!((&out["opened_here"], &back["opened_here"]), (&true.into(), &false.into()));
    assert_eq!(out["id"], back["id"]);
    assert_eq!(out["to"], test.far.local_addr().unwrap().to_string());
    assert!(back["bytes_received"].as_u64().unwrap() >= 5, "{back}");
    assert_eq!(back["waits_for"], Value::Null);
    // The server stops reading: the credit ends, and the program waits.
    let block = [7; 1 << 16];
    while program.write_all(&block).is_ok() {}
    wait_for("the channel waits for credit", || channel(near)["waits_for"] == "credit");
    assert_eq!(channel(far)["waits_for"], "program", "{}", channel(far));
    let (table, _, _) = near.run("channels");
    assert!(table.contains("WAITS FOR") && table.contains("credit"), "{table}");
    drop((program, server));
    wait_for("the channel ends", || channel(near).is_null() && channel(far).is_null());
    drop(test.folder);
}

#[test]
fn speedtest_measures_both_directions_of_peers_that_are_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let daemons = pair(folder.path(), ["", ""], ["", "speedtest = true\n"]);
    let result = daemons[0].ctl("speedtest 10.255.0.2 -s 1").unwrap();
    eprintln!("{result}");
    for direction in ["out", "in"] {
        let (bytes, seconds) = (&result[direction]["bytes"], &result[direction]["seconds"]);
        assert!(bytes.as_u64().unwrap() > 1 << 20, "{result}");
        assert!((0.5..6.0).contains(&seconds.as_f64().unwrap()), "{result}");
    }
    let refused = daemons[1].ctl("speedtest 10.255.0.1 -s 1").unwrap_err();
    assert!(refused.contains("needs `speedtest = true`"), "{refused}");
    let refused = daemons[0].ctl("speedtest 10.255.0.9").unwrap_err();
    assert!(refused.contains("not a peer"), "{refused}");
    // Two at a time: one is refused.
    let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
    command.arg("--config").arg(&daemons[0].config).args(["speedtest", "10.255.0.2", "-s", "2"]);
    let mut first = command.stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let refused = daemons[0].ctl("speedtest 10.255.0.2 -s 1").unwrap_err();
    assert!(refused.contains("another speed test"), "{refused}");
    assert!(first.wait().unwrap().success());
    let ping = daemons[0].ctl("ping 10.255.0.2 -c 1").unwrap();
    assert_eq!(ping["answered"], 1);
}

#[test]
fn drain_waits_for_connections_takes_no_new_ones_and_ends() {
    let mut test = forwarded();
    let [mut program, mut server] = test.connect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
    command.arg("--config").arg(&test.daemons[0].config).args(["--json", "drain", "--limit", "60"]);
    let drain = command.stdout(Stdio::piped()).spawn().unwrap();
    let near = &test.daemons[0];
    wait_for("it drains", || near.ctl("status").unwrap()["status"]["state"] == "draining");
    wait_for("new connections are refused", || {
        TcpStream::connect(("127.0.0.1", test.port)).is_err()
    });
    for (call, words) in [("drain", "drains already"), ("reload", "the node drains")] {
        let error = near.ctl(call).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    // The open connection goes on, to its end.
    program.write_all(b"question").unwrap();
    let mut bytes = [0; 8];
    server.read_exact(&mut bytes).unwrap();
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut all = String::new();
    program.read_to_string(&mut all).unwrap();
    assert_eq!(all, "answer");
    drop(program);
    let output = drain.wait_with_output().unwrap();
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    check("drain", &result);
    assert_eq!(result["cut"], 0);
    wait_for("the daemon has ended", || test.daemons[0].status().is_some());
    assert!(test.daemons[0].status().unwrap().success());
}

#[test]
fn drain_of_an_exit_refuses_new_channels_and_has_a_time_limit() {
    let mut test = forwarded();
    let [mut program, server] = test.connect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
    command.arg("--config").arg(&test.daemons[1].config).args(["drain", "--limit", "3"]);
    let drain = command.stdout(Stdio::piped()).spawn().unwrap();
    let far = &test.daemons[1];
    wait_for("it drains", || far.ctl("status").unwrap()["status"]["state"] == "draining");
    // The forward takes the connection, and resets it.
    let mut refused = TcpStream::connect(("127.0.0.1", test.port)).unwrap();
    refused.set_read_timeout(Some(LIMIT)).unwrap();
    assert!(!matches!(refused.read(&mut [0; 1]), Ok(1)));
    let output = drain.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("1 connections cut"));
    wait_for("the daemon has ended", || test.daemons[1].status().is_some());
    assert!(!matches!(program.read(&mut [0; 1]), Ok(1)));
    drop(server);
}

#[test]
fn a_reload_that_is_under_way_opens_no_listeners_of_a_node_that_drains() {
    let test = forwarded();
    let [program, server] = test.connect();
    let batsctl = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        command.arg("--config").arg(&test.daemons[0].config).args(words.split(' '));
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let near = &test.daemons[0];
    // The keeper answers only after the worker drains.
    near.signal(rustix::process::Signal::STOP);
    let mut reload = batsctl("reload");
    std::thread::sleep(Duration::from_millis(500));
    let mut drain = batsctl("drain --limit 60");
    wait_for("it drains", || near.ctl("status").unwrap()["status"]["state"] == "draining");
    near.signal(rustix::process::Signal::CONT);
    assert!(reload.wait().unwrap().success());
    wait_for("new connections are refused", || {
        TcpStream::connect(("127.0.0.1", test.port)).is_err()
    });
    drop((program, server));
    assert!(drain.wait().unwrap().success());
}

#[test]
fn the_user_of_a_worker_of_root_may_read_and_change_nothing() {
    if !rustix::process::geteuid().is_root() {
        return skipped("the user of a worker of root", "the keeper is not root's");
    }
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(folder.path());
    identity(&folder.path().join("0.pem"));
    let text = node(folder.path(), 0, free_udp_port(), "user = \"nobody\"\n");
    let mut daemon = crate::node::start(folder.path(), 0, &text);
    // The folder of the build may be closed to the user.
    let program = folder.path().join("batsctl");
    std::fs::copy(env!("CARGO_BIN_EXE_batsctl"), &program).unwrap();
    open(&program);
    let batsctl = |words: &str| {
        let mut command = Command::new(&program);
        command.arg("--socket").arg(folder.path().join("0.sock")).args(words.split(' '));
        command.uid(65_534).gid(65_534).current_dir("/").output().unwrap()
    };
    let output = batsctl("status");
    assert!(output.status.success(), "{output:?}");
    for words in ["reload", "drain", "speedtest 10.255.0.2", "link del north"] {
        let error = String::from_utf8(batsctl(words).stderr).unwrap();
        assert!(error.contains("changes need root"), "{words}: {error}");
    }
    assert!(daemon.status().is_none());
}

/// The links of a node: neighbour, the port to open a link to, and whether its packets are forwarded.
type Links<'a> = &'a [(usize, Option<u16>, bool)];

#[test]
fn trace_names_the_relays_on_the_path_and_where_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let prints = [0, 1, 2, 3].map(|host| identity(&folder.path().join(format!("{host}.pem"))));
    let ports = [(); 4].map(|()| free_udp_port());
    let start = |host: usize, relay: bool, links: Links<'_>, peer: Option<usize>, routes: &str| {
        let relay = format!("relay = {relay}\n");
        let mut text = node(folder.path(), host, ports[host], &relay);
        for &(neighbour, remote, transit) in links {
            text += &format!(
                "[[link]]\nname = \"to{neighbour}\"\nfingerprint = \"{}\"\ntransit = {transit}\n",
                prints[neighbour]
            );
            if let Some(port) = remote {
                text += &format!("remote = \"127.0.0.1:{port}\"\n");
            }
        }
        if let Some(peer) = peer {
            let print = &prints[peer];
            text +=
                &format!("[[peer]]\nid = \"10.255.0.{}\"\nfingerprint = \"{print}\"\n", peer + 1);
        }
        text += &format!("[routes]\nstatic = [{routes}]\n");
        crate::node::start(folder.path(), host, &text)
    };
    let to = |host: usize, via: usize| {
        format!("{{ to = \"10.255.0.{}\", via = [\"to{via}\"] }}", host + 1)
    };
    // 0 - 1 - 2 - 3. The relays have no peers, and no sessions.
    let routes = [to(3, 1), to(9, 1), to(2, 1)].join(", ");
    let near = start(0, false, &[(1, Some(ports[1]), false)], Some(3), &routes);
    let routes = [to(3, 2), to(0, 0), to(9, 2), to(2, 2)].join(", ");
    let _one = start(1, true, &[(0, None, true), (2, Some(ports[2]), true)], None, &routes);
    let routes = [to(3, 3), to(0, 1)].join(", ");
    let _two = start(2, true, &[(1, None, true), (3, Some(ports[3]), true)], None, &routes);
    let far = start(3, false, &[(2, None, false)], Some(0), &to(0, 2));
    wait_for("a session over both relays", || {
        near.ctl("ping 10.255.0.4 -c 1").is_ok_and(|ping| ping["answered"] == 1)
    });
    let trace = near.ctl("trace 10.255.0.4").unwrap();
    eprintln!("{trace}");
    let nodes = |trace: &Value| -> Vec<String> {
        let hops = trace["hops"].as_array().unwrap().iter();
        hops.map(|hop| hop["node"].as_str().unwrap_or("-").to_owned()).collect()
    };
    assert_eq!(nodes(&trace), ["10.255.0.2", "10.255.0.3", "10.255.0.4"]);
    for hop in trace["hops"].as_array().unwrap() {
        assert_eq!(hop["rtt_ms"].as_array().unwrap().len(), 3, "{trace}");
    }
    assert_eq!(nodes(&far.ctl("trace 10.255.0.1").unwrap()).len(), 3);
    let (text, _, status) = near.run("trace 10.255.0.4");
    assert!(status.success() && text.contains("3: 10.255.0.4  "), "{text}");
    // The second relay has no route to this one.
    let (text, _, status) = near.run("trace 10.255.0.10");
    assert_eq!(status.code(), Some(1));
    assert!(text.ends_with("10.255.0.3 has no route to 10.255.0.10\n"), "{text}");
    assert!(near.ctl("trace 10.255.0.77").unwrap_err().contains("no link leads to"));
    assert!(near.ctl("trace 10.255.0.1").unwrap_err().contains("is this node"));
    // The far node forwards nothing.
    let trace = near.ctl("trace 10.255.0.3").unwrap();
    assert_eq!(nodes(&trace), ["10.255.0.2", "10.255.0.3"]);
}

#[test]
fn requests_of_a_neighbour_leave_room_for_traces_of_this_node() {
    let folder = tempfile::tempdir().unwrap();
    let path = |host: usize| folder.path().join(format!("{host}.pem"));
    let prints = [0, 1, 2].map(|host| identity(&path(host)));
    let print = |host: usize| prints[host].trim_start_matches("sha256:").parse().unwrap();
    let builder = |host: usize| {
        let pem = std::fs::read(path(host)).unwrap();
        let id = openbats::node::NodeId(u32::from_be_bytes([10, 255, 0, host as u8 + 1]));
        Node::builder(id, Identity::from_pem("test", &pem).unwrap()).link_messages(true)
    };
    // It never answers.
    let far = builder(2).listen("127.0.0.1:0".parse().unwrap());
    let far = far.neighbour(print(1), LinkPolicy::end()).start().unwrap();
    let port = free_udp_port();
    let text = node(folder.path(), 1, port, "relay = true\n")
        + &format!(
            "[[link]]\nname = \"near\"\nfingerprint = \"{}\"\ntransit = true\n\
             [[link]]\nname = \"far\"\nfingerprint = \"{}\"\nremote = \"{}\"\n\
             [routes]\nstatic = [{{ to = \"10.255.0.9\", via = [\"far\"] }}]\n",
            prints[0],
            prints[2],
            far.local_addrs()[0],
        );
    let daemon = crate::node::start(folder.path(), 1, &text);
    let near = builder(0).start().unwrap();
    let to = ([127, 0, 0, 1], port).into();
    let link = near.links().open(LinkOptions::new(to, Trust::fingerprint(print(1)))).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    wait_for("the link to the far node", || {
        let links = daemon.ctl("links").unwrap();
        let links = links["links"].as_array().unwrap();
        links.iter().filter(|link| link["state"] == "up").count() == 2
    });
    // They wait for four seconds; a neighbour gets through 100 a second.
    for number in 0..400u64 {
        let request = [&[1][..], &number.to_be_bytes(), &[10, 255, 0, 9], &[5]].concat();
        near.links().send(link.id(), request).unwrap();
        std::thread::sleep(Duration::from_millis(8));
    }
    let trace = daemon.ctl("trace 10.255.0.9").unwrap();
    assert_eq!(trace["reason"], "no answer at hop 1", "{trace}");
}

#[test]
fn the_dashboard_shows_metrics_that_there_are() {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../grafana-dashboard.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let daemons = pair(folder.path(), ["", ""], ["", ""]);
    let text = daemons[0].ctl("metrics").unwrap()["text"].as_str().unwrap().to_owned();
    let panels = dashboard["panels"].as_array().unwrap();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap()) {
        let expression = target["expr"].as_str().unwrap();
        let start = expression.find("bats_").unwrap();
        let (metric, labels) = expression[start..].split_once('{').unwrap();
        assert!(labels.starts_with("instance=~"), "{expression}");
        // Without a TUN device there are none of its packets.
        let is_there = text.contains(&format!("\n{metric}{{"));
        assert!(is_there || metric == "bats_tun_packets_total", "{metric}: {text}");
    }
}
