//! Tests of the Debian packages.

use std::path::Path;
use std::process::Command;

use crate::lab::skipped;
use crate::support::*;

#[test]
fn the_debian_source_package_has_the_version_of_the_crates_and_one_maintainer() {
    let debian = crate_dir().join("../../debian");
    let changelog = std::fs::read_to_string(debian.join("changelog")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(changelog.starts_with(&format!("openbats ({version}) ")), "{changelog}");
    let mut field = Command::new(crate_dir().join("control-field"));
    let maintainer = text(&run(field.args(["source", "Maintainer"])));
    assert!(changelog.contains(&format!("\n -- {}  ", maintainer.trim())), "{maintainer}");
    let mut missing = Command::new(crate_dir().join("control-field"));
    assert!(!missing.args(["source", "Nothing"]).output().unwrap().status.success());
}

#[test]
fn debian_packages_contain_library_headers_tools_and_licences() {
    if !is_installed("dpkg-deb", "the Debian packages") {
        return;
    }
    // Programs of other crates, which cargo builds only with the tests of the whole workspace.
    let tools = archive().parent().unwrap().to_owned();
    let tools = if tools.ends_with("deps") { tools.parent().unwrap().to_owned() } else { tools };
    if !["bats_iperf", "batslab", "bats-sim"].iter().all(|tool| tools.join(tool).exists()) {
        return skipped(
            "the Debian packages",
            "the tools are not built; run cargo test --workspace",
        );
    }
    let output = scratch().join("deb");
    let root = scratch().join("deb-root");
    for directory in [&output, &root] {
        let _ = std::fs::remove_dir_all(directory);
    }
    run(Command::new(crate_dir().join("package-deb"))
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
    let names = ["batsd", "libopenbats-dev", "libopenbats0", "openbats-tools"];
    assert_eq!(packages.len(), names.len(), "{packages:?}");
    for (package, name) in packages.iter().zip(names) {
        let field = run(Command::new("dpkg-deb").arg("-f").arg(package).arg("Package"));
        assert_eq!(text(&field).trim(), name);
        run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&root));
        let docs = root.join("usr/share/doc").join(name);
        let copyright = std::fs::read_to_string(docs.join("copyright")).unwrap();
        for part in ["License: MIT or Apache-2.0", "Permission is hereby granted", "Apache-2.0\n"] {
            assert!(copyright.contains(part), "{name}: no '{part}' in:\n{copyright}");
        }
        assert!(!copyright.contains("\n\n\n") && !copyright.contains("\nTHE SOFTWARE"));
        let third_party = run(Command::new("gzip").arg("-dc").arg(docs.join("THIRD-PARTY.gz")));
        let third_party = text(&third_party);
        // The daemon compresses nothing.
        let zstd: &[&str] =
            if name == "batsd" { &[] } else { &["  zstd-sys ", "Copyright (c) Meta Platforms"] };
        for &part in ["  rustls ", "  bytes "].iter().chain(zstd) {
            assert!(third_party.contains(part), "{name}: no '{part}' in the third-party licences");
        }
        assert!(
            !third_party.contains("  bats-proto "),
            "{name}: crates of the project are not third-party"
        );
        let notice = std::fs::read_to_string(docs.join("NOTICE")).unwrap();
        assert_eq!(notice, std::fs::read_to_string(crate_dir().join("../../NOTICE")).unwrap());
    }
    let libraries = std::fs::read_dir(root.join("usr/lib")).unwrap().next().unwrap().unwrap();
    let name = format!("libopenbats.so.{}", env!("CARGO_PKG_VERSION"));
    let library = libraries.path().join(name);
    let mode = std::os::unix::fs::PermissionsExt::mode(&library.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o644, "libraries are not executable");
    let sections = text(&run(Command::new("readelf").arg("-S").arg(&library)));
    assert!(!sections.contains(".symtab") && !sections.contains(".debug"), "{sections}");
    for name in ["libopenbats-dev", "libopenbats0", "openbats-tools"] {
        assert!(root.join("usr/share/doc").join(name).join("changelog.gz").exists(), "{name}");
    }
    let dependencies = scratch().join("deb-control");
    let _ = std::fs::remove_dir_all(&dependencies);
    run(Command::new("dpkg-deb").arg("-e").arg(&packages[2]).arg(&dependencies));
    let shlibs = std::fs::read_to_string(dependencies.join("shlibs")).unwrap();
    assert_eq!(shlibs.split(' ').take(3).collect::<Vec<_>>(), ["libopenbats", "0", "libopenbats0"]);
    let symbols = std::fs::read_to_string(dependencies.join("symbols")).unwrap();
    assert!(symbols.starts_with("libopenbats.so.0 libopenbats0 #MINVER#\n"), "{symbols}");
    assert!(symbols.contains("\n bats_context_create@OPENBATS_0 0.1.0\n"), "{symbols}");
    // Compile an example against the package contents in a directory.
    let library = std::fs::read_dir(root.join("usr/lib")).unwrap().next().unwrap().unwrap().path();
    let program = scratch().join("deb-program");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-pedantic"]);
    command.arg("-I").arg(root.join("usr/include/openbats"));
    command.arg(crate_dir().join("examples/c/echo.c")).arg("-o").arg(&program);
    command.arg("-L").arg(&library).arg("-lopenbats");
    run(command.arg(format!("-Wl,-rpath,{}", library.display())));
    assert!(run_program(&program, &[]).contains("3 messages came back"));
    check_tools(&root);
}

/// Checks the contents of `openbats-tools`: programs that run, manual pages and completions.
fn check_tools(root: &Path) {
    let usr = root.join("usr");
    for (tool, option) in
        [("bats_iperf", "--fingerprint"), ("batslab", "demo"), ("bats-sim", "matrix")]
    {
        let output = text(&run(Command::new(usr.join("bin").join(tool)).arg("--version")));
        assert!(output.contains(env!("CARGO_PKG_VERSION")), "{tool}: {output}");
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
    // The tools run without other files of the project.
    let mut command = Command::new(usr.join("bin/bats-sim"));
    command.args(["run", "--loss", "5", "--delay", "10", "--rate", "20", "--seconds", "3"]);
    assert!(!text(&run(&mut command)).is_empty());
    let cases = text(&run(Command::new(usr.join("bin/batslab")).arg("cases")));
    assert!(cases.contains("smoke"), "{cases}");
    check_iperf_transfer(&usr.join("bin/bats_iperf"));
}

/// Runs a bats_iperf server for one client, and the client.
fn check_iperf_transfer(program: &Path) {
    let port = {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().port().to_string()
    };
    let mut server = Command::new(program);
    server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
    let mut server = server.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut report = None;
    for _ in 0..50 {
        let mut client = Command::new(program);
        client.args(["-c", "127.0.0.1", "-p", &port, "-n", "2M"]);
        let output = client.output().unwrap();
        if output.status.success() {
            report = Some(text(&output));
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let _ = server.kill();
    let _ = server.wait();
    assert!(report.expect("the client connects within 50 attempts").contains("receiver"));
}
