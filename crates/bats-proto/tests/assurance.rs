//! Checks that `docs/assurance.md` has all rows, and that the files and tests that it names exist.

use std::fs;
use std::path::{Path, PathBuf};

/// Rows of the table of properties.
const ROWS: usize = 45;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files: path from the root and content.
fn sources() -> Vec<(String, String)> {
    let mut sources = Vec::new();
    let mut directories = vec![root().join("crates"), root().join("tools"), root().join("fuzz")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                directories.push(path);
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).expect("a text file");
                let path = path.strip_prefix(root()).expect("below the root");
                sources.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    sources
}

/// The parts of a cell in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    assert_eq!(cell.matches('`').count() % 2, 0, "unpaired backtick: {cell}");
    cell.split('`').skip(1).step_by(2)
}

fn is_test_name(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Whether `text` has a test function of this name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(index, line)| {
        let is_function = line.strip_prefix("fn ").and_then(|rest| rest.strip_prefix(name));
        let begins = is_function.is_some_and(|rest| rest.starts_with('(') || rest.starts_with('<'));
        let mut before = lines[..index].iter().rev();
        let is_attribute = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
        begins && before.by_ref().take_while(is_attribute).any(|line| *line == "#[test]")
    })
}

/// What a cell names and the repository lacks. Tests are in the file that is named before them.
fn missing(cell: &str, sources: &[(String, String)]) -> Vec<String> {
    let mut missing = Vec::new();
    let mut files: Vec<&(String, String)> = Vec::new();
    for name in quoted(cell) {
        if name.ends_with(".rs") {
            files = sources
                .iter()
                .filter(|(path, _)| path == name || path.ends_with(&format!("/{name}")))
                .collect();
            if files.is_empty() {
                missing.push(format!("file {name}"));
            }
        } else if is_test_name(name) && !files.iter().any(|(_, text)| has_test(text, name)) {
            missing.push(format!("test {name}"));
        }
    }
    missing
}

/// The rows of all tables as cells, headings and rules excluded.
fn rows(document: &str) -> Vec<Vec<&str>> {
    let lines = document.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---"));
    lines
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|cells| !matches!(cells[0], "#" | "change" | "area" | "case"))
        .collect()
}

#[test]
fn assurance_names_existing_tests_and_files() {
    let document = fs::read_to_string(root().join("docs/assurance.md")).expect("a document");
    let sources = sources();
    let mut numbers = Vec::new();
    for cells in rows(&document) {
        if let Ok(number) = cells[0].parse::<usize>() {
            assert_eq!(cells.len(), 7, "row {number}");
            numbers.push(number);
            assert_eq!(missing(cells[2], &sources), [] as [String; 0], "row {number}");
            for command in quoted(cells[5]) {
                let program = command.split(' ').next().unwrap_or_default();
                let exists = !program.contains('/') || root().join(program).is_file();
                assert!(exists, "row {number}: {program}");
            }
            let has_tests = cells[2] != "none" && !cells[2].is_empty();
            assert!(has_tests || !cells[6].is_empty(), "row {number}: no test and no reason");
        } else {
            assert_eq!(missing(cells[1], &sources), [] as [String; 0], "{}", cells[0]);
        }
    }
    assert_eq!(numbers, (1..=ROWS).collect::<Vec<_>>());
}

/// The numbers in `text` before this word.
fn numbers_before(text: &str, word: &str) -> Vec<usize> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_word = |found: &str| found.trim_end_matches([',', ':', ';', '.']) == word;
    let pairs = words.windows(2).filter(|pair| is_word(pair[1]));
    pairs.filter_map(|pair| pair[0].parse().ok()).collect()
}

/// The number of texts in the list `NAMES` of a file.
fn number_of_names(text: &str) -> usize {
    let (_, rest) = text.split_once("NAMES: ").expect("a list");
    let (list, _) = rest.split_once("];").expect("its end");
    list.matches('"').count() / 2
}

#[test]
fn numbers_of_attacks_are_those_of_the_code() {
    let document = fs::read_to_string(root().join("docs/assurance.md")).expect("a document");
    let names = |file: &str| {
        let path = root().join("crates").join(file);
        number_of_names(&fs::read_to_string(path).expect("a file"))
    };
    let attacks = names("bats-proto/examples/hostile_packets/attacks.rs");
    let others: usize = [
        "bats-proto/examples/hostile_packets/relay.rs",
        "bats-proto/examples/hostile_packets/psk.rs",
        "openbats/examples/hostile_modes/tcp.rs",
        "openbats/examples/hostile_modes/quic.rs",
        "openbats/examples/hostile_modes/udp.rs",
    ]
    .map(names)
    .iter()
    .sum();
    let rows = rows(&document);
    let row = |number: &str| rows.iter().find(|cells| cells[0] == number).expect("a row").join(" ");
    assert_eq!(numbers_before(&row("27"), "attacks"), [attacks], "row 27");
    assert_eq!(numbers_before(&row("28"), "cases"), [attacks + others], "row 28");
}

#[test]
fn numbers_and_lists_are_read() {
    let text = "after each of 32 attacks, 4 cases: 3 fine, 1 closed; many cases";
    assert_eq!(numbers_before(text, "attacks"), [32]);
    assert_eq!(numbers_before(text, "cases"), [4]);
    assert_eq!(numbers_before(text, "closed"), [1]);
    assert_eq!(number_of_names("const NAMES: [&str; 2] = [\"a\", \"b\"];"), 2);
    assert_eq!(number_of_names("const NAMES: &[&str] =\n    &[\"a\"]; f(\"b\")"), 1);
}

#[test]
fn wrong_names_are_found() {
    let source = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let sources = [
        source("crates/a/src/x.rs", "#[test]\nfn one() {\n}\nfn helper() {}"),
        source("crates/a/src/y.rs", "    #[test]\n    fn two(number: u8) {}"),
    ];
    assert_eq!(missing("`x.rs`: `one`; `src/y.rs`: `two`", &sources), [] as [String; 0]);
    assert_eq!(missing("`x.rs`: `two`", &sources), ["test two"]);
    assert_eq!(missing("`x.rs`: `helper`, `on`", &sources), ["test helper", "test on"]);
    assert_eq!(missing("`z.rs`: `one`", &sources), ["file z.rs", "test one"]);
    assert_eq!(missing("`one`", &sources), ["test one"]);
}
