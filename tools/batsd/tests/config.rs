//! The configuration: valid files, the text of each error, and the files of new nodes.

use std::path::Path;
use std::process::Command;

use batsd::config::{Config, Known, TunMode};

const PRINT: &str = "sha256:0101010101010101010101010101010101010101010101010101010101010101";

fn nine_lines() -> String {
    format!(
        r#"[node]
id = "10.255.0.1"
[tun]
address = ["10.66.0.1/24", "fd66::1/64"]
[[peer]]
id = "10.255.0.2"
fingerprint = "{PRINT}"
remote = "192.0.2.7:4900"
prefixes = ["10.66.0.2", "fd66::2"]
"#
    )
}

fn error_of(text: &str) -> String {
    Config::parse(Path::new("node.toml"), text).unwrap_err().to_string()
}

#[test]
fn nine_lines_are_a_tunnel() {
    let text = nine_lines();
    assert_eq!(text.lines().count(), 9);
    let config = Config::parse(Path::new("node.toml"), &text).unwrap();
    let tun = config.tun.unwrap();
    assert_eq!((tun.name.as_str(), tun.mtu, tun.mode), ("bats0", 1_500, TunMode::Auto));
    assert_eq!(config.listen, ["[::]:4900".parse().unwrap()]);
    assert_eq!((config.plan.links.len(), config.plan.routes.len()), (1, 1));
}

#[test]
fn links_limit_the_rate_of_a_neighbour() {
    let print = [1; 32];
    let rate_of = |rate: &str| {
        let link = format!(
            "[[link]]\nname = \"north\"\nfingerprint = \"{PRINT}\"\ntransit = true\nrate = \"{rate}\"\n"
        );
        let text = nine_lines().replace("[node]", "[node]\nrelay = true") + &link;
        let config = Config::parse(Path::new("node.toml"), &text).unwrap();
        config.plan.neighbours[&print].rate.unwrap().get()
    };
    assert_eq!(rate_of("20 Mbit/s"), 20_000_000);
    assert_eq!(rate_of("1.5Gbit/s"), 1_500_000_000);
    assert_eq!(rate_of("64 kbit/s"), 64_000);
    assert_eq!(rate_of("9 bit/s"), 9);
}

/// A node with a link of these lines.
fn with_link(lines: &str) -> String {
    let link = "[[link]]\nname = \"up\"\n";
    format!("{}{link}fingerprint = \"{PRINT}\"\n{lines}\n", nine_lines())
}

#[test]
fn links_are_bound_to_interfaces() {
    for (remote, interface) in [
        ("192.0.2.7:4900", "eth1"),
        ("[2001:db8::7]:4900", "br-lan.7@x"),
        ("node.example.org:4900", "0123456789abcde"),
        ("[fe80::7%wwan0]:4900", "wwan0"),
    ] {
        let text = with_link(&format!("remote = \"{remote}\"\ninterface = \"{interface}\""));
        let plan = Config::parse(Path::new("node.toml"), &text).unwrap().plan;
        let link = plan.links.get("up").map(|link| link.interface.clone());
        let host = plan.hosts.get("up").map(|host| host.interface.clone());
        assert_eq!(link.or(host), Some(Some(interface.to_owned())), "{remote}");
        assert_eq!(plan.links["peer-10.255.0.2"].interface, None);
        // The link to a peer, too.
        let text = peer_with(&format!("remote = \"{remote}\"\ninterface = \"{interface}\""));
        let plan = Config::parse(Path::new("node.toml"), &text).unwrap().plan;
        let link = plan.links.get("peer-10.255.0.2").map(|link| link.interface.clone());
        let host = plan.hosts.get("peer-10.255.0.2").map(|host| host.interface.clone());
        assert_eq!(link.or(host), Some(Some(interface.to_owned())), "{remote}");
    }
}

