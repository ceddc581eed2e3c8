//! A chain of three nodes with the original's names, flags and files, each with folders /etc and /run of its own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::daemon::identity;
use crate::ping::Ping;
use crate::wan::run;

/// Three hosts in a line: 10.0.0.1 - 10.0.0.2, 10.0.1.1 - 10.0.1.2.
struct Chain {
    hosts: [String; 3],
    nodes: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Drop for Chain {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
        for host in &self.hosts {
            run(Command::new("ip").args(["netns", "del", host]));
        }
    }
}

fn ip(words: &str) {
    let output = run(Command::new("ip").args(words.split_whitespace()));
    assert!(output.status.success(), "ip {words}: {output:?}");
}

/// The file of a node, as the original's laboratory writes it: links to neighbours, routes to the others.
fn settings(node: usize) -> String {
    let links = [
        vec![("10.0.0.1", "10.0.0.2")],
        vec![("10.0.0.2", "10.0.0.1"), ("10.0.1.1", "10.0.1.2")],
        vec![("10.0.1.2", "10.0.1.1")],
    ];
    let routes = [
        vec![("10.0.0.1", "10.0.1.1", "10.0.0.2"), ("10.0.0.1", "10.0.1.2", "10.0.0.2")],
        vec![],
        vec![("10.0.1.2", "10.0.0.1", "10.0.1.1"), ("10.0.1.2", "10.0.0.2", "10.0.1.1")],
    ];
    let addresses = [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.1.1", 2), ("10.0.1.2", 3)];
    let mut text = String::from("[protocol]\ncore.link_seq_set_num_bit = 5\n[network]\n");
    text += &format!("link.cnt = {}\n", links[node].len());
    for (item, (local, remote)) in links[node].iter().enumerate() {
        text += &format!("link.item{item}.local = {local}\nlink.item{item}.remote = {remote}\n");
    }
    text += &format!("routes.cnt = {}\n", routes[node].len());
    for (item, (src, dst, gw)) in routes[node].iter().enumerate() {
        text += &format!(
            "routes.item{item}.src = {src}\nroutes.item{item}.dst = {dst}\n\
             routes.item{item}.mask = 255.255.255.255\nroutes.item{item}.gw = {gw}\n\
             routes.item{item}.metric = 1\n"
        );
    }
    text += &format!("[tun]\nname = tun_session\nip = 1.0.0.{}\nmode = BTP\n", node + 1);
    text += &format!("mapping.cnt = {}\n", addresses.len());
    for (item, (address, node)) in addresses.iter().enumerate() {
        text += &format!(
            "mapping.item{item}.tun_ip = 1.0.0.{node}\nmapping.item{item}.net_ip = {address}\n"
        );
    }
    if node == 0 {
        text += "[proxies]\nport_forward.proxy.cnt = 1\nport_forward.proxy.item0.listen_port = 5201\n\
                 port_forward.proxy.item0.svr_addr_port = 10.0.1.2:5201\n\
                 port_forward.proxy.item0.bats_svr_addr = 10.0.1.2\n\
                 port_forward.proxy.item0.forward_protocol = tcp,udp\n";
    }
    text
}

impl Chain {
    fn new() -> Self {
        let hosts = [0, 1, 2].map(|host| format!("batsd-{}-original-{host}", std::process::id()));
        let chain = Self { hosts, nodes: Vec::new(), folder: tempfile::tempdir().unwrap() };
        for host in &chain.hosts {
            ip(&format!("netns add {host}"));
            ip(&format!("-n {host} link set lo up"));
        }
        for link in 0..2 {
            let [near, far] = [&chain.hosts[link], &chain.hosts[link + 1]];
            ip(&format!("link add right netns {near} type veth peer name left netns {far}"));
            for (host, device, end) in [(near, "right", 1), (far, "left", 2)] {
                ip(&format!("-n {host} addr add 10.0.{link}.{end}/24 dev {device}"));
                ip(&format!("-n {host} link set {device} up"));
            }
        }
        // One key for the network.
        let key = chain.folder.path().join("server.key");
        identity(&key);
        for node in 0..3 {
            let folder = chain.folder.path().join(node.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::copy(&key, folder.join("server.key")).unwrap();
            let file = folder.join("bats-protocol-settings.ini");
            std::fs::write(file, settings(node)).unwrap();
        }
        chain
    }

    /// Starts a node as the original's laboratory does.
    fn start(&mut self, node: usize) {
        let folder = self.folder.path().join(node.to_string());
        let script = format!(
            "mount -t tmpfs none /run && mount -t tmpfs none /etc && mkdir /etc/bats-protocol && \
             mount --bind {} /etc/bats-protocol && \
             exec {} --daemon_enabled=true --api_enabled=true --tun_protocol=BRTP",
            folder.display(),
            env!("CARGO_BIN_EXE_bats_protocol"),
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[node], "unshare", "-m", "sh", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        self.nodes.push(child);
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        assert_eq!(first, "state: started", "the error of bats_protocol is above");
        thread::spawn(move || lines.for_each(drop));
    }

    /// What `bats_cli api main_node` prints at a node, and its exit code.
    fn cli(&self, node: usize) -> (String, Option<i32>) {
        let pid = self.nodes[node].id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-m", "-n", env!("CARGO_BIN_EXE_bats_cli"), "api", "main_node"]);
        let output = run(&mut command);
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    }

    fn namespace(&self, node: usize) -> File {
        File::open(Path::new("/run/netns").join(&self.hosts[node])).unwrap()
    }

    fn on<T: Send + 'static>(&self, node: usize, call: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = self.namespace(node);
        let enters = move || {
            let fd = std::os::fd::AsFd::as_fd(&namespace);
            rustix::thread::move_into_link_name_space(fd, None).unwrap();
            call()
        };
        thread::spawn(enters).join().unwrap()
    }
}

#[test]
fn files_and_flags_of_the_original_start_a_chain_with_tun_and_routes() {
    need!();
    let mut chain = Chain::new();
    for node in 0..3 {
        chain.start(node);
        assert_eq!(chain.cli(node), ("state: started\n".to_owned(), Some(0)));
    }
    let end = Instant::now() + Duration::from_secs(30);
    for (from, to) in [(0, "1.0.0.3"), (2, "1.0.0.1"), (1, "1.0.0.3"), (0, "1.0.0.2")] {
        while Ping::new(to).count(chain.namespace(from)) == 0 {
            assert!(Instant::now() < end, "no ping from node {from} to {to}");
        }
    }
    let routes =
        chain.on(0, || run(Command::new("ip").args(["route", "show", "dev", "tun_session"])));
    let routes = String::from_utf8(routes.stdout).unwrap();
    assert!(routes.contains("1.0.0.2") && routes.contains("1.0.0.3"), "{routes}");
    // A forwarded port: the server has an address of the far node.
    let server = chain.on(2, || TcpListener::bind("10.0.1.2:5201").unwrap());
    let mut program = chain.on(0, || TcpStream::connect("127.0.0.1:5201").unwrap());
    program.write_all(b"through two links").unwrap();
    program.shutdown(std::net::Shutdown::Write).unwrap();
    let (mut connection, _) = server.accept().unwrap();
    let mut text = String::new();
    connection.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through two links");
    let output = run(Command::new(env!("CARGO_BIN_EXE_bats_cli")).arg("api"));
    assert_eq!(output.status.code(), Some(2));
    // A node whose daemon was killed is not ready: its socket is left.
    let mut sleeper = Command::new("nsenter");
    sleeper.args(["-t", &chain.nodes[2].id().to_string(), "-m", "-n", "sleep", "1000"]);
    let sleeper = sleeper.spawn().unwrap();
    thread::sleep(Duration::from_millis(300));
    let mut daemon = std::mem::replace(&mut chain.nodes[2], sleeper);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(chain.cli(2), ("state: not started\n".to_owned(), Some(1)));
}
