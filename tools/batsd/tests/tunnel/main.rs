//! Two hosts on a real kernel, a lossy link between them, and unmodified programs through the tunnel.
#![allow(clippy::disallowed_methods, reason = "real kernels have real clocks")]

/// Ends a test that the host cannot run, and otherwise waits for its turn.
macro_rules! need {
    () => {
        if let Some(reason) = crate::wan::missing() {
            return crate::skip::skipped(module_path!(), &reason);
        }
        let _turn = crate::turn();
    };
}

mod daemon;
mod flips;
mod flows;
mod host_state;
mod interfaces;
mod kernel_routes;
mod kills;
mod link_local;
mod link_sessions;
mod loops;
mod mesh;
mod original;
mod partitions;
mod ping;
mod processes;
mod reloads;
mod routing_daemons;
mod services;
mod shares;
#[path = "../common/skip.rs"]
mod skip;
mod traffic;
mod wan;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use daemon::{Daemon, identity};
use ping::Ping;
use rustix::process::{Signal, kill_process, test_kill_process};
use wan::Wan;

/// Tests run at most two at a time, however many threads there are, because they load the host.
fn turn() -> MutexGuard<'static, ()> {
    static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let free = TURNS.iter().find_map(|turn| match turn.try_lock() {
        Ok(turn) => Some(turn),
        Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    });
    free.unwrap_or_else(|| {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        TURNS[next % TURNS.len()].lock().unwrap_or_else(PoisonError::into_inner)
    })
}

struct Tunnel {
    daemons: [Daemon; 2],
    wan: Wan,
    folder: tempfile::TempDir,
}

fn config(folder: &Path, host: usize, prints: &[String; 2]) -> String {
    let (own, other) = (host + 1, 2 - host);
    // The first host opens the link.
    let remote = if host == 0 { "remote = \"192.0.2.2:4900\"\n" } else { "" };
    format!(
        "[node]\nid = \"10.255.0.{own}\"\nidentity = \"{folder}/{host}.pem\"\n\
         control = \"{folder}/{host}.sock\"\n[tun]\naddress = [\"10.66.0.{own}/24\", \"fd66::{own}/64\"]\n\
         [[peer]]\nid = \"10.255.0.{other}\"\nfingerprint = \"{}\"\n{remote}\
         prefixes = [\"10.66.0.{other}\", \"fd66::{other}\"]\n",
        prints[1 - host],
        folder = folder.display(),
    )
}

impl Tunnel {
    fn start(loss: f64) -> Self {
        Self::start_with(loss, [""; 2])
    }

    /// Starts it with more lines in the configurations.
    fn start_with(loss: f64, more: [&str; 2]) -> Self {
        let wan = Wan::new(loss, Duration::from_millis(5));
        let folder = tempfile::tempdir().unwrap();
        let prints = [0, 1].map(|host| identity(&folder.path().join(format!("{host}.pem"))));
        let daemons = [0, 1].map(|host| {
            let path = folder.path().join(format!("{host}.toml"));
            let text = config(folder.path(), host, &prints) + more[host];
            std::fs::write(&path, text).unwrap();
            Daemon::start(&wan, host, path)
        });
        let tunnel = Self { daemons, wan, folder };
        tunnel.wait_for_ping(0, Duration::from_secs(20));
        tunnel
    }

    fn answers(&self, host: usize) -> bool {
        Ping::new(&format!("10.66.0.{}", 2 - host)).count(self.wan.namespace(host)) == 1
    }

    fn wait_for_ping(&self, host: usize, limit: Duration) -> Duration {
        let start = Instant::now();
        while !self.answers(host) {
            let peers = self.daemons[host].ctl("peers");
            assert!(start.elapsed() < limit, "no ping through the tunnel: {peers:?}");
            sleep(Duration::from_millis(20));
        }
        start.elapsed()
    }

    fn text(&self, host: usize, command: &str) -> String {
        String::from_utf8(self.wan.on(host, command).stdout).unwrap()
    }

