//! Processes that are killed again and again under traffic, which has to flow again in time. With
//! `OPENBATS_TEST_LONG=1` each of them is killed 200 times.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Tunnel;
use crate::daemon::Daemon;
use crate::host_state::{difference, host_state};
use crate::mesh::{Mesh, address, id, wait_for};
use crate::processes::{Usage, has_ended};
use crate::traffic::{Times, Traffic, enter, is_long};

const LIMIT: Duration = Duration::from_secs(60);
/// For the last messages where some are lost.
const LAST: Duration = Duration::from_secs(1);
/// Bounds on the time from a kill until traffic flows again: the goal for long runs, and a weaker one for the two to four
/// kills of a short run. Those take 0.4 to 1.0 s on a busy host. That of a keeper includes the comparison of the host's
/// state, which took up to 3.4 s in a long run.
const BOUNDS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(5)];

fn kills() -> usize {
    if is_long() { 200 } else { 4 }
}

/// Time between two kills: traffic of all kinds flows at its rate again.
const PAUSE: Duration = Duration::from_millis(700);

/// Kills a process. Returns the time of its end.
fn kill(process: Pid) -> Instant {
    kill_process(process, Signal::KILL).unwrap();
    wait_for("the process has ended", LIMIT, || has_ended(process));
    Instant::now()
}

/// Kills a keeper. Its worker ends after it: a daemon that is started at once must not mind.
fn kill_daemon(daemon: &mut Daemon) -> Instant {
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    Instant::now()
}

fn both(tunnel: &Tunnel) -> [Traffic; 2] {
    let hosts = || (tunnel.wan.namespace(0), tunnel.wan.namespace(1));
    let ((a, b), (c, d)) = (hosts(), hosts());
    [Traffic::echoed(a, b, "10.66.0.2:7000"), Traffic::stream(c, d, "10.66.0.2:7001")]
}

#[test]
fn device_routes_and_connections_outlast_killed_workers() {
    need!();
    let tunnel = Tunnel::start(0.02);
    let traffic = both(&tunnel);
    let state = |host| host_state(|| tunnel.wan.command(host));
    let before = [0, 1].map(state);
    let keepers = [0, 1].map(|host: usize| tunnel.daemons[host].child.id());
    let usage = || keepers.map(Usage::of);
    let mut times: [[Times; 2]; 2] = Default::default();
    let mut first = None;
    for number in 0..kills() {
        sleep(PAUSE);
        // The first host opens the link, the second one only hears of it.
        let host = number % 2;
        let end = kill(tunnel.daemons[host].worker().unwrap());
        // The links' sockets are the worker's.
        assert_same(&state(host), &before[host], &[4_900]);
        for (traffic, times) in traffic.iter().zip(&mut times[host]) {
            times.add(traffic.seen.wait_for_message_after("a worker was killed", end, LIMIT));
        }
        assert_same(&state(host), &before[host], &[]);
        first.get_or_insert_with(usage);
    }
    for (host, [datagrams, stream]) in times.iter().enumerate() {
        datagrams.report(&format!("worker of host {host} killed, datagrams"), BOUNDS);
        stream.report(&format!("worker of host {host} killed, a TCP connection"), BOUNDS);
    }
    eprintln!("keepers after the first kill {first:?}, after the last {:?}", usage());
    for (now, first) in usage().iter().zip(first.unwrap()) {
        now.assert_flat(&first);
    }
    for (what, traffic) in ["datagrams", "TCP"].into_iter().zip(traffic) {
        let seen = traffic.end(if what == "TCP" { LIMIT } else { LAST });
        eprintln!("{what}: {}", seen.summary());
        if what == "TCP" {
            assert_eq!(seen.summary().split_once(" sent, ").unwrap().1, NOTHING_LOST);
        }
        assert_eq!(seen.duplicates.load(std::sync::atomic::Ordering::Relaxed), 0);
    }
}

/// First port that Linux gives to sockets without one (`ip_local_port_range`).
const EPHEMERAL: u16 = 32_768;
const NOTHING_LOST: &str = "0 missing, 0 duplicates, 0 reordered, 0 broken connections";

