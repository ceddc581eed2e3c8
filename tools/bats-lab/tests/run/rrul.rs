//! The shipped case `rrul`: bulk flows in both directions and round trips at the same time.

use super::support::{Case, allowed, figure, lock_machine, measurement, stderr_of, stdout_of};

#[test]
fn rrul_measures_round_trips_while_eight_flows_fill_both_directions() {
    if !allowed("rrul_measures_round_trips_while_eight_flows_fill_both_directions") {
        return;
    }
    let _alone = lock_machine();
    let case = Case::new(include_str!("../../cases/rrul.yaml"));
    let (output, result) = case.run(&["--quick", "--backend", "netns"]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    for (test, protocol, label) in [(0, "brtp", "BRTP"), (1, "tcp-cubic", "TCP CUBIC")] {
        let one_test = serde_json::json!({ "cases": [result["cases"][test]] });
        for probe in ["ping", "rtt"] {
            let median = figure(&one_test, protocol, probe, "rtt_p50_ms");
            let p99 = figure(&one_test, protocol, probe, "rtt_p99_ms");
            // 20 ms one way; a busy machine only adds to it. 2 BDP of 10 Mbit/s queue for 80 ms.
            assert!(
                (40.0..2_000.0).contains(&median) && p99 >= median,
                "{protocol} {probe}: {median}, {p99}"
            );
            let one = measurement(&one_test, protocol, probe);
            let flows = one["flows"].as_array().unwrap();
            let rate = |direction: &str| -> f64 {
                let name = format!("{label} {direction}");
                let mine: Vec<f64> = flows
                    .iter()
                    .filter(|flow| flow["label"].as_str().unwrap().starts_with(&name))
                    .map(|flow| flow["figures"]["throughput_mbps"].as_f64().unwrap())
                    .collect();
                assert_eq!(mine.len(), 4, "{protocol} {probe} {direction}: {flows:?}");
                mine.iter().sum()
            };
            let (up, down) = (rate("0 to 1"), rate("1 to 0"));
            // Far less than the links carry: other work on the machine can only reduce it.
            assert!((5.0..=50.0).contains(&up), "{protocol} {probe}: {up} Mbit/s");
            assert!((1.0..=10.0).contains(&down), "{protocol} {probe}: {down} Mbit/s");
            println!(
                "{protocol} {probe}: median {median:.0} ms, p99 {p99:.0} ms, {up:.1} and {down:.1} Mbit/s"
            );
        }
    }
}