    /// Megabits per second of iperf3 from the first host to an address of the second.
    fn iperf3(&self, address: &str, congestion: &str) -> f64 {
        let mut server = self.wan.command(1);
        let mut server = server.args(["iperf3", "-s", "-1"]).stdout(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(300));
        let text = self.text(0, &format!("iperf3 -c {address} -C {congestion} -t 3 -J"));
        let _ = server.kill();
        let _ = server.wait();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        json["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6
    }
}

#[test]
fn ping_iperf3_and_curl_go_through_the_tunnel_over_a_lossy_link() {
    need!();
    let tunnel = Tunnel::start(0.05);
    for (address, what) in [
        ("10.66.0.2", "IPv4 through the tunnel"),
        ("fd66::2", "IPv6 through the tunnel"),
        ("192.0.2.2", "without the tunnel"),
    ] {
        let answered = Ping::new(address).times(50).count(tunnel.wan.namespace(0));
        eprintln!("ping, {what}: {answered} of 50 answered");
        assert!(answered >= 49 || what.starts_with("without"), "{what}");
    }
    // Larger than the MTU of the path and of the device: fragments inside.
    assert!(Ping::new("10.66.0.2").times(5).size(8_000).count(tunnel.wan.namespace(0)) >= 4);
    for congestion in ["cubic", "bbr"] {
        let with = tunnel.iperf3("10.66.0.2", congestion);
        let without = tunnel.iperf3("192.0.2.2", congestion);
        let link = wan::RATE / 1e6;
        eprintln!(
            "iperf3 TCP {congestion}, {link} Mbit/s, 5 % loss in each direction, 10 ms: \
             {with:.1} Mbit/s through the tunnel, {without:.1} without it"
        );
        // A kernel may lack this congestion controller; CUBIC is always present.
        assert!(with > 0.0 || congestion != "cubic", "TCP through the tunnel");
    }

    let file = tunnel.folder.path().join("page");
    let content: Vec<u8> = (0..4_000_000u32).map(|x| ((x * 31) >> 3) as u8).collect();
    std::fs::write(&file, &content).unwrap();
    let mut server = tunnel.wan.command(1);
    server.args(["python3", "-m", "http.server", "8080", "--directory"]).arg(tunnel.folder.path());
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_millis(700));
    let output = tunnel.wan.on(0, "curl -s --retry 10 --retry-delay 1 --retry-connrefused --max-time 60 http://10.66.0.2:8080/page");
    let _ = server.kill();
    let _ = server.wait();
    assert!(output.stdout == content, "curl: {} bytes, {:?}", output.stdout.len(), output.status);
    let status = tunnel.daemons[0].ctl("status").unwrap();
    eprintln!("{}", status["status"]["tun"]);
    assert_eq!(status["status"]["tun"]["dropped_malformed"], 0);
    let sessions = tunnel.daemons[0].ctl("sessions").unwrap();
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 4, "{sessions}");
    let metrics = tunnel.daemons[0].ctl("metrics").unwrap();
    let text = metrics["text"].as_str().unwrap();
    assert!(text.contains("bats_link_up{link=\"peer-10.255.0.2\"} 1"), "{text}");
    assert!(text.contains("bats_session_up{peer=\"10.255.0.2\",class=\"stream\"} 1"), "{text}");
}

#[test]
fn killed_workers_come_back_and_killed_keepers_leave_nothing() {
    need!();
    let tunnel = Tunnel::start(0.02);
    let interface =
        |host| tunnel.text(host, "ip -o addr show dev bats0") + &tunnel.text(host, "ip route");
    for host in [0, 1, 0, 1] {
        let mut server = tunnel.wan.command(1);
        let mut server = server.args(["iperf3", "-s", "-1"]).stdout(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(300));
        let mut client = tunnel.wan.command(0);
        client.args(["iperf3", "-c", "10.66.0.2", "-t", "60"]).stdout(Stdio::null());
        let mut client = client.stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(500));
        let before = interface(host);
        let worker = tunnel.daemons[host].worker().unwrap();
        kill_process(worker, Signal::KILL).unwrap();
        assert_eq!(interface(host), before, "the device keeps its addresses and routes");
        let time = tunnel.wait_for_ping(host, Duration::from_secs(20));
        eprintln!("worker of host {host} killed: ping answered after {:.2} s", time.as_secs_f64());
        assert_eq!(interface(host), before);
        assert_ne!(tunnel.daemons[host].worker(), Some(worker));
        for process in [&mut client, &mut server] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
    let mut tunnel = tunnel;
    let worker = tunnel.daemons[0].worker().unwrap();
    tunnel.daemons[0].child.kill().unwrap();
    tunnel.daemons[0].child.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while test_kill_process(worker).is_ok() || tunnel.text(0, "ip link").contains("bats0") {
        assert!(Instant::now() < end, "the worker or the device outlives the keeper");
        sleep(Duration::from_millis(10));
    }
    assert!(!tunnel.text(0, "ip route").contains("10.66."));
    // The socket file that the keeper left does not prevent the next start.
    let config = tunnel.daemons[0].config.clone();
    tunnel.daemons[0] = Daemon::start(&tunnel.wan, 0, config);
    tunnel.wait_for_ping(0, Duration::from_secs(20));
}

