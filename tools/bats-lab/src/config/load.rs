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
