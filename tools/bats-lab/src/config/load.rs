//! From the words of a command line to a plan: `FILE`, `FILE:TEST`, `case:NAME`.

use std::path::Path;

use anyhow::{Result, bail};

use super::model::TestFile;
use super::source::Source;
use super::{shipped, tests_of};
use crate::plan::Suite;

/// Reads what `what` names and leaves the tests that `only` names, or all that are not switched
/// off.
///
/// # Errors
/// Where a file cannot be read or something in it is wrong, with file, line and column.
pub(crate) fn suite(what: &str, only: Option<&str>) -> Result<Suite> {
    let (source, named) = match what.strip_prefix("case:") {
        Some(name) => (shipped::case(name)?, None),
        None => open(what)?,
    };
    let file: TestFile = source.parse()?;
    let mut suite = tests_of::suite(&source, &file)?;
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
                        "{}: no test `{only}`; there are {}",
                        source.name,
                        names.collect::<Vec<_>>().join(", ")
                    ),
                }
            }
        }
        None => {
            for case in suite.cases.iter().filter(|case| !case.enabled) {
                suite.notes.push(format!("`{}` is switched off by its `if`", case.name));
            }
            suite.cases.retain(|case| case.enabled);
        }
    }
    if suite.cases.is_empty() {
        bail!("{}: there is no test to run", source.name);
    }
    Ok(suite)
}

/// `FILE`, or Oasis's `FILE:TEST`.
fn open(what: &str) -> Result<(Source, Option<String>)> {
    if let Some((file, test)) = what.rsplit_once(':').filter(|_| !Path::new(what).exists())
        && Path::new(file).exists()
    {
        return Ok((Source::open(Path::new(file))?, Some(test.to_owned())));
    }
    Ok((Source::open(Path::new(what))?, None))
}