/// As the systemd unit starts it.
#[test]
fn an_ordinary_user_with_cap_net_admin_has_a_tunnel_and_the_worker_no_capability() {
    need!();
    let mut tunnel = Tunnel::start(0.0);
    let folder = tunnel.folder.path().to_owned();
    tunnel.daemons[1].child.kill().unwrap();
    tunnel.daemons[1].child.wait().unwrap();
    // Folders of the build may be closed to the user.
    let program = folder.join("batsd");
    std::fs::copy(env!("CARGO_BIN_EXE_batsd"), &program).unwrap();
    let user = 65_534;
    for path in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
        std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    }
    std::os::unix::fs::chown(&folder, Some(user), Some(user)).unwrap();
    let config = tunnel.daemons[1].config.clone();
    // udev opens the device to all users; not every container has udev.
    let script = "mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec setpriv \
                  --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all,+net_admin \
                  --ambient-caps=-all,+net_admin --bounding-set=-all,+net_admin \"$@\"";
    let program = program.to_str().unwrap();
    let by = ["unshare", "-m", "sh", "-c", script, "sh", program];
    tunnel.daemons[1] = Daemon::start_by(tunnel.wan.command(1), config, &by);
    for host in [0, 1] {
        tunnel.wait_for_ping(host, Duration::from_secs(20));
    }
    let capabilities = |pid: i64| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let lines = status.lines().filter(|line| line.starts_with("Cap"));
        let sets = lines.filter(|line| !line.starts_with("CapBnd"));
        sets.map(|line| u64::from_str_radix(line[7..].trim(), 16).unwrap()).max().unwrap()
    };
    let worker = tunnel.daemons[1].ctl("status").unwrap()["status"]["worker_pid"].as_i64();
    assert_eq!(capabilities(worker.unwrap()), 0);
    assert_ne!(capabilities(tunnel.daemons[1].child.id().into()), 0, "the keeper has it");
}

#[test]
fn a_peer_that_is_killed_and_started_again_under_traffic_answers_again() {
    need!();
    let mut tunnel = Tunnel::start(0.02);
    let worker = tunnel.daemons[0].worker();
    for _ in 0..3 {
        // TCP and datagrams are under way when the peer is killed: keeper and worker at once.
        let mut server = tunnel.wan.command(1);
        let mut server = server.args(["iperf3", "-s", "-1"]).stdout(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(300));
        let mut client = tunnel.wan.command(0);
        client.args(["iperf3", "-c", "10.66.0.2", "-t", "60"]).stdout(Stdio::null());
        let mut client = client.stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(500));
        tunnel.daemons[1].child.kill().unwrap();
        tunnel.daemons[1].child.wait().unwrap();
        assert!(!tunnel.answers(0), "nothing answers without the peer");
        let (text, is_good) = tunnel.daemons[1].doctor();
        assert!(!is_good && text.contains("PROBLEM  daemon: cannot reach batsd"), "{text}");
        let config = tunnel.daemons[1].config.clone();
        tunnel.daemons[1] = Daemon::start(&tunnel.wan, 1, config);
        for host in [0, 1] {
            let time = tunnel.wait_for_ping(host, Duration::from_secs(20));
            let seconds = time.as_secs_f64();
            eprintln!("peer killed and started: ping of host {host} answered after {seconds:.2} s");
        }
        for process in [&mut client, &mut server] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
    assert_eq!(tunnel.daemons[0].worker(), worker, "the other node goes on");
    let (text, is_good) = tunnel.daemons[0].doctor();
    assert!(is_good && text.contains("good     session stream of 10.255.0.2"), "{text}");
    tunnel.daemons[1].child.kill().unwrap();
    tunnel.daemons[1].child.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while tunnel.daemons[0].doctor().1 {
        assert!(Instant::now() < end, "doctor does not see that the peer is gone");
        sleep(Duration::from_millis(200));
    }
    let (text, _) = tunnel.daemons[0].doctor();
    assert!(text.contains("PROBLEM  link peer-10.255.0.2 to 192.0.2.2:4900: "), "{text}");
    let config = tunnel.daemons[1].config.clone();
    tunnel.daemons[1] = Daemon::start(&tunnel.wan, 1, config);
    tunnel.wait_for_ping(0, Duration::from_secs(20));
    // The ping needs those for datagrams only.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let sessions = tunnel.daemons[0].ctl("sessions").unwrap();
        match sessions["sessions"].as_array().unwrap().len() {
            4 => break,
            count => assert!(count < 4 && Instant::now() < end, "no session is left: {sessions}"),
        }
    }
}

