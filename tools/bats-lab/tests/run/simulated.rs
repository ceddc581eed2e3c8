//! The backend sim: a complete run with its files, assertions and comparison.

use super::support::{Case, figure, measurement, run, stderr_of, stdout_of};

const YAML: &str = "
tests:
  sim:
    description: Loss by delay in virtual time.
    backend: sim
    topology:
      topology_type: linear
      nodes: 2
      link: { rate: 20M }
      matrix: { loss: [0%, 5%], delay: [5ms, 20ms] }
    target_protocols: [brtp, tcp-bbr]
    test_tools:
      iperf: { interval: 0.5, interval_num: 6 }
      rtt: { interval: 0.01, packet_count: 50, packet_size: 200 }
    repetitions: 2
    capture: true
    assertions:
      - { figure: efficiency, protocol: brtp, tool: iperf, at_least: 0.8 }
    published:
      - { source: reference-x, label: X, figure: steady_mbps, loss: [0, 5], delay: [5, 20], values: [[1, 2], [3, null]] }
";

/// A link without a rate is not supported in virtual time: such a test of a file is skipped, but a
/// run that measures nothing fails.
#[test]
fn tests_unsupported_in_virtual_time_are_skipped_and_reported() {
    let yaml = "
tests:
  endless:
    topology: { topology_type: linear, nodes: 2, link: { rate: none } }
    target_protocols: [brtp, tcp-bbr]
    test_tools: { iperf: { interval_num: 2 } }
  limited:
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M } }
    target_protocols: [brtp]
    test_tools: { iperf: { interval_num: 2 } }
";
    let case = Case::new(yaml);
    let (output, result) = case.run(&["--backend", "sim"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout_of(&output), stderr_of(&output));
    assert_eq!(result["passed"], true);
    let [endless, limited] = [&result["cases"][0], &result["cases"][1]];
    assert!(endless["skipped"].as_str().unwrap().contains("set a `rate`"), "{endless}");
    assert_eq!((&endless["passed"], &limited["passed"]), (&false.into(), &true.into()));
    assert_eq!(limited["skipped"], serde_json::Value::Null);
    let page = std::fs::read_to_string(case.out().join("report.html")).unwrap();
    for text in [stdout_of(&output), page] {
        assert!(text.contains("skipped: this backend can measure none of it"), "{text}");
        assert!(text.contains("over a link without `rate` is unbounded"), "{text}");
    }
    let alone = Case::new(yaml);
    let (output, result) = alone.run(&["--backend", "sim", "--only", "endless"]);
    assert_eq!((output.status.code(), &result["passed"]), (Some(1), &false.into()));
    assert!(stderr_of(&output).contains("every test was skipped"), "{}", stderr_of(&output));
    // A failure for another reason is not skipped.
    let scp = Case::new(&yaml.replacen("iperf: { interval_num: 2 }", "scp: {}", 1));
    let (output, result) = scp.run(&["--backend", "sim"]);
    assert_eq!((output.status.code(), &result["passed"]), (Some(1), &false.into()));
}