/// A node whose peer has these lines in place of its address.
fn peer_with(lines: &str) -> String {
    nine_lines().replace("remote = \"192.0.2.7:4900\"", lines)
}

#[test]
fn errors_name_line_key_and_advice() {
    let good = nine_lines();
    let bound = |remote: &str, interface: &str| {
        with_link(&format!("remote = \"{remote}\"\ninterface = \"{interface}\""))
    };
    let limited = |rate: &str, transit: bool| {
        let transit = format!("transit = {transit}\nrate = \"{rate}\"");
        let link = format!("[[link]]\nname = \"north\"\nfingerprint = \"{PRINT}\"\n{transit}\n");
        good.replace("[node]", "[node]\nrelay = true") + &link
    };
    let relay = format!(
        "{good}[[link]]\nname = \"north\"\nfingerprint = \"{PRINT}\"\n[routes]\n\
         static = [{{ to = \"10.255.0.9\", via = [\"nord\"] }}]\n"
    );
    let service = |lines: &str| format!("{good}{lines}\n");
    let forward = "[[forward]]\nlisten = \"127.0.0.1:22\"\nexit = \"10.255.0.2\"\nto = \"a:22\"\n";
    let cases = [
        (limited("20 Mbit", true), "node.toml:15: ", "\"20 Mbit/s\""),
        (limited("0 bit/s", true), "node.toml:15: ", "no rate above 0"),
        (limited("-1 kbit/s", true), "node.toml:15: ", "no rate above 0"),
        (limited("1 kbit/s", false), "node.toml:15: ", "needs transit = true"),
        (bound("192.0.2.7:1", ""), "node.toml:14: ", "no name of an interface"),
        (bound("192.0.2.7:1", "eth 1"), "node.toml:14: ", "no name of an interface"),
        (bound("192.0.2.7:1", "a/b"), "node.toml:14: ", "no name of an interface"),
        (bound("192.0.2.7:1", "0123456789abcdef"), "node.toml:14: ", "1 to 15 characters"),
        (bound("[fe80::7%eth0]:1", "eth1"), "node.toml:14: ", "of the interface eth0"),
        (with_link("interface = \"eth1\""), "node.toml:11: ", "interface has a meaning only"),
        (peer_with("interface = \"eth1\""), "node.toml:8: ", "interface has a meaning only"),
        (
            peer_with("remote = \"192.0.2.7:1\"\ninterface = \"a/b\""),
            "node.toml:9: ",
            "no name of an interface",
        ),
        (with_link("interfaces = \"eth1\""), "node.toml:13: ", "did you mean `interface`?"),
        (
            bound("a.example:1", "eth1\"\nlocal = \"2001:db8::1"),
            "node.toml:14: ",
            "leave `local` out",
        ),
        (
            bound("[2001:db8::7]:1", "eth1")
                .replace("[tun]", "listen = [\"[2001:db8::1]:1\"]\n[tun]"),
            "node.toml:15: ",
            "needs \"[::]:4900\", or another port, in listen",
        ),
        (good.replace("prefixes", "prefixs"), "node.toml:9: ", "did you mean `prefixes`?"),
        (good.replace("[tun]", "[tnu]"), "node.toml:3: ", "did you mean `tun`?"),
        (good.replace("[tun]", &format!("[{}]", "tun".repeat(300_000))), "node.toml:3: ", "expected"),
        (
            good.replace(
                "[tun]",
                &format!("[[link]]\nname = \"peer-10.255.0.2\"\nremote = \"a.example:1\"\nfingerprint = \"{PRINT}\"\n[tun]"),
            ),
            "node.toml:12: ",
            "the name \"peer-10.255.0.2\", which a [[link]] has",
        ),
        (
            good.replace("10.255.0.1", "one"),
            "node.toml:2: ",
            "node IDs are written like router IDs",
        ),
        (good.replace("10.255.0.2", "10.255.0.1"), "node.toml:6: ", "is the ID of this node"),
        (good.replace("sha256:01", "sha256:"), "node.toml:7: ", "`batsd share`"),
        (
            good.replace("192.0.2.7:4900", "192.0.2.7"),
            "node.toml:8: ",
            "an IP address or a host name with a port",
        ),
        (
            good.replace("10.66.0.1/24", "10.66.0.1/33"),
            "node.toml:4: ",
            "the length of its network",
        ),
        (good.replace("[tun]", "[tun]\nmtu = 100"), "node.toml:4: ", "1280 to 65535"),
        (good.replace("[tun]", "[tun]\nmode = \"tcp\""), "node.toml:4: ", "\"brtp\" or \"btp\""),
        (good.replace("[tun]", "[tun]\nname = \"a/b\""), "node.toml:4: ", "no interface name"),
        (good.replace("[node]", "[node]\nlisten = []"), "node.toml: ", "names no address"),
        (good.replace("id = \"10.255.0.2\"\n", ""), "node.toml:5: ", "missing field `id`"),
        (good.replace("10.255.0.2", "224.0.0.5"), "node.toml:6: ", "is the ID of a group"),
        (good.replace("[[peer]]", "[[peer]"), "node.toml:5: ", ""),
        (
            service("[[proxy]]\nlisten = \"0.0.0.0:1080\"\nexit = \"10.255.0.2\""),
            "node.toml:11: ",
            "serve everyone",
        ),
        (
            service("[[proxy]]\nlisten = \"127.0.0.1:1080\"\nexit = \"10.255.0.3\""),
            "node.toml:12: ",
            "no [[peer]]",
        ),
        (service(&forward.repeat(2)), "node.toml:15: ", "two listeners have the address"),
        (service(&forward.replace(":22\"", "\"")), "node.toml:13: ", "needs a port"),
        (service(&format!("{forward}protocol = \"sctp\"")), "node.toml:14: ", "\"tcp\" or \"udp\""),
        (service("[exit]\nallow = [\"*\"]"), "node.toml:11: ", "is not HOST:PORTS"),
        (service("[routes]\nsource = [\"ospf\"]"), "node.toml:11: ", "\"static\" or \"kernel\""),
        (service("[routes]\nsource = []"), "node.toml: ", "names no source"),
        (
            relay.replace("static = ", "source = [\"kernel\"]\nstatic = "),
            "node.toml:15: ",
            "\"static\" is not in source",
        ),
        (relay, "node.toml:14: ", "there is no such link: add a [[link]]"),
    ];
    for (text, place, advice) in cases {
        let error = error_of(&text);
        assert!(error.starts_with(place) && error.contains(advice), "{error}\n{text}");
    }
}

