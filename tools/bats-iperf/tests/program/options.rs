//! Options, one at a time, between real processes.

use std::fs;
use std::io::BufRead;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Scratch, Server, client, free_port, program, run, signal, text, wait_until};

#[test]
fn bidirectional_tests_have_a_sum_per_direction() {
    let (report, text) = run(&[], &["--bidir", "-P", "2", "-b", "10M", "-t", "1", "-i", "0.5"]);
    let end = &report["end"];
    assert_eq!(end["streams"].as_array().unwrap().len(), 4);
    for key in ["", "_bidir_reverse"] {
        let sent = end[format!("sum_sent{key}")]["bytes"].as_u64().unwrap();
        assert!(sent > 500_000, "{end:#}");
        assert_eq!(end[format!("sum_received{key}")]["bytes"], sent);
    }
    for role in ["[SUM][RX-S]", "[SUM][TX-S]", "[  4][TX-S]"] {
        assert!(text.contains(role), "{role}: {text}");
    }
}

#[test]
fn bytes_and_messages_end_a_test_exactly() {
    let (report, _) = run(&[], &["-n", "5M", "-P", "3", "--length", "10k"]);
    assert_eq!(report["end"]["sum_received"]["bytes"], 5_000_000);
    assert_eq!(report["end"]["sum_sent"]["bytes"], 5_000_000);
    let (report, _) = run(&[], &["-k", "321", "--length", "1000", "-r"]);
    assert_eq!(report["end"]["sum_received"]["packets"], 321);
    assert_eq!(report["end"]["sum_received"]["bytes"], 321_000);
}

