//! Figures of competing flows.

use super::figures::{Figures, mean, set};
use super::flow_result::FlowResult;
use super::series::Series;
use super::statistics::percentile;

/// A flow and the time in which it sent, in seconds from the start of the tool.
#[derive(Clone, Debug)]
pub(crate) struct FlowSpan {
    /// Name of its series.
    pub(crate) of: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Figures that are already computed.
    pub(crate) figures: Figures,
}

/// Sets the figures of competing flows; the first is the flow of the tool. Throughput shares are
/// computed over the time in which all run; distributions of rate, window and RTT over the time of
/// each flow. Returns the results of the other flows.
pub(crate) fn set_competition_figures(
    figures: &mut Figures,
    series: &[Series],
    spans: Vec<FlowSpan>,
) -> Vec<FlowResult> {
    if spans.len() < 2 {
        return Vec::new();
    }
    let from = spans.iter().map(|span| span.from).fold(0.0, f64::max);
    let to = spans.iter().map(|span| span.to).fold(f64::INFINITY, f64::min);
    let rates: Vec<f64> = spans
        .iter()
        .map(|span| {
            let rate =
                find_series(series, "throughput", &span.of).map(|one| mean(&one.points, from, to));
            rate.filter(|_| to > from).unwrap_or(f64::NAN)
        })
        .collect();
    let all: f64 = rates.iter().sum();
    let first = rates.first().copied().unwrap_or(f64::NAN);
    let mut results = Vec::new();
    for (index, (span, rate)) in spans.into_iter().zip(&rates).enumerate() {
        let mut own = span.figures.clone();
        set(&mut own, "share_percent", 100.0 * rate / all);
        set_distributions(&mut own, series, &span);
        if index == 0 {
            figures.extend(own);
        } else {
            set(&mut own, "times_the_tools", rate / first);
            results.push(FlowResult { label: span.of, figures: own });
        }
    }
    results
}

fn find_series<'a>(series: &'a [Series], name: &str, flow: &str) -> Option<&'a Series> {
    series.iter().find(|one| one.name == name && one.of == flow)
}

fn set_distributions(figures: &mut Figures, series: &[Series], span: &FlowSpan) {
    let sorted = |name: &str| -> Vec<f64> {
        let points =
            find_series(series, name, &span.of).map(|one| &one.points[..]).unwrap_or_default();
        let inside = |at: f64| at > span.from && at <= span.to + 1e-6;
        let mut values: Vec<f64> =
            points.iter().filter(|point| inside(point.0)).map(|point| point.1).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let distributions: [(&str, [(&'static str, f64); 3]); 3] = [
        ("throughput", [("rate_p10_mbps", 0.1), ("rate_p50_mbps", 0.5), ("rate_p90_mbps", 0.9)]),
        ("cwnd", [("cwnd_min_kb", 0.0), ("cwnd_p50_kb", 0.5), ("cwnd_max_kb", 1.0)]),
        ("smoothed RTT", [("srtt_min_ms", 0.0), ("srtt_p50_ms", 0.5), ("srtt_max_ms", 1.0)]),
    ];
    for (name, wanted) in distributions {
        let values = sorted(name);
        for (figure, quantile) in wanted {
            if let Some(value) = percentile(&values, quantile) {
                set(figures, figure, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_shares_count_the_time_in_which_all_flows_run() {
        let series = |name: &str, of: &str, points: &[(f64, f64)]| Series {
            name: name.into(),
            of: of.into(),
            unit: String::new(),
            points: points.to_vec(),
        };
        let all = [
            series("throughput", "a", &[(1.0, 40.0), (2.0, 30.0), (3.0, 30.0)]),
            series("throughput", "b", &[(1.0, 0.0), (2.0, 10.0), (3.0, 10.0)]),
            series("cwnd", "b", &[(0.5, 1.0), (1.5, 20.0), (2.5, 40.0), (3.0, 60.0)]),
        ];
        let span = |of: &str, from: f64| FlowSpan {
            of: of.into(),
            from,
            to: 3.0,
            figures: Figures::new(),
        };
        let mut main = Figures::new();
        let others = set_competition_figures(&mut main, &all, vec![span("a", 0.0), span("b", 1.0)]);
        assert_eq!((main["share_percent"], main["rate_p50_mbps"]), (75.0, 30.0));
        assert!(!main.contains_key("times_the_tools"));
        let [other] = others.as_slice() else { panic!("{others:?}") };
        assert_eq!(other.label, "b");
        assert_eq!(other.figures["share_percent"], 25.0);
        assert!((other.figures["times_the_tools"] - 1.0 / 3.0).abs() < 1e-9);
        // Values before the start of the flow do not count.
        assert_eq!((other.figures["cwnd_min_kb"], other.figures["cwnd_max_kb"]), (20.0, 60.0));
        assert!(!other.figures.contains_key("srtt_p50_ms"));
        // A single flow has no competition figures.
        let mut alone = Figures::new();
        assert!(
            set_competition_figures(&mut alone, &all, vec![span("a", 0.0)]).is_empty()
                && alone.is_empty()
        );
    }
}
