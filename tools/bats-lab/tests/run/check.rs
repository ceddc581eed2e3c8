//! `batslab check`: valid files, and the errors of invalid ones.

use super::support::{Case, run, stderr_of, stdout_of};

const GOOD: &str = "
tests:
  one:
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }
    target_protocols: [brtp, tcp-cubic]
    test_tools:
      iperf: { interval: 1, interval_num: 3 }
";

fn refused(yaml: &str, text: &[&str]) {
    let case = Case::new(yaml);
    for command in [&["check"][..], &["run", "--dry-run"]] {
        let file = case.file();
        let output = run(&[command, &[file.as_str()]].concat());
        let error = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{yaml}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        for word in text {
            assert!(error.contains(word), "{error} lacks {word}");
        }
    }
}

#[test]
fn check_lists_the_measurements_of_a_valid_file() {
    let case = Case::new(GOOD);
    let output = run(&["check", &case.file()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert!(stdout_of(&output).contains("one: 2 measurements"), "{}", stdout_of(&output));
    let output = run(&["run", "--dry-run", &case.file()]);
    assert!(output.status.success());
    assert!(stdout_of(&output).contains("tcp-cubic iperf: throughput from node 0 to node 1, 3 s"));
    assert!(!case.out().exists());
    // A file may name itself as the source of its topologies.
    let topologies =
        "topologies: [{ name: mine, topology_type: linear, nodes: 3, link: { delay: 5ms } }]\n";
    let used = "topology: { config_name: mine, config_file: test.yaml }";
    let case = Case::new(
        &GOOD
            .replace(
                "topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }",
                used,
            )
            .replacen("tests:", &format!("{topologies}tests:"), 1),
    );
    let output = run(&["check", &case.file()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
}

#[test]
fn unknown_keys_are_reported_with_position_and_suggestion() {
    refused(
        &GOOD.replace("test_tools", "test_tool"),
        &["test.yaml:6:", "unknown key `test_tool`", "did you mean `test_tools`?"],
    );
    refused(
        &GOOD.replace("interval_num", "intervalnum"),
        &["test.yaml:7:", "did you mean `interval_num`?"],
    );
    refused(&GOOD.replace("nodes", "nodse"), &["test.yaml:4:", "did you mean `nodes`?"]);
    refused(&GOOD.replace("linear", "linaer"), &["test.yaml:4:", "did you mean `linear`?"]);
}

#[test]
fn unknown_names_are_reported_with_position_and_suggestion() {
    refused(
        &GOOD.replace("brtp", "brpt"),
        &["test.yaml:5:", "unknown protocol `brpt`", "did you mean `brtp`?"],
    );
    let named = GOOD.replace(
        "{ topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }",
        "{ config_name: linear_netwrok_1, config_file: predefined.topology.yaml }",
    );
    refused(&named, &["test.yaml:4:", "did you mean `linear_network_1`?"]);
    let case = Case::new(GOOD);
    let output = run(&["run", "--dry-run", &case.file(), "--only", "two"]);
    assert!(
        stderr_of(&output).contains("did you mean `one`?")
            || stderr_of(&output).contains("available: one")
    );
    let output = run(&["run", "case:smokee"]);
    assert!(stderr_of(&output).contains("did you mean `case:smoke`?"));
}

#[test]
fn invalid_values_are_refused() {
    for (from, to, text) in [
        ("nodes: 2", "nodes: 1", "2 to 17 nodes"),
        ("rate: 10M", "rate: 10", "has no unit"),
        ("delay: 5ms", "delay: soon", "is not a time"),
        ("interval_num: 3", "interval_num: 3, server_host: 7", "the nodes 0 to 1"),
        ("interval_num: 3", "interval_num: 3, server_host: 0", "the same node"),
        ("interval_num: 3", "interval_num: 3, file_size: 3", "no key `file_size`"),
        ("[brtp, tcp-cubic]", "[]", "`target_protocols` is empty"),
        ("[brtp, tcp-cubic]", "[brtp, brtp]", "twice"),
        ("[brtp, tcp-cubic]", "[brtp]\n    route: openr_route", "Open/R is not supported"),
        ("rate: 10M", "rate: 10M, loss: 0.05", "`0.05` has no unit: use for example 0.05% or 5%"),
        (
            "[brtp, tcp-cubic]",
            "[brtp]\n    assertions: [{ figure: througput_mbps, at_least: 1 }]",
            "did you mean `throughput_mbps`?",
        ),
        (
            "[brtp, tcp-cubic]",
            "[brtp]\n    events: [{ at: 99, set: { down: true } }]",
            "from 0 to 3 s",
        ),
        (
            "[brtp, tcp-cubic]",
            "[brtp]\n    events: [{ at: 1, set: { between: [0, 1], loss: 1% } }]",
            "`between` is only for one",
        ),
    ] {
        refused(&GOOD.replace(from, to), &["test.yaml:", text]);
    }
    let negative = GOOD.replace("interval_num: 3", "interval_num: -3");
    refused(&negative, &["test.yaml:7:", "an integer from 0 to 4294967295"]);
    refused("tests: {}", &["no test to run"]);
    refused("tests: [", &["test.yaml"]);
}

#[test]
fn arrays_have_values_per_link_and_steps_multiply() {
    let yaml = "
tests:
  arrays:
    topology:
      topology_type: linear
      nodes: 4
      array_description:
        - link_loss: { init_value: [1, 2, 3] }
        - link_latency: { init_value: [10], step_len: 20, step_num: 2 }
        - link_bandwidth_forward: { init_value: [100], step_len: 100, step_num: 1 }
    target_protocols: [brtp]
    test_tools: { iperf: { client_host: 0, server_host: 3 } }
";
    let case = Case::new(yaml);
    let output = run(&["run", "--dry-run", &case.file()]);
    let text = stdout_of(&output);
    assert!(text.contains("6 measurements"), "{text}");
    assert!(
        text.contains("topology-5: 3 hops, first link 200 Mbit/s, one-way delay 50 ms, loss 1 %"),
        "{text}"
    );
    refused(&yaml.replace("[1, 2, 3]", "[1, 2]"), &["test.yaml:8:", "all 3 links"]);
}

#[test]
fn impossible_flows_assertions_and_steps_are_refused() {
    let with = |more: &str| format!("{GOOD}    {more}\n");
    // Competing flows end with the tool.
    let flow = "competition_flows: [{ flow_type: brtp, client_host: 0, server_host: 1, delay: 3 }]";
    refused(&with(flow), &["test.yaml:8:", "runs for 3 s", "never start"]);
    // Round-trip tools have no competing flows, however long they run.
    let both = GOOD.replace("iperf:", "rtt: {}\n      iperf:");
    refused(&format!("{both}    {flow}\n"), &["test.yaml:9:", "runs for 3 s", "never start"]);
    let alone = with(&flow.replace("3 }", "1 }")).replace("iperf:", "scp: {} #");
    refused(&alone, &["test.yaml:8:", "need a throughput tool", "has none"]);
    let case = Case::new(&format!("{both}    {}\n", flow.replace("3 }", "1 }")));
    let text = stdout_of(&run(&["run", "--dry-run", &case.file()]));
    let lines = |of: &str| text.lines().filter(|line| line.contains(of)).count();
    assert!(lines("round trips from") == 2 && lines(", 1 more flow") == 2, "{text}");
    // No tool of the test has such a figure, or the named tool does not.
    let figure = "assertions: [{ figure: rtt_p50_ms, at_most: 20 }]";
    refused(&with(figure), &["test.yaml:8:", "`iperf` has no figure `rtt_p50_ms`"]);
    let named = "assertions: [{ figure: steady_mbps, tool: rtt, at_least: 1 }]";
    refused(
        &format!("{both}    {named}\n"),
        &["test.yaml:9:", "`rtt` has no figure `steady_mbps`"],
    );
    let of_others = "assertions: [{ figure: times_the_tools, at_least: 1 }]";
    refused(&with(of_others), &["test.yaml:8:", "`iperf` has no figure `times_the_tools`"]);
    let command = GOOD.replace("iperf:", "sh: {} #");
    let bound = "assertions: [{ figure: efficiency, at_least: 0.5 }]";
    refused(&format!("{command}    {bound}\n"), &["`sh` has no figure `efficiency`"]);
    let case = Case::new(&format!("{both}    {figure}\n"));
    let output = run(&["check", &case.file()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    // A step with a length, but without a number.
    let steps = GOOD.replace(
        "link: { rate: 10M, delay: 5ms }",
        "array_description: [{ link_loss: { init_value: [1], step_len: 2 } }]",
    );
    refused(&steps, &["test.yaml:4:", "both `step_len` and `step_num`"]);
    // A step of length 0.
    let case = Case::new(&steps.replace("step_len: 2", "step_len: 0"));
    let output = run(&["check", &case.file()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
}

#[test]
fn testbeds_are_validated_before_the_run() {
    let with_ssh = GOOD.replace("test_tools:", "backend: ssh\n    test_tools:");
    refused(&with_ssh, &["test.yaml:3:", "needs `testbeds`"]);
    for (arguments, text) in [
        (&["--backend", "ssh"][..], "needs `testbeds`"),
        (&["--backend", "sim", "--testbed", "mine"], "add --backend ssh"),
    ] {
        let case = Case::new(GOOD);
        let out = case.out();
        let file = case.file();
        let all = [&["run", &file, "-o", out.to_str().unwrap()], arguments].concat();
        let output = run(&all);
        assert!(stderr_of(&output).contains(text), "{}", stderr_of(&output));
        assert!(output.status.code() == Some(1) && !out.exists());
    }
}

#[test]
fn errors_say_what_is_expected() {
    for (from, to, text) in [
        (
            "tests:\n  one:",
            "tests:\n  one: 5\n  two:",
            &["test.yaml:3:", "expected keys with values"][..],
        ),
        ("[brtp, tcp-cubic]", "brtp", &["test.yaml:5:", "expected a list"]),
        ("interval: 1", "interval: fast", &["test.yaml:7:", "expected a number"]),
        (
            "test_tools:",
            "allow_failure: maybe\n    test_tools:",
            &["test.yaml:6:", "`true` or `false`"],
        ),
        (
            "test_tools:",
            "topology: {}\n    test_tools:",
            &["test.yaml:6:", "duplicate key `topology`"],
        ),
        (
            "interval_num: 3",
            "interval_num: 3, args: \"it's\"",
            &["test.yaml:7:", "`it's` ends within a quote"],
        ),
        (
            "topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms }",
            "config_name: x, config_file: mine.yaml",
            &["test.yaml:4:", "unknown file `mine.yaml`", "/mine.yaml does not exist either"],
        ),
    ] {
        assert!(GOOD.contains(from), "{from}");
        refused(&GOOD.replace(from, to), text);
    }
}

#[test]
fn the_plan_lists_unsupported_and_missing_tools() {
    let case = Case::new(&GOOD.replace("iperf:", "iprf: {}\n      iperf:"));
    for command in [&["check"][..], &["run", "--dry-run"]] {
        let file = case.file();
        let text = stdout_of(&run(&[command, &[file.as_str()]].concat()));
        assert!(text.contains("`iprf` is not installed; did you mean the tool `iperf`?"), "{text}");
    }
    let text = stdout_of(&run(&["run", "--dry-run", "--backend", "sim", &case.file()]));
    assert!(text.contains("brtp iprf: unsupported: the simulator runs"), "{text}");
    assert!(text.contains("brtp iperf: throughput"), "{text}");
}

#[test]
fn chains_can_be_described_by_matrices() {
    let case = Case::new(
        "
tests:
  chain:
    topology: { config_name: 4-hops-linear-network, config_file: predefined.topology.yaml }
    target_protocols: [tcp-bbr]
    route: static_route
    test_tools: { ping: { client_host: 0, server_host: 4 } }
",
    );
    let text = stdout_of(&run(&["run", "--dry-run", &case.file()]));
    assert!(
        text.contains("4 hops, both directions 100 Mbit/s, one-way delay 10 ms, loss 1 %"),
        "{text}"
    );
}

#[test]
fn json_files_are_accepted() {
    let case = Case::new(GOOD);
    let json = r#"{"tests": {"one": {"topology": {"topology_type": "linear", "nodes": 2},
        "target_protocols": ["brtp"], "test_tools": {"iperf": {"interval_num": 3}}}}}"#;
    let path = case.folder.path().join("test.json");
    std::fs::write(&path, json).unwrap();
    let output = run(&["check", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    std::fs::write(&path, json.replace("interval_num", "interval_nmu")).unwrap();
    let output = run(&["check", path.to_str().unwrap()]);
    assert!(stderr_of(&output).contains("test.json:2:"), "{}", stderr_of(&output));
}

#[test]
fn the_schema_accepts_valid_files_and_rejects_invalid_ones() {
    let schema = stdout_of(&run(&["check", "--schema"]));
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    let tool = serde_json::json!({ "interval": 1, "interval_num": 3, "args": ["-x 1"] });
    let file = |tool: serde_json::Value| {
        serde_json::json!({ "tests": { "one": {
            "topology": { "topology_type": "linear", "nodes": 2, "link": { "loss": "5%", "delay": 10 } },
            "target_protocols": ["brtp", { "name": "own", "bin": "x" }],
            "test_tools": { "iperf": tool },
        }}})
    };
    jsonschema::validate(&schema, &file(tool)).unwrap();
    assert!(jsonschema::validate(&schema, &file(serde_json::json!({ "intervall": 1 }))).is_err());
}

#[test]
fn cases_are_listed_and_shown() {
    let list = stdout_of(&run(&["cases"]));
    for name in ["matrix-1g", "matrix-100m", "single-hop", "three-hops", "bbr-cubic", "competition"]
    {
        assert!(list.contains(&format!("case:{name}")), "{list}");
    }
    assert!(stdout_of(&run(&["cases", "--show", "smoke"])).contains("tests:"));
}

#[test]
fn the_example_in_the_guide_is_valid() {
    let guide =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/lab.md")).unwrap();
    let example =
        guide.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let case = Case::new(example);
    let output = run(&["check", &case.file()]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    assert!(stdout_of(&output).contains("satellite: 27 measurements"), "{}", stdout_of(&output));
}
