//! Two links to one address, each over an interface of its own, which disappears and returns.

use serde_json::Value;

use crate::daemon::{Daemon, identity};
use crate::mesh::{Mesh, START, id, wait_for};

/// What the test needs of an IP family.
struct Family {
    option: &'static str,
    /// The address of host 1 that both interfaces of host 0 reach.
    remote: &'static str,
    /// The network of pair 0 or 1.
    network: fn(usize) -> String,
}

const IPV4: Family =
    Family { option: "-4", remote: "10.9.9.9", network: |pair| format!("10.1.{pair}.") };
const IPV6: Family =
    Family { option: "-6", remote: "fd99::9", network: |pair| format!("fd0{pair}::") };

/// Counters of interface 0 or 1 of host 0 and of the link that is bound to it, sent and received.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    interface: [u64; 2],
    link: [u64; 2],
    packets: [u64; 2],
}

struct TwoUplinks {
    mesh: Mesh,
    family: Family,
}

impl TwoUplinks {
    /// Starts the nodes without the second interface. Host 0 prefers the first one.
    fn start(family: Family) -> Self {
        let mut mesh = Mesh::new(2, &[(0, 1), (0, 1)]);
        mesh.must(1, &format!("ip addr add {}/{} dev lo", family.remote, family.bits()));
        let path = |host: usize, what: &str| mesh.folder.path().join(format!("{host}.{what}"));
        let prints = [0, 1].map(|host| identity(&path(host, "pem")));
        let daemons = [0, 1].map(|host| {
            std::fs::write(path(host, "toml"), config(&mesh, host, &family, &prints)).unwrap();
            let program = [env!("CARGO_BIN_EXE_batsd")];
            (mesh.command(host), path(host, "toml"), program)
        });
        let uplinks = |mesh| Self { mesh, family };
        mesh.must(0, "ip link del v1");
        for (command, path, program) in daemons {
            mesh.daemons.push(Daemon::start_by(command, path, &program));
        }
        let uplinks = uplinks(mesh);
        uplinks.configure(0);
        uplinks
    }

    /// Gives the interfaces of a pair their addresses and host 0 its route.
    fn configure(&self, pair: usize) {
        let Family { option, remote, network } = &self.family;
        let network = network(pair);
        if *option == "-6" {
            for host in 0..2 {
                let address = format!("{network}{}/64", host + 1);
                self.mesh.must(host, &format!("ip -6 addr add {address} dev v{pair} nodad"));
            }
        }
        let via = format!("via {network}2 dev v{pair} metric {}", 100 + pair);
        self.mesh.must(0, &format!("ip {option} route add {remote} {via}"));
    }

    fn make_second(&self) {
        self.mesh.connect(1);
        self.configure(1);
    }

    fn link(&self, name: &str) -> Value {
        let links = self.mesh.daemons[0].ctl("links").unwrap();
        let links = links["links"].as_array().unwrap();
        links.iter().find(|link| link["name"] == name).cloned().unwrap_or_default()
    }

    fn wait_for_state(&self, name: &str, state: &str, last_end: &str) {
        wait_for(&format!("link {name} is {state}: {last_end}"), START, || {
            let link = self.link(name);
            link["state"] == state
                && link["last_end"].as_str().unwrap_or_default().contains(last_end)
        });
    }

    /// Both links are up, and traffic may use them.
    fn wait_for_both(&self) {
        self.wait_for_state("first", "up", "");
        self.wait_for_state("second", "up", "");
        self.mesh.wait_for_links(0, 1, &["first", "second"]);
        wait_for("a session", START, || {
            self.mesh.daemons[0].ctl("peers").unwrap()["peers"][0]["stream"] == "open"
        });
    }

    fn bytes(&self, index: usize) -> Bytes {
        let counter = |direction: &str| {
            let file = format!("cat /sys/class/net/v{index}/statistics/{direction}_bytes");
            let output = self.mesh.on(0, &file);
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        let link = self.link(["first", "second"][index]);
        let traffic = |key: &str| {
            ["sent", "received"]
                .map(|way| link["traffic"][format!("{key}_{way}")].as_u64().unwrap())
        };
        Bytes {
            interface: ["tx", "rx"].map(counter),
            link: traffic("bytes"),
            packets: traffic("packets"),
        }
    }

    fn speedtest(&self) {
        let test = format!("speedtest {} -s 1 --direction out", id(1));
        let output = self.mesh.daemons[0].ctl(&test).unwrap();
        eprintln!("{output}");
    }

    /// Sends for a second. Each link has bytes, and each interface those of its link and no others.
    fn check_traffic(&self) {
        let before = [0, 1].map(|index| self.bytes(index));
        self.speedtest();
        for index in [0, 1] {
            let (old, new) = (before[index], self.bytes(index));
            for way in [0, 1] {
                let more = |of: fn(&Bytes) -> [u64; 2]| of(&new)[way] - of(&old)[way];
                let interface = more(|bytes| bytes.interface);
                let (link, packets) = (more(|bytes| bytes.link), more(|bytes| bytes.packets));
                eprintln!(
                    "v{index}, {}: {interface} bytes, {link} of its link in {packets} packets",
                    ["sent", "received"][way]
                );
                assert!(link > 100_000 || way == 1 && packets > 100, "the link is used");
                // Keep-alives and acknowledgements between the two looks, resolutions of addresses.
                let slack = 20_000;
                // Headers of Ethernet, IPv6 and UDP.
                let most = link + 62 * packets + slack;
                assert!((link..=most + slack).contains(&(interface + slack)), "{index} {way}");
            }
        }
    }
}

impl Family {
    fn bits(&self) -> u8 {
        if self.option == "-4" { 32 } else { 128 }
    }

