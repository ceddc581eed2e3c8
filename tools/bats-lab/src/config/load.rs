//! Loads the tests that a command line names: `FILE`, `FILE:TEST` or `case:NAME`.

use std::path::Path;

use anyhow::{Result, bail};

use super::model::TestFile;
use super::source::{ConfigErrors, Source};
use super::{expand, shipped};
use crate::plan::Suite;

/// Loads the tests that `argument` names. Keeps the test `only`, or all enabled tests.
///
/// # Errors
/// If a file cannot be read or is invalid; each error has file, line and column.
pub(crate) fn suite(argument: &str, only: Option<&str>) -> Result<Suite> {
    let (source, named) = match argument.strip_prefix("case:") {
        Some(name) => (shipped::case(name)?, None),
        None => open(argument)?,
    };
    let mut suite = parse(&source)?;
    let names: Vec<String> = suite.cases.iter().map(|case| case.name.clone()).collect();
    match only.or(named.as_deref()).filter(|only| *only != "all") {
        Some(only) => {
            suite.cases.retain(|case| case.name == only);
            if suite.cases.is_empty() {
                let names = names.iter().map(String::as_str);
                match super::suggest::nearest(only, names.clone()) {
                    Some(near) => {
                        bail!("{}: no test `{only}`; did you mean `{near}`?", source.name)
                    }
                    None => bail!(
                        "{}: no test `{only}`; available: {}",
                        source.name,
                        names.collect::<Vec<_>>().join(", ")
                    ),
                }
            }
        }
        None => {
            for case in suite.cases.iter().filter(|case| !case.enabled) {
                suite.notes.push(format!("`{}` is disabled by its `if`", case.name));
            }
            suite.cases.retain(|case| case.enabled);
        }
    }
    if suite.cases.is_empty() {
        bail!("{}: no test to run", source.name);
    }
    Ok(suite)
}

/// The tests of a file, or all of its errors.
pub(crate) fn parse(source: &Source) -> Result<Suite, ConfigErrors> {
    let (file, corrected, mut errors) = super::correct::parse::<TestFile>(source);
    let suite = file.and_then(|file| errors.keep_all(expand::suite(&corrected, &file)));
    match suite {
        Some(suite) if errors.0.is_empty() => Ok(suite),
        _ => {
            errors.0.sort_by_key(|error| error.position());
            Err(errors)
        }
    }
}

/// `FILE`, or `FILE:TEST` as in Oasis.
fn open(argument: &str) -> Result<(Source, Option<String>)> {
    if let Some((file, test)) = argument.rsplit_once(':').filter(|_| !Path::new(argument).exists())
        && Path::new(file).exists()
    {
        return Ok((Source::open(Path::new(file))?, Some(test.to_owned())));
    }
    Ok((Source::open(Path::new(argument))?, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these parts in a test and next to its tests.
    fn errors(topology: &str, tools: &str, rest: &str, more: &str) -> String {
        let text = format!(
            "tests:\n  one:\n    topology: {{ topology_type: linear, nodes: 2, link: {{ rate: 10M }}{topology} }}\n    \
             target_protocols: [brtp]\n    test_tools: {{ {tools} }}\n{rest}{more}"
        );
        match parse(&Source::shipped("x.yaml", &text)) {
            Ok(suite) => format!("{} tests", suite.cases.len()),
            Err(errors) => errors.to_string(),
        }
    }

    fn list(count: usize, item: impl Fn(usize) -> String) -> String {
        (0..count).map(item).collect()
    }

    #[test]
    fn numbers_of_measurements_and_parts_are_limited() {
        let axis =
            |count| format!(", matrix: {{ delay: [{}] }}", list(count, |at| format!("{at}ms, ")));
        let tools = |count| list(count, |at| format!("iperf{at}: {{}}, "));
        let events = |count| {
            let event = |_| "      - { at: 1, set: { loss: 1% } }\n".to_owned();
            format!("    events:\n{}", list(count, event))
        };
        let repetitions = |count: u32| format!("    repetitions: {count}\n");
        let tests = |count| {
            let test = |at| {
                format!("  t{at}: {{ topology: {{}}, target_protocols: [], test_tools: {{}} }}\n")
            };
            list(count, test)
        };
        let protocols = |count| {
            format!("protocols:\n{}", list(count, |at| format!("  - {{ name: p{at}, bin: x }}\n")))
        };
        let iperf = || "iperf: {}".to_owned();
        let none = String::new;
        for (topology, tools, rest, more, expected) in [
            (axis(100), iperf(), repetitions(1_000), none(), "1 tests"),
            (
                axis(101),
                iperf(),
                repetitions(1_000),
                none(),
                "x.yaml:2:3: with this test the file has 101000",
            ),
            (none(), tools(100), none(), none(), "1 tests"),
            (
                none(),
                tools(101),
                none(),
                none(),
                "x.yaml:2:3: 101 tools: a test can have at most 100",
            ),
            (none(), iperf(), events(19_999), none(), "1 tests"),
            (none(), iperf(), events(20_000), none(), "x.yaml:2:3: 1 networks with 20000 events"),
            (axis(1_000), tools(21), none(), none(), "have 21000 paths; at most 20000"),
            (
                none(),
                iperf(),
                none(),
                tests(1_000),
                "x.yaml: 1001 tests: a file can have at most 1000",
            ),
            (none(), iperf(), none(), protocols(1_000), "1 tests"),
            (none(), iperf(), none(), protocols(1_001), "x.yaml: 1001 protocols: a file can have"),
        ] {
            let found = errors(&topology, &tools, &rest, &more);
            assert!(found.contains(expected), "{expected}: {}", &found[..found.len().min(400)]);
        }
        let assertions = format!(
            "    assertions:\n{}",
            list(2_000, |_| "      - { figure: x, at_least: 1 }\n".to_owned())
        );
        assert_eq!(errors("", "iperf: {}", &assertions, "").lines().count(), 1_000);
    }

    #[test]
    fn numbers_without_a_value_are_refused() {
        for (rest, words) in [
            ("assertions: [{ figure: throughput_mbps, at_least: 1e999 }]", "expected a number"),
            ("assertions: [{ figure: throughput_mbps, at_most: -.inf }]", "finite"),
            (
                "published: [{ source: x, label: y, figure: throughput_mbps, value: .nan }]",
                "finite",
            ),
        ] {
            let found = errors("", "iperf: {}", &format!("    {rest}\n"), "");
            assert!(found.contains(words) && found.starts_with("x.yaml:6:"), "{rest}: {found}");
        }
    }
}
