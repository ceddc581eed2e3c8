//! Whether a test passed: its measurements and its assertions.

use super::statistics::Sample;
use super::{AssertionResult, CaseResult, Measurement, Status};
use crate::backend::sim::{ENDLESS, IS_MODEL};
use crate::plan::{Assertion, Case};

/// Judges the assertions of `case` and the whole.
pub(crate) fn judge(case: &Case, result: &mut CaseResult) {
    result.assertions = case
        .assertions
        .iter()
        .flat_map(|assertion| hold(assertion, case, &result.measurements))
        .collect();
    let failed = result.measurements.iter().any(|one| one.status == Status::Failed);
    let some = result.measurements.iter().any(|one| one.status == Status::Passed);
    // What the backend cannot measure says nothing for or against.
    let broken = result.assertions.iter().any(|one| one.holds == Some(false));
    result.passed = some && !failed && !broken;
    let is_endless = result.measurements.iter().any(|one| one.reason.as_deref() == Some(ENDLESS));
    let nothing = result.measurements.iter().all(|one| one.status == Status::Unsupported);
    result.skipped = (is_endless && nothing).then(|| ENDLESS.to_owned());
}

/// The mean over the repetitions of a figure.
fn mean(
    measurements: &[Measurement],
    figure: &str,
    protocol: &str,
    tool: &str,
    network: usize,
) -> Option<f64> {
    let values: Vec<f64> = measurements
        .iter()
        .filter(|one| one.protocol == protocol && one.tool == tool && one.network == network)
        .filter(|one| one.status == Status::Passed)
        .filter_map(|one| one.figures.get(figure).copied())
        .collect();
    Sample::of(&values).map(|sample| sample.mean)
}

/// An assertion over every protocol, tool and network that it fits.
fn hold(assertion: &Assertion, case: &Case, measurements: &[Measurement]) -> Vec<AssertionResult> {
    let mut results = Vec::new();
    let mut is_elsewhere = false;
    for network in 0..case.networks.len() {
        for protocol in &case.protocols {
            for tool in &case.tools {
                let fits = assertion.network.is_none_or(|wanted| wanted == network)
                    && assertion.protocol.as_ref().is_none_or(|wanted| *wanted == protocol.name)
                    && assertion.relative_to.as_ref() != Some(&protocol.name)
                    && assertion.tool.as_ref().is_none_or(|wanted| *wanted == tool.name);
                if !fits {
                    continue;
                }
                let is_unsupported =
                    |name: &str| unsupported(measurements, name, &tool.name, network);
                if is_unsupported(&protocol.name) {
                    is_elsewhere = true;
                    continue;
                }
                let of =
                    |name: &str| mean(measurements, &assertion.figure, name, &tool.name, network);
                let measured = of(&protocol.name);
                // A tool that has no such figure at all is not meant, unless it is named.
                if measured.is_none() && assertion.tool.is_none() && case.tools.len() > 1 {
                    continue;
                }
                let base = match &assertion.relative_to {
                    Some(other) => of(other),
                    None => Some(1.0),
                };
                let mut judged =
                    one(assertion, network, &protocol.name, &tool.name, measured, base);
                if let Some(other) = &assertion.relative_to
                    && is_unsupported(other)
                {
                    judged.measured = format!("{other} cannot be measured here");
                    judged.holds = None;
                }
                let is_model = |name: &str| {
                    let mut mine = measurements.iter().filter(|one| one.protocol == name);
                    mine.any(|one| one.label.ends_with(IS_MODEL))
                };
                if let Some(other) = &assertion.relative_to
                    && judged.holds.is_some()
                    && is_model(other) != is_model(&protocol.name)
                {
                    // Better or worse than a model is no claim about the kernel's.
                    let model = if is_model(other) { other } else { &protocol.name };
                    judged.measured.push_str(&format!("; {model} is a model here"));
                    judged.holds = None;
                }
                let is_doubtful = |name: &str| {
                    measurements.iter().any(|one| {
                        one.machine_bound
                            && (one.protocol.as_str(), one.tool.as_str(), one.network)
                                == (name, tool.name.as_str(), network)
                    })
                };
                let others = assertion.relative_to.iter().map(String::as_str);
                if others.chain([protocol.name.as_str()]).any(is_doubtful) {
                    judged.measured.push_str("; this machine may have set it, not the protocol");
                }
                results.push(judged);
            }
        }
    }
    if results.is_empty() {
        results.push(AssertionResult {
            asked: format!("{} {}", assertion.figure, bounds(assertion)),
            measured: if is_elsewhere {
                "what this is said of cannot be measured here".to_owned()
            } else {
                "nothing was measured that this is said of".to_owned()
            },
            holds: (!is_elsewhere).then_some(false),
        });
    }
    results
}

/// Whether the backend cannot do it.
fn unsupported(measurements: &[Measurement], protocol: &str, tool: &str, network: usize) -> bool {
    let mut fitting = measurements
        .iter()
        .filter(|one| one.protocol == protocol && one.tool == tool && one.network == network)
        .peekable();
    fitting.peek().is_some() && fitting.all(|one| one.status == Status::Unsupported)
}

fn bounds(assertion: &Assertion) -> String {
    let mut words = Vec::new();
    let times = assertion.relative_to.as_ref();
    let unit = times.map_or(String::new(), |other| format!(" x {other}'s"));
    if let Some(least) = assertion.at_least {
        words.push(format!("at least {least}{unit}"));
    }
    if let Some(most) = assertion.at_most {
        words.push(format!("at most {most}{unit}"));
    }
    words.join(" and ")
}

fn one(
    assertion: &Assertion,
    network: usize,
    protocol: &str,
    tool: &str,
    measured: Option<f64>,
    base: Option<f64>,
) -> AssertionResult {
    let asked = format!(
        "{} of {protocol}, {tool}, topology-{network}: {}",
        assertion.figure,
        bounds(assertion)
    );
    let (Some(value), Some(base)) = (measured, base) else {
        return AssertionResult { asked, measured: "no figure".to_owned(), holds: Some(false) };
    };
    let holds = assertion.at_least.is_none_or(|least| value >= least * base)
        && assertion.at_most.is_none_or(|most| value <= most * base);
    let measured = match &assertion.relative_to {
        Some(_) => format!("{value:.4} = {:.4} x {base:.4}", value / base),
        None => format!("{value:.4}"),
    };
    AssertionResult { asked, measured, holds: Some(holds) }
}