#[test]
fn killed_keepers_leave_nothing_and_come_back() {
    need!();
    let mut tunnel = Tunnel::start(0.02);
    let wan = |host: usize| tunnel.wan.hosts[host].clone();
    let hosts = [wan(0), wan(1)];
    let state = |host: usize| {
        host_state(|| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &hosts[host]]);
            command
        })
    };
    let golden = [0, 1].map(|host: usize| {
        kill_daemon(&mut tunnel.daemons[host]);
        wait_for("the device is gone", LIMIT, || !state(host).contains("bats0"));
        state(host)
    });
    for host in [0, 1] {
        restart(&mut tunnel, host);
    }
    tunnel.wait_for_ping(0, LIMIT);
    let traffic = both(&tunnel);
    let mut times: [[Times; 3]; 2] = Default::default();
    for number in 0..kills() {
        sleep(PAUSE);
        let host = number % 2;
        let worker = tunnel.daemons[host].worker().unwrap();
        let end = kill_daemon(&mut tunnel.daemons[host]);
        wait_for("the worker ends with its keeper", LIMIT, || has_ended(worker));
        // The kernel removes a device after the process has ended.
        wait_for("the device is gone", LIMIT, || !state(host).contains("bats0"));
        assert_same(&state(host), &golden[host], &[]);
        restart(&mut tunnel, host);
        times[host][2].add(end.elapsed());
        for (index, traffic) in traffic.iter().enumerate() {
            let back = traffic.seen.wait_for_message_after("a keeper was killed", end, LIMIT);
            times[host][index].add(back);
        }
    }
    for (host, [datagrams, stream, started]) in times.iter().enumerate() {
        eprintln!("keeper of host {host} killed, checked and started: {}", started.summary());
        datagrams.report(&format!("keeper of host {host} killed, datagrams"), BOUNDS);
        stream.report(&format!("keeper of host {host} killed, TCP"), BOUNDS);
    }
    let [datagrams, stream] = traffic;
    eprintln!("datagrams: {}", datagrams.end(LAST).summary());
    let summary = stream.end(LIMIT).summary();
    eprintln!("TCP: {summary}");
    assert!(summary.ends_with(NOTHING_LOST), "{summary}");
}

/// Compares two states of a host, without the sockets of the traffic (its servers and ephemeral ports) and
/// those of `others`.
fn assert_same(now: &str, before: &str, others: &[u16]) {
    let is_ignored = |line: &str| {
        let is_socket = ["tcp", "udp"].iter().any(|protocol| line[2..].starts_with(protocol));
        let port = line.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        let is_traffic = |port| [7_000, 7_001].contains(&port) || port >= EPHEMERAL;
        is_socket && port.is_some_and(|port| is_traffic(port) || others.contains(&port))
    };
    let mut lines = difference(before, now);
    lines.retain(|line| !is_ignored(line));
    assert!(lines.is_empty(), "the host has changed:\n{}", lines.join("\n"));
}

fn restart(tunnel: &mut Tunnel, host: usize) {
    let config = tunnel.daemons[host].config.clone();
    tunnel.daemons[host] = Daemon::start(&tunnel.wan, host, config);
}

