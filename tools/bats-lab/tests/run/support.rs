//! Helpers shared by the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) use crate::skip::skipped;

/// The `batslab` program. If the same command has built `bats_iperf` and `batsd`, these are used as they are.
pub(crate) fn batslab() -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_batslab"));
    let mut command = Command::new(program);
    if ["bats_iperf", "batsd"].iter().all(|name| program.with_file_name(name).exists()) {
        command.env_remove("CARGO_MANIFEST_DIR");
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    batslab().args(arguments).output().unwrap()
}

pub(crate) fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this machine allows namespaces; reports the test as skipped if not.
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

/// Reports that a test is skipped for a reason that may also hold in CI: something is installed, the kernel
/// lacks a feature, or other work disturbed the test. Otherwise [`skipped`].
pub(crate) fn skipped_also_in_ci(test: &str, why: &str) {
    // Written directly, because the test harness captures the output of print macros.
    let text = format!("\nSKIPPED {test}, also with OPENBATS_NO_SKIP=1: {why}\n");
    std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes()).unwrap();
}

/// Locks out the other tests of this program, so that measurements do not disturb each other.
pub(crate) fn lock_machine() -> std::sync::MutexGuard<'static, ()> {
    static MACHINE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    MACHINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Namespaces and state directories of labs whose names start with this prefix.
pub(crate) fn leftovers(labs: &str) -> Vec<PathBuf> {
    ["/run/netns", "/run/openbats-lab"]
        .into_iter()
        .flat_map(|place| std::fs::read_dir(place).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(labs))
        .map(|entry| entry.path())
        .collect()
}

/// A directory with a test file.
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

    /// Runs the test file and validates the result against the published schema.
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
        assert_eq!(leftovers(&labs), Vec::<PathBuf>::new(), "a lab is left");
        let result = std::fs::read(out.join("result.json")).unwrap_or_else(|error| {
            panic!("no result ({error}): {}{}", stdout_of(&output), stderr_of(&output))
        });
        let result: Value = serde_json::from_slice(&result).unwrap();
        let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/result.schema.json");
        let schema: Value = serde_json::from_slice(&std::fs::read(schema).unwrap()).unwrap();
        jsonschema::validate(&schema, &result).unwrap_or_else(|error| panic!("{error}"));
        (output, result)
    }
}

/// Finds the measurement of a protocol with a tool.
pub(crate) fn measurement<'a>(result: &'a Value, protocol: &str, tool: &str) -> &'a Value {
    let all = result["cases"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|case| case["measurements"].as_array().unwrap());
    let mut matching = all.filter(|one| one["protocol"] == protocol && one["tool"] == tool);
    matching.next().unwrap_or_else(|| panic!("no measurement of {protocol} by {tool}"))
}

/// Returns a figure of a measurement.
pub(crate) fn figure(result: &Value, protocol: &str, tool: &str, name: &str) -> f64 {
    let one = measurement(result, protocol, tool);
    one["figures"][name]
        .as_f64()
        .unwrap_or_else(|| panic!("no {name} of {protocol} by {tool}: {}", one["reason"]))
}