#[test]
fn with_the_kernel_as_a_source_it_alone_gives_the_routes_to_neighbours() {
    for (source, follows, routes) in [
        ("[\"static\"]", false, 1),
        ("[\"kernel\"]", true, 0),
        ("[\"static\", \"kernel\"]", true, 0),
    ] {
        let text = format!("{}[routes]\nsource = {source}\n", nine_lines());
        let config = Config::parse(Path::new("node.toml"), &text).unwrap();
        assert_eq!((config.follows_kernel, config.plan.routes.len()), (follows, routes));
        assert_eq!((config.plan.links.len(), config.plan.neighbours.len()), (1, 1));
    }
}

#[test]
fn no_two_peers_share_a_prefix_or_a_certificate() {
    let good = nine_lines();
    let other = |print: &str, prefix: &str| {
        format!(
            "{good}[[peer]]\nid = \"10.255.0.3\"\nfingerprint = \"{print}\"\nprefixes = [\"{prefix}\"]\n"
        )
    };
    let error = error_of(&other(PRINT, "10.66.0.3"));
    assert!(error.contains("have the same fingerprint"), "{error}");
    let print = PRINT.replace("01", "02");
    let error = error_of(&other(&print, "10.66.0.2"));
    assert!(error.contains("10.66.0.2/32 belongs to both"), "{error}");
    assert!(Config::parse(Path::new("x"), &other(&print, "10.66.0.3")).is_ok());
}

