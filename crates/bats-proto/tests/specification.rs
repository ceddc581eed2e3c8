//! Checks that `docs/spec/requirements.md` lists every requirement of the specification, and that the
//! tests that it names exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The numbers of the requirements in a text, in order: those after each MUST or MUST NOT.
///
/// # Errors
///
/// A key word without a number.
fn numbers(text: &str) -> Result<Vec<String>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if *word != "MUST" {
            continue;
        }
        let next = words.get(at + 1).copied().unwrap_or_default();
        let next =
            if next == "NOT" { words.get(at + 2).copied().unwrap_or_default() } else { next };
        let number = next.strip_prefix('(').and_then(|next| next.split(')').next());
        let number = number.filter(|number| {
            let (letter, digits) = number.split_at(number.len().min(1));
            letter.chars().all(char::is_uppercase) && digits.parse::<u32>().is_ok()
        });
        match number {
            Some(number) => found.push(number.to_owned()),
            None => return Err(words[at..words.len().min(at + 8)].join(" ")),
        }
    }
    Ok(found)
}

/// The tests of each requirement in the table.
fn rows(table: &str) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for line in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let tests = cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let old = rows.insert(cells[0].to_owned(), tests);
        assert!(old.is_none(), "{} has two rows", cells[0]);
    }
    rows
}

/// The names of all functions in Rust files below a directory.
fn functions(directory: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, names);
        } else if is_source {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
            names.extend(
                lines.filter_map(|line| line.split_once('(')).map(|(name, _)| name.to_owned()),
            );
        }
    }
}

#[test]
fn every_requirement_has_a_row_with_tests_that_exist() {
    let directory = root().join("docs/spec");
    let mut required = BTreeSet::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name == "README.md" || name == "requirements.md" {
            // The index explains the key words.
            continue;
        }
        let found = numbers(&fs::read_to_string(&path).unwrap());
        let found = found.unwrap_or_else(|text| panic!("{name} has a MUST without number: {text}"));
        for number in found {
            assert!(required.insert(number.clone()), "{name}: {number} is used twice");
        }
    }
    assert!(required.len() > 60, "{required:?}");
    let rows = rows(&fs::read_to_string(directory.join("requirements.md")).unwrap());
    assert_eq!(required, rows.keys().cloned().collect(), "requirements and rows differ");

    println!("{} requirements", rows.len());
    let mut names = BTreeSet::new();
    functions(&root().join("crates"), &mut names);
    for (number, tests) in rows {
        assert!(!tests.is_empty(), "{number} has no test");
        for test in tests {
            assert!(names.contains(&test), "{number}: no test {test}");
        }
    }
}

#[test]
fn key_words_without_number_are_found() {
    assert_eq!(
        numbers("It MUST (A1) act, and MUST\nNOT (B12), fail."),
        Ok(vec!["A1".into(), "B12".into()])
    );
    assert!(numbers("It MUST act").is_err());
    assert!(numbers("It MUST NOT").is_err());
    assert!(numbers("It MUST (a)").is_err());
}

/// The index names every page, so that a reader finds it.
#[test]
fn the_index_names_every_page() {
    let directory = root().join("docs/spec");
    let index = fs::read_to_string(directory.join("README.md")).unwrap();
    for entry in fs::read_dir(&directory).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        assert!(name == "README.md" || index.contains(&format!("]({name})")), "{name}");
    }
}
