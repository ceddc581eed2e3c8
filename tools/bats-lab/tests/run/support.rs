//! What the tests share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program, with `bats_iperf` as it is where it has been built by the same command.
pub(crate) fn batslab() -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_batslab"));
    let mut command = Command::new(program);
    if program.with_file_name("bats_iperf").exists() {
        command.env_remove("CARGO_MANIFEST_DIR");
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    batslab().args(arguments).output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this machine allows namespaces; says so if not.
pub(crate) fn allowed(test: &str) -> bool {
    let doctor = run(&["doctor", "--json"]);
    let findings: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let good = findings
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["needed"] == true)
        .all(|finding| finding["good"] == true);
    if !good {
        skipped(test, "this machine allows no network namespaces");
    }
    good
}

/// Says that a test was left out, and why.
pub(crate) fn skipped(test: &str, why: &str) {
    // Not by a macro of printing, whose output of tests that pass is kept back.
    let text = format!("\nSKIPPED {test}: {why}\n");
    std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
}

/// Keeps the measurements of this program's tests from disturbing each other.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Namespaces and folders of labs whose names begin so.
pub(crate) fn left(labs: &str) -> Vec<PathBuf> {
    ["/run/netns", "/run/openbats-lab"]
        .into_iter()
        .flat_map(|place| std::fs::read_dir(place).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(labs))
        .map(|entry| entry.path())
        .collect()
}

/// A folder with a test file in it.
pub(crate) struct Case {
    pub(crate) folder: tempfile::TempDir,
}

impl Case {
    pub(crate) fn new(yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("test.yaml"), yaml).unwrap();
        Self { folder }
    }

    pub(crate) fn file(&self) -> String {
        self.folder.path().join("test.yaml").to_string_lossy().into_owned()
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Runs it; the result is checked against the published schema.
    pub(crate) fn run(&self, arguments: &[&str]) -> (Output, Value) {
        let out = self.out();
        let child = batslab()
            .args(["run", &self.file(), "--quiet", "-o"])
            .arg(&out)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let labs = format!("run-{}-", child.id());
        let output = child.wait_with_output().unwrap();
        assert_eq!(left(&labs), Vec::<PathBuf>::new(), "a lab is left");
        let result = std::fs::read(out.join("result.json")).unwrap_or_else(|error| {
            panic!("no result ({error}): {}{}", said(&output), error_of(&output))
        });
        let result: Value = serde_json::from_slice(&result).unwrap();
        let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/result.schema.json");
        let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
        jsonschema::validate(&schema, &result).unwrap_or_else(|error| panic!("{error}"));
        (output, result)
    }
}

/// The measurement of a protocol and a tool.
pub(crate) fn measurement<'a>(result: &'a Value, protocol: &str, tool: &str) -> &'a Value {
    let all = result["cases"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|case| case["measurements"].as_array().unwrap());
    let mut fitting = all.filter(|one| one["protocol"] == protocol && one["tool"] == tool);
    fitting.next().unwrap_or_else(|| panic!("no measurement of {protocol} by {tool}"))
}

/// A figure of it.
pub(crate) fn figure(result: &Value, protocol: &str, tool: &str, name: &str) -> f64 {
    let one = measurement(result, protocol, tool);
    one["figures"][name]
        .as_f64()
        .unwrap_or_else(|| panic!("no {name} of {protocol} by {tool}: {}", one["reason"]))
}
