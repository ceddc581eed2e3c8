//! Builds the wheel, installs it in a new virtual environment, and runs pytest and the examples
//! there.

#[path = "../../openbats/tests/common/lab.rs"]
mod lab;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn skip(why: &str) {
    lab::skipped("the Python package", why);
}

fn python() -> Command {
    Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()))
}

fn run(command: &mut Command) -> Output {
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

/// Creates a new virtual environment; returns its directory of programs, or why that failed.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let made = python().args(["-m", "venv", "--clear"]).arg(&directory).output();
    match made {
        Err(error) => return Err(format!("python3 cannot be run ({error})")),
        Ok(output) if !output.status.success() => {
            return Err("python3 -m venv does not work here (Debian: python3-venv)".into());
        }
        Ok(_) => {}
    }
    let binaries = directory.join("bin");
    let installed = Command::new(binaries.join("python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(packages)
        .output()
        .map_err(|error| format!("pip cannot be run ({error})"))?;
    if !installed.status.success() {
        let why = String::from_utf8_lossy(&installed.stderr);
        return Err(format!("pip cannot install {packages:?}: {}", why.trim()));
    }
    Ok(binaries)
}

/// The package, its stubs and the examples have complete types.
#[test]
fn mypy_finds_no_errors() {
    let checker = match environment("python-mypy", &["mypy>=1.11,<3"]) {
        Ok(checker) => checker,
        Err(why) => return skip(&why),
    };
    for path in ["python/openbats", "examples"] {
        run(Command::new(checker.join("python"))
            .args(["-m", "mypy", "--strict", "--cache-dir", "/dev/null"])
            .arg(here().join(path))
            .env("MYPYPATH", here().join("python"))
            .current_dir(env!("CARGO_TARGET_TMPDIR")));
    }
}

#[test]
fn wheel_works_in_a_fresh_environment() {
    let tools = match environment("python-tools", &["maturin>=1.9,<2"]) {
        Ok(tools) => tools,
        Err(why) => return skip(&why),
    };
    let fresh = match environment("python-fresh", &["pytest>=8"]) {
        Ok(fresh) => fresh,
        Err(why) => return skip(&why),
    };

    let wheels = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheels");
    let _ = std::fs::remove_dir_all(&wheels);
    // Its settings are those of the test profile, so that its build artifacts are reused. (With that
    // profile's name cargo would build a test program of the library.)
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    run(Command::new(tools.join("maturin"))
        .args(["build", "--profile", "dev", "--locked", "--compatibility", "linux", "--out"])
        .arg(&wheels)
        .arg("--interpreter")
        .arg(fresh.join("python"))
        .env("CARGO_TARGET_DIR", target)
        .current_dir(here()));
    let mut built = std::fs::read_dir(&wheels).unwrap();
    let wheel = built.next().unwrap().unwrap().path();
    assert!(built.next().is_none(), "one wheel for all versions of Python");
    let name = wheel.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.contains("-cp310-abi3-"), "{name}");

    let python = fresh.join("python");
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"])
        .arg(&wheel));
    // Run outside the source tree, so that the installed package is imported.
    let elsewhere = wheels.clone();
    let identities = ["known.pem", "other.pem"].map(|name| elsewhere.join(name));
    for path in &identities {
        openbats::Identity::load_or_generate(path, &["client"]).unwrap();
    }
    let tested = run(Command::new(&python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir"])
        .arg(here())
        .arg(here().join("tests"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OPENBATS_TEST_IDENTITIES", std::env::join_paths(&identities).unwrap())
        .current_dir(&elsewhere));
    let said = String::from_utf8_lossy(&tested.stdout).into_owned();
    assert!(said.contains(" passed") && !said.contains("skipped"), "{said}");

    // The program of the quick start.
    let page = std::fs::read_to_string(here().join("../../docs/quick-start/python.md")).unwrap();
    let program = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(elsewhere.join("hello.py"), program).unwrap();
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let state = elsewhere.join("state");
    let mut server = Command::new(&python)
        .args(["hello.py", "server", &port.to_string()])
        .current_dir(&elsewhere)
        .spawn()
        .unwrap();
    let ask = || {
        let mut client = Command::new(&python);
        client.args(["hello.py", "client", "127.0.0.1", &port.to_string()]);
        client.current_dir(&elsewhere).env("XDG_STATE_HOME", &state);
        client.output().unwrap().stdout
    };
    // The server may not listen yet.
    let answer = (0..50).map(|_| ask()).find(|answer| !answer.is_empty());
    let _ = server.kill();
    let _ = server.wait();
    assert_eq!(answer.as_deref(), Some(&b"echo: hello\n"[..]));
    // The page installs the package below the home directory.
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-home");
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home).unwrap();
    std::os::unix::fs::symlink(fresh.parent().unwrap(), home.join("openbats-python")).unwrap();
    lab::follow_over_lossy_link(&page, &elsewhere, &home);

    // Random calls from eight threads; under sanitizers and for longer by .ci/sanitize.
    let stress = here().join("tests/stress.py");
    let called =
        run(Command::new(&python).arg(stress).args(["8", "3", "1"]).current_dir(&elsewhere));
    assert!(String::from_utf8_lossy(&called.stdout).contains(" calls, "), "{called:?}");

    for (example, says) in [
        ("echo.py", "3 messages came back"),
        ("file.py", "8388608 bytes arrived"),
        ("latency.py", "500 rounds"),
        ("throughput.py", "throughput: 100 MB"),
    ] {
        let output = run(Command::new(&python)
            .arg(here().join("examples").join(example))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&elsewhere));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(says), "{example}: {said}");
    }
}
