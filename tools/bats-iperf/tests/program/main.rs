//! The program as users run it: processes on loopback.

mod baseline;
mod clients;
mod daemon;
mod files;
mod fuzzing;
mod intake;
mod iperf3_labels;
mod iperf3_reader;
mod json;
mod latency;
mod log;
mod misbehaving;
mod modes;
mod options;
mod sender_settings;
mod slots;
mod slow_links;
mod support;
mod terminal;
mod trust;
mod zones;

use std::fs;
use std::net::UdpSocket;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use support::{Scratch, Server, client, free_port, program, text};

#[test]
fn a_test_is_reported_by_both_sides() {
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    let output = client(
        port,
        &["-t", "1", "-i", "0.5", "-b", "20", "-P", "2", "--fingerprint", server.fingerprint()],
    );
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert!(
        report.contains(&format!("Connecting to host 127.0.0.1, port {}", port - 1)),
        "{report}"
    );
    let lines: Vec<&str> = report.lines().collect();
    let summary = |word: &str| lines.iter().filter(|line| line.ends_with(word)).count();
    assert_eq!((summary("sender"), summary("receiver")), (3, 3), "{report}");
    assert!(lines.iter().any(|line| line.starts_with("[SUM]  0.00-0.5")), "{report}");
    let (code, report) = server.finish();
    assert_eq!(code, 0, "{report}");
    assert!(report.contains("Server listening on"), "{report}");
    assert!(report.contains("Received") && report.contains("(0.00%)"), "{report}");
}

#[test]
fn json_has_iperf3_keys_and_the_bitrate_is_limited() {
    let port = free_port();
    let server = Server::start(port, &["-1", "-J"]);
    let output = client(port, &["-t", "1", "-i", "0.25", "-b", "16M", "-J"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, server_report) = server.finish();
    assert_eq!(code, 0);
    let near: Value = serde_json::from_slice(&output.stdout).unwrap();
    let far: Value = serde_json::from_str(&server_report).unwrap();
    for report in [&near, &far] {
        let sent = report["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap();
        let bytes = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert_eq!(report["end"]["sum_sent"]["bytes"], bytes, "BRTP must not lose data");
        assert!(sent > 0.0 && sent < 17.5e6, "{sent}");
        assert_eq!(report["start"]["test_start"]["protocol"], "BRTP");
        assert!(report["start"]["connected"][0]["remote_port"].is_u64());
        assert!(report["start"]["timestamp"]["timesecs"].as_i64().unwrap() > 1_700_000_000);
        assert!(report["end"]["cpu_utilization_percent"]["host_total"].is_number());
        let intervals = report["intervals"].as_array().unwrap();
        assert!((3..=6).contains(&intervals.len()), "{}", intervals.len());
        let sum: u64 = intervals.iter().map(|x| x["sum"]["bytes"].as_u64().unwrap()).sum();
        assert!(sum <= bytes && sum * 2 > bytes, "{sum} of {bytes}");
        assert!(intervals[0]["streams"][0]["openbats"]["path_mtu"].as_u64().unwrap() >= 1_200);
    }
}

#[test]
fn in_reverse_mode_the_server_sends() {
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    let output = client(port, &["-t", "0.5", "-r", "-b", "50", "-J"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.finish().0, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["start"]["test_start"]["reverse"], 1);
    assert_eq!(report["end"]["sum_received"]["sender"], false);
    let received = report["end"]["streams"][0]["receiver"]["bytes"].as_u64().unwrap();
    assert!(received > 100_000, "{received}");
}

#[test]
fn a_server_handles_sequential_and_concurrent_tests() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let options = ["-t", "0.3", "-b", "10"];
    assert!(client(port, &options).status.success());
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..3).map(|_| scope.spawn(|| client(port, &options).status.success())).collect();
        assert!(clients.into_iter().all(|client| client.join().unwrap()));
    });
}

#[test]
fn files_arrive_verified_with_several_streams() {
    let scratch = Scratch::new("files");
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    let mut paths = Vec::new();
    for (name, size) in [("empty", 0), ("small", 10), ("large", 3_000_000)] {
        let content: Vec<u8> = (0..size).map(|x: u32| (x * 7 + x / 300) as u8).collect();
        fs::write(scratch.0.join(name), content).unwrap();
        paths.push(scratch.path(name));
    }
    let mut options = vec!["-P", "2", "-J", "-f"];
    options.extend(paths.iter().map(String::as_str));
    let output = client(port, &options);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, report) = server.finish();
    assert_eq!(code, 0, "{report}");
    assert!(report.contains("3 of 3 files verified and stored"), "{report}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for file in report["files"].as_array().unwrap() {
        let name = file["name"].as_str().unwrap();
        let content = fs::read(scratch.0.join(name)).unwrap();
        assert_eq!(fs::read(scratch.0.join("in").join(name)).unwrap(), content);
        assert_eq!(file["blake3"].as_str().unwrap(), blake3::hash(&content).to_hex().as_str());
    }
}

