//! Clients that break the rules of the signalling: a server outlives them all.

use std::time::Duration;

use openbats::{ClientOptions, Connection, Endpoint, TransportConfig, Trust, Wait};

use crate::support::{Scratch, Server, client, free_port, noise, text};
use crate::wild::spoilt;

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Attacker {
    pub(crate) endpoint: Endpoint,
    pub(crate) port: u16,
}

/// What a server makes of what it is told.
#[derive(Debug)]
enum Answer {
    /// It takes the test.
    Accepted,
    /// It ended the connection, after these words.
    Ended(Vec<String>),
}

/// Everything that comes until the server ends the connection, and how it did.
pub(crate) fn until_the_end(connection: &Connection) -> (Vec<String>, String) {
    let mut words = Vec::new();
    loop {
        assert!(words.len() < 1_000, "not for ever");
        match connection.recv().wait_for(LIMIT).expect("an answer or the end") {
            Ok(Some(word)) => words.push(text(&word)),
            Ok(None) => return (words, "finished".into()),
            Err(why) => return (words, why.to_string()),
        }
    }
}

pub(crate) fn word(control: &Connection) -> serde_json::Value {
    let word = control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
    serde_json::from_slice(&word).unwrap()
}

impl Attacker {
    pub(crate) fn new(port: u16) -> Self {
        let endpoint = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start().unwrap();
        Self { endpoint, port }
    }

    pub(crate) fn connect(&self, port: u16) -> Connection {
        // Little each, as some tests need many.
        let transport = TransportConfig { receive_budget: 8 << 20, ..TransportConfig::default() };
        let options = ClientOptions::new(Trust::dangerous_any()).transport(transport);
        let remote = ([127, 0, 0, 1], port).into();
        self.endpoint.connect(remote, "localhost", options).wait_for(LIMIT).unwrap().unwrap()
    }

    /// Says one thing on the signalling.
    fn say(&self, message: impl Into<Vec<u8>>) -> Answer {
        let control = self.connect(self.port - 1);
        control.send(message.into()).wait_for(LIMIT).unwrap().unwrap();
        let first = control.recv().wait_for(LIMIT).expect("an answer or the end");
        let Ok(Some(first)) = first else { return Answer::Ended(Vec::new()) };
        let first = text(&first);
        let value: serde_json::Value = serde_json::from_str(&first).unwrap();
        match value["accept"]["test"].as_u64() {
            Some(_) => Answer::Accepted,
            None => Answer::Ended([vec![first], until_the_end(&control).0].concat()),
        }
    }

