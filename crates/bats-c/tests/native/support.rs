//! Helpers of the tests: the installed prefix, compilers, programs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::lab::skipped;

pub(crate) const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];

pub(crate) fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn scratch() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("native");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

pub(crate) fn is_long() -> bool {
    std::env::var_os("OPENBATS_TEST_LONG").is_some_and(|value| value == "1")
}

/// Writes a line to standard error directly, so that it is shown even if the test passes.
pub(crate) fn print_line(line: &str) {
    let _ = std::io::stderr().write_all(format!("\n{line}\n").as_bytes());
}

/// Whether a program is installed. If not, prints that the test of `what` is skipped.
pub(crate) fn is_installed(program: &str, what: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        skipped(what, &format!("{program} is not installed"));
    }
    found
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The static library that cargo built for these tests, in the directory of the test program.
pub(crate) fn archive() -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let newest = |directory: &Path| {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("libbats_c") && name.ends_with(".a")
            })
            .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
    };
    newest(&deps).or_else(|| newest(deps.parent().unwrap())).expect("cargo builds the archive")
}

pub(crate) fn install(prefix: &Path, options: &[&str]) {
    let _ = std::fs::remove_dir_all(prefix);
    let mut command = Command::new(crate_dir().join("install-sdk"));
    command.arg("--archive").arg(archive()).arg("--prefix").arg(prefix).args(options);
    run(&mut command);
}

/// The installed prefix that most tests use.
pub(crate) fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch().join("prefix");
        install(&prefix, &[]);
        prefix
    })
}

/// Compiles a program against the installed prefix and returns its path.
pub(crate) fn build(compiler: &str, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let prefix = prefix();
    let program = scratch().join(name);
    let standard =
        if source.ends_with(".c") { ["-std=c11", "-pedantic"] } else { ["-std=c++17", "-pthread"] };
    let mut command = Command::new(compiler);
    // Sanitizers find the same without optimisation, which takes a half of the time with them.
    let is_sanitized = options.iter().any(|option| option.starts_with("-fsanitize"));
    command.args(standard).args(STRICT).arg(if is_sanitized { "-O0" } else { "-O1" });
    command.arg("-I").arg(prefix).arg(crate_dir().join(source)).arg("-o").arg(&program);
    command.args(options);
    command.arg("-L").arg(prefix.join("lib")).arg("-lopenbats");
    command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    run(&mut command);
    program
}

/// Runs a test program and returns its output. Panics if it fails, also by an error of a sanitizer.
pub(crate) fn run_program(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    // The library is not instrumented, so only errors of the program and the headers count.
    command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:exitcode=66");
    // Certificates of clients.
    for name in ["OPENBATS_TEST_IDENTITY", "OPENBATS_TEST_OTHER_IDENTITY"] {
        let path = scratch().join(format!("{name}.pem"));
        openbats::Identity::load_or_generate(&path, &["client"]).unwrap();
        command.env(name, path);
    }
    text(&run(&mut command))
}