#[test]
fn an_existing_file_is_refused_and_reported_by_both_sides() {
    let scratch = Scratch::new("exists");
    let port = free_port();
    let server = Server::start(port, &["-1", "--directory", &scratch.path("in")]);
    fs::write(scratch.0.join("in/name"), "old").unwrap();
    fs::write(scratch.0.join("name"), "new").unwrap();
    let output = client(port, &["-f", &scratch.path("name")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("exists"), "{}", text(&output.stderr));
    assert_eq!(server.finish().0, 1);
    assert_eq!(fs::read_to_string(scratch.0.join("in/name")).unwrap(), "old");
}

#[test]
fn errors_are_one_line_with_an_exit_code() {
    let port = free_port();
    let failed = |output: Output, code: i32, words: &str| {
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(errors.contains(words), "{errors}");
    };
    failed(client(port, &["--connect-timeout", "300"]), 1, "no answer from");
    failed(client(port, &["-f", "/nowhere/file"]), 1, "/nowhere/file");
    failed(client(port, &["-f", "/dev/null"]), 1, "not a regular file");
    failed(client(port, &["-t", "never"]), 2, "never");
    failed(client(port, &["-m", "11", "-b", "0"]), 2, "set a rate with -b");
    failed(client(port, &["-I", "nosuch0"]), 1, "nosuch0");
    let no_host = program().args(["-c", "no.such.host.invalid"]).output().unwrap();
    failed(no_host, 1, "no.such.host.invalid");

    let _taken = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let server = |options: &[&str]| {
        let port = port.to_string();
        program().args(["-s", "-I", "lo", "-p", &port]).args(options).output().unwrap()
    };
    failed(server(&[]), 1, &format!("cannot listen on port {port}"));
    failed(server(&[]), 1, &format!("UDP port {port} is in use"));
    failed(server(&["--directory", "/nowhere"]), 1, "/nowhere");
    failed(server(&["--certificate", "/nowhere", "--key", "/nowhere"]), 1, "/nowhere");
    failed(server(&["-l", "/proc/nowhere/log"]), 1, "/proc/nowhere");
}

/// Another server uses the TCP port of the same number, as iperf3 does: the error names a remedy,
/// and it works.
#[test]
fn a_port_conflict_with_iperf3_is_explained() {
    let port = free_port();
    let _iperf3 = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let text_port = port.to_string();
    let output = program().args(["-s", "-I", "lo", "-p", &text_port]).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for words in [&format!("TCP port {port}"), "iperf3", "-p", "--only-mode"] {
        assert!(errors.contains(words), "{words}: {errors}");
    }
    let _server = Server::start(port, &["--only-mode", "brtp"]);
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
}

#[test]
fn a_closed_port_is_reported_before_the_timeout() {
    let output = client(free_port(), &["--connect-timeout", "100s"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("no answer from") && errors.contains("port is closed"), "{errors}");
}

/// The error says so; without it the test ends after the idle timeout of 30 s, with another error.
#[test]
fn a_killed_server_is_reported() {
    let scratch = Scratch::new("killed-server");
    fs::write(scratch.0.join("file"), vec![7; 60_000_000]).unwrap();
    let file = scratch.path("file");
    for options in [
        &["-t", "100", "-m", "1"][..],
        &["-t", "100", "-m", "0"],
        &["-t", "100", "-m", "1", "-r"],
        &["-m", "1", "--congestion", "5M", "-f", &file],
    ] {
        let port = free_port();
        let server = Server::start(port, &["--directory", &scratch.path("in")]);
        let running = program()
            .args(["-c", "127.0.0.1", "-p", &port.to_string()])
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(1_500));
        // SIGKILL: its connections are not closed.
        drop(server);
        let output = running.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        let errors = text(&output.stderr);
        // Of files, those that could not be sent any more.
        let has_files = options.contains(&"-f") && errors.contains("closed locally");
        assert!(has_files || errors.contains("its port is closed"), "{options:?}: {errors}");
    }
}

#[test]
fn a_hangup_ends_a_test_except_under_nohup() {
    for (launcher, code) in [("env", 1), ("nohup", 0)] {
        let port = free_port();
        let _server = Server::start(port, &[]);
        // The signal may be ignored already, as it is if `nohup` runs the tests.
        let mut command = std::process::Command::new("env");
        command.args(["--default-signal=HUP", launcher]);
        command.arg(program().get_program());
        command.args([
            "-c",
            "127.0.0.1",
            "-p",
            &port.to_string(),
            "-t",
            "3",
            "-b",
            "1M",
            "-i",
            "0.2",
        ]);
        command.env("XDG_STATE_HOME", std::env::temp_dir().join(format!("hangup-{port}")));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        // It has begun when it reports the first interval.
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("bits/sec") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0);
        }
        support::signal("HUP", child.id());
        std::io::copy(&mut output, &mut std::io::sink()).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{launcher}");
    }
}

#[test]
fn a_wrong_fingerprint_is_rejected() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let output = client(port, &["-t", "0.3", "--fingerprint", &"00".repeat(32)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("handshake failed"), "{}", text(&output.stderr));
}

#[test]
fn a_killed_client_does_not_stop_the_server() {
    let port = free_port();
    let server = Server::start(port, &[]);
    let mut vanishing = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    vanishing.kill().unwrap();
    vanishing.wait().unwrap();
    assert!(client(port, &["-t", "0.3", "-b", "10"]).status.success());
    drop(server);
}

#[test]
fn a_report_that_cannot_be_written_fails_the_run() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    for format in [&["-J"][..], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = program()
            .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "0.3"])
            .args(format)
            .stdout(full)
            .output()
            .unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("cannot write the report: No space left"), "{errors}");
    }
}