#[test]
fn reload_applies_differences_or_nothing() {
    need!();
    let tunnel = Tunnel::start(0.0);
    let daemon = &tunnel.daemons[0];
    let good = std::fs::read_to_string(&daemon.config).unwrap();
    let worker = daemon.worker();
    let print = "02".repeat(32);
    let wider = good.replace("[tun]", "[tun]\nmtu = 1400")
        + &format!(
            "[[peer]]\nid = \"10.255.0.9\"\nfingerprint = \"{print}\"\nprefixes = [\"10.77.0.0/16\"]\n"
        );
    std::fs::write(&daemon.config, &wider).unwrap();
    daemon.ctl("reload").unwrap();
    assert!(tunnel.text(0, "ip link show dev bats0").contains("mtu 1400"));
    assert!(tunnel.text(0, "ip route show proto 98").contains("10.77.0.0/16"));
    assert_eq!(daemon.ctl("peers").unwrap()["peers"].as_array().unwrap().len(), 2);
    assert!(tunnel.answers(0));
    // batsctl finds the control socket through the configuration, so later calls name it.
    let socket = tunnel.folder.path().join("0.sock");
    for (text, error) in [
        (wider.replace("mtu", "mut"), "did you mean `mtu`?"),
        (wider.replace("id = \"10.255.0.1\"", "id = \"10.255.0.5\""), "only by a restart"),
    ] {
        std::fs::write(&daemon.config, text).unwrap();
        let refused = batsd::control::call(&socket, "Reload").unwrap_err().to_string();
        assert!(refused.contains(error), "{refused}");
    }
    assert_eq!(
        batsd::control::call(&socket, "Peers").unwrap()["peers"].as_array().unwrap().len(),
        2
    );
    std::fs::write(&daemon.config, &good).unwrap();
    daemon.ctl("reload").unwrap();
    assert!(!tunnel.text(0, "ip route show proto 98").contains("10.77.0.0/16"));
    assert!(tunnel.text(0, "ip link show dev bats0").contains("mtu 1500"));
    assert_eq!(daemon.worker(), worker, "the worker goes on");
    assert!(tunnel.answers(0));
}

#[test]
fn events_report_links_and_sessions_as_they_come_and_go() {
    need!();
    let mut tunnel = Tunnel::start(0.0);
    let (sender, receiver) = std::sync::mpsc::channel();
    let socket = tunnel.folder.path().join("0.sock");
    std::thread::spawn(move || {
        let _ = batsd::control::follow(&socket, "Events", |answer| sender.send(answer).is_ok());
    });
    let next = |wanted: &[&str]| loop {
        let answer = receiver.recv_timeout(Duration::from_secs(30)).expect("an event");
        let events = answer["events"].as_array().unwrap().clone();
        let is_wanted =
            |event: &serde_json::Value| wanted.iter().any(|kind| event["event"] == *kind);
        if let Some(event) = events.into_iter().find(is_wanted) {
            return event;
        }
    };
    // What happened before comes first.
    assert_eq!(next(&["link_up"])["link"], "peer-10.255.0.2");
    let text = tunnel.daemons[0].ctl("events").unwrap().to_string();
    assert!(text.contains("session_opened") && text.contains("10.255.0.2"), "{text}");
    tunnel.daemons[0].ctl("reload").unwrap();
    assert_eq!(next(&["reloaded"])["error"], serde_json::Value::Null);
    tunnel.daemons[1].child.kill().unwrap();
    tunnel.daemons[1].child.wait().unwrap();
    assert_eq!(next(&["link_silent", "link_down"])["link"], "peer-10.255.0.2");
    let config = tunnel.daemons[1].config.clone();
    tunnel.daemons[1] = Daemon::start(&tunnel.wan, 1, config);
    assert_eq!(next(&["link_up"])["link"], "peer-10.255.0.2");
    tunnel.wait_for_ping(0, Duration::from_secs(20));
    for class in ["datagram", "stream"] {
        let call = format!("ping 10.255.0.2 -c 3 -i 0.1 --class {class}");
        let echoes = tunnel.daemons[0].ctl(&call).unwrap();
        assert_eq!(echoes["answered"], 3, "{echoes}");
        // The link alone takes 10 ms.
        let times = echoes["rtt_ms"].as_array().unwrap();
        assert!(times.iter().all(|time| time.as_f64().unwrap() >= 10.0), "{echoes}");
    }
    assert!(tunnel.daemons[0].ctl("ping 10.255.0.77 -c 1").is_err(), "not a peer");
    let flows = tunnel.daemons[0].ctl("flows").unwrap();
    let is_sent = |flow: &&serde_json::Value| {
        flow["source"] == "10.255.0.1" && flow["destination"] == "10.255.0.2"
    };
    assert!(flows["flows"].as_array().unwrap().iter().filter(is_sent).count() >= 2, "{flows}");
    let look = tunnel.daemons[0].ctl("top --interval 0.5 --count 1").unwrap();
    assert!(look["links"][0]["sent_mbps"].as_f64().is_some_and(|rate| rate < 10.0), "{look}");
    assert!(tunnel.daemons[0].ctl("top --interval 0").unwrap_err().contains("0.1 to 3600"));
}

