//! Nodes follow routing daemons: babeld, BIRD (Babel) and FRR (OSPF) write the routes to the nodes' IDs.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::kernel_routes::TRIANGLE;
use crate::mesh::{Mesh, address, id};
use crate::skip::skipped;
use crate::wan::run;

/// Processes on hosts; they are killed when this is dropped.
pub(crate) struct Programs(Vec<Child>);

impl Programs {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// Starts a program on a host. `ip netns exec` becomes that program.
    pub(crate) fn start(&mut self, mesh: &Mesh, host: usize, command: &str) {
        let mut process = mesh.command(host);
        process.args(command.split_whitespace()).stdin(Stdio::null());
        self.0.push(process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Prints which program is missing, and returns whether one is.
pub(crate) fn lacks(programs: &[&str]) -> bool {
    let is_missing = |program: &&&str| {
        let look = format!("command -v {program}");
        !run(Command::new("sh").args(["-c", &look])).status.success()
    };
    let missing = programs.iter().find(is_missing);
    if let Some(program) = missing {
        skipped("routing daemons", &format!("{program} is not installed"));
    }
    missing.is_some()
}

/// The interfaces of a host of the triangle.
fn interfaces(host: usize) -> impl Iterator<Item = String> {
    let pairs = TRIANGLE.iter().enumerate();
    let own = pairs.filter(move |(_, pair)| pair.0 == host || pair.1 == host);
    own.map(|(pair, _)| format!("v{pair}"))
}

fn write(mesh: &Mesh, name: &str, text: &str) -> PathBuf {
    let path = mesh.folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Starts the nodes; when the routing daemons have found the direct routes, cuts a link, and heals it.
fn follow(daemon: &str, mut mesh: Mesh) {
    mesh.start_nodes(|_, _, _| String::new());
    mesh.wait_for_links(0, 2, &["v1"]);
    mesh.wait_for_links(2, 0, &[&address(1, 0)]);
    mesh.wait_for_ping(0, 2);
    mesh.moves(&format!("{daemon}, link cut"), (0, 2), &address(0, 1), "v0", || {
        mesh.must(0, "ip link set v1 down");
    });
    mesh.wait_for_links(2, 0, &[&address(2, 1)]);
    // Then the link has to be established again.
    mesh.must(0, "ip link set v1 up");
    let time = mesh.wait_for_links(0, 2, &["v1"]);
    mesh.wait_for_links(2, 0, &[&address(1, 0)]);
    mesh.wait_for_ping(0, 2);
    eprintln!("{daemon}: the link that is back is used after {:.1} s", time.as_secs_f64());
}

#[test]
fn nodes_follow_babeld() {
    need!();
    if lacks(&["babeld"]) {
        return;
    }
    let mesh = Mesh::new(3, &TRIANGLE);
    let mut programs = Programs::new();
    for host in 0..3 {
        let text = "default type wired\ndefault hello-interval 1\ndefault update-interval 4\n\
                    redistribute local ip 10.255.0.0/24 allow\nredistribute local deny\nredistribute deny\n";
        let config = write(&mesh, &format!("{host}.babeld"), text);
        let config = config.display();
        let interfaces: Vec<String> = interfaces(host).collect();
        let interfaces = interfaces.join(" ");
        let command = format!("babeld -c {config} -I {config}.pid -S {config}.state {interfaces}");
        programs.start(&mesh, host, &command);
    }
    follow("babeld", mesh);
}

#[test]
fn nodes_follow_bird() {
    need!();
    if lacks(&["bird"]) {
        return;
    }
    let mesh = Mesh::new(3, &TRIANGLE);
    let mut programs = Programs::new();
    for host in 0..3 {
        let text = format!(
            "router id {};\nprotocol device {{ scan time 1; }}\n\
             protocol direct {{ ipv4; interface \"lo\"; }}\n\
             protocol kernel {{ ipv4 {{ import none; export where source = RTS_BABEL; }}; }}\n\
             protocol babel {{ ipv4 {{ import all; export all; }};\n\
             interface \"v*\" {{ type wired; hello interval 1 s; update interval 2 s; }}; }}\n",
            id(host)
        );
        let config = write(&mesh, &format!("{host}.bird"), &text);
        let config = config.display();
        let command = format!("bird -f -c {config} -s {config}.ctl -P {config}.pid");
        programs.start(&mesh, host, &command);
    }
    follow("BIRD (Babel)", mesh);
}

#[test]
fn nodes_follow_ospf_of_frr() {
    need!();
    if lacks(&["/usr/lib/frr/zebra", "/usr/lib/frr/ospfd"]) {
        return;
    }
    let mesh = Mesh::new(3, &TRIANGLE);
    let mut programs = Programs::new();
    // Its daemons give up root, and need their folder.
    let folder = mesh.folder.path().display().to_string();
    mesh.must(0, &format!("chmod 755 {folder}"));
    for host in 0..3 {
        let own = format!("{folder}/frr{host}");
        mesh.must(host, &format!("install -d -o frr -g frr {own}"));
        write(&mesh, &format!("frr{host}/zebra.conf"), "");
        let mut text = String::new();
        for interface in interfaces(host) {
            text += &format!(
                "interface {interface}\n ip ospf network point-to-point\n \
                 ip ospf hello-interval 1\n ip ospf dead-interval 4\n"
            );
        }
        text += &format!(
            "router ospf\n ospf router-id {}\n network 10.1.0.0/16 area 0\n \
             network 10.255.0.0/24 area 0\n timers throttle spf 10 100 1000\n",
            id(host)
        );
        write(&mesh, &format!("frr{host}/ospfd.conf"), &text);
        for daemon in ["zebra", "ospfd"] {
            let command = format!(
                "/usr/lib/frr/{daemon} -f {own}/{daemon}.conf -i {own}/{daemon}.pid -z {own}/zserv \
                 --vty_socket {own} -P 0"
            );
            programs.start(&mesh, host, &command);
            let socket = mesh.folder.path().join(format!("frr{host}/zserv"));
            crate::mesh::wait_for("the socket of zebra", crate::mesh::START, || socket.exists());
        }
    }
    follow("FRR (OSPF)", mesh);
}
