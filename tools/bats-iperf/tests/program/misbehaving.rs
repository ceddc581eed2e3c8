//! Clients that violate the signalling protocol do not stop the server.

use std::time::Duration;

use openbats::{ClientOptions, ConnectError, Connection, Endpoint, TransportConfig, Trust, Wait};

use crate::fuzzing::corrupted;
use crate::support::{Scratch, Server, client, free_port, noise, text};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Attacker {
    pub(crate) endpoint: Endpoint,
    pub(crate) port: u16,
}

/// The server's reaction to a signalling message.
#[derive(Debug)]
enum Answer {
    /// It accepted the test.
    Accepted,
    /// It closed the connection, after sending these messages.
    Ended(Vec<String>),
}

/// Receives until the server closes the connection; returns the messages and the close reason.
pub(crate) fn receive_until_closed(connection: &Connection) -> (Vec<String>, String) {
    let mut words = Vec::new();
    loop {
        assert!(words.len() < 1_000, "too many messages");
        let received = connection.recv().wait_for(LIMIT);
        let received = received.unwrap_or_else(|_| {
            panic!("the connection goes on after {words:?}: {:#?}", connection.stats())
        });
        match received {
            Ok(Some(message)) => words.push(text(&message)),
            Ok(None) => return (words, "finished".into()),
            Err(why) => return (words, why.to_string()),
        }
    }
}

pub(crate) fn receive_json(control: &Connection) -> serde_json::Value {
    let message = control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
    serde_json::from_slice(&message).unwrap()
}

impl Attacker {
    pub(crate) fn new(port: u16) -> Self {
        let endpoint = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start().unwrap();
        Self { endpoint, port }
    }

    pub(crate) fn connect(&self, port: u16) -> Connection {
        self.try_connect(port).unwrap()
    }

    /// As `connect`; a server that refuses at once may have closed the connection before the
    /// attempt ends.
    pub(crate) fn try_connect(&self, port: u16) -> Result<Connection, ConnectError> {
        // A small budget, as some tests open many connections.
        let transport = TransportConfig { receive_budget: 8 << 20, ..TransportConfig::default() };
        let options = ClientOptions::new(Trust::dangerous_any()).transport(transport);
        let remote = ([127, 0, 0, 1], port).into();
        self.endpoint.connect(remote, "localhost", options).wait_for(LIMIT).unwrap()
    }

    /// Sends one signalling message.
    fn send_signalling(&self, message: impl Into<Vec<u8>>) -> Answer {
        let control = self.connect(self.port - 1);
        control.send(message.into()).wait_for(LIMIT).unwrap().unwrap();
        let first = control.recv().wait_for(LIMIT).expect("an answer or the end of the connection");
        let Ok(Some(first)) = first else { return Answer::Ended(Vec::new()) };
        let first = text(&first);
        let value: serde_json::Value = serde_json::from_str(&first).unwrap();
        match value["accept"]["test"].as_u64() {
            Some(_) => Answer::Accepted,
            None => Answer::Ended([vec![first], receive_until_closed(&control).0].concat()),
        }
    }