    fn port(&self) -> String {
        if self.option == "-4" {
            format!("{}:4900", self.remote)
        } else {
            format!("[{}]:4900", self.remote)
        }
    }
}

fn config(mesh: &Mesh, host: usize, family: &Family, prints: &[String; 2]) -> String {
    let (own, far) = (host + 1, 2 - host);
    let folder = mesh.folder.path().display();
    let mut text = format!(
        "[node]\nid = \"{}\"\nidentity = \"{folder}/{host}.pem\"\ncontrol = \"{folder}/{host}.sock\"\n\
         [tun]\naddress = [\"10.66.0.{own}/24\"]\n\
         [[peer]]\nid = \"{}\"\nfingerprint = \"{print}\"\nprefixes = [\"10.66.0.{far}\"]\n\
         speedtest = true\n",
        id(host),
        id(1 - host),
        print = prints[1 - host],
    );
    if host == 0 {
        for (name, interface) in [("first", "v0"), ("second", "v1")] {
            text += &format!(
                "[[link]]\nname = \"{name}\"\nremote = \"{}\"\ninterface = \"{interface}\"\n\
                 fingerprint = \"{}\"\n",
                family.port(),
                prints[1],
            );
        }
        text += &format!(
            "[routes]\nstatic = [{{ to = \"{}\", via = [\"first\", \"second\"] }}]\n",
            id(1)
        );
    }
    text
}

/// Interfaces that are not there yet, are removed, and return with another index.
fn links_keep_to_their_interfaces(family: Family) {
    let uplinks = TwoUplinks::start(family);
    let mesh = &uplinks.mesh;
    uplinks.wait_for_state("first", "up", "");
    uplinks.wait_for_state("second", "waiting", "there is no interface v1");
    assert_eq!(uplinks.link("second")["interface"], "v1");
    mesh.wait_for_ping(0, 1);
    uplinks.make_second();
    uplinks.wait_for_both();
    uplinks.check_traffic();

    mesh.must(0, "ip link del v1");
    uplinks.wait_for_state("second", "silent", "");
    uplinks.speedtest();
    uplinks.wait_for_state("second", "waiting", "there is no interface v1");
    assert_eq!(uplinks.link("first")["state"], "up");
    uplinks.make_second();
    uplinks.wait_for_both();
    uplinks.check_traffic();

    // Down is not gone: the link resumes, too.
    mesh.must(0, "ip link set v1 down");
    uplinks.wait_for_state("second", "silent", "");
    mesh.must(0, "ip link set v1 up");
    if uplinks.family.option == "-6" {
        // The kernel has removed the address.
        mesh.must(0, "ip -6 addr add fd01::1/64 dev v1 nodad");
    }
    let Family { option, remote, network } = &uplinks.family;
    mesh.must(0, &format!("ip {option} route add {remote} via {}2 dev v1 metric 101", network(1)));
    uplinks.wait_for_both();
    uplinks.check_traffic();
}

#[test]
fn links_keep_to_their_interfaces_with_ipv4() {
    need!();
    links_keep_to_their_interfaces(IPV4);
}

#[test]
fn links_keep_to_their_interfaces_with_ipv6() {
    need!();
    links_keep_to_their_interfaces(IPV6);
}

#[test]
fn reloads_and_changes_at_run_time_move_links_between_interfaces() {
    need!();
    let uplinks = TwoUplinks::start(IPV4);
    let daemon = &uplinks.mesh.daemons[0];
    uplinks.make_second();
    uplinks.wait_for_both();
    let text = std::fs::read_to_string(&daemon.config).unwrap();
    let reload = |text: String| {
        std::fs::write(&daemon.config, text).unwrap();
        daemon.ctl("reload").unwrap();
    };
    reload(text.replace("v1", "v9"));
    uplinks.wait_for_state("second", "waiting", "there is no interface v9");
    reload(text.clone());
    uplinks.wait_for_both();

    daemon.ctl("link del second").unwrap();
    let print = uplinks.link("first")["fingerprint"].as_str().unwrap().to_owned();
    let add = format!("link add second --remote 10.9.9.9:4900 --fingerprint {print} --interface");
    assert!(daemon.ctl(&format!("{add} v/1")).unwrap_err().contains("no name of an interface"));
    daemon.ctl(&format!("{add} v1")).unwrap();
    daemon.ctl(&format!("route add {} second", id(1))).unwrap();
    uplinks.wait_for_both();
    uplinks.check_traffic();

    // The kernel's route to the node says which interface is used.
    let kernel = text.split_once("static = ").unwrap().0.to_owned() + "source = [\"kernel\"]\n";
    let route = |interface: &str| {
        uplinks.mesh.must(0, &format!("ip route replace {}/32 dev {interface}", id(1)));
    };
    route("v1");
    reload(kernel);
    uplinks.mesh.wait_for_links(0, 1, &["second"]);
    route("v0");
    uplinks.mesh.wait_for_links(0, 1, &["first"]);
}
