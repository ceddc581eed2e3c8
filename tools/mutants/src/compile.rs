//! Builds of the copied sources.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::tree::{Diagnostic, Place, State, Tree};

/// A test program and the directory that it expects.
pub struct Program {
    pub package: String,
    pub library: bool,
    pub path: PathBuf,
    pub directory: PathBuf,
}

pub struct Compiler<'a> {
    pub package: &'a str,
    /// Packages whose tests run.
    pub tests: &'a [String],
    /// Whether only their unit tests run.
    pub unit: bool,
    pub profile: &'a str,
    pub target: &'a Path,
}

impl Compiler<'_> {
    /// Removes unviable mutants until the copy compiles, and returns the test programs.
    pub fn build(&self, tree: &mut Tree) -> Result<Vec<Program>> {
        // Finds most errors in less time than a build.
        let check = ["check", "--package", self.package, "--lib"].map(OsString::from);
        let targets = if self.unit { "--lib" } else { "--tests" };
        let mut build = ["test", "--no-run", targets].map(OsString::from).to_vec();
        for package in self.tests {
            build.extend(["--package".into(), package.into()]);
        }
        self.until_compiled(&check, tree)?;
        self.until_compiled(&build, tree)
    }

    fn until_compiled(&self, arguments: &[OsString], tree: &mut Tree) -> Result<Vec<Program>> {
        loop {
            tree.write()?;
            let messages = self.cargo(arguments, &tree.root)?;
            let diagnostics: Vec<_> = messages.iter().filter_map(diagnostic).collect();
            let before = switched(tree);
            tree.remove(&diagnostics)?;
            eprintln!(
                "cargo {}: {} errors; {} of {before} mutants left",
                arguments[0].to_string_lossy(),
                diagnostics.len(),
                switched(tree)
            );
            if switched(tree) < before {
                continue;
            }
            if let Some(diagnostic) = diagnostics.first() {
                bail!("the copy does not compile:\n{}", diagnostic.rendered);
            }
            let finished = |message: &Value| message["reason"] == "build-finished";
            let finished = messages.iter().find(|message| finished(message));
            ensure!(finished.is_some_and(|message| message["success"] == true), "the build failed");
            return messages.iter().filter_map(|message| program(message).transpose()).collect();
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn cargo(&self, arguments: &[OsString], directory: &Path) -> Result<Vec<Value>> {
        let mut command = Command::new("cargo");
        command.args(arguments).args(["--message-format", "json", "--profile", self.profile]);
        command.current_dir(directory).stderr(Stdio::inherit()).stdin(Stdio::null());
        command.env("CARGO_TARGET_DIR", self.target);
        // Mutants cause warnings. Some lints that are errors by default find what tests shall find.
        command.env("RUSTFLAGS", "--cap-lints=warn").env_remove("CARGO_ENCODED_RUSTFLAGS");
        let output = command.output().context("cannot run cargo")?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
}

fn switched(tree: &Tree) -> usize {
    tree.states.iter().filter(|&&state| state == State::Switched).count()
}

fn diagnostic(message: &Value) -> Option<Diagnostic> {
    let message = message.get("message")?;
    if message["level"] != "error" {
        return None;
    }
    let mut primary = Vec::new();
    let mut secondary = Vec::new();
    let children = message["children"].as_array().into_iter().flatten();
    for part in std::iter::once(message).chain(children) {
        for span in part["spans"].as_array().into_iter().flatten() {
            let is_primary = span["is_primary"] == true && std::ptr::eq(part, message);
            let places = if is_primary { &mut primary } else { &mut secondary };
            places.extend(place(span));
        }
    }
    // Without a place: the number of errors.
    let rendered = message["rendered"].as_str().unwrap_or_default().to_owned();
    (!primary.is_empty()).then_some(Diagnostic { primary, secondary, rendered })
}

/// The place of a span, or of the call of the macro that contains it.
fn place(span: &Value) -> Option<Place> {
    if !span["expansion"].is_null() {
        return place(&span["expansion"]["span"]);
    }
    let offset = |key: &str| span[key].as_u64().and_then(|offset| usize::try_from(offset).ok());
    Some(Place {
        file: span["file_name"].as_str()?.into(),
        range: offset("byte_start")?..offset("byte_end")?,
    })
}

/// The test program that a message announces.
fn program(message: &Value) -> Result<Option<Program>> {
    let Some(path) = message["executable"].as_str() else { return Ok(None) };
    if message["profile"]["test"] != true {
        return Ok(None);
    }
    let manifest = message["manifest_path"].as_str().context("no manifest_path")?;
    let directory = Path::new(manifest).parent().context("manifest_path without a directory")?;
    let kinds = message["target"]["kind"].as_array().context("no target kind")?;
    let package = directory.file_name().context("directory without a name")?;
    Ok(Some(Program {
        package: package.to_string_lossy().into_owned(),
        library: kinds.iter().any(|kind| kind == "lib"),
        path: path.into(),
        directory: directory.to_owned(),
    }))
}
