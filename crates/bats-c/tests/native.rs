//! The library as C and C++ programs get it: installed to a prefix, compiled against, run.
//!
//! With `OPENBATS_TEST_LONG=1` the random calls run for a minute and 10,000 connections are made.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("native");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn is_long() -> bool {
    std::env::var_os("OPENBATS_TEST_LONG").is_some_and(|value| value == "1")
}

/// What is written to standard error directly is shown, also if the test passes.
fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("\n{line}\n").as_bytes());
}

/// Whether a program is here. What is left out for want of it is said loudly.
fn have(program: &str, what: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        say(&format!("SKIPPED {what}: {program} is not installed"));
    }
    found
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

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The archive that cargo built for these tests: it lies beside them.
fn archive() -> PathBuf {
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

fn install(prefix: &Path, options: &[&str]) {
    let _ = std::fs::remove_dir_all(prefix);
    let mut command = Command::new(here().join("install-sdk"));
    command.arg("--archive").arg(archive()).arg("--prefix").arg(prefix).args(options);
    run(&mut command);
}

/// The prefix that most tests use.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = scratch().join("prefix");
        install(&prefix, &[]);
        prefix
    })
}

/// Compiles a program against the installed prefix and gives its path.
fn build(compiler: &str, source: &str, name: &str, options: &[&str]) -> PathBuf {
    let prefix = prefix();
    let program = scratch().join(name);
    let standard = if source.ends_with(".c") {
        ["-std=c11", "-D_POSIX_C_SOURCE=200809L"]
    } else {
        ["-std=c++17", "-pthread"]
    };
    let mut command = Command::new(compiler);
    command.args(standard).args(STRICT).arg("-O1");
    command.arg("-I").arg(prefix).arg(here().join(source)).arg("-o").arg(&program);
    command.args(options);
    command.arg("-L").arg(prefix.join("lib")).arg("-lopenbats");
    command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    run(&mut command);
    program
}

/// Runs one of the test programs; sanitizers end it with an error when they find something.
fn run_program(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    // The library itself is not instrumented: only what the program and the headers do is judged.
    command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:exitcode=66");
    text(&run(&mut command))
}

#[test]
fn every_header_compiles_alone_with_every_compiler() {
    let prefix = prefix();
    let c = ["c_bats_types.h", "c_bats_api.h", "openbats.h"];
    let cpp = ["bats_config.h", "bats_connection.h", "bats_iocontext.h", "bats_protocol.h"];
    let c_and_cpp = [("gcc", "g++"), ("clang", "clang++")];
    for (c_compiler, cpp_compiler) in c_and_cpp {
        if !have(c_compiler, "headers") || !have(cpp_compiler, "headers") {
            assert_ne!(c_compiler, "gcc", "the tests need gcc");
            continue;
        }
        let check = |compiler: &str, options: &[&str], header: &str| {
            let file = scratch().join(format!("alone-{compiler}-{}", header.replace('/', "-")));
            std::fs::write(&file, format!("#include \"{header}\"\n")).unwrap();
            let mut command = Command::new(compiler);
            command.args(options).args(STRICT).arg("-fsyntax-only").arg("-I").arg(prefix);
            run(command.arg(&file));
        };
        for header in c {
            let header = format!("include/c/{header}");
            check(c_compiler, &["-std=c11", "-xc"], &header);
            check(cpp_compiler, &["-std=c++17", "-xc++"], &header);
        }
        for header in cpp {
            for standard in ["-std=c++17", "-std=c++20"] {
                let options = [standard, "-xc++", "-fno-exceptions", "-fno-rtti"];
                check(cpp_compiler, &options, &format!("include/cpp/{header}"));
            }
        }
    }
}

#[test]
fn the_contract_holds() {
    let program = build("g++", "tests/programs/contract.cpp", "contract", &[]);
    assert!(run_program(&program, &[]).contains("37 contract tests passed"));
}

#[test]
fn the_contract_holds_under_address_sanitizer() {
    let sanitizer = "-fsanitize=address,undefined";
    let program = build("g++", "tests/programs/contract.cpp", "contract-asan", &[sanitizer]);
    assert!(run_program(&program, &[]).contains("37 contract tests passed"));
}

