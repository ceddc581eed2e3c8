//! Loads the tests that a command line names: `FILE`, `FILE:TEST` or `case:NAME`.

use std::path::Path;

use anyhow::{Result, bail};

use super::model::TestFile;
use super::source::Source;
use super::{expand, shipped};
use crate::plan::Suite;

/// Loads the tests that `argument` names. Keeps the test `only`, or all enabled tests.
///
/// # Errors
/// If a file cannot be read or is invalid; the error has file, line and column.
pub(crate) fn suite(argument: &str, only: Option<&str>) -> Result<Suite> {
    let (source, named) = match argument.strip_prefix("case:") {
        Some(name) => (shipped::case(name)?, None),
        None => open(argument)?,
    };
    let file: TestFile = source.parse()?;
    let mut suite = expand::suite(&source, &file)?;
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

/// `FILE`, or `FILE:TEST` as in Oasis.
fn open(argument: &str) -> Result<(Source, Option<String>)> {
    if let Some((file, test)) = argument.rsplit_once(':').filter(|_| !Path::new(argument).exists())
        && Path::new(file).exists()
    {
        return Ok((Source::open(Path::new(file))?, Some(test.to_owned())));
    }
    Ok((Source::open(Path::new(argument))?, None))
}
