//! Figures of `bats_perftest -outputFormat json`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use serde_json::Value;

use super::reading::last_document;
use crate::result::figures::{Figures, set};

/// Reads the latencies of the publisher, and the samples that arrived and that were lost at the
/// subscriber. Other output has no effect.
pub(crate) fn read(figures: &mut Figures, publisher: &str, subscriber: &str) {
    let [near, far] = [publisher, subscriber].map(summary);
    let keys = [
        (&near, "latency_50", "latency_p50_ms", 1e-3),
        (&near, "latency_99", "latency_p99_ms", 1e-3),
        (&near, "latency_99.9", "latency_p99_9_ms", 1e-3),
        (&far, "mbps_ave", "throughput_mbps", 1.0),
        (&far, "packets/s_ave", "samples_per_second", 1.0),
        (&far, "lost", "lost_samples", 1.0),
        (&far, "lost_percent", "loss_percent", 1.0),
    ];
    for (summary, key, figure, factor) in keys {
        if let Some(value) = summary.as_ref().and_then(|summary| summary.get(key)?.as_f64()) {
            set(figures, figure, value * factor);
        }
    }
}

/// The summary of the last sample size.
fn summary(output: &str) -> Option<Value> {
    let document = last_document(output)?;
    document.get("perftest")?.as_array()?.last()?.get("summary").cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_come_from_the_publisher_and_losses_from_the_subscriber() {
        let publisher = r#"{"perftest":[{"length":64,"intervals":[],"summary":
            {"latency_50":10500.0,"latency_99":11000.0,"latency_99.9":12000.0}}]}"#;
        let subscriber = r#"{"perftest":[{"length":64,"intervals":[],"summary":
            {"packets":9,"packets/s_ave":10000.0,"mbps_ave":81.92,"lost":1,"lost_percent":10.0}}]}"#;
        let mut figures = Figures::new();
        read(&mut figures, publisher, subscriber);
        let expected = [
            ("latency_p50_ms", 10.5),
            ("latency_p99_9_ms", 12.0),
            ("latency_p99_ms", 11.0),
            ("loss_percent", 10.0),
            ("lost_samples", 1.0),
            ("samples_per_second", 10_000.0),
            ("throughput_mbps", 81.92),
        ];
        let figures: Vec<_> = figures.iter().map(|(name, &value)| (name.as_str(), value)).collect();
        assert_eq!(figures, expected);
    }

    #[test]
    fn other_output_has_no_effect() {
        let mut figures = Figures::new();
        for output in ["", "nonsense", "{}", r#"{"perftest":[]}"#, r#"{"perftest":[{"length":1}]}"#]
        {
            read(&mut figures, output, output);
        }
        assert!(figures.is_empty());
    }
}
