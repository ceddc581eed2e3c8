//! A server of mode TCP whose process may open few descriptors. The limit is the process's, so this file has one
//! test, and a process of its own has the connections of the others.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use openbats::{ClientOptions, Endpoint, Identity, Mode, ServerOptions, Trust, Wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

const LIMIT: Duration = Duration::from_secs(60);
/// Descriptors of the server's process. Half of them are for connections that wait, and a network may have three
/// quarters of that.
const DESCRIPTORS: u64 = 400;
const WAITING: u64 = DESCRIPTORS / 2 * 3 / 4;
/// Handshakes of a network at a time; the others wait.
const HALF_OPEN: u64 = 64;
/// Connections of the other process.
const CONNECTIONS: u64 = 600;
const ADDRESS: &str = "OPENBATS_TEST_ADDRESS";

/// Connects and says nothing, until its standard input ends.
fn connect_silently(to: SocketAddr) {
    limit_descriptors(2 * CONNECTIONS);
    let connect = |_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 9, 1], 0)).into()).unwrap();
        socket.connect(&to.into()).unwrap();
        socket
    };
    let sockets: Vec<Socket> = (0..CONNECTIONS).map(connect).collect();
    println!("\nconnected");
    let _ = std::io::stdin().read(&mut [0]);
    drop(sockets);
}

fn limit_descriptors(count: u64) {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limits }).unwrap();
}

#[test]
fn waiting_connections_leave_descriptors_for_files_and_other_networks() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return connect_silently(address.parse().unwrap());
    }
    limit_descriptors(DESCRIPTORS);
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let options = ServerOptions::new(identity).modes([Mode::Tcp]);
    let server = Endpoint::builder().bind("127.0.0.1:0".parse().unwrap()).server(options);
    let server = server.start().unwrap();

    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--nocapture").env(ADDRESS, server.local_addr().to_string());
    let mut other = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line == "connected"));
    // Some handshakes may have taken too long meanwhile, and connections that waited have their places.
    let refused = CONNECTIONS - WAITING - 2 * HALF_OPEN;
    let arrived = (0..6_000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        server.stats().connections_refused >= refused
    });
    assert!(arrived, "{:?}", server.stats());

    let files: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
    let client = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(trust).mode(Mode::Tcp);
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    near.send("from elsewhere").wait_for(LIMIT).unwrap().unwrap();
    let message = far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
    assert_eq!(message, b"from elsewhere"[..]);
    drop(files);
    drop(other.stdin.take());
    assert!(lines.count() > 0, "the result of the other process");
    assert!(other.wait().unwrap().success());
}
