//! Flows that share links: what each did beside the others.

use super::figures::{Figures, mean, set};
use super::statistics::percentile;
use super::{FlowResult, Series};

/// A flow and when it sent, in seconds from the start of the tool.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    /// The name of its series.
    pub(crate) of: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// What is known of it already.
    pub(crate) figures: Figures,
}

/// Sets the figures that flows have beside each other, the first being the tool's: their shares while
/// all run, and how rate, window and round-trip time were spread over their own time. The others are
/// returned.
pub(crate) fn beside(
    figures: &mut Figures,
    series: &[Series],
    flights: Vec<Flight>,
) -> Vec<FlowResult> {
    if flights.len() < 2 {
        return Vec::new();
    }
    let from = flights.iter().map(|flight| flight.from).fold(0.0, f64::max);
    let to = flights.iter().map(|flight| flight.to).fold(f64::INFINITY, f64::min);
    let rates: Vec<f64> = flights
        .iter()
        .map(|flight| {
            let rate = of(series, "throughput", &flight.of).map(|one| mean(&one.points, from, to));
            rate.filter(|_| to > from).unwrap_or(f64::NAN)
        })
        .collect();
    let all: f64 = rates.iter().sum();
    let first = rates.first().copied().unwrap_or(f64::NAN);
    let mut results = Vec::new();
    for (index, (flight, rate)) in flights.into_iter().zip(&rates).enumerate() {
        let mut own = flight.figures.clone();
        set(&mut own, "share_percent", 100.0 * rate / all);
        spread(&mut own, series, &flight);
        if index == 0 {
            figures.extend(own);
        } else {
            set(&mut own, "times_the_tools", rate / first);
            results.push(FlowResult { label: flight.of, figures: own });
        }
    }
    results
}

fn of<'a>(series: &'a [Series], name: &str, flow: &str) -> Option<&'a Series> {
    series.iter().find(|one| one.name == name && one.of == flow)
}

fn spread(figures: &mut Figures, series: &[Series], flight: &Flight) {
    let sorted = |name: &str| -> Vec<f64> {
        let points = of(series, name, &flight.of).map(|one| &one.points[..]).unwrap_or_default();
        let inside = |at: f64| at > flight.from && at <= flight.to + 1e-6;
        let mut values: Vec<f64> =
            points.iter().filter(|point| inside(point.0)).map(|point| point.1).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let spreads: [(&str, [(&'static str, f64); 3]); 3] = [
        ("throughput", [("rate_p10_mbps", 0.1), ("rate_p50_mbps", 0.5), ("rate_p90_mbps", 0.9)]),
        ("cwnd", [("cwnd_min_kb", 0.0), ("cwnd_p50_kb", 0.5), ("cwnd_max_kb", 1.0)]),
        ("smoothed RTT", [("srtt_min_ms", 0.0), ("srtt_p50_ms", 0.5), ("srtt_max_ms", 1.0)]),
    ];
    for (name, wanted) in spreads {
        let values = sorted(name);
        for (figure, share) in wanted {
            if let Some(value) = percentile(&values, share) {
                set(figures, figure, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_in_which_all_run() {
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
        let flight =
            |of: &str, from: f64| Flight { of: of.into(), from, to: 3.0, figures: Figures::new() };
        let mut main = Figures::new();
        let others = beside(&mut main, &all, vec![flight("a", 0.0), flight("b", 1.0)]);
        assert_eq!((main["share_percent"], main["rate_p50_mbps"]), (75.0, 30.0));
        assert!(!main.contains_key("times_the_tools"));
        let [other] = others.as_slice() else { panic!("{others:?}") };
        assert_eq!(other.label, "b");
        assert_eq!(other.figures["share_percent"], 25.0);
        assert!((other.figures["times_the_tools"] - 1.0 / 3.0).abs() < 1e-9);
        // What it had before its time is not its own.
        assert_eq!((other.figures["cwnd_min_kb"], other.figures["cwnd_max_kb"]), (20.0, 60.0));
        assert!(!other.figures.contains_key("srtt_p50_ms"));
        // Alone there is nothing to share.
        let mut alone = Figures::new();
        assert!(beside(&mut alone, &all, vec![flight("a", 0.0)]).is_empty() && alone.is_empty());
    }
}
