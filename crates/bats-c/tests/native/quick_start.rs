//! Builds and runs exactly what docs/quick-start shows for C and C++.

use std::path::Path;
use std::process::Command;

use crate::lab::{blocks, follow_over_lossy_link};
use crate::support::*;

/// Whether this process can make network namespaces, so that the ports of the pages are free.
fn can_isolate() -> bool {
    let made = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).output();
    made.is_ok_and(|output| output.status.success())
}

fn shell(script: &str, directory: &Path, home: &Path, isolated: bool) -> String {
    let mut command = Command::new(if isolated { "unshare" } else { "sh" });
    if isolated {
        command.args(["-rn", "sh"]);
    }
    let up = if isolated { "ip link set lo up\n" } else { "" };
    command.arg("-ec").arg(format!("{up}{script}"));
    command.current_dir(directory).env("HOME", home).env_remove("XDG_STATE_HOME");
    text(&run(&mut command))
}

fn follow(language: &str, source: &str) {
    let page = crate_dir().join(format!("../../docs/quick-start/{language}.md"));
    let page = std::fs::read_to_string(page).unwrap();
    let home = scratch().join(format!("quick-start-{language}"));
    let directory = home.join("work");
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&directory).unwrap();

    let commands = blocks(&page, "sh");
    let [install_command, build, on_loopback, _] = &commands[..] else {
        panic!("{language}: {commands:?}");
    };
    // As on the page, but with the library of this test instead of a release build.
    let script = crate_dir().join("install-sdk");
    let install_command = install_command.replace("crates/bats-c/install-sdk", "\"$SDK\"");
    let install_command = format!(
        "SDK='{}'\n{} --archive '{}' >/dev/null",
        script.display(),
        install_command.trim_end(),
        archive().display()
    );
    shell(&install_command, &directory, &home, false);

    let [program] = &blocks(&page, language)[..] else { panic!("{language}: one program") };
    std::fs::write(directory.join(source), program).unwrap();
    if is_installed("pkg-config", "the quick start") {
        shell(build, &directory, &home, false);
        let output = shell(on_loopback, &directory, &home, can_isolate());
        assert_eq!(output.trim(), "echo: hello", "{language}");
        follow_over_lossy_link(&page, &directory, &home);
    }
}

#[test]
fn the_pages_for_c_and_cpp_work_as_shown() {
    follow("cpp", "hello.cpp");
    follow("c", "hello.c");
}

#[test]
fn programs_of_the_pages_compile_without_warnings() {
    for (language, compiler, standard) in [("c", "gcc", "-std=c11"), ("cpp", "g++", "-std=c++17")] {
        let page = crate_dir().join(format!("../../docs/quick-start/{language}.md"));
        let page = std::fs::read_to_string(page).unwrap();
        let source = scratch().join(format!("page.{language}"));
        std::fs::write(&source, &blocks(&page, language)[0]).unwrap();
        let include = prefix().join("include");
        let mut command = Command::new(compiler);
        command.arg(standard).args(STRICT).arg("-fsyntax-only").arg("-I").arg(prefix());
        command.arg("-I").arg(include.join("c")).arg("-I").arg(include.join("cpp"));
        run(command.arg(&source));
    }
}