#[test]
fn traffic_over_a_killed_relay_comes_back() {
    need!();
    let mut mesh = Mesh::new(3, &[(0, 1), (1, 2)]);
    mesh.start_nodes(|_, _, _| String::new());
    for (host, to, pair, via) in
        [(0, 1, 0, 1), (0, 2, 0, 1), (1, 0, 0, 0), (1, 2, 1, 2), (2, 1, 1, 1), (2, 0, 1, 1)]
    {
        mesh.must(host, &format!("ip route add {}/32 via {}", id(to), address(pair, via)));
    }
    mesh.wait_for_ping(0, 2);
    let hosts = |mesh: &Mesh| (mesh.namespace(0), mesh.namespace(2));
    let ((a, b), (c, d)) = (hosts(&mesh), hosts(&mesh));
    let traffic =
        [Traffic::echoed(a, b, "10.66.0.3:7000"), Traffic::stream(c, d, "10.66.0.3:7001")];
    let ends = |mesh: &Mesh| [0, 2].map(|host: usize| mesh.daemons[host].worker().unwrap());
    let workers = ends(&mesh);
    let usage = || workers.map(|worker| Usage::of(worker.as_raw_nonzero().get() as u32));
    let (mut times, mut first): ([Times; 2], _) = (Default::default(), None);
    for _ in 0..kills() {
        sleep(PAUSE);
        let end = kill_daemon(&mut mesh.daemons[1]);
        let config = mesh.daemons[1].config.clone();
        let daemon = Daemon::start_by(mesh.command(1), config, &[env!("CARGO_BIN_EXE_batsd")]);
        mesh.daemons[1] = daemon;
        for (traffic, times) in traffic.iter().zip(&mut times) {
            times.add(traffic.seen.wait_for_message_after("a relay was killed", end, LIMIT));
        }
        first.get_or_insert_with(usage);
    }
    times[0].report("relay killed, datagrams", BOUNDS);
    times[1].report("relay killed, a TCP connection", BOUNDS);
    assert_eq!(ends(&mesh), workers, "the ends go on");
    eprintln!("ends after the first kill {first:?}, after the last {:?}", usage());
    for (now, first) in usage().iter().zip(first.unwrap()) {
        now.assert_flat(&first);
    }
    let [datagrams, stream] = traffic;
    let (datagrams, stream) = (datagrams.end(LAST), stream.end(LIMIT));
    eprintln!("datagrams: {}\nTCP: {}", datagrams.summary(), stream.summary());
    assert_eq!(stream.summary().split_once(" sent, ").unwrap().1, NOTHING_LOST);
}

const CLIENT: &str =
    "\n[[forward]]\nlisten = \"127.0.0.1:2000\"\nexit = \"10.255.0.2\"\nto = \"127.0.0.1:9000\"\n";
const EXIT: &str = "\n[exit]\nallow = [\"127.0.0.1:9000\"]\n";

#[test]
fn exits_keep_nothing_of_killed_clients() {
    need!();
    let mut tunnel = Tunnel::start_with(0.02, [CLIENT, EXIT]);
    let hosts: [File; 2] = [0, 1].map(|host| tunnel.wan.namespace(host));
    let [client, exit] = hosts;
    let at = |text: &str| text.parse().unwrap();
    let traffic = Traffic::stream_to(client, exit, at("127.0.0.1:2000"), at("127.0.0.1:9000"));
    let open = |tunnel: &Tunnel| {
        let status = tunnel.daemons[1].ctl("status").unwrap();
        status["status"]["services"]["exit"]["open"].as_u64().unwrap()
    };
    let worker = tunnel.daemons[1].worker().unwrap();
    let usage = || Usage::of(worker.as_raw_nonzero().get() as u32);
    let (mut times, mut first) = (Times::default(), None);
    for _ in 0..kills() {
        sleep(PAUSE);
        let end = kill_daemon(&mut tunnel.daemons[0]);
        restart(&mut tunnel, 0);
        times.add(traffic.seen.wait_for_message_after("a client was killed", end, LIMIT));
        wait_for("the exit has one connection", LIMIT, || open(&tunnel) == 1);
        first.get_or_insert_with(usage);
    }
    times.report("client killed, a new connection by a forward", BOUNDS);
    eprintln!("exit after the first kill {first:?}, after the last {:?}", usage());
    usage().assert_flat(&first.unwrap());
    assert_eq!(tunnel.daemons[1].worker(), Some(worker), "the exit goes on");
    eprintln!("TCP: {}", traffic.end(LAST).summary());
    wait_for("the exit has no connection", LIMIT, || open(&tunnel) == 0);
}

/// A destination must not take what it has got for all that the program has written.
#[test]
fn uploads_of_killed_clients_end_with_a_reset() {
    need!();
    let mut tunnel = Tunnel::start_with(0.0, [CLIENT, EXIT]);
    let listen = || TcpListener::bind("127.0.0.1:9000").unwrap();
    let server = enter(tunnel.wan.namespace(1), listen).join().unwrap();
    let connect = || TcpStream::connect("127.0.0.1:2000").unwrap();
    let mut client = enter(tunnel.wan.namespace(0), connect).join().unwrap();
    client.write_all(b"a part").unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    accepted.set_read_timeout(Some(LIMIT)).unwrap();
    let mut bytes = [0; 6];
    accepted.read_exact(&mut bytes).unwrap();
    kill_daemon(&mut tunnel.daemons[0]);
    restart(&mut tunnel, 0);
    let end = accepted.read(&mut bytes).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
}
