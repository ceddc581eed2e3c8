//! Runs the test programs and the examples, with and without sanitizers and valgrind.

use std::path::Path;
use std::process::Command;

use crate::support::*;

#[test]
fn every_header_compiles_alone_with_every_compiler() {
    let prefix = prefix();
    let c = ["c_bats_types.h", "c_bats_api.h", "openbats.h"];
    let cpp = ["bats_config.h", "bats_connection.h", "bats_iocontext.h", "bats_protocol.h"];
    let c_and_cpp = [("gcc", "g++"), ("clang", "clang++")];
    for (c_compiler, cpp_compiler) in c_and_cpp {
        if !is_installed(c_compiler, "headers") || !is_installed(cpp_compiler, "headers") {
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
fn the_contract_tests_pass() {
    let program = build("g++", "tests/programs/contract.cpp", "contract", &[]);
    assert!(run_program(&program, &[]).contains("42 contract tests passed"));
}

#[test]
fn the_contract_tests_pass_under_address_sanitizer() {
    let sanitizer = "-fsanitize=address,undefined";
    let program = build("g++", "tests/programs/contract.cpp", "contract-asan", &[sanitizer]);
    assert!(run_program(&program, &[]).contains("42 contract tests passed"));
}

#[test]
fn the_contract_tests_pass_under_thread_sanitizer() {
    let program =
        build("g++", "tests/programs/contract.cpp", "contract-tsan", &["-fsanitize=thread"]);
    assert!(run_program(&program, &[]).contains("42 contract tests passed"));
}

#[test]
fn tests_of_options_beyond_the_original_sdk_pass_plain_and_under_sanitizers() {
    for (name, option) in [
        ("options", "-O2"),
        ("options-asan", "-fsanitize=address,undefined"),
        ("options-tsan", "-fsanitize=thread"),
    ] {
        let program = build("g++", "tests/programs/options.cpp", name, &[option]);
        assert!(run_program(&program, &[]).contains("11 tests of options passed"), "{name}");
    }
}

#[test]
fn channels_work_in_c_and_cpp_plain_and_under_sanitizers() {
    for (name, option) in [
        ("channels", "-O2"),
        ("channels-asan", "-fsanitize=address,undefined"),
        ("channels-tsan", "-fsanitize=thread"),
    ] {
        let program = build("g++", "tests/programs/channels.cpp", name, &[option]);
        assert!(run_program(&program, &[]).contains("8 tests of channels passed"), "{name}");
    }
}

#[test]
fn random_calls_from_eight_threads_cause_no_errors() {
    let seconds = if is_long() { "60" } else { "3" };
    for (name, option) in [
        ("stress", "-O2"),
        ("stress-asan", "-fsanitize=address,undefined"),
        ("stress-tsan", "-fsanitize=thread"),
    ] {
        let program = build("g++", "tests/programs/stress.cpp", name, &[option]);
        assert!(run_program(&program, &["8", seconds, "1"]).contains("calls"), "{name}");
        let name = format!("c-{name}");
        let program = build("gcc", "tests/programs/stress.c", &name, &[option, "-pthread"]);
        assert!(run_program(&program, &["8", seconds, "1"]).contains("calls"), "{name}");
    }
}

/// Valgrind with the installed suppressions, which also checks the code of the library. It ends with
/// exit code 9 after invalid accesses, uses of uninitialised values and definite leaks.
fn valgrind(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("valgrind");
    let suppressions = prefix().join("share/openbats/valgrind.supp");
    command.arg(format!("--suppressions={}", suppressions.display()));
    command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
    command.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
    command.arg(program).args(arguments);
    command
}

/// Runs a test program under valgrind. Panics if that reports an error.
fn run_under_valgrind(program: &Path, arguments: &[&str]) -> String {
    text(&run(&mut valgrind(program, arguments)))
}

#[test]
fn test_programs_and_examples_have_no_valgrind_errors() {
    if !is_installed("valgrind", "the programs under valgrind") {
        return;
    }
    let program = build("gcc", "tests/programs/c_api.c", "c-api-valgrind", &[]);
    assert!(run_under_valgrind(&program, &[]).contains("ok"));
    // Only tests without time limits, because valgrind is too slow for deadlines of 200 ms. All of
    // them take minutes.
    let contract = build("g++", "tests/programs/contract.cpp", "contract-valgrind", &[]);
    let mut parts = vec!["Swapped", "Dropped", "InItsOwn"];
    if is_long() {
        parts.extend(["EstablishedThen", "Files", "NothingIsLost", "NoCallbackAfter", "APolled"]);
        let options = build("g++", "tests/programs/options.cpp", "options-valgrind", &[]);
        let output = run_under_valgrind(&options, &["CompressionIsAgreed"]);
        assert!(output.contains("1 tests of options passed"), "{output}");
        let stress = build("g++", "tests/programs/stress.cpp", "stress-valgrind", &[]);
        assert!(run_under_valgrind(&stress, &["4", "60", "1", "slow"]).contains("calls"));
    }
    for part in parts {
        let output = run_under_valgrind(&contract, &[part]);
        assert!(output.contains("contract tests passed"), "{part}: {output}");
    }
    let churn = build("g++", "tests/programs/churn.cpp", "churn-valgrind", &[]);
    run_under_valgrind(&churn, &["7", "1"]);
    for (compiler, language) in [("gcc", "c"), ("g++", "cpp")] {
        let source = format!("examples/{language}/echo.{language}");
        let program = build(compiler, &source, &format!("echo-{language}-valgrind"), &[]);
        assert!(run_under_valgrind(&program, &[]).contains("3 messages came back"));
    }
}

/// The suppressions are for functions of the safe crates only, so errors of a program are reported.
#[test]
fn valgrind_reports_uninitialised_memory_of_programs() {
    if !is_installed("valgrind", "uninitialised memory under valgrind") {
        return;
    }
    let program = build("gcc", "tests/programs/uninitialised.c", "uninitialised", &["-O0"]);
    run_under_valgrind(&program, &["none"]);
    for (case, kind) in [
        ("own", "Conditional jump or move depends on uninitialised value"),
        ("index", "Use of uninitialised value of size 8"),
        ("sent", "uninitialised byte"),
        ("number", "uninitialised value"),
        ("leak", "definitely lost"),
    ] {
        let output = valgrind(&program, &[case]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(9), "{case}: {errors}");
        assert!(errors.contains(kind), "{case}: {errors}");
    }
}

#[test]
fn valgrind_suppressions_match_functions_of_the_safe_crates_only() {
    let path = prefix().join("share/openbats/valgrind.supp");
    let file = std::fs::read_to_string(&path).unwrap();
    let library = prefix().join("lib/libopenbats.so");
    let symbols = text(&run(Command::new("nm").arg(&library)));
    for name in ["bats_proto", "openbats", "bats_types"] {
        assert!(file.contains(&format!("fun:_ZN{}{name}*", name.len())), "{name}: {file}");
    }
    // If rustc mangles names otherwise, the suppressions match nothing.
    assert!(symbols.contains(" _ZN10bats_proto10connection"), "{}", library.display());
    let body = file.lines().filter(|line| !line.starts_with('#'));
    let kinds: Vec<_> = body.clone().filter(|line| line.contains(':')).collect();
    for line in kinds {
        let is_known = line.trim_start().starts_with("safe Rust: _ZN")
            || line.trim() == "Memcheck:Cond"
            || line.trim_start().starts_with("fun:_ZN");
        assert!(is_known, "{line}");
    }
    for unsafe_crate in ["bats_code", "bats_c\n", "bats_c*", "quinn"] {
        assert!(!file.contains(unsafe_crate), "{unsafe_crate}");
    }
    assert_eq!(
        body.clone().filter(|line| *line == "{").count(),
        body.filter(|line| line.contains("fun:")).count()
    );
}

#[test]
fn repeated_connections_leak_nothing() {
    let count = if is_long() { "10000" } else { "1000" };
    let program = build("g++", "tests/programs/churn.cpp", "churn", &[]);
    assert!(run_program(&program, &[count]).contains(&format!("{count} connections")));
    let program =
        build("g++", "tests/programs/churn.cpp", "churn-asan", &["-fsanitize=address,undefined"]);
    run_program(&program, &["200"]);
}

#[test]
fn a_burst_of_connections_from_one_address_is_accepted() {
    let program = build("g++", "tests/programs/burst.cpp", "burst", &[]);
    for (mode, connections, objects) in
        [("1", "1000", "1"), ("10", "1000", "1"), ("12", "1000", "1"), ("1", "600", "600")]
    {
        let output = run_program(&program, &[mode, connections, objects]);
        assert!(output.contains(&format!("{connections} of {connections} established, 0 failed")));
    }
    if is_long() {
        print_line(&run_program(&program, &["1", "10000", "1"]));
    }
}

#[test]
fn protocol_objects_of_a_context_share_its_threads() {
    let program = build("g++", "tests/programs/burst.cpp", "burst-objects", &[]);
    // The program checks the number of its threads.
    for mode in ["1", "2", "11"] {
        run_program(&program, &[mode, "60", "60"]);
    }
}

#[test]
fn the_c_interface_compiles_as_c11_and_its_tests_pass() {
    for compiler in ["gcc", "clang"] {
        if !is_installed(compiler, "the C interface") {
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
fn new_calls_trust_on_first_use_and_those_of_the_original_trust_any() {
    for (name, option) in
        [("known-hosts", "-O2"), ("known-hosts-asan", "-fsanitize=address,undefined")]
    {
        let program = build("gcc", "tests/programs/known_hosts.c", name, &[option]);
        let directory = scratch().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let output = run_program(&program, &[directory.to_str().unwrap()]);
        assert!(output.contains("known servers: ok"), "{output}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn the_examples_run_and_print_their_results() {
    for (name, expected) in [
        ("echo", "3 messages came back"),
        ("file", "8388608 bytes arrived"),
        ("latency", "1000 rounds"),
        ("throughput", "throughput: 100 MB"),
    ] {
        let source = format!("examples/cpp/{name}.cpp");
        let program = build("g++", &source, &format!("example-{name}"), &["-fno-exceptions"]);
        for mode in ["1", "10"] {
            let output = run_program(&program, &[mode]);
            assert!(output.contains(expected), "{name}: {output}");
        }
        let source = format!("examples/c/{name}.c");
        let program = build("gcc", &source, &format!("example-c-{name}"), &[]);
        let output = run_program(&program, &[]);
        assert!(output.contains(expected), "{name} in C: {output}");
    }
}
