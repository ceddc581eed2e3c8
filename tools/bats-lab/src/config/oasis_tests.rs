//! Files in the format of Oasis, written for this test, with each feature of that format.

use std::path::{Path, PathBuf};

use super::load::suite;
use crate::config::model::PacketType;
use crate::plan::{Protocol, ProtocolKind, Suite, ToolKind};
use crate::settings::Loss;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oasis")
}

fn load(name: &str) -> Suite {
    let path = folder().join(name);
    suite(path.to_str().unwrap(), None).unwrap_or_else(|error| panic!("{error:#}"))
}

fn protocol<'a>(suite: &'a Suite, name: &str) -> &'a Protocol {
    let all = &suite.cases[0].protocols;
    all.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn sibling_keys_are_attributes_and_steps_multiply() {
    let suite = load("array-steps.yaml");
    let networks = &suite.cases[0].networks;
    assert_eq!(networks.len(), 3 * 4);
    let at =
        |index: usize| (networks[index].loss_percent.unwrap(), networks[index].delay_ms.unwrap());
    assert_eq!(
        (at(0), at(3), at(4), at(11)),
        ((0.0, 10.0), (0.0, 70.0), (5.0, 10.0), (10.0, 70.0))
    );
    let link = &networks[0].links[0];
    assert_eq!((link.forward.rate, link.backward.rate), (100_000_000, 50_000_000));
    assert!(suite.cases[0].is_parallel);
    // Both forms in one file, and a value for each link.
    let suite = load("array-nested.yaml");
    let network = &suite.cases[0].networks[0];
    let links: Vec<(Loss, u64)> =
        network.links.iter().map(|link| (link.forward.loss, link.backward.rate)).collect();
    let of = |loss, rate| (Loss::Independent(loss), rate);
    assert_eq!(links, [of(0.01, 10_000_000), of(0.02, 20_000_000), of(0.03, 30_000_000)]);
}

#[test]
fn protocols_next_to_the_test_are_read() {
    let suite = load("array-steps.yaml");
    assert!(suite.notes.iter().any(|note| note.contains("6 protocols of ")), "{:?}", suite.notes);
    let bats = |mode: &str| ProtocolKind::Bats { mode: mode.to_owned(), relays: None };
    assert_eq!(protocol(&suite, "btp").kind, bats("btp"));
    assert_eq!(protocol(&suite, "brtp-next").kind, bats("1"));
    let tcp = |congestion: &str| ProtocolKind::Tcp { congestion: congestion.to_owned() };
    assert_eq!(protocol(&suite, "tcp-reno").kind, tcp("reno"));
    assert_eq!(protocol(&suite, "tcp").kind, tcp("cubic"));
    let suite = load("tools.yaml");
    // Changed arguments.
    let ProtocolKind::Tunnel { client, port, carries, .. } = &protocol(&suite, "kcp").kind else {
        panic!("no tunnel")
    };
    let words =
        ["client_of_kcp", "-r", "%s:4000", "-l", ":10100", "-mode", "fast2", "--crypt=none"];
    assert_eq!((client.as_slice(), *port), (words.map(str::to_owned).as_slice(), 10100));
    assert_eq!(*carries, PacketType::Tcp);
    // Added.
    let words = ["my_tunnel", "--peer", "%s", "--config=my_tunnel.ini"].map(str::to_owned).to_vec();
    assert_eq!(protocol(&suite, "my-tunnel").kind, ProtocolKind::Daemon { words });
    assert!(matches!(protocol(&suite, "brtp_proxy").kind, ProtocolKind::Missing { .. }));
    // Still there.
    assert_eq!(protocol(&suite, "tcp-bbr").kind, tcp("bbr"));
}

