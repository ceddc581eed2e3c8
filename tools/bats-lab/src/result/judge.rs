//! Evaluates assertions and decides whether a test passed.

use super::statistics::Sample;
use super::{AssertionResult, CaseResult, Measurement, Status};
use crate::backend::sim::{MODEL_SUFFIX, NO_RATE_LIMIT};
use crate::plan::{Assertion, Case};

/// Evaluates the assertions of `case` and sets its verdict.
pub(crate) fn judge(case: &Case, result: &mut CaseResult) {
    result.assertions = case
        .assertions
        .iter()
        .flat_map(|assertion| evaluate(assertion, case, &result.measurements))
        .collect();
    let any_failed = result.measurements.iter().any(|one| one.status == Status::Failed);
    let any_passed = result.measurements.iter().any(|one| one.status == Status::Passed);
    // Unsupported measurements do not affect the verdict.
    let any_violated = result.assertions.iter().any(|one| one.holds == Some(false));
    result.passed = any_passed && !any_failed && !any_violated;
    let has_no_rate_limit =
        result.measurements.iter().any(|one| one.reason.as_deref() == Some(NO_RATE_LIMIT));
    let all_unsupported = result.measurements.iter().all(|one| one.status == Status::Unsupported);
    result.skipped = (has_no_rate_limit && all_unsupported).then(|| NO_RATE_LIMIT.to_owned());
}

/// The mean of a figure over the repetitions.
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
    Sample::from_values(&values).map(|sample| sample.mean)
}

/// Evaluates an assertion for every protocol, tool and network that it matches.
fn evaluate(
    assertion: &Assertion,
    case: &Case,
    measurements: &[Measurement],
) -> Vec<AssertionResult> {
    let mut results = Vec::new();
    let mut has_unsupported = false;
    for network in 0..case.networks.len() {
        for protocol in &case.protocols {
            for tool in &case.tools {
                let matches = assertion.network.is_none_or(|wanted| wanted == network)
                    && assertion.protocol.as_ref().is_none_or(|wanted| *wanted == protocol.name)
                    && assertion.relative_to.as_ref() != Some(&protocol.name)
                    && assertion.tool.as_ref().is_none_or(|wanted| *wanted == tool.name);
                if !matches {
                    continue;
                }
                let is_unsupported =
                    |name: &str| unsupported(measurements, name, &tool.name, network);
                if is_unsupported(&protocol.name) {
                    has_unsupported = true;
                    continue;
                }
                let of =
                    |name: &str| mean(measurements, &assertion.figure, name, &tool.name, network);
                let measured = of(&protocol.name);
                // An assertion that names no tool ignores tools without the figure.
                if measured.is_none() && assertion.tool.is_none() && case.tools.len() > 1 {
                    continue;
                }
                let base = match &assertion.relative_to {
                    Some(other) => of(other),
                    None => Some(1.0),
                };
                let mut judged =
                    check_bounds(assertion, network, &protocol.name, &tool.name, measured, base);
                if let Some(other) = &assertion.relative_to
                    && is_unsupported(other)
                {
                    judged.measured = format!("{other} is not supported by this backend");
                    judged.holds = None;
                }
                let is_model = |name: &str| {
                    let mut mine = measurements.iter().filter(|one| one.protocol == name);
                    mine.any(|one| one.label.ends_with(MODEL_SUFFIX))
                };
                if let Some(other) = &assertion.relative_to
                    && judged.holds.is_some()
                    && is_model(other) != is_model(&protocol.name)
                {
                    // A comparison with a model says nothing about the TCP of the kernel.
                    let model = if is_model(other) { other } else { &protocol.name };
                    judged.measured.push_str(&format!("; {model} is a model here"));
                    judged.holds = None;
                }
                let is_overloaded = |name: &str| {
                    measurements.iter().any(|one| {
                        one.machine_bound
                            && (one.protocol.as_str(), one.tool.as_str(), one.network)
                                == (name, tool.name.as_str(), network)
                    })
                };
                let others = assertion.relative_to.iter().map(String::as_str);
                if others.chain([protocol.name.as_str()]).any(is_overloaded) {
                    judged.measured.push_str("; host overload may have limited it");
                }
                results.push(judged);
            }
        }
    }
    if results.is_empty() {
        results.push(AssertionResult {
            asked: format!("{} {}", assertion.figure, bounds(assertion)),
            measured: if has_unsupported {
                "this backend does not support the matching measurements".to_owned()
            } else {
                "no measurement matches".to_owned()
            },
            holds: (!has_unsupported).then_some(false),
        });
    }
    results
}

/// Whether the backend supports none of the matching measurements.
fn unsupported(measurements: &[Measurement], protocol: &str, tool: &str, network: usize) -> bool {
    let mut matching = measurements
        .iter()
        .filter(|one| one.protocol == protocol && one.tool == tool && one.network == network)
        .peekable();
    matching.peek().is_some() && matching.all(|one| one.status == Status::Unsupported)
}

fn bounds(assertion: &Assertion) -> String {
    let mut words = Vec::new();
    let reference = assertion.relative_to.as_ref();
    let unit = reference.map_or(String::new(), |other| format!(" x {other}'s"));
    if let Some(min) = assertion.at_least {
        words.push(format!("at least {min}{unit}"));
    }
    if let Some(max) = assertion.at_most {
        words.push(format!("at most {max}{unit}"));
    }
    words.join(" and ")
}

fn check_bounds(
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
        return AssertionResult { asked, measured: "not measured".to_owned(), holds: Some(false) };
    };
    let holds = assertion.at_least.is_none_or(|least| value >= least * base)
        && assertion.at_most.is_none_or(|most| value <= most * base);
    let measured = match &assertion.relative_to {
        Some(_) => format!("{value:.4} = {:.4} x {base:.4}", value / base),
        None => format!("{value:.4}"),
    };
    AssertionResult { asked, measured, holds: Some(holds) }
}
