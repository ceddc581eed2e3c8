//! Clients that break the rules of the signalling: a server outlives them all.

use std::time::Duration;

use openbats::{ClientOptions, Connection, Endpoint, Trust, Wait};

use crate::support::{Scratch, Server, client, free_port, noise, text};

const LIMIT: Duration = Duration::from_secs(20);

struct Attacker {
    endpoint: Endpoint,
    port: u16,
}

impl Attacker {
    fn new(port: u16) -> Self {
        let endpoint = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start().unwrap();
        Self { endpoint, port }
    }

    fn connect(&self, port: u16) -> Connection {
        let options = ClientOptions::new(Trust::dangerous_any());
        let remote = ([127, 0, 0, 1], port).into();
        self.endpoint.connect(remote, "localhost", options).wait_for(LIMIT).unwrap().unwrap()
    }

    /// Sends messages on the signalling; what came back until the server had enough.
    fn say(&self, messages: &[Vec<u8>]) -> Vec<String> {
        let control = self.connect(self.port - 1);
        for message in messages {
            if control.send(message.clone()).wait_for(LIMIT).unwrap().is_err() {
                break;
            }
        }
        let mut answers = Vec::new();
        while answers.len() <= messages.len()
            && let Ok(Ok(Some(answer))) = control.recv().wait_for(Duration::from_millis(80))
        {
            answers.push(text(&answer));
        }
        answers
    }
}

const REQUEST: &str = r#"{"request":{"version":3,"mode":"brtp","streams":1,"carrier":"bats","work":{"throughput":{"direction":"forward","seconds":1.0,"omit":0.0,"bytes":0,"messages":0,"interval":0.5,"bandwidth":1000000,"length":1000,"latency":false,"deadline_ms":null}},"title":null,"wants_output":false,"wants_json":false}}"#;

#[test]
fn fuzzed_signalling_ends_no_server() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    assert!(attacker.say(&[REQUEST.into()])[0].contains("accept"), "the request itself is right");
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
        (r#""version":3"#, r#""version":1"#),
        (r#""mode":"brtp""#, r#""mode":"pigeon""#),
        (r#""carrier":"bats""#, r#""carrier":"udp""#),
    ] {
        assert!(REQUEST.contains(from));
        let answers = attacker.say(&[REQUEST.replace(from, to).into()]);
        assert!(
            !answers.iter().any(|answer| answer.contains("accept")) || to.contains("udp"),
            "{to}"
        );
    }
    // Octets changed at random, cut short, doubled; and sequences out of turn.
    for seed in 0..60 {
        let noise = noise(8, seed);
        let mut message = REQUEST.as_bytes().to_vec();
        let place = usize::from(u16::from_be_bytes([noise[0], noise[1]])) % message.len();
        match noise[2] % 4 {
            0 => message[place] = noise[3],
            1 => message.truncate(place),
            2 => message.extend_from_slice(&message.clone()[place..]),
            _ => message.insert(place, noise[3]),
        }
        attacker.say(&[message]);
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
        attacker.say(&[message.to_vec()]);
        attacker.say(&[REQUEST.into(), message.to_vec()]);
    }
    attacker.say(&[vec![b'['; 200_000]]);
    attacker.say(&[vec![b'x'; 3 << 20]]);
    let pings = [&[REQUEST.as_bytes().to_vec()][..], &vec![b"\"ping\"".to_vec(); 200]].concat();
    assert!(attacker.say(&pings).len() < 100, "not for ever");
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
        let _ = data.recv().wait_for(Duration::from_millis(100));
    }
    let files = REQUEST.replace(
        &REQUEST[REQUEST.find(r#"{"throughput""#).unwrap()..REQUEST.find(r#","title""#).unwrap()],
        r#"{"files":{"count":3,"bytes":5}}"#,
    );
    for (request, seed) in [(REQUEST.to_owned(), 1), (files, 2)] {
        for round in 0..8_u64 {
            let control = attacker.connect(port - 1);
            control.send(request.clone()).wait_for(LIMIT).unwrap().unwrap();
            let answer = control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
            let test = answer["accept"]["test"].as_u64().unwrap();
            let data = attacker.connect(port);
            let stream = if round == 7 { [0xff, 0xff] } else { [0, 0] };
            data.send([&b"BIPRF2"[..], &test.to_be_bytes(), &stream].concat())
                .wait_for(LIMIT)
                .unwrap()
                .unwrap();
            let ready = r#"{"ready":{"clock":{"offset_ns":5,"error_ns":5}}}"#;
            control.send(ready).wait_for(LIMIT).unwrap().unwrap();
            let _ = control.recv().wait_for(Duration::from_millis(250));
            for number in 0..4 {
                let mut garbage =
                    noise(10 + 300 * number as usize, seed * 100 + round * 10 + number);
                if number % 2 == 0 {
                    garbage[0] = 16 + garbage[0] % 6;
                }
                let _ = data.send(garbage).wait_for(LIMIT).unwrap();
            }
            // It ends the connection, or waits for more.
            let _ = data.recv().wait_for(Duration::from_millis(100));
        }
    }
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
}