#[test]
fn tools_flows_routes_and_disabled_tests_are_read() {
    let suite = load("tools.yaml");
    assert_eq!(suite.cases.len(), 1);
    let case = &suite.cases[0];
    let network = &case.networks[0];
    assert_eq!(network.edges, [(0, 1), (1, 2), (1, 3)]);
    assert_eq!(
        (network.links[0].forward.rate, network.links[0].backward.rate),
        (100_000_000, 80_000_000)
    );
    assert_eq!(network.links[0].forward.loss, Loss::Independent(0.005));
    assert_eq!(
        (case.flows.len(), case.flows[0].delay, case.flows[1].duration),
        (3, None, Some(5.0))
    );
    assert!(case.allow_failure);
    let kinds: Vec<bool> =
        case.tools.iter().map(|tool| matches!(tool.kind, ToolKind::Command { .. })).collect();
    assert_eq!(kinds, [false, false, false, false, true, false, true]);
    for words in
        ["`containernet` is ignored", "`olsr_route` runs no routing daemon", "`named` is disabled"]
    {
        assert!(suite.notes.iter().any(|note| note.contains(words)), "{words}: {:?}", suite.notes);
    }
    let path = folder().join("tools.yaml");
    let named = super::load::suite(&format!("{}:named", path.display()), None).unwrap();
    assert_eq!(named.cases[0].protocols.len(), 3);
    assert_eq!(named.cases[0].networks[0].links[0].forward.loss, Loss::Independent(0.0001));
}

#[test]
fn errors_name_file_line_key_and_what_to_write() {
    let steps = std::fs::read_to_string(folder().join("array-steps.yaml")).unwrap();
    let protocols = std::fs::read_to_string(folder().join("predefined.protocols.yaml")).unwrap();
    let refused = |test: &str, protocols: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.yaml");
        std::fs::write(&path, test).unwrap();
        std::fs::write(folder.path().join("predefined.protocols.yaml"), protocols).unwrap();
        suite(path.to_str().unwrap(), None).expect_err(test).to_string()
    };
    for (from, to, words) in [
        (
            "          init_value: [0]\n          step_len: 5\n          step_num: 2\n",
            "",
            ["test.yaml:14:", "`link_loss` has no values", "`init_value: [10]`"],
        ),
        (
            "        - link_loss:",
            "        - link_lost:",
            ["test.yaml:14:", "unknown key `link_lost`", "`link_loss`"],
        ),
        (
            "        - link_loss:\n          init_value",
            "        - init_value",
            ["test.yaml:14:", "`init_value` of which attribute", "link_latency"],
        ),
        (
            "        - link_latency:\n          init_value: [10]\n          step_len: 20\n          step_num: 3\n",
            "          link_latency:\n",
            [
                "test.yaml:",
                "`link_loss` and `link_latency` are in one entry",
                "begin each attribute with `-`",
            ],
        ),
        ("[100]", "[100, 200, 300]", ["test.yaml:25:", "found 3", "1 values"]),
        ("[50]", "[fast]", ["test.yaml:27:", "number", ""]),
        ("          step_num: 2\n", "", ["test.yaml:15:", "`step_len` and `step_num`", "both"]),
        ("route: static_route", "route: openr_route", ["test.yaml:29:", "Open/R", "static_bfs"]),
        (
            "topology_type: linear",
            "topology_type: butterfly",
            ["test.yaml:11:", "unknown value `butterfly`", "linear"],
        ),
        (
            "        - link_jitter:\n",
            "        - link_loss:\n",
            ["test.yaml:23:", "`link_loss` is there twice", "remove"],
        ),
    ] {
        assert!(steps.contains(from), "{from}");
        let error = refused(&steps.replacen(from, to, 1), &protocols);
        for word in words {
            assert!(error.contains(word), "{error} lacks {word}");
        }
    }
    for (from, to, words) in [
        ("bin: my_tunnel", "bni: my_tunnel", ["predefined.protocols.yaml:", "`bin`"]),
        (
            "name: brtp-next",
            "name: kcp",
            ["predefined.protocols.yaml:", "two protocols have the name `kcp`"],
        ),
        (
            "--tun_protocol=BTP",
            "--tun_protocol=BTB",
            ["predefined.protocols.yaml:", "did you mean `BTP`"],
        ),
        (
            "--api_enabled=true\"\n",
            "--key=1\"\n",
            ["predefined.protocols.yaml:", "`--key=1` has no effect"],
        ),
    ] {
        assert!(protocols.contains(from), "{from}");
        let error = refused(&steps, &protocols.replacen(from, to, 1));
        for word in words {
            assert!(error.contains(word), "{error} lacks {word}");
        }
    }
}
