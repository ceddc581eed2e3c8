//! Checks that the names in `docs/limits.md` and the files in `ARCHITECTURE.md` exist.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories with source files, from the repository root.
const SOURCE_DIRS: [&str; 3] = ["crates", "tools", "fuzz"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A source file: its path from the repository root and its content.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn has_word(&self, name: &str) -> bool {
        words(&self.text).any(|word| word == name)
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// All source files, except this one.
fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    let mut directories: Vec<PathBuf> = SOURCE_DIRS.map(|name| root().join(name)).into();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_source = [".rs", ".h", ".cpp"].iter().any(|end| name.ends_with(end));
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                directories.push(path);
            } else if is_source && !path.ends_with("openbats/tests/docs.rs") {
                let text = fs::read_to_string(&path).expect("a text file");
                let path = path.strip_prefix(root()).expect("below the root").to_owned();
                sources.push(Source { path: path.to_string_lossy().into_owned(), text });
            }
        }
    }
    sources
}

/// The parts of a line in backticks.
fn quoted(line: &str) -> Vec<&str> {
    assert_eq!(line.matches('`').count() % 2, 0, "unpaired backtick: {line}");
    line.split('`').skip(1).step_by(2).collect()
}

fn is_file(name: &str) -> bool {
    name.ends_with(".rs") || name.ends_with(".h") || name.ends_with(".md")
}

/// What `docs/limits.md` names and the repository lacks.
fn missing_in_limits(document: &str, sources: &[Source]) -> Vec<String> {
    let known: HashSet<&str> = sources.iter().flat_map(|source| words(&source.text)).collect();
    let tests: HashSet<&str> = sources
        .iter()
        .flat_map(|source| source.text.lines())
        .filter_map(|line| {
            let line = line.trim_start();
            let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("TEST("))?;
            words(name).next()
        })
        .collect();
    let is_crate =
        |name: &str| ["crates", "tools"].iter().any(|dir| root().join(dir).join(name).is_dir());
    let has_file = |name: &str| {
        root().join(name).is_file()
            || sources.iter().any(|source| source.path.ends_with(&format!("/{name}")))
    };
    let mut missing = Vec::new();
    let (mut constants, mut last) = (None, 0);
    for (index, line) in document.lines().enumerate() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|');
        if let Some(column) = cells.iter().position(|cell| is_row && cell.starts_with("Constant")) {
            (constants, last) = (Some(column), cells.len() - 1);
        }
        for (column, cell) in cells.iter().enumerate() {
            let is_test = is_row && constants.is_some() && column == last;
            for name in quoted(cell) {
                let exists = if is_file(name) {
                    has_file(name)
                } else if name.contains(' ') || is_crate(name) {
                    // A command, or the name of a crate.
                    true
                } else if is_test {
                    tests.contains(name)
                } else {
                    words(&name.trim_start_matches('-').replace('-', "_"))
                        .all(|word| known.contains(word))
                };
                if !exists {
                    missing.push(format!("line {}: `{name}`", index + 1));
                }
            }
            // A constant is in the file that is named with it.
            for group in cell.split(';').filter(|_| is_row && constants == Some(column)) {
                let (files, names): (Vec<&str>, Vec<&str>) =
                    quoted(group).into_iter().partition(|name| is_file(name));
                let is_named = |source: &&Source| {
                    files.iter().any(|file| source.path.ends_with(&format!("/{file}")))
                };
                for name in names.iter().filter(|name| !files.is_empty() && !is_crate(name)) {
                    let word = words(name).last().unwrap_or_default();
                    if !sources.iter().filter(is_named).any(|source| source.has_word(word)) {
                        missing.push(format!("line {}: `{name}` in {files:?}", index + 1));
                    }
                }
            }
        }
    }
    missing
}

/// The paths in the section "Where to find" of `ARCHITECTURE.md`, with their line numbers.
fn where_to_find(document: &str) -> Vec<(usize, &str)> {
    let lines = document.lines().enumerate().skip_while(|(_, line)| *line != "## Where to find");
    let section = lines.skip(1).take_while(|(_, line)| !line.starts_with("## "));
    section
        .flat_map(|(index, line)| quoted(line).into_iter().map(move |name| (index + 1, name)))
        .filter(|(_, name)| name.contains('/') || is_file(name))
        .collect()
}

#[test]
fn limits_name_existing_tests_constants_and_files() {
    let document = fs::read_to_string(root().join("docs/limits.md")).expect("docs/limits.md");
    let missing = missing_in_limits(&document, &sources());
    assert!(missing.is_empty(), "docs/limits.md names what does not exist: {missing:#?}");
}

#[test]
fn architecture_names_existing_files() {
    let document = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let paths = where_to_find(&document);
    assert!(!paths.is_empty(), "ARCHITECTURE.md has no files in the section \"Where to find\"");
    let missing: Vec<_> = paths.iter().filter(|(_, path)| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist: {missing:?}");
}

#[test]
fn wrong_names_are_found() {
    let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let sources = [
        source("crates/x/src/a.rs", "const MAX: usize = 1;\nfn the_limit_holds() {}"),
        source("crates/x/src/b.rs", "const MIN: usize = 1;"),
    ];
    let document = |constant: &str, test: &str| {
        format!("| Resource | Constant | Tests |\n|---|---|---|\n| x | {constant} | `{test}` |")
    };
    let missing = |constant: &str, test: &str| {
        missing_in_limits(&document(constant, test), &sources).join(", ")
    };
    assert_eq!(missing("`MAX`, `src/a.rs`; `MIN`", "the_limit_holds"), "");
    assert_eq!(missing("`MAX`, `a.rs`", "the_limit"), "line 3: `the_limit`");
    assert_eq!(missing("`MAX`, `a.rs`", "MIN"), "line 3: `MIN`");
    assert_eq!(missing("`MIN`, `a.rs`", "the_limit_holds"), "line 3: `MIN` in [\"a.rs\"]");
    assert_eq!(missing("`LEAST`", "the_limit_holds"), "line 3: `LEAST`");
    assert_eq!(
        missing("`MAX`, `c.rs`", "the_limit_holds"),
        "line 3: `c.rs`, line 3: `MAX` in [\"c.rs\"]"
    );
    let architecture = "`no/1`\n## Where to find\n| q | `a/b.rs`, `X` |\n## Next\n`no/2`";
    assert_eq!(where_to_find(architecture), [(3, "a/b.rs")]);
}