#[test]
fn the_contract_holds_under_thread_sanitizer() {
    let program =
        build("g++", "tests/programs/contract.cpp", "contract-tsan", &["-fsanitize=thread"]);
    assert!(run_program(&program, &[]).contains("37 contract tests passed"));
}

#[test]
fn options_beyond_the_original_do_what_they_say() {
    for (name, option) in [
        ("options", "-O2"),
        ("options-asan", "-fsanitize=address,undefined"),
        ("options-tsan", "-fsanitize=thread"),
    ] {
        let program = build("g++", "tests/programs/options.cpp", name, &[option]);
        assert!(run_program(&program, &[]).contains("6 tests of options passed"), "{name}");
    }
}

#[test]
fn random_calls_from_eight_threads() {
    let seconds = if is_long() { "60" } else { "3" };
    for (name, option) in [
        ("stress", "-O2"),
        ("stress-asan", "-fsanitize=address,undefined"),
        ("stress-tsan", "-fsanitize=thread"),
    ] {
        let program = build("g++", "tests/programs/stress.cpp", name, &[option]);
        assert!(run_program(&program, &["8", seconds, "1"]).contains("calls"), "{name}");
    }
}

/// Runs a test program under valgrind, which judges the library's code, too: an access that is wrong or
/// a byte that nobody reaches any more ends it with an error.
fn run_under_valgrind(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
    command.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
    text(&run(command.arg(program).args(arguments)))
}

#[test]
fn the_programs_run_under_valgrind() {
    if !have("valgrind", "the programs under valgrind") {
        return;
    }
    let program = build("gcc", "tests/programs/c_api.c", "c-api-valgrind", &[]);
    assert!(run_under_valgrind(&program, &[]).contains("ok"));
    // What does not live by the clock: deadlines of 200 ms are none there. All of it takes minutes.
    let contract = build("g++", "tests/programs/contract.cpp", "contract-valgrind", &[]);
    let mut parts = vec!["Swapped", "Dropped", "InItsOwn"];
    if is_long() {
        parts.extend(["EstablishedThen", "Files", "NothingIsLost", "NoCallbackAfter", "APolled"]);
        let options = build("g++", "tests/programs/options.cpp", "options-valgrind", &[]);
        let said = run_under_valgrind(&options, &["CompressionIsAgreed"]);
        assert!(said.contains("1 tests of options passed"), "{said}");
        let stress = build("g++", "tests/programs/stress.cpp", "stress-valgrind", &[]);
        assert!(run_under_valgrind(&stress, &["4", "60", "1", "slow"]).contains("calls"));
    }
    for part in parts {
        let said = run_under_valgrind(&contract, &[part]);
        assert!(said.contains("contract tests passed"), "{part}: {said}");
    }
    let churn = build("g++", "tests/programs/churn.cpp", "churn-valgrind", &[]);
    run_under_valgrind(&churn, &["3"]);
    for (compiler, language) in [("gcc", "c"), ("g++", "cpp")] {
        let source = format!("examples/{language}/echo.{language}");
        let program = build(compiler, &source, &format!("echo-{language}-valgrind"), &[]);
        assert!(run_under_valgrind(&program, &[]).contains("3 messages came back"));
    }
}

#[test]
fn connections_leave_nothing_behind() {
    let count = if is_long() { "10000" } else { "1000" };
    let program = build("g++", "tests/programs/churn.cpp", "churn", &[]);
    assert!(run_program(&program, &[count]).contains(&format!("{count} connections")));
    let program =
        build("g++", "tests/programs/churn.cpp", "churn-asan", &["-fsanitize=address,undefined"]);
    run_program(&program, &["200"]);
}

#[test]
fn the_c_interface_works_from_c11() {
    for compiler in ["gcc", "clang"] {
        if !have(compiler, "the C interface") {
            assert_ne!(compiler, "gcc", "the tests need gcc");
            continue;
        }
        let name = format!("c-api-{compiler}");
        let program = build(compiler, "tests/programs/c_api.c", &name, &[]);
        assert!(run_program(&program, &[]).contains("ok"));
    }
    let program = build("gcc", "tests/programs/c_api.c", "c-api-asan", &["-fsanitize=address"]);
    run_program(&program, &[]);
}