    /// Says something that cannot be taken: it is denied, or the connection ends without a word.
    fn is_refused(&self, message: impl Into<Vec<u8>>, what: &str) {
        match self.say(message) {
            Answer::Ended(words) => {
                assert!(
                    words.iter().all(|word| word.starts_with(r#"{"deny""#)),
                    "{what}: {words:?}"
                )
            }
            Answer::Accepted => panic!("{what}: accepted"),
        }
    }

    /// Signalling and data of a test that was accepted, after its first stream has said its number.
    pub(crate) fn enter(&self, request: &str, stream: [u8; 2]) -> (Connection, Connection) {
        let control = self.connect(self.port - 1);
        control.send(request.to_owned()).wait_for(LIMIT).unwrap().unwrap();
        let test = word(&control)["accept"]["test"].as_u64().unwrap();
        let data = self.connect(self.port);
        let hello = [&b"BIPRF2"[..], &test.to_be_bytes(), &stream].concat();
        data.send(hello).wait_for(LIMIT).unwrap().unwrap();
        (control, data)
    }

    /// As `enter`, until the server waits for this side to be ready.
    pub(crate) fn join(&self, request: &str) -> (Connection, Connection) {
        let (control, data) = self.enter(request, [0, 0]);
        assert_eq!(word(&control), "joined");
        (control, data)
    }
}

pub(crate) const REQUEST: &str = r#"{"request":{"version":5,"mode":"brtp","streams":1,"carrier":"bats","work":{"throughput":{"direction":"forward","seconds":1.0,"omit":0.0,"bytes":0,"messages":0,"interval":0.5,"bandwidth":1000000,"length":1000,"latency":false,"deadline_ms":null}},"title":null,"wants_output":false,"wants_json":false}}"#;

/// What begins a test that was joined.
pub(crate) const READY: &str = r#"{"ready":{"clock":{"offset_ns":5,"error_ns":5},"greetings":1}}"#;

#[test]
fn fuzzed_signalling_ends_no_server() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    let answer = attacker.say(REQUEST);
    assert!(matches!(answer, Answer::Accepted), "the request itself is right: {answer:?}");
    // Values that hurt the original, and their kin.
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
        (r#""version":5"#, r#""version":1"#),
        (r#""mode":"brtp""#, r#""mode":"pigeon""#),
        (r#""carrier":"bats""#, r#""carrier":"pigeon""#),
    ] {
        assert!(REQUEST.contains(from));
        attacker.is_refused(REQUEST.replace(from, to), to);
    }
    // Bytes changed at random, cut short, doubled; and sequences out of turn.
    for seed in 0..60 {
        // Some are still right: a test of seven seconds instead of one. Any answer will do.
        let _ = attacker.say(spoilt(REQUEST, seed));
    }
    let wild = [
        &b""[..],
        b"[",
        b"\"start\"",
        b"\"ping\"",
        br#"{"ready":{"clock":{"offset_ns":-9223372036854775808,"error_ns":18446744073709551615},"greetings":18446744073709551615}}"#,
        br#"{"summary":{"streams":[],"processor":{"total":0,"user":0,"system":0},"one_way":null,"round_trip":null}}"#,
        br#"{"deny":{"reason":"\u001b[2J"}}"#,
    ];
    for message in wild {
        let what = text(message);
        attacker.is_refused(message, &what);
        // Right in its turn: the test begins with such a clock, too.
        if what.contains("ready") {
            continue;
        }
        let (control, _data) = attacker.join(REQUEST);
        control.send(message.to_vec()).wait_for(LIMIT).unwrap().unwrap();
        if what == "\"ping\"" {
            assert!(word(&control)["pong"]["at_ns"].is_u64());
            control.close(1, "");
            continue;
        }
        let (words, end) = until_the_end(&control);
        assert!(words.is_empty() && end.contains("the test failed"), "{what}: {words:?}, {end}");
    }
    attacker.is_refused(vec![b'['; 200_000], "brackets");
    let (control, _data) = attacker.join(REQUEST);
    for _ in 0..200 {
        if control.send("\"ping\"").wait_for(LIMIT).unwrap().is_err() {
            break;
        }
    }
    let (pongs, end) = until_the_end(&control);
    assert!(pongs.len() < 100 && end.contains("the test failed"), "{}, {end}", pongs.len());
    // More than a message may be, which the server has told: it does not even leave.
    let control = attacker.connect(port - 1);
    assert!(control.send(vec![b'x'; 3 << 20]).wait_for(LIMIT).unwrap().is_err());
    attacker.is_refused(vec![b'x'; 1 << 20], "the longest message");
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
}

#[test]
fn fuzzed_data_fails_its_own_test_only() {
    let scratch = Scratch::new("hostile");
    let port = free_port();
    let directory = scratch.path("in");
    let _server = Server::start(port, &["--directory", &directory]);
    let attacker = Attacker::new(port);
    // Hellos of no test.
    for hello in [&b""[..], b"BIPRF2", b"BIPRF2\0\0\0\0\0\0\0\x01\0\0", &[0xff; 16], &[7; 5_000]] {
        let data = attacker.connect(port);
        data.send(hello.to_vec()).wait_for(LIMIT).unwrap().unwrap();
        let (words, end) = until_the_end(&data);
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
            let (control, data) = attacker.join(request);
            control.send(READY).wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(word(&control), "start", "{request}");
            assert_eq!(data.close_reason(), None, "nothing is wrong yet");
            for number in 0..4 {
                let size = 10 + 300 * ((number + round) % 4) as usize;
                let mut garbage = noise(size, seed * 100 + round * 10 + number);
                // Types that a transfer of files knows.
                if (number + round) % 2 == 0 {
                    garbage[0] = 16 + garbage[0] % 6;
                }
                // The first may have ended it already.
                let _ = data.send(garbage).wait_for(LIMIT).unwrap();
            }
            let _ = data.send(&b"\xff of no type"[..]).wait_for(LIMIT).unwrap();
            let (_, end) = until_the_end(&data);
            assert!(end.contains(failed), "{round}: {end}");
        }
        // A stream of a number that the test does not have.
        let (control, data) = attacker.enter(request, [0xff, 0xff]);
        let (words, end) = until_the_end(&control);
        assert!(words.is_empty() && end.contains("the test failed"), "{words:?}, {end}");
        assert!(until_the_end(&data).0.is_empty());
    }
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
}

#[test]
fn strangers_that_send_much_are_sent_away() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    for port in [port, port - 1] {
        // One message that never ends, as far as the server can tell.
        let stranger = attacker.connect(port);
        for _ in 0..2_000 {
            let _ = stranger.try_send(vec![b'['; 900_000]);
            if stranger.close_reason().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (words, end) = until_the_end(&stranger);
        assert!(words.is_empty() && end.contains("more than a stranger may send"), "{end}");
    }
    // Who has said what for may send as much as ever.
    assert!(client(port, &["-t", "0.3", "--length", "4M"]).status.success());
}

/// What a server that serves one test only meets before its client comes.
#[test]
fn a_server_of_one_test_is_not_used_up_by_who_begins_none() {
    let port = free_port();
    let server = Server::start(port, &["-1", "--server-bitrate-limit", "2M", "-J"]);
    let attacker = Attacker::new(port);
    let silent = attacker.connect(port - 1);
    attacker.connect(port - 1).close(1, "gone");
    attacker.is_refused(&b"nonsense"[..], "nonsense");
    attacker.is_refused(REQUEST.replace("1000000", "9000000"), "too much");
    let (control, data) = attacker.join(REQUEST);
    data.close(1, "gone");
    control.close(1, "gone");
    let (_half, _stream) =
        attacker.enter(&REQUEST.replace(r#""streams":1"#, r#""streams":2"#), [0, 0]);
    let output = client(port, &["-t", "0.4", "-b", "1M"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, report) = server.finish();
    assert_eq!(code, 0, "{report}");
    // One document, of the test.
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["end"].is_object() && report["error"].is_null(), "{report:#}");
    drop(silent);
}

#[test]
fn a_limit_is_kept_whatever_a_client_has_said() {
    let scratch = Scratch::new("limit");
    let port = free_port();
    let limit = ["--server-bitrate-limit", "800k", "--directory", &scratch.path("in")];
    let _server = Server::start(port, &limit);
    let attacker = Attacker::new(port);
    let request = REQUEST.replace(r#""bandwidth":1000000"#, r#""bandwidth":800000"#);
    let (control, data) = attacker.join(&request);
    control.send(READY).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(word(&control), "start");
    for number in 0..4_000_u64 {
        let head = [&b"BIPF\0"[..], &number.to_be_bytes(), &[0; 16], &[0x77; 1_000]].concat();
        // Until it is too much.
        if data.send(head).wait_for(LIMIT).unwrap().is_err() {
            break;
        }
    }
    let (_, end) = until_the_end(&data);
    assert!(end.contains("more than the 800000 bits a second"), "{end}");
    // Files come as slowly as they may: five seconds' worth at once, and the rest in its time.
    std::fs::write(scratch.0.join("file"), noise(700_000, 3)).unwrap();
    let output = client(port, &["-J", "-f", &scratch.path("file")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let seconds = report["end"]["sum_sent"]["seconds"].as_f64().unwrap();
    assert!(seconds > 1.8, "{seconds}");
}
