//! The virtual environment of the decoder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The one package that the decoder needs.
const PACKAGE: &str = "cryptography>=42,<47";

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Python with the package, installed once.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance-python");
        let python = directory.join("bin").join("python");
        let has_package = Command::new(&python).args(["-c", "import cryptography"]).output();
        if !has_package.is_ok_and(|output| output.status.success()) {
            let system = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
            run(Command::new(system).args(["-m", "venv", "--clear"]).arg(&directory));
            run(Command::new(&python).args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                PACKAGE,
            ]));
        }
        python
    })
}

/// What the decoder prints.
pub(crate) fn decoder(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/decoder/main.py");
    let mut command = Command::new(python());
    let output = run(command.arg(script).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1"));
    String::from_utf8(output.stdout).unwrap()
}