#[test]
fn links_and_routes_change_at_run_time() {
    need!();
    let tunnel = Tunnel::start(0.0);
    let daemon = &tunnel.daemons[0];
    let links = daemon.ctl("links").unwrap();
    let print = links["links"][0]["fingerprint"].as_str().unwrap().to_owned();
    daemon.ctl("link del peer-10.255.0.2").unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while tunnel.answers(0) {
        assert!(Instant::now() < end, "packets go on without a link");
    }
    assert_eq!(daemon.ctl("routes").unwrap()["routes"].as_array().unwrap().len(), 0);
    let add = format!("link add again --remote 192.0.2.2:4900 --fingerprint {print}");
    daemon.ctl(&add).unwrap();
    daemon.ctl("route add 10.255.0.2 again").unwrap();
    let time = tunnel.wait_for_ping(0, Duration::from_secs(20));
    eprintln!("link and route added: ping answered after {:.2} s", time.as_secs_f64());
    for (call, words) in [
        (&*add, "of the name 'again'"),
        ("link del peer-10.255.0.2", "no link of the name"),
        ("route add 10.255.0.9 north", "no such link"),
        ("route del 10.255.0.9", "no route to 10.255.0.9"),
    ] {
        let error = daemon.ctl(call).unwrap_err();
        assert!(error.contains(words), "{call}: {error}");
    }
    // A reload leads back to the file.
    daemon.ctl("reload").unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let has_link = |name: &str| daemon.ctl("links").unwrap().to_string().contains(name);
    while has_link("again") || !has_link("peer-10.255.0.2") {
        assert!(Instant::now() < end, "{}", daemon.ctl("links").unwrap());
        sleep(Duration::from_millis(50));
    }
    tunnel.wait_for_ping(0, Duration::from_secs(20));
}

#[test]
fn sources_that_a_peer_does_not_own_are_dropped() {
    need!();
    let tunnel = Tunnel::start(0.0);
    tunnel.wan.on(1, "ip addr add 10.99.0.1/32 dev lo");
    tunnel.wan.on(0, "ip route add 10.99.0.1/32 dev bats0");
    let forged = Ping::new("10.66.0.1").times(3).from("10.99.0.1");
    assert_eq!(forged.count(tunnel.wan.namespace(1)), 0);
    let status = tunnel.daemons[0].ctl("status").unwrap();
    assert_eq!(status["status"]["tun"]["dropped_foreign_source"], 3, "{status}");
    assert!(tunnel.answers(1));
}

#[test]
fn hostile_input_at_the_control_socket_does_no_harm() {
    need!();
    let tunnel = Tunnel::start(0.0);
    let socket = tunnel.folder.path().join("0.sock");
    let worker = tunnel.daemons[0].worker();
    let deep = [&b"[".repeat(60_000)[..], b"\0"].concat();
    for bytes in [
        &b"\0"[..],
        b"{}\0",
        b"{\"method\": 7}\0",
        b"{\"method\": \"org.openbats.node.Explode\"}\0",
        b"\xff\xfe\0",
        &deep,
        &[b'x'; 1 << 20],
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // A call that is too long is not read to its end.
        let _ = stream.write_all(bytes);
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).unwrap_or(0);
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(bytes.len() > 1 << 16 || text.contains("\"error\""), "{text}");
    }
    // More silent clients than the user may have: they are closed after a time-out.
    let idle: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket)).collect();
    let end = Instant::now() + Duration::from_secs(30);
    let status = loop {
        match batsd::control::call(&socket, "Status") {
            Ok(status) => break status,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        sleep(Duration::from_millis(20));
    };
    assert_eq!(status["status"]["state"], "started");
    drop(idle);
    assert_eq!(tunnel.daemons[0].worker(), worker);
    assert!(tunnel.answers(0));
}