#[test]
fn the_examples_do_what_they_say() {
    for (name, says) in [
        ("echo", "3 messages came back"),
        ("file", "8388608 bytes arrived"),
        ("latency", "1000 rounds"),
        ("throughput", "throughput: 100 MB"),
    ] {
        let source = format!("examples/cpp/{name}.cpp");
        let program = build("g++", &source, &format!("example-{name}"), &["-fno-exceptions"]);
        for mode in ["1", "10"] {
            let said = run_program(&program, &[mode]);
            assert!(said.contains(says), "{name}: {said}");
        }
        let source = format!("examples/c/{name}.c");
        let program = build("gcc", &source, &format!("example-c-{name}"), &[]);
        let said = run_program(&program, &[]);
        assert!(said.contains(says), "{name} in C: {said}");
    }
}

/// A program as the original's users have it, in both spellings of the include path.
#[test]
fn the_link_lines_of_the_original_work() {
    let prefix = prefix();
    let main = "int main() {\n  IOContext context;\n  BatsConfiguration config;\n  \
                config.SetMode(TransMode::BRTP);\n  BatsProtocol protocol(context, config);\n  \
                protocol.StopConnection(nullptr);\n  octetVec data{1};\n  \
                assert(data.size() == 1);\n  return TRANSPARENT;\n}\n";
    for (number, (include, header)) in
        [(".", "include/cpp/bats_protocol.h"), ("include/cpp", "bats_protocol.h")]
            .into_iter()
            .enumerate()
    {
        let source = scratch().join(format!("original{number}.cpp"));
        std::fs::write(&source, format!("#include \"{header}\"\n{main}")).unwrap();
        let program = scratch().join(format!("original{number}"));
        let mut command = Command::new("g++");
        command.arg("-std=c++17").arg("-I").arg(prefix.join(include)).arg(&source);
        command.arg(prefix.join("lib/libbats_protocol_library.a")).args(["-lpthread", "-ldl"]);
        run(command.arg("-o").arg(&program));
        run(&mut Command::new(&program));
        // Nothing of ours is needed at run time.
        let needed = text(&run(Command::new("readelf").arg("-d").arg(&program)));
        assert!(!needed.contains("libopenbats"), "{needed}");
    }
}