#[test]
fn a_run_writes_report_figures_plots_and_captures() {
    let case = Case::new(YAML);
    let (output, result) = case.run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    assert_eq!(result["passed"], true);
    let measurements = result["cases"][0]["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 4 * 2 * 2 * 2);
    // A TCP model is measured in the same run, and a warning says that it is a model.
    let model = measurement(&result, "tcp-bbr", "iperf");
    assert_eq!((&model["status"], &model["label"]), (&"passed".into(), &"TCP BBR (model)".into()));
    assert!(model["warnings"].to_string().contains("TCP is a model here"), "{model}");
    assert_eq!(measurement(&result, "tcp-bbr", "rtt")["status"], "unsupported");
    let rate = figure(&result, "brtp", "iperf", "steady_mbps");
    assert!(rate > 15.0 && rate < 19.5, "{rate}");
    let time = figure(&result, "brtp", "rtt", "rtt_p50_ms");
    assert!((10.0..15.0).contains(&time), "{time}");
    assert_eq!(result["cases"][0]["assertions"].as_array().unwrap().len(), 4);
    let out = case.out();
    for file in [
        "report.html",
        "live.jsonl",
        "sim/figures.csv",
        "sim/matrix-brtp-iperf-steady_mbps.csv",
        "sim/plots/matrix-brtp-iperf-steady_mbps.svg",
        "sim/plots/matrix-brtp-iperf-steady_mbps.png",
        "sim/plots/iperf-throughput-0.png",
        "sim/topology-0/brtp_iperf_0/throughput-BRTP.csv",
        "sim/topology-0/brtp_iperf_0/cwnd-BRTP.csv",
        "sim/topology-0/brtp_iperf_0/capture.pcapng",
        "sim/topology-3/brtp_rtt_1/RTT-cdf.csv",
    ] {
        let size = std::fs::metadata(out.join(file)).unwrap_or_else(|_| panic!("no {file}")).len();
        assert!(size > 20, "{file} is empty");
    }
    // Each plot has an SVG and a PNG file.
    let plots = |end: &str| -> std::collections::BTreeSet<String> {
        let entries = std::fs::read_dir(out.join("sim/plots")).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(|name| name.strip_suffix(end).map(str::to_owned)).collect()
    };
    assert!(plots(".svg").len() > 10 && plots(".svg") == plots(".png"));
    // A warning of many measurements is printed once.
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for text in [stdout_of(&output), page.clone()] {
        assert_eq!(text.matches("TCP is a model here").count(), 1, "{text}");
        assert!(text.contains("TCP BBR (model) iperf topology-0 and 3 others: TCP is"), "{text}");
    }
    for word in [
        "<polyline",
        "one-way delay; rows: loss",
        "reference-x",
        "@media print",
        "holds",
        "unsupported",
        "TCP BBR (model)",
        "TCP is a model here, not the TCP of the kernel",
        "batslab",
    ] {
        assert!(page.contains(word), "the page lacks {word}");
    }
    assert!(!page.contains("https://"), "the page loads nothing from other hosts");
    let csv = std::fs::read_to_string(out.join("sim/matrix-brtp-iperf-steady_mbps.csv")).unwrap();
    assert_eq!(csv.lines().count(), 3);
    assert!(csv.starts_with("loss % \\ delay ms,5,20"));
    // Results are not overwritten.
    let again = run(&["run", &case.file(), "-q", "-o", out.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr_of(&again).contains("not overwritten"));
}

#[test]
fn equal_seeds_give_equal_figures_and_runs_are_compared() {
    let yaml = YAML
        .replace("[0%, 5%]", "[5%]")
        .replace("[5ms, 20ms]", "[5ms]")
        .replace("loss: [0, 5], delay: [5, 20], values: [[1, 2], [3, null]]", "value: 1");
    let (one, two) = (Case::new(&yaml), Case::new(&yaml));
    let slower = Case::new(&yaml.replace("rate: 20M", "rate: 20M, queue: 64k"));
    let (_, first) = one.run(&[]);
    let (_, second) = two.run(&[]);
    slower.run(&[]);
    assert_eq!(
        measurement(&first, "brtp", "iperf")["figures"],
        measurement(&second, "brtp", "iperf")["figures"]
    );
    let page = one.folder.path().join("compare.html");
    let output = run(&[
        "compare",
        one.out().to_str().unwrap(),
        two.out().to_str().unwrap(),
        "--json",
        "--html",
        page.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(rows.len() > 5);
    assert!(rows.iter().all(|row| row["verdict"] == "same" && row["a"]["count"] == 2), "{rows:?}");
    assert!(std::fs::read_to_string(page).unwrap().contains("Two runs"));
    // A network with another queue is not comparable.
    let output = run(&["compare", one.out().to_str().unwrap(), slower.out().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr_of(&output);
    assert!(
        error.contains("the same test, network") && error.contains("has `sim` over"),
        "{error}"
    );
}

#[test]
fn failed_assertions_fail_the_run_unless_allowed() {
    let yaml = YAML
        .replace("at_least: 0.8", "at_least: 1.5")
        .replace("[0%, 5%]", "[5%]")
        .replace("[5ms, 20ms]", "[5ms]")
        .replace("loss: [0, 5], delay: [5, 20], values: [[1, 2], [3, null]]", "value: 1");
    let (output, result) = Case::new(&yaml).run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(result["passed"], false);
    assert!(stdout_of(&output).contains("DOES NOT HOLD"), "{}", stdout_of(&output));
    let allowed = yaml.replace("repetitions: 2", "allow_failure: true");
    let (output, result) = Case::new(&allowed).run(&[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((&result["passed"], &result["cases"][0]["passed"]), (&true.into(), &false.into()));
}

#[test]
fn unsupported_measurements_are_not_judged() {
    let yaml = "
tests:
  both:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }
    target_protocols: [brtp, quic]
    test_tools: { iperf: { interval: 0.5, interval_num: 4 } }
    assertions:
      - { figure: steady_mbps, protocol: brtp, tool: iperf, at_least: 1.5, relative_to: quic }
      - { figure: steady_mbps, protocol: quic, tool: iperf, at_least: 1 }
      - { figure: steady_mbps, protocol: brtp, tool: iperf, at_least: 1 }
";
    let case = Case::new(yaml);
    let (output, result) = case.run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let verdicts: Vec<_> = result["cases"][0]["assertions"].as_array().unwrap().iter().collect();
    let holds: Vec<_> = verdicts.iter().map(|one| one["holds"].as_bool()).collect();
    assert_eq!(holds, [None, None, Some(true)]);
    assert_eq!(
        stdout_of(&output).matches("  not evaluated: ").count(),
        2,
        "{}",
        stdout_of(&output)
    );
    let page = std::fs::read_to_string(case.out().join("report.html")).unwrap();
    assert!(page.matches("not evaluated</td>").count() == 2 && page.contains("virtual time"));
    // A comparison with a model says nothing about the kernel's TCP; a bound on the model itself is
    // judged.
    let modelled = yaml.replace("quic", "tcp-cubic");
    let (output, result) = Case::new(&modelled).run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let verdicts = result["cases"][0]["assertions"].as_array().unwrap();
    let holds: Vec<_> = verdicts.iter().map(|one| one["holds"].as_bool()).collect();
    assert_eq!(holds, [None, Some(true), Some(true)]);
    assert!(stdout_of(&output).contains("tcp-cubic is a model here"), "{}", stdout_of(&output));
    // An assertion that fails still fails the test.
    let (output, _) = Case::new(&yaml.replace("at_least: 1 }", "at_least: 11 }")).run(&[]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_test_without_measurements_fails() {
    let yaml = "
tests:
  nothing:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }
    target_protocols: [quic]
    test_tools: { iperf: { interval_num: 2 } }
";
    let (output, result) = Case::new(yaml).run(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(result["cases"][0]["measurements"][0]["status"], "unsupported");
}

#[test]
fn events_change_the_link_and_flows_compete() {
    let yaml = "
tests:
  events:
    backend: sim
    topology: { topology_type: linear, nodes: 3, link: { rate: 20M, delay: 5ms } }
    target_protocols: [brtp]
    test_tools: { iperf: { interval: 0.5, interval_num: 16 } }
    events:
      - { at: 3, link: 2, set: { rate: 4M } }
      - { at: 6, set: { rate: 20M } }
  flows:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms } }
    target_protocols: [brtp]
    test_tools: { iperf: { interval: 0.5, interval_num: 20 } }
    competition_flows:
      - { flow_type: brtp, client_host: 0, server_host: 1, delay: 1, duration: 9 }
";
    let (output, result) = Case::new(yaml).run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let series = result["cases"][0]["measurements"][0]["series"][0]["points"].as_array().unwrap();
    let mean = |from: f64, to: f64| {
        let inside: Vec<f64> = series
            .iter()
            .filter(|p| p[0].as_f64().unwrap() > from && p[0].as_f64().unwrap() <= to)
            .map(|p| p[1].as_f64().unwrap())
            .collect();
        inside.iter().sum::<f64>() / inside.len() as f64
    };
    let (before, during) = (mean(1.0, 3.0), mean(4.0, 6.0));
    // The bound depends on the rates over time: (3 x 20 + 3 x 4 + 2 x 20) / 8 Mbit/s.
    let bound = figure(&result, "brtp", "iperf", "bound_mbps");
    assert!((bound / (14.0 * 1472.0 / 1514.0) - 1.0).abs() < 1e-6, "{bound}");
    // The efficiency is that of seconds 5 to 8: (4 + 2 x 20) / 3 Mbit/s.
    let efficiency = figure(&result, "brtp", "iperf", "efficiency");
    let steady = figure(&result, "brtp", "iperf", "steady_mbps");
    let expected = steady / (44.0 / 3.0 * 1472.0 / 1514.0);
    // Data that a draining queue delivers late counts when it must have arrived (docs/measures.md).
    assert!((0.85..1.0 + 1e-6).contains(&(efficiency / expected)), "{efficiency} {expected}");
    // A controller that adapts at once gets 0.2 of the former rate.
    assert!(during < 0.3 * before && during > 0.01 * before, "{before} {during}");
    let fairness = result["cases"][1]["measurements"][0]["figures"]["fairness"].as_f64().unwrap();
    assert!(fairness > 0.7 && fairness <= 1.0, "{fairness}");
    let one = &result["cases"][1]["measurements"][0];
    let competing = &one["flows"][0]["figures"];
    let number_of = |figures: &serde_json::Value, name: &str| {
        figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"))
    };
    let shares =
        number_of(&one["figures"], "share_percent") + number_of(competing, "share_percent");
    assert!((shares - 100.0).abs() < 1e-6, "{shares}");
    for name in ["throughput_mbps", "rate_p50_mbps", "cwnd_p50_kb", "srtt_p50_ms"] {
        assert!(number_of(competing, name) > 0.0, "{name}");
    }
}