#[test]
fn the_omitted_time_is_excluded_from_totals() {
    let (report, text) = run(&[], &["-t", "1.2", "-O", "0.6", "-i", "0.3", "-b", "8M"]);
    let omitted: Vec<bool> = report["intervals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|interval| interval["sum"]["omitted"].as_bool().unwrap())
        .collect();
    assert!(omitted[0] && omitted[1] && !omitted[omitted.len() - 1], "{omitted:?}");
    let sum = &report["end"]["sum_sent"];
    assert!(sum["seconds"].as_f64().unwrap() < 0.7, "{sum}");
    // 0.6 s at 1,000,000 bytes per second.
    let bytes = sum["bytes"].as_u64().unwrap();
    assert!(bytes < 720_000, "{bytes}");
    assert_eq!(report["end"]["sum_received"]["bytes"], bytes);
    assert!(text.contains("(omitted)"), "{text}");
}

#[test]
fn ipv4_ipv6_and_names_connect() {
    let port = free_port();
    let _server = Server::start(port, &["-I", "::1"]);
    let run = |host: &str, more: &[&str]| {
        program()
            .args(["-c", host, "-p", &port.to_string(), "-t", "0.3", "-b", "1M"])
            .args(more)
            .output()
            .unwrap()
    };
    for (host, more) in [("::1", &[][..]), ("[::1]", &["-6"]), ("::1", &["-B", "::1"])] {
        let output = run(host, more);
        assert!(output.status.success(), "{host} {more:?}: {}", text(&output.stderr));
    }
    let output = run("::1", &["-4"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let port = free_port();
    let _server = Server::start(port, &["-I", "lo", "-4"]);
    let output = program()
        .args(["-c", "localhost", "-4", "-p", &port.to_string(), "-t", "0.3", "-b", "1M"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_certificate_is_accepted_only_from_a_known_authority() {
    let scratch = Scratch::new("certificate");
    let make = |name: &str| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(scratch.path(&format!("{name}.pem")), made.cert.pem()).unwrap();
        fs::write(scratch.path(&format!("{name}.key")), made.signing_key.serialize_pem()).unwrap();
    };
    make("own");
    make("other");
    let port = free_port();
    let (certificate, key) = (scratch.path("own.pem"), scratch.path("own.key"));
    let _server = Server::start(port, &["--certificate", &certificate, "--key", &key]);
    let run = |authority: &str| {
        program()
            .args(["-c", "localhost", "-4", "-p", &port.to_string(), "-t", "0.3", "-b", "1M"])
            .args(["--authorities", &scratch.path(authority)])
            .output()
            .unwrap()
    };
    let output = run("own.pem");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("not authenticated"));
    assert_eq!(run("other.pem").status.code(), Some(1));
    assert_eq!(run("missing.pem").status.code(), Some(1));
}

#[test]
fn a_psk_server_answers_only_clients_with_its_key() {
    let scratch = Scratch::new("closed");
    for (name, content) in
        [("key", "1f".repeat(32)), ("other", "2e".repeat(32)), ("none", "x".into())]
    {
        fs::write(scratch.path(name), format!("{content}\n")).unwrap();
        fs::set_permissions(scratch.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let port = free_port();
    let _server = Server::start(port, &["--closed-key", &scratch.path("key")]);
    // It does not use its TCP port.
    drop(std::net::TcpListener::bind(("127.0.0.1", port)).unwrap());
    // The time within which an answer must come on a busy machine, or must not come.
    let run = |key: &[&str], limit: &str, more: &[&str]| {
        client(port, &[key, &["-t", "0.3", "-b", "1M", "--connect-timeout", limit], more].concat())
    };
    let (key, other) = (scratch.path("key"), scratch.path("other"));
    for mode in ["0", "1", "2", "3"] {
        let output = run(&["--closed-key", &key], "20000", &["-m", mode, "--bidir"]);
        assert!(output.status.success(), "{mode}: {}", text(&output.stderr));
    }
    for (with, words) in [(&["--closed-key", other.as_str()][..], "--closed-key?"), (&[], "there?")]
    {
        let output = run(with, "500", &[]);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("no answer") && said.contains(words), "{said}");
    }
    for (name, words) in [("none", "64 hexadecimal digits"), ("missing", "cannot read")] {
        let output = run(&["--closed-key", &scratch.path(name)], "500", &[]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
    let output = run(&["--closed-key", &key], "20000", &["-m", "quic"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("modes 0 (btp)"), "{}", text(&output.stderr));
}

#[test]
fn all_transports_use_the_given_local_address() {
    let options = ["-I", "127.0.0.2", "-t", "0.3", "-b", "1M", "--baseline", "tcp,udp"];
    let (_, events) = run(&["--json-stream"], &options);
    let from: Vec<String> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event"] == "start")
        .map(|event| event["data"]["connected"][0]["remote_host"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(from, ["127.0.0.2"; 3]);
}

#[test]
fn cport_sets_the_client_port() {
    let own = free_port();
    let (report, _) = run(&[], &["-t", "0.3", "-b", "1M", "--cport", &own.to_string()]);
    assert_eq!(report["start"]["connected"][0]["local_port"], own);
}

#[test]
fn titles_and_timestamps_prefix_the_lines() {
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    let output =
        client(port, &["-t", "0.3", "-b", "1M", "--title", "lab 7", "--timestamps=<%H:%M:%S>"]);
    for line in text(&output.stdout).lines() {
        assert!(line.starts_with('<') && line[9..].starts_with("> lab 7:  "), "{line}");
    }
    let (_, report) = server.finish();
    let titled = report.lines().filter(|line| line.starts_with("lab 7:  ")).count();
    assert!(titled >= 5, "{report}");
}

#[test]
fn get_server_output_returns_the_server_report() {
    let port = free_port();
    let server = Server::start(port, &["-1", "-V"]);
    let output = client(port, &["-t", "0.5", "-i", "0.2", "-b", "1M", "--get-server-output"]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}");
    let (_, far) = server.finish();
    let copied = report.split("Server output:\n").nth(1).unwrap();
    let tail = &far[far.find("Accepted connection").unwrap()..];
    assert_eq!(copied, tail);
    assert!(tail.contains("CPU Utilization"), "{tail}");
}

#[test]
fn a_stalled_sender_fails_the_test() {
    let port = free_port();
    let server = Server::start(port, &["-1", "--rcv-timeout", "500"]);
    let mut client = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "30", "-b", "10M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal("STOP", client.id());
    let (code, report) = server.finish();
    assert_eq!(code, 1, "{report}");
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn a_suspended_client_prints_one_long_interval_and_no_burst() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let client = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-m", "1", "-J"])
        .args(["-t", "2.5", "-b", "5M", "-i", "0.2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(900));
    signal("STOP", client.id());
    std::thread::sleep(std::time::Duration::from_millis(1_000));
    signal("CONT", client.id());
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut lengths: Vec<f64> = report["intervals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|interval| interval["sum"]["seconds"].as_f64().unwrap())
        .collect();
    // The last, partial interval.
    lengths.pop();
    assert!(lengths.iter().any(|&seconds| seconds > 0.9), "the suspension must show: {lengths:?}");
    assert!(lengths.iter().all(|&seconds| seconds >= 0.0999), "{lengths:?}");
}

#[test]
fn an_idle_server_exits() {
    let port = free_port();
    let (code, _) = Server::start(port, &["--idle-timeout", "300ms"]).finish();
    assert_eq!(code, 0);
    let (code, _) = Server::start(port, &["--idle-timeout", "0.3", "-1"]).finish();
    assert_eq!(code, 1, "it must serve one test");
}

#[test]
fn the_bitrate_limit_denies_higher_requests() {
    let port = free_port();
    let _server = Server::start(port, &["--server-bitrate-limit", "5M", "--only-mode", "brtp"]);
    let refused = client(port, &["-t", "0.3"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("-b"), "{}", text(&refused.stderr));
    assert!(client(port, &["-t", "0.3", "-b", "2M", "-P", "2"]).status.success());
    // 0 means no limit, as in iperf3.
    let port = free_port();
    let _server = Server::start(port, &["--server-bitrate-limit", "0"]);
    let output = client(port, &["-t", "0.3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Options that the original ignores, end to end.
#[test]
fn options_ignored_by_the_original_print_notes() {
    let scratch = Scratch::new("original");
    let port = free_port();
    let line = ["-m", "1", "-t", "10", "-P", "2", "-r", "-C", "-f", "nothing"];
    let server = Server::start(
        port,
        &[&line[..], &["-i", "1", "--directory", &scratch.path("in")]].concat(),
    );
    assert_eq!(server.notes().count(), 6);
    let run = |options: &[&str], letters: &[&str]| {
        let output = client(port, options);
        let notes = text(&output.stderr);
        assert!(output.status.success(), "{options:?}: {notes}");
        let said = notes.lines().filter(|line| line.contains("is ignored")).count();
        assert_eq!(said, letters.len(), "{notes}");
        for letter in letters {
            assert!(notes.contains(&format!("note: {letter} is ignored")), "{letter}: {notes}");
        }
        serde_json::from_slice::<Value>(&output.stdout)
            .expect("the document must not contain notes");
    };
    run(&["-C", "-I", "nosuch0", "-t", "0.3", "-b", "1M", "-J"], &["-C", "-I"]);
    let file = scratch.path("a");
    fs::write(&file, "content").unwrap();
    run(&["-t", "5", "-b", "5", "-J", "-f", &file], &["-t", "-b"]);
    assert_eq!(fs::read(scratch.path("in/a")).unwrap(), b"content");
}

#[test]
fn sigint_ends_a_client_and_the_server_continues() {
    let scratch = Scratch::new("interrupt");
    let port = free_port();
    let _server = Server::start(port, &["--pidfile", &scratch.path("pid")]);
    wait_until("the server has written its PID", || {
        fs::read_to_string(scratch.path("pid")).is_ok_and(|text| text.trim().parse::<u32>().is_ok())
    });
    let mut client_process = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(700));
    signal("INT", client_process.id());
    // At once, not after 60 s.
    wait_until("it ends", || client_process.try_wait().unwrap().is_some());
    let output = client_process.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    // The user knows why: that is no error.
    let errors = text(&output.stderr);
    assert!(!errors.contains("error"), "{errors}");
    assert_eq!(errors.matches("interrupt").count(), 1, "{errors}");
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
}

#[test]
fn manual_page_and_completions_are_printed() {
    for (what, word) in
        [("man", ".TH"), ("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete")]
    {
        let output = program().args(["--generate", what]).output().unwrap();
        assert!(output.status.success());
        assert!(text(&output.stdout).contains(word), "{what}");
    }
}

#[test]
fn a_stalled_receiver_fails_the_test() {
    let port = free_port();
    let server = Server::start(port, &[]);
    let mut client = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-m", "1", "-t", "30", "-i", "0.1"])
        .args(["--snd-timeout", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The client sends from the first interval on.
    let mut lines = std::io::BufReader::new(client.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().contains(" sec ")), "the test never started");
    signal("STOP", server.id());
    let line_counter = std::thread::spawn(move || lines.count());
    std::thread::sleep(std::time::Duration::from_millis(3_000));
    // The client has timed out meanwhile, and waits for the server's summary.
    signal("CONT", server.id());
    line_counter.join().unwrap();
    let output = client.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(" for 0.6 s"), "{errors}");
}

#[test]
fn a_zero_interval_prints_only_the_totals() {
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    let output = client(port, &["-t", "1.2", "-b", "1M", "-i", "0"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, far) = server.finish();
    assert_eq!(code, 0, "{far}");
    for report in [text(&output.stdout), far] {
        let figures: Vec<&str> = report.lines().filter(|line| line.contains(" sec ")).collect();
        assert_eq!(figures.len(), 2, "{report}");
        assert!(figures.iter().all(|line| line.ends_with("sender") || line.ends_with("receiver")));
    }
    let (report, _) = run(&[], &["-t", "0.6", "-b", "1M", "-i", "0"]);
    assert_eq!(report["intervals"].as_array().unwrap().len(), 0);
}

/// A file name without a directory crashes the original.
#[test]
fn log_files_may_have_relative_names() {
    let scratch = Scratch::new("relative");
    let port = free_port();
    let _server = Server::start(port, &[]);
    for name in ["log", "new/log"] {
        let output = program()
            .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-t", "0.3", "-b", "1M", "-l", name])
            .current_dir(&scratch.0)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(fs::read_to_string(scratch.path(name)).unwrap(), text(&output.stdout), "{name}");
    }
}

#[test]
fn debug_output_goes_to_standard_error() {
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    let output = client(port, &["-t", "0.3", "-b", "1M", "-d"]);
    assert!(output.status.success());
    assert_eq!(server.finish().0, 0);
    let errors = text(&output.stderr);
    assert!(
        errors.lines().any(|line| line.contains("DEBUG") && line.contains("stream ended")),
        "{errors}"
    );
    assert!(!text(&output.stdout).contains("DEBUG"), "the report must not contain debug output");
}

#[test]
fn an_unspecified_bind_address_is_reported_as_the_one_in_use() {
    let port = free_port();
    let server = Server::start_anywhere(port, &["-1", "-J"]);
    let output = client(port, &["-t", "0.3", "-b", "1M", "-J"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, far) = server.finish();
    assert_eq!(code, 0, "{far}");
    let far: Value = serde_json::from_str(&far).unwrap();
    let near: Value = serde_json::from_slice(&output.stdout).unwrap();
    let connected = |report: &Value, key: &str| report["start"]["connected"][0][key].clone();
    for report in [&near, &far] {
        assert_eq!(connected(report, "local_host"), "127.0.0.1");
        assert_eq!(connected(report, "remote_host"), "127.0.0.1");
    }
    assert_eq!(connected(&far, "local_port"), port);
    assert_eq!(connected(&far, "remote_port"), connected(&near, "local_port"));
}

#[test]
fn bind_dev_binds_all_sockets_or_fails() {
    let port = free_port();
    let _server = Server::start(port, &["--bind-dev", "lo"]);
    for options in [
        &["--baseline", "tcp,udp"][..],
        &["-m", "10"],
        &["-m", "11"],
        &["-m", "12"],
        &["--emulate", "delay=1ms"],
        &["-m", "11", "--emulate", "delay=1ms"],
    ] {
        let all = [options, &["--bind-dev", "lo", "-t", "0.3", "-b", "1M"]].concat();
        let output = client(port, &all);
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    }
    let output = client(port, &["--bind-dev", "nosuch0", "-t", "0.3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("the interface nosuch0 cannot be used"),
        "{}",
        text(&output.stderr)
    );
}

/// The type-of-service byte of the first packet that a client sends.
fn first_mark(options: &[&str]) -> u8 {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
    };
    let port = free_port();
    let socket = std::net::UdpSocket::bind(("127.0.0.1", port - 1)).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    setsockopt(&socket, sockopt::IpRecvTos, &true).unwrap();
    let mut client = program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "--connect-timeout", "5s"])
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut bytes = [0; 2_000];
    let mut slices = [std::io::IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(i32);
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::empty(),
    );
    client.kill().unwrap();
    client.wait().unwrap();
    let found = received.unwrap().cmsgs().unwrap().find_map(|message| match message {
        ControlMessageOwned::Ipv4Tos(field) => Some(field),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn packets_have_the_requested_dscp() {
    assert_eq!(first_mark(&[]) >> 2, 0);
    assert_eq!(first_mark(&["--dscp", "ef"]) >> 2, 46);
    assert_eq!(first_mark(&["-S", "0x28"]) >> 2, 10);
    // Every mode and transport works with a DSCP, on both sides and in both IP families.
    let port = free_port();
    let _server = Server::start_anywhere(port, &["--dscp", "cs1"]);
    for (host, options) in [
        ("127.0.0.1", &["--baseline", "tcp,udp", "--bidir"][..]),
        ("::1", &["--baseline", "tcp,udp", "--bidir"]),
        ("127.0.0.1", &["-m", "10", "-r"]),
        ("::1", &["-m", "12"]),
        ("127.0.0.1", &["-m", "11", "--emulate", "delay=1ms"]),
    ] {
        let output = program()
            .args(["-c", host, "-p", &port.to_string(), "--dscp", "af21", "-t", "0.3", "-b", "1M"])
            .args(options)
            .output()
            .unwrap();
        assert!(output.status.success(), "{host} {options:?}: {}", text(&output.stderr));
    }
}

#[test]
fn iperf3_options_have_their_effect() {
    let port = free_port();
    let _server = Server::start(port, &["--server-max-duration", "1"]);
    let output = client(port, &["-t", "0.4", "-b", "1M", "-A", "0", "--format", "K", "-N", "-Z"]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    let figures: Vec<&str> = report.lines().filter(|line| line.contains(" sec ")).collect();
    assert!(!figures.is_empty());
    for line in figures {
        assert!(line.contains(" KBytes  ") && line.contains(" KBytes/sec "), "{line}");
    }
    let notes = text(&output.stderr);
    assert_eq!(notes.lines().filter(|line| line.contains("is ignored")).count(), 2, "{notes}");
    let output = client(port, &["-t", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("1 s at most"), "{}", text(&output.stderr));
    // A CPU that does not exist.
    let output = client(port, &["-t", "0.3", "-A", "1023"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("CPU 1023"), "{}", text(&output.stderr));
}
