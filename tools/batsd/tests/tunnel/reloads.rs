//! Reloads of changing files under traffic. With `OPENBATS_TEST_LONG=1` there are 1,000.

use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Tunnel;
use crate::mesh::wait_for;
use crate::processes::Usage;
use crate::traffic::{Times, Traffic, is_long};

const LIMIT: Duration = Duration::from_secs(30);

/// What a file has in addition to the peer.
#[derive(Debug, Default)]
struct Extra {
    text: String,
    peers: u64,
    links: u64,
    prefixes: u64,
    /// Local addresses of listeners of TCP.
    tcp: Vec<u64>,
}

/// A file that follows from a number. The remote addresses lead to no host.
fn extra(number: u64) -> Extra {
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8;
    let mut below = |limit: u64| {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let mut extra = Extra { peers: below(6), ..Extra::default() };
    for peer in 0..extra.peers {
        let fingerprint = format!("{:064x}", 1_000 + peer);
        let _ = write!(
            extra.text,
            "[[peer]]\nid = \"10.255.1.{peer}\"\nfingerprint = \"{fingerprint}\"\n"
        );
        let prefixes = below(4);
        let nets: Vec<_> =
            (0..prefixes).map(|net| format!("\"10.77.{peer}.{}/30\"", 4 * net)).collect();
        let _ = writeln!(extra.text, "prefixes = [{}]", nets.join(", "));
        extra.prefixes += prefixes;
        if below(2) == 1 {
            let _ = writeln!(extra.text, "remote = \"192.0.2.{}:4900\"", 50 + peer);
            extra.links += 1;
        }
    }
    let links = below(4);
    extra.links += links;
    for link in 0..links {
        let remote = format!("192.0.2.{}:4900", 100 + 10 * link + below(2));
        let interface = if below(3) == 0 { "interface = \"wan\"\n" } else { "" };
        let _ = write!(
            extra.text,
            "[[link]]\nname = \"extra{link}\"\nremote = \"{remote}\"\n{interface}fingerprint = \"{:064x}\"\n",
            2_000 + link
        );
    }
    for listener in 0..4 {
        match below(4) {
            0 => {
                let _ = write!(
                    extra.text,
                    "[[proxy]]\nlisten = \"127.0.0.1:{}\"\nexit = \"10.255.0.2\"\n",
                    3_000 + listener
                );
                extra.tcp.push(3_000 + listener);
            }
            kind @ 1..3 => {
                let protocol = if kind == 1 { "tcp" } else { "udp" };
                let _ = write!(
                    extra.text,
                    "[[forward]]\nlisten = \"127.0.0.1:{}\"\nprotocol = \"{protocol}\"\nexit = \"10.255.0.2\"\n\
                     to = \"127.0.0.1:{}\"\n",
                    3_000 + listener,
                    9_000 + below(3)
                );
                if kind == 1 {
                    extra.tcp.push(3_000 + listener);
                }
            }
            _ => {}
        }
    }
    let mut routes = String::new();
    for route in 0..links.min(below(3)) {
        let _ = write!(routes, "{{ to = \"10.255.2.{route}\", via = [\"extra{route}\"] }}, ");
        let _ = write!(
            extra.text,
            "[[peer]]\nid = \"10.255.2.{route}\"\nfingerprint = \"{:064x}\"\n",
            3_000 + route
        );
        extra.peers += 1;
    }
    // Later tables belong to the last array otherwise.
    let _ = write!(extra.text, "[routes]\nstatic = [{routes}]\n");
    extra
}

/// A file that is wrong, and words of the error.
fn wrong(number: u64, text: &str) -> (String, &'static str) {
    match number % 5 {
        0 => (text.replace("prefixes", "prefixs"), "did you mean"),
        1 => (text.replace("id = \"10.255.0.1\"", "id = \"10.255.0.5\""), "only by a restart"),
        2 => (format!("{text}[[forward"), "unclosed"),
        // A program of the test listens there; all that comes before must not be applied.
        3 => (
            format!(
                "{text}[[peer]]\nid = \"10.255.3.1\"\nfingerprint = \"{:064x}\"\nprefixes = [\"10.78.0.0/24\"]\n\
                 [[forward]]\nlisten = \"127.0.0.1:3999\"\nexit = \"10.255.0.2\"\nto = \"127.0.0.1:9000\"\n",
                9
            ),
            "cannot listen",
        ),
        _ => (text.replace("10.66.0.2\"", "10.66.0.2/99\""), ""),
    }
}

#[test]
fn descriptors_and_memory_stay_flat_over_reloads() {
    need!();
    let exit = "\n[exit]\nallow = [\"127.0.0.1:9000-9002\"]\n";
    let tunnel = Tunnel::start_with(0.0, ["", exit]);
    let daemon = &tunnel.daemons[0];
    let base = std::fs::read_to_string(&daemon.config).unwrap();
    let socket = tunnel.folder.path().join("0.sock");
    let reload = || batsd::control::call(&socket, "Reload").map_err(|error| error.to_string());
    let namespace = tunnel.wan.namespace(0);
    let busy = move || std::net::TcpListener::bind("127.0.0.1:3999").unwrap();
    let _busy = crate::traffic::enter(namespace, busy).join().unwrap();
    let hosts = || (tunnel.wan.namespace(0), tunnel.wan.namespace(1));
    let ((a, b), (c, d)) = (hosts(), hosts());
    let datagrams = Traffic::echoed(a, b, "10.66.0.2:7000");
    let stream = Traffic::stream(c, d, "10.66.0.2:7001");
    let worker = daemon.worker().unwrap();
    let pids = [worker.as_raw_nonzero().get().unsigned_abs(), daemon.child.id()];
    let list = |method: &str, key: &str| {
        let answer = batsd::control::call(&socket, method).unwrap();
        answer[key].as_array().unwrap().len() as u64
    };
    // What has to be closed has been closed some seconds after the file is that of the start.
    let usage = |what: &str| {
        std::fs::write(&daemon.config, &base).unwrap();
        reload().unwrap();
        sleep(Duration::from_secs(if is_long() { 12 } else { 3 }));
        let usage = pids.map(Usage::of);
        eprintln!("{what}: worker {:?}, keeper {:?}", usage[0], usage[1]);
        usage
    };
    let count: u64 = if is_long() { 1_000 } else { 50 };
    let mut times = Times::default();
    let mut begin = None;
    let mut applied = Extra::default();
    let mut refused = 0;
    for number in 0..count {
        if number == count / 10 {
            begin = Some(usage("after a tenth of the reloads"));
            applied = Extra::default();
        } else if number == count / 2 {
            usage("after half of the reloads");
            applied = Extra::default();
        }
        let next = extra(number);
        let text = format!("{base}{}", next.text);
        let (text, words) = match number % 10 {
            9 => wrong(number / 10, &text),
            _ => (text, ""),
        };
        std::fs::write(&daemon.config, text).unwrap();
        let start = Instant::now();
        match (reload(), number % 10) {
            (Ok(_), 0..9) => {
                times.add(start.elapsed());
                applied = next;
            }
            (Err(error), 9) => {
                assert!(error.contains(words), "reload {number}: {error}");
                refused += 1;
            }
            (result, _) => panic!("reload {number}: {result:?}\n{}", next.text),
        }
        // The file, or after a wrong one that before it, is what the node does.
        assert_eq!(list("Peers", "peers"), 1 + applied.peers, "reload {number}");
        let routes = tunnel.text(0, "ip route show proto 98");
        assert_eq!(
            routes.lines().count() as u64,
            1 + applied.prefixes,
            "reload {number}: {routes}"
        );
        wait_for(&format!("reload {number}: links"), LIMIT, || {
            list("Links", "links") == 1 + applied.links
        });
        let listeners = tunnel.text(0, "ss -Hltn sport >= 3000 and sport < 3900");
        for port in &applied.tcp {
            assert!(
                listeners.contains(&format!(":{port} ")),
                "reload {number}: {port}: {listeners}"
            );
        }
        assert_eq!(listeners.lines().count(), applied.tcp.len(), "reload {number}: {listeners}");
    }
    let end = usage("after all reloads");
    eprintln!("{count} reloads, {refused} refused; of the others {}", times.summary());
    for (now, before) in end.iter().zip(begin.unwrap()) {
        now.assert_flat(&before);
    }
    assert_eq!(daemon.worker(), Some(worker), "the worker goes on");
    let (datagrams, stream) = (datagrams.end(Duration::from_secs(1)), stream.end(LIMIT));
    eprintln!("datagrams: {}\nTCP: {}", datagrams.summary(), stream.summary());
    let nothing = "0 missing, 0 duplicates, 0 reordered, 0 broken connections";
    assert_eq!(stream.summary().split_once(" sent, ").unwrap().1, nothing);
}
