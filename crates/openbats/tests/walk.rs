//! Checks the walk of a datagram in `ARCHITECTURE.md`: each function is in its file, and the function of
//! the row before calls it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const HEADING: &str = "## The walk of a datagram";
/// Tables of the walk: towards the application and towards the socket.
const TABLES: usize = 2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A row of a table.
#[derive(Debug, PartialEq)]
struct Step {
    row: usize,
    function: String,
    file: String,
    from: Option<usize>,
}

impl Step {
    fn parse(line: &str) -> Result<Self, String> {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [row, function, file, from, _] = cells[..] else {
            return Err(format!("not five cells: {line}"));
        };
        let number = |text: &str| text.parse().map_err(|_| format!("not a row: {line}"));
        let quoted = |text: &str| text.trim_matches('`').to_owned();
        Ok(Self {
            row: number(row)?,
            function: quoted(function),
            file: quoted(file),
            from: if from == "–" { None } else { Some(number(from)?) },
        })
    }
}

/// The tables of the walk.
fn tables(document: &str) -> Vec<Vec<Step>> {
    let section = document.split(HEADING).nth(1).expect("the walk");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut tables = Vec::new();
    for line in section.lines().filter(|line| line.starts_with('|')) {
        if line.starts_with("| row") {
            tables.push(Vec::new());
        } else if !line.starts_with("|---") {
            let step = Step::parse(line).unwrap_or_else(|error| panic!("{error}"));
            tables.last_mut().expect("a heading").push(step);
        }
    }
    tables
}

/// The bodies of the functions of this name in a file that `rustfmt` has formatted: from `fn` to the
/// closing brace at the same indentation.
fn bodies(text: &str, name: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |line: &str| {
        let code = line.trim_start();
        let after = code.strip_prefix("fn ").or_else(|| code.split_once(" fn ").map(|(_, b)| b));
        let rest = after.and_then(|after| after.strip_prefix(name));
        !code.starts_with("//") && rest.is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let starts = (0..lines.len()).filter(|&at| begins(lines[at]));
    starts
        .map(|at| {
            let indentation = lines[at].len() - lines[at].trim_start().len();
            let closing = format!("{}}}", " ".repeat(indentation));
            let len = lines[at..].iter().position(|line| *line == closing).unwrap_or_default();
            lines[at..=at + len].join("\n")
        })
        .collect()
}

/// Whether a body calls a function of this name. The signature does not count.
fn calls(body: &str, name: &str) -> bool {
    let code = body.split_once("{\n").map_or("", |(_, code)| code);
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = lines.collect::<Vec<_>>().join("\n");
    code.match_indices(name).any(|(at, _)| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let begins = !code[..at].ends_with(is_name);
        let rest = &code[at + name.len()..];
        begins && (rest.starts_with('(') || rest.starts_with("::<"))
    })
}

/// What is wrong in a table.
fn problems(steps: &[Step], read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut problems = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if step.row != index + 1 {
            problems.push(format!("row {} is the {}. row", step.row, index + 1));
        }
        let Some(text) = read(&step.file) else {
            problems.push(format!("row {}: no file {}", step.row, step.file));
            continue;
        };
        let bodies = bodies(&text, &step.function);
        if bodies.is_empty() {
            problems.push(format!("row {}: no fn {} in {}", step.row, step.function, step.file));
        }
        if let Some(from) = step.from {
            match found.get(&from) {
                None => problems.push(format!("row {}: there is no row {from} above", step.row)),
                Some(callers) if !callers.iter().any(|body| calls(body, &step.function)) => {
                    problems.push(format!(
                        "row {}: row {from} does not call {}",
                        step.row, step.function
                    ));
                }
                Some(_) => {}
            }
        }
        found.insert(step.row, bodies);
    }
    problems
}

#[test]
fn the_walk_of_a_datagram_names_functions_that_call_each_other() {
    let document = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document");
    let tables = tables(&document);
    assert_eq!(tables.len(), TABLES);
    for table in tables {
        assert!(table.len() > 20, "{} rows", table.len());
        let problems = problems(&table, |path| fs::read_to_string(root().join(path)).ok());
        assert!(problems.is_empty(), "ARCHITECTURE.md, {HEADING}:\n{}", problems.join("\n"));
    }
}

#[test]
fn wrong_steps_are_found() {
    let text = "impl A {\n    fn one(&self) {\n        // three()\n        self.two(1);\n    }\n\n    \
                pub(crate) fn two(&self) {\n    }\n}\nfn three<T>(\n    at: T,\n) {\n    one(at)\n}\n";
    let read = |path: &str| (path == "a.rs").then(|| text.to_owned());
    let step = |line: &str| Step::parse(line).unwrap();
    let good = [
        step("| 1 | `one` | `a.rs` | – | begins |"),
        step("| 2 | `two` | `a.rs` | 1 | follows |"),
        step("| 3 | `three` | `a.rs` | – | begins |"),
        step("| 4 | `one` | `a.rs` | 3 | follows |"),
    ];
    assert_eq!(problems(&good, read), [""; 0]);
    for (line, problem) in [
        ("| 2 | `thre` | `a.rs` | 1 | |", "row 2: no fn thre in a.rs"),
        ("| 2 | `three` | `a.rs` | 1 | |", "row 2: row 1 does not call three"),
        ("| 2 | `two` | `b.rs` | 1 | |", "row 2: no file b.rs"),
        ("| 2 | `two` | `a.rs` | 3 | |", "row 2: there is no row 3 above"),
        ("| 3 | `two` | `a.rs` | 1 | |", "row 3 is the 2. row"),
    ] {
        let steps = [step(good_line()), step(line)];
        assert!(problems(&steps, read).iter().any(|p| p == problem), "{line}");
    }
    assert!(Step::parse("| 1 | `one` | `a.rs` |").is_err());
    assert!(Step::parse("| x | `one` | `a.rs` | – | |").is_err());
}

fn good_line() -> &'static str {
    "| 1 | `one` | `a.rs` | – | |"
}