#[test]
fn keygen_and_share_print_configuration_lines_for_the_other_host() {
    let folder = tempfile::tempdir().unwrap();
    let (key, file) = (folder.path().join("node.pem"), folder.path().join("node.toml"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        let output = command.arg("--config").arg(&file).args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    };
    let identity = format!("[node]\nidentity = \"{}\"", key.display());
    std::fs::write(&file, nine_lines().replace("[node]", &identity)).unwrap();
    let (good, _, error) = run(&["check"]);
    assert!(!good && error.contains("batsctl keygen"), "{error}");
    let (good, print, error) = run(&["keygen", key.to_str().unwrap()]);
    assert!(good && print.starts_with("sha256:"), "{error}");
    let (good, _, error) = run(&["keygen", key.to_str().unwrap()]);
    assert!(!good && error.contains("lose its identity"), "{error}");
    let mode = std::os::unix::fs::PermissionsExt::mode(&key.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(run(&["check"]).0);
    let (_, lines, _) = run(&["share", "--address", "198.51.100.4"]);
    let other = format!("[node]\nid = \"10.255.0.2\"\n{lines}");
    let config = Config::parse(Path::new("other.toml"), &other).unwrap();
    let link = config.plan.links.values().next().unwrap();
    assert_eq!(link.remote, "198.51.100.4:4900".parse().unwrap());
    assert!(lines.contains(print.trim()), "{lines}");
    assert!(lines.contains(r#"prefixes = ["10.66.0.1/32", "fd66::1/128"]"#), "{lines}");
    let (_, lines, _) = run(&["share", "--address", "node.example.org"]);
    let other = format!("[node]\nid = \"10.255.0.2\"\n{lines}");
    let config = Config::parse(Path::new("other.toml"), &other).unwrap();
    let link = config.plan.hosts.values().next().unwrap();
    assert_eq!(link.host.to_string(), "node.example.org:4900");
    let (good, _, error) = run(&["share", "--address", "192.0.2"]);
    assert!(!good && error.contains("192.0.2 is not an IP address or a host name"), "{error}");
}

/// The size of a device is not known before it is read.
#[test]
fn files_without_an_end_are_refused() {
    let error = Config::read(Path::new("/dev/zero")).map(drop).unwrap_err().to_string();
    assert!(error.contains("longer than the 1048576 bytes"), "{error}");
}

#[test]
fn peers_listeners_and_rules_are_limited() {
    let peer = |number: usize| {
        let print = format!("{number:064x}");
        format!(
            "[[peer]]\nid = \"10.1.{}.{}\"\nfingerprint = \"{print}\"\n",
            number / 256,
            number % 256
        )
    };
    let forward = |number: usize| {
        let listen = format!("127.0.0.1:{}", 10_000 + number);
        format!("[[forward]]\nlisten = \"{listen}\"\nexit = \"10.255.0.2\"\nto = \"a:22\"\n")
    };
    let with = |lines: &dyn Fn(usize) -> String, count: usize| {
        (0..count).fold(nine_lines(), |text, number| text + &lines(number))
    };
    let rules =
        |count: usize| format!("{}[exit]\nallow = [{}]\n", nine_lines(), "\"*:1\",".repeat(count));
    // One peer is in the nine lines.
    for (most, beyond, problem) in [
        (with(&peer, 1_023), with(&peer, 1_024), "more than 1024 peers"),
        (with(&forward, 64), with(&forward, 65), "more than 64 listeners"),
        (rules(1_024), rules(1_025), "more than 1024 rules"),
    ] {
        Config::parse(Path::new("node.toml"), &most).map(drop).unwrap();
        let error = error_of(&beyond);
        assert!(error.contains(problem), "{error}");
    }
}

/// A node whose neighbours have no fingerprint: one is a relay, the other one a peer with a listener.
const FIRST_USES: &str = r#"[node]
id = "10.255.0.1"
relay = true
[tun]
address = ["10.66.0.1/24"]
[[link]]
name = "north"
remote = "relay.example:4900"
transit = true
[[peer]]
id = "10.255.0.2"
remote = "192.0.2.7:4900"
prefixes = ["10.66.0.2"]
[[peer]]
id = "10.255.0.3"
fingerprint = "0101010101010101010101010101010101010101010101010101010101010101"
[[forward]]
listen = "127.0.0.1:7"
exit = "10.255.0.2"
to = "127.0.0.1:7"
[routes]
static = [{ to = "10.255.0.3", via = ["north"] }]
"#;

#[test]
fn entries_without_a_fingerprint_wait_for_it_with_what_needs_them() {
    let parse = |known: &Known| Config::parse_with(Path::new("x"), FIRST_USES, known).unwrap();
    let config = parse(&Known::new());
    let names: Vec<_> =
        config.first_use.iter().map(|entry| (entry.name(), entry.is_known)).collect();
    let expected = [("relay.example:4900", false), ("192.0.2.7:4900", false)];
    assert_eq!(names, expected.map(|(name, known)| (name.to_owned(), known)));
    let plan = &config.plan;
    assert_eq!((plan.links.len(), plan.hosts.len(), plan.neighbours.len()), (0, 0, 0));
    assert_eq!((plan.peers.len(), plan.routes.len(), config.listeners.len()), (1, 0, 0));

    let mut known = Known::from([("192.0.2.7:4900".to_owned(), [2; 32])]);
    let config = parse(&known);
    assert_eq!(config.first_use.iter().filter(|entry| entry.is_known).count(), 1);
    let plan = &config.plan;
    assert_eq!((plan.links.len(), plan.hosts.len(), plan.neighbours.len()), (1, 0, 1));
    assert_eq!((plan.peers.len(), plan.routes.len(), config.listeners.len()), (2, 1, 1));

    known.insert("relay.example:4900".to_owned(), [3; 32]);
    let config = parse(&known);
    let plan = &config.plan;
    assert_eq!(plan.hosts["north"].fingerprint, [3; 32]);
    assert_eq!(plan.links["peer-10.255.0.2"].fingerprint, [2; 32]);
    assert!(plan.neighbours[&[3; 32]].transit && !plan.neighbours[&[2; 32]].transit);
    assert_eq!((plan.peers.len(), plan.routes.len(), config.listeners.len()), (2, 2, 1));
}

#[test]
fn what_waits_for_a_fingerprint_is_checked_before() {
    for (from, to, error) in [
        (
            "remote = \"192.0.2.7:4900\"\n",
            "",
            "10.255.0.2 has no fingerprint: only a neighbour with remote",
        ),
        (
            "remote = \"relay.example:4900\"\n",
            "",
            "north has no fingerprint: only a neighbour with remote",
        ),
        ("192.0.2.7:4900", "192.0.2.300:4900", "x:12: remote = \"192.0.2.300:4900\" is not"),
        ("10.66.0.2", "10.66.0", "x:13: prefixes = \"10.66.0\" is not an address"),
        (
            "to = \"127.0.0.1:7\"",
            "to = \"127.0.0.1\"",
            "x:20: to = \"127.0.0.1\" is no destination",
        ),
        ("exit = \"10.255.0.2\"", "exit = \"10.255.0.9\"", "is no [[peer]]"),
        ("relay = true\n", "", "transit = true needs relay = true"),
        ("\"north\"]", "\"south\"]", "south"),
    ] {
        let text = FIRST_USES.replacen(from, to, 1);
        assert_ne!(text, FIRST_USES);
        let found = Config::parse(Path::new("x"), &text).map(drop).unwrap_err().to_string();
        assert!(found.contains(error), "{from} -> {to}: {found}");
    }
}