    /// Sends an invalid message: the server must deny it or close the connection.
    fn assert_refused(&self, message: impl Into<Vec<u8>>, what: &str) {
        match self.send_signalling(message) {
            Answer::Ended(words) => {
                assert!(
                    words.iter().all(|message| message.starts_with(r#"{"deny""#)),
                    "{what}: {words:?}"
                )
            }
            Answer::Accepted => panic!("{what}: accepted"),
        }
    }

    /// Starts a test until its first stream has sent its hello message; returns the signalling and
    /// data connections.
    pub(crate) fn open_test(&self, request: &str, stream: [u8; 2]) -> (Connection, Connection) {
        let control = self.connect(self.port - 1);
        control.send(request.to_owned()).wait_for(LIMIT).unwrap().unwrap();
        let test = receive_json(&control)["accept"]["test"].as_u64().unwrap();
        let data = self.connect(self.port);
        let hello = [&b"BIPRF2"[..], &test.to_be_bytes(), &stream].concat();
        data.send(hello).wait_for(LIMIT).unwrap().unwrap();
        (control, data)
    }

    /// Like `open_test`, then waits until the server expects `READY`.
    pub(crate) fn join_test(&self, request: &str) -> (Connection, Connection) {
        let (control, data) = self.open_test(request, [0, 0]);
        assert_eq!(receive_json(&control), "joined");
        (control, data)
    }
}

pub(crate) const REQUEST: &str = r#"{"request":{"version":8,"mode":"brtp","streams":1,"carrier":"bats","work":{"throughput":{"direction":"forward","seconds":1.0,"omit":0.0,"bytes":0,"messages":0,"interval":0.5,"bandwidth":1000000,"length":1000,"is_fitted":false,"latency":false,"deadline_ms":null}},"title":null,"connect_timeout":10.0,"wants_output":false,"wants_json":false}}"#;

/// The message that starts a test after all streams have connected.
pub(crate) const READY: &str = r#"{"ready":{"clock":{"offset_ns":5,"error_ns":5},"greetings":1}}"#;

#[test]
fn fuzzed_signalling_does_not_stop_the_server() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    let answer = attacker.send_signalling(REQUEST);
    assert!(
        matches!(answer, Answer::Accepted),
        "the unmodified request must be accepted: {answer:?}"
    );
    // Values that crashed the original, and similar ones.
    for (from, to) in [
        (r#""interval":0.5"#, r#""interval":0.04"#),
        (r#""interval":0.5"#, r#""interval":-1"#),
        (r#""interval":0.5"#, r#""interval":1e308"#),
        (r#""seconds":1.0"#, r#""seconds":1e999"#),
        (r#""seconds":1.0"#, r#""seconds":-5"#),
        (r#""streams":1"#, r#""streams":65535"#),
        (r#""streams":1"#, r#""streams":0"#),
        (r#""streams":1"#, r#""streams":-1"#),
        (r#""length":1000"#, r#""length":4294967295"#),
        (r#""length":1000"#, r#""length":0"#),
        (r#""bandwidth":1000000"#, r#""bandwidth":18446744073709551615"#),
        (r#""version":8"#, r#""version":1"#),
        (r#""mode":"brtp""#, r#""mode":"pigeon""#),
        (r#""carrier":"bats""#, r#""carrier":"pigeon""#),
    ] {
        assert!(REQUEST.contains(from));
        attacker.assert_refused(REQUEST.replace(from, to), to);
    }
    // Bytes changed at random, truncated or duplicated.
    for seed in 0..60 {
        // Some are still valid, such as a test of 7 s instead of 1 s, so any answer is accepted.
        let _ = attacker.send_signalling(corrupted(REQUEST, seed));
    }
    let invalid = [
        &b""[..],
        b"[",
        b"\"start\"",
        b"\"ping\"",
        br#"{"ready":{"clock":{"offset_ns":-9223372036854775808,"error_ns":18446744073709551615},"greetings":18446744073709551615}}"#,
        br#"{"summary":{"streams":[],"processor":{"total":0,"user":0,"system":0},"one_way":null,"round_trip":null}}"#,
        br#"{"deny":{"reason":"\u001b[2J"}}"#,
    ];
    for message in invalid {
        let what = text(message);
        attacker.assert_refused(message, &what);
        // Valid in this state: a test starts with such a clock, too.
        if what.contains("ready") {
            continue;
        }
        let (control, _data) = attacker.join_test(REQUEST);
        control.send(message.to_vec()).wait_for(LIMIT).unwrap().unwrap();
        if what == "\"ping\"" {
            assert!(receive_json(&control)["pong"]["at_ns"].is_u64());
            control.close(1, "");
            continue;
        }
        let (words, end) = receive_until_closed(&control);
        assert!(words.is_empty() && end.contains("the test failed"), "{what}: {words:?}, {end}");
    }
    attacker.assert_refused(vec![b'['; 200_000], "brackets");
    let (control, _data) = attacker.join_test(REQUEST);
    for _ in 0..200 {
        if control.send("\"ping\"").wait_for(LIMIT).unwrap().is_err() {
            break;
        }
    }
    let (pongs, end) = receive_until_closed(&control);
    assert!(pongs.len() < 100 && end.contains("the test failed"), "{}, {end}", pongs.len());
    // Longer than the maximum message length, which the server has announced: sending fails
    // locally.
    let control = attacker.connect(port - 1);
    assert!(control.send(vec![b'x'; 3 << 20]).wait_for(LIMIT).unwrap().is_err());
    attacker.assert_refused(vec![b'x'; 1 << 20], "the longest message");
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
}

#[test]
fn fuzzed_data_fails_only_its_own_test() {
    let scratch = Scratch::new("misbehaving");
    let port = free_port();
    let directory = scratch.path("in");
    let _server = Server::start(port, &["--directory", &directory]);
    let attacker = Attacker::new(port);
    // Hello messages that name no test.
    for hello in [&b""[..], b"BIPRF2", b"BIPRF2\0\0\0\0\0\0\0\x01\0\0", &[0xff; 16], &[7; 5_000]] {
        let data = attacker.connect(port);
        data.send(hello.to_vec()).wait_for(LIMIT).unwrap().unwrap();
        let (words, end) = receive_until_closed(&data);
        assert!(words.is_empty() && end.contains("no "), "{hello:?}: {words:?}, {end}");
    }
    let files = REQUEST.replace(
        &REQUEST[REQUEST.find(r#"{"throughput""#).unwrap()..REQUEST.find(r#","title""#).unwrap()],
        r#"{"files":{"count":3,"bytes":5}}"#,
    );
    for (request, seed, failed) in
        [(REQUEST, 1, "the test failed"), (&files, 2, "the transfer failed")]
    {
        for round in 0..7_u64 {
            let (control, data) = attacker.join_test(request);
            control.send(READY).wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(receive_json(&control), "start", "{request}");
            assert_eq!(data.close_reason(), None, "the connection must be open");
            for number in 0..4 {
                let size = 10 + 300 * ((number + round) % 4) as usize;
                let mut garbage = noise(size, seed * 100 + round * 10 + number);
                // Message types of a file transfer.
                if (number + round) % 2 == 0 {
                    garbage[0] = 16 + garbage[0] % 6;
                }
                // An earlier message may have closed the connection already.
                let _ = data.send(garbage).wait_for(LIMIT).unwrap();
            }
            let _ = data.send(&b"\xff of no type"[..]).wait_for(LIMIT).unwrap();
            let (_, end) = receive_until_closed(&data);
            assert!(end.contains(failed), "{round}: {end}");
        }
        // A stream number beyond those of the test.
        let (control, data) = attacker.open_test(request, [0xff, 0xff]);
        let (words, end) = receive_until_closed(&control);
        assert!(words.is_empty() && end.contains("the test failed"), "{words:?}, {end}");
        assert!(receive_until_closed(&data).0.is_empty());
    }
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
}

#[test]
fn unidentified_peers_that_send_too_much_are_closed() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    for port in [port, port - 1] {
        // One message that never ends, as far as the server knows.
        let unidentified = attacker.connect(port);
        for _ in 0..2_000 {
            let _ = unidentified.try_send(vec![b'['; 900_000]);
            if unidentified.close_reason().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (words, end) = receive_until_closed(&unidentified);
        assert!(
            words.is_empty() && end.contains("receive limit of an untrusted peer exceeded"),
            "{end}"
        );
    }
    // An identified client may send as much as before.
    assert!(client(port, &["-t", "0.3", "--length", "4M"]).status.success());
}

/// A server that handles one test meets misbehaving clients before its real client.
#[test]
fn clients_that_start_no_test_do_not_use_up_a_one_off_server() {
    let port = free_port();
    let server = Server::start(port, &["-1", "--server-bitrate-limit", "2M", "-J"]);
    let attacker = Attacker::new(port);
    let idle = attacker.connect(port - 1);
    attacker.connect(port - 1).close(1, "gone");
    attacker.assert_refused(&b"nonsense"[..], "nonsense");
    attacker.assert_refused(REQUEST.replace("1000000", "9000000"), "too much");
    let (control, data) = attacker.join_test(REQUEST);
    data.close(1, "gone");
    control.close(1, "gone");
    let (_half, _stream) =
        attacker.open_test(&REQUEST.replace(r#""streams":1"#, r#""streams":2"#), [0, 0]);
    let output = client(port, &["-t", "0.4", "-b", "1M"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, report) = server.finish();
    assert_eq!(code, 0, "{report}");
    // One document, that of the test.
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["end"].is_object() && report["error"].is_null(), "{report:#}");
    drop(idle);
}

#[test]
fn the_bitrate_limit_holds_when_a_client_sends_more_than_requested() {
    let scratch = Scratch::new("limit");
    let port = free_port();
    let limit = ["--server-bitrate-limit", "800k", "--directory", &scratch.path("in")];
    let _server = Server::start(port, &limit);
    let attacker = Attacker::new(port);
    let request = REQUEST.replace(r#""bandwidth":1000000"#, r#""bandwidth":800000"#);
    let (control, data) = attacker.join_test(&request);
    control.send(READY).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(receive_json(&control), "start");
    for number in 0..4_000_u64 {
        let head = [&b"BIPF\0"[..], &number.to_be_bytes(), &[0; 16], &[0x77; 1_000]].concat();
        // Until the limit is exceeded.
        if data.send(head).wait_for(LIMIT).unwrap().is_err() {
            break;
        }
    }
    let (_, end) = receive_until_closed(&data);
    assert!(end.contains("more than the 800000 bits per second"), "{end}");
    // Files are received at the limit: a burst of 5 s at once, then the rest.
    std::fs::write(scratch.0.join("file"), noise(700_000, 3)).unwrap();
    let output = client(port, &["-J", "-f", &scratch.path("file")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let seconds = report["end"]["sum_sent"]["seconds"].as_f64().unwrap();
    assert!(seconds > 1.8, "{seconds}");
}