#[test]
fn a_pkg_config_consumer_builds_and_runs() {
    if !have("pkg-config", "the consumer that uses pkg-config") {
        return;
    }
    let prefix = prefix();
    let source = scratch().join("consumer.c");
    let main = "#include <c_bats_api.h>\n#include <openbats.h>\n#include <stdio.h>\n\
                int main(void) { puts(openbats_version()); return 0; }\n";
    std::fs::write(&source, main).unwrap();
    let flags = |options: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        text(&run(command.args(options).arg("openbats")))
    };
    let shared = flags(&["--cflags", "--libs"]);
    let fixed =
        flags(&["--cflags", "--libs", "--static"]).replace("-lopenbats", "-l:libopenbats.a");
    for (name, flags) in [("consumer-shared", shared), ("consumer-static", fixed)] {
        let program = scratch().join(name);
        let mut command = Command::new("gcc");
        command.arg(&source).arg("-o").arg(&program).args(flags.split_whitespace());
        run(command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())));
        let said = text(&run(&mut Command::new(&program)));
        assert_eq!(said.trim(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn a_cmake_consumer_builds_and_runs() {
    if !have("cmake", "the consumer that uses CMake") {
        return;
    }
    let project = scratch().join("cmake");
    let _ = std::fs::remove_dir_all(&project);
    std::fs::create_dir_all(&project).unwrap();
    let lists = "cmake_minimum_required(VERSION 3.13)\nproject(consumer CXX)\n\
                 set(CMAKE_CXX_STANDARD 17)\n\
                 find_package(bats 0.1 CONFIG REQUIRED)\nfind_package(openbats CONFIG REQUIRED)\n\
                 add_executable(shared main.cpp)\ntarget_link_libraries(shared bats::protocol)\n\
                 add_executable(fixed main.cpp)\n\
                 target_link_libraries(fixed bats::protocol_static)\n";
    std::fs::write(project.join("CMakeLists.txt"), lists).unwrap();
    let main = "#include \"include/cpp/bats_protocol.h\"\n#include <iostream>\n\
                int main() { BatsConfiguration config; std::cout << config << std::endl; }\n";
    std::fs::write(project.join("main.cpp"), main).unwrap();
    let build = project.join("build");
    let mut command = Command::new("cmake");
    command.arg("-S").arg(&project).arg("-B").arg(&build);
    run(command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["shared", "fixed"] {
        let said = text(&run(&mut Command::new(build.join(program))));
        assert!(said.starts_with("mode 0 (BTP)"), "{said}");
    }
}

/// Names of functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in ["c_bats_api.h", "openbats.h"] {
        let text = std::fs::read_to_string(here().join("include/c").join(header)).unwrap();
        for (place, _) in text.match_indices('(') {
            let name: String = {
                let back = text[..place].chars().rev();
                let name: Vec<char> =
                    back.take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                name.into_iter().rev().collect()
            };
            if name.starts_with("bats_") || name.starts_with("openbats_") {
                names.insert(name);
            }
        }
    }
    // Mentioned in a comment of openbats.h with parentheses, or declared: both are functions.
    names
}

#[test]
fn the_library_exports_what_the_headers_declare_and_nothing_else() {
    let library = prefix().join("lib/libopenbats.so");
    let dynamic = text(&run(Command::new("readelf").arg("-dW").arg(&library)));
    assert!(dynamic.contains("Library soname: [libopenbats.so.0]"), "{dynamic}");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let mut exported = BTreeSet::new();
    for line in text(&symbols).lines() {
        let symbol = line.rsplit(' ').next().unwrap();
        if symbol != "OPENBATS_0" {
            let name = symbol.strip_suffix("@@OPENBATS_0");
            exported.insert(name.unwrap_or_else(|| panic!("{symbol} has no version")).to_owned());
        }
    }
    assert!(exported.len() > 40);
    assert_eq!(exported, declared());
}

#[test]
fn a_shared_prefix_and_a_package_directory_are_served() {
    let destination = scratch().join("destination");
    let _ = std::fs::remove_dir_all(&destination);
    let mut command = Command::new(here().join("install-sdk"));
    command.arg("--archive").arg(archive()).args(["--prefix", "/usr", "--layout", "system"]);
    command.args(["--libdir", "lib/x86_64-linux-gnu", "--destdir"]).arg(&destination);
    run(&mut command);
    for file in [
        "include/openbats/include/cpp/bats_protocol.h",
        "include/openbats/include/c/c_bats_api.h",
        "lib/x86_64-linux-gnu/libopenbats.so.0",
        "lib/x86_64-linux-gnu/libopenbats.a",
        "lib/x86_64-linux-gnu/cmake/bats/bats-config.cmake",
    ] {
        assert!(destination.join("usr").join(file).exists(), "{file}");
    }
    let package = destination.join("usr/lib/x86_64-linux-gnu/pkgconfig/openbats.pc");
    let package = std::fs::read_to_string(package).unwrap();
    assert!(package.contains("prefix=/usr\n"), "{package}");
    let mut wrong = Command::new(here().join("install-sdk"));
    assert!(!wrong.args(["--prefix", "relative"]).output().unwrap().status.success());
    let mut wrong = Command::new(here().join("install-sdk"));
    assert!(
        !wrong.args(["--prefix", "/tmp/x", "--layout", "none"]).output().unwrap().status.success()
    );
}

#[test]
fn debian_packages_hold_what_a_program_needs() {
    if !have("dpkg-deb", "the Debian packages") {
        return;
    }
    // Programs of other packages: cargo builds them if it builds the tests of all.
    let tools = archive().parent().unwrap().to_owned();
    let tools = if tools.ends_with("deps") { tools.parent().unwrap().to_owned() } else { tools };
    if !["bats_iperf", "batslab", "bats-sim"].iter().all(|tool| tools.join(tool).exists()) {
        say("SKIPPED the Debian packages: the tools are not built; cargo test --workspace does");
        return;
    }
    let output = scratch().join("deb");
    let root = scratch().join("deb-root");
    for directory in [&output, &root] {
        let _ = std::fs::remove_dir_all(directory);
    }
    run(Command::new(here().join("package-deb"))
        .arg(&output)
        .arg("--archive")
        .arg(archive())
        .arg("--tools")
        .arg(tools)
        .env("DPKG_DEB_COMPRESSOR_TYPE", "gzip")
        .env("DPKG_DEB_COMPRESSOR_LEVEL", "1"));
    let mut packages: Vec<_> =
        std::fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().path()).collect();
    packages.sort();
    assert_eq!(packages.len(), 3, "{packages:?}");
    for (package, name) in
        packages.iter().zip(["libopenbats-dev", "libopenbats0", "openbats-tools"])
    {
        let field = run(Command::new("dpkg-deb").arg("-f").arg(package).arg("Package"));
        assert_eq!(text(&field).trim(), name);
        run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root));
        let papers = root.join("usr/share/doc").join(name);
        let copyright = std::fs::read_to_string(papers.join("copyright")).unwrap();
        for part in ["License: MIT or Apache-2.0", "Permission is hereby granted", "Apache-2.0\n"] {
            assert!(copyright.contains(part), "{name}: no '{part}' in:\n{copyright}");
        }
        assert!(!copyright.contains("\n\n\n") && !copyright.contains("\nTHE SOFTWARE"));
        let notice = std::fs::read_to_string(papers.join("NOTICE")).unwrap();
        assert_eq!(notice, std::fs::read_to_string(here().join("../../NOTICE")).unwrap());
    }
    // As installed, but below a directory of its own.
    let library = std::fs::read_dir(root.join("usr/lib")).unwrap().next().unwrap().unwrap().path();
    let program = scratch().join("deb-program");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L"]);
    command.arg("-I").arg(root.join("usr/include/openbats"));
    command.arg(here().join("examples/c/echo.c")).arg("-o").arg(&program);
    command.arg("-L").arg(&library).arg("-lopenbats");
    run(command.arg(format!("-Wl,-rpath,{}", library.display())));
    assert!(run_program(&program, &[]).contains("3 messages came back"));
    the_tools_are_there(&root);
}

/// What `openbats-tools` puts into a system: programs that run, their pages and completions.
fn the_tools_are_there(root: &Path) {
    let usr = root.join("usr");
    for (tool, option) in
        [("bats_iperf", "--fingerprint"), ("batslab", "demo"), ("bats-sim", "matrix")]
    {
        let said = text(&run(Command::new(usr.join("bin").join(tool)).arg("--version")));
        assert!(said.contains(env!("CARGO_PKG_VERSION")), "{tool}: {said}");
        for completions in [
            format!("share/bash-completion/completions/{tool}"),
            format!("share/fish/vendor_completions.d/{tool}.fish"),
            format!("share/zsh/vendor-completions/_{tool}"),
        ] {
            let text = std::fs::read_to_string(usr.join(&completions)).unwrap();
            assert!(text.contains(option.trim_start_matches('-')), "{completions}");
        }
        let page = usr.join(format!("share/man/man1/{tool}.1.gz"));
        let page = text(&run(Command::new("gzip").arg("-dc").arg(page))).replace("\\-", "-");
        assert!(page.starts_with(".ie") || page.contains(".TH"), "{tool}");
        assert!(page.contains(option), "{tool}");
    }
    assert!(usr.join("share/man/man1/batslab-demo.1.gz").exists());
    // They do what they are for, without anything else of ours.
    let mut command = Command::new(usr.join("bin/bats-sim"));
    command.args(["run", "--loss", "5", "--delay", "10", "--rate", "20", "--seconds", "3"]);
    assert!(!text(&run(&mut command)).is_empty());
    let cases = text(&run(Command::new(usr.join("bin/batslab")).arg("cases")));
    assert!(cases.contains("smoke"), "{cases}");
    iperf_runs(&usr.join("bin/bats_iperf"));
}

/// A server for one client, and the client.
fn iperf_runs(program: &Path) {
    let port = {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().port().to_string()
    };
    let mut server = Command::new(program);
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
    let mut server = server.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut said = None;
    for _ in 0..50 {
        let mut client = Command::new(program);
        client.args(["-c", "127.0.0.1", "-p", &port, "-n", "2M"]);
        let output = client.output().unwrap();
        if output.status.success() {
            said = Some(text(&output));
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let _ = server.kill();
    let _ = server.wait();
    assert!(said.expect("the client gets through").contains("receiver"));
}
