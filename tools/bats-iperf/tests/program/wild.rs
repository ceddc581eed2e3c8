//! Clients that break the rules in every kind of test, at every step: a server outlives them all.

use std::net::{TcpStream, UdpSocket};

use openbats::{ClientOptions, Connection, Mode, Trust, Wait};

use crate::hostile::{Attacker, LIMIT, READY, REQUEST, until_the_end};
use crate::support::{Scratch, Server, client, free_port, noise, text};

/// A kind of test, and how its streams come.
struct Kind {
    request: String,
    mode: Mode,
    streams: u16,
}

fn kinds() -> Vec<Kind> {
    let test = |direction: &str, mode: &str, carrier: &str| {
        REQUEST
            .replace(r#""direction":"forward""#, &format!(r#""direction":"{direction}""#))
            .replace(r#""mode":"brtp""#, &format!(r#""mode":"{mode}""#))
            .replace(r#""carrier":"bats""#, &format!(r#""carrier":"{carrier}""#))
            .replace(r#""latency":false"#, r#""latency":true"#)
    };
    let work =
        &REQUEST[REQUEST.find(r#"{"throughput""#).unwrap()..REQUEST.find(r#","title""#).unwrap()];
    let files = |mode: &str| {
        let request = REQUEST.replace(work, r#"{"files":{"count":2,"bytes":9}}"#);
        request.replace(r#""mode":"brtp""#, &format!(r#""mode":"{mode}""#))
    };
    [
        (test("reverse", "brtp", "bats"), Mode::Brtp, 1),
        (test("both", "brctp", "bats"), Mode::Brctp, 2),
        (test("both", "btp", "bats"), Mode::Btp, 2),
        (test("reverse", "transparent", "bats"), Mode::Transparent, 1),
        (test("both", "tcp", "bats"), Mode::Tcp, 2),
        (test("reverse", "quic", "bats"), Mode::Quic, 1),
        (test("both", "udp", "udp"), Mode::Udp, 2),
        (test("reverse", "brtp", "tcp"), Mode::Brtp, 1),
        (files("brtp"), Mode::Brtp, 1),
        (files("tcp"), Mode::Tcp, 1),
        (files("quic"), Mode::Quic, 1),
    ]
    .map(|(request, mode, streams)| Kind { request, mode, streams })
    .into()
}

/// A stream as it is after its greeting.
enum Stream {
    Bats(Connection),
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Stream {
    fn open(attacker: &Attacker, kind: &Kind, test: u64, number: u16, ports: &[u16]) -> Self {
        let hello = [&b"BIPRF2"[..], &test.to_be_bytes(), &number.to_be_bytes()].concat();
        if kind.request.contains(r#""carrier":"udp""#) {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(("127.0.0.1", ports[usize::from(number)])).unwrap();
            socket.send(&hello).unwrap();
            return Self::Udp(socket);
        }
        if kind.request.contains(r#""carrier":"tcp""#) {
            let stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
            std::io::Write::write_all(&mut &stream, &[&[0, 0, 0, 16], &hello[..]].concat())
                .unwrap();
            return Self::Tcp(stream);
        }
        let options = ClientOptions::new(Trust::dangerous_any()).mode(kind.mode);
        let remote = ([127, 0, 0, 1], attacker.port).into();
        let connecting = attacker.endpoint.connect(remote, "localhost", options);
        let connection = connecting.wait_for(LIMIT).unwrap().unwrap();
        connection.send(hello).wait_for(LIMIT).unwrap().unwrap();
        Self::Bats(connection)
    }

    /// Whatever becomes of it.
    fn send(&self, bytes: &[u8]) {
        match self {
            Self::Bats(connection) => drop(connection.try_send(bytes.to_vec())),
            Self::Udp(socket) => drop(socket.send(bytes)),
            Self::Tcp(stream) => drop(std::io::Write::write_all(&mut &*stream, bytes)),
        }
    }
}

/// A message with a byte changed, cut short, doubled or more of it.
pub(crate) fn spoilt(message: &str, seed: u64) -> Vec<u8> {
    let noise = noise(4, seed);
    let mut message = message.as_bytes().to_vec();
    let place = usize::from(u16::from_be_bytes([noise[0], noise[1]])) % message.len();
    match noise[2] % 4 {
        0 => message[place] = noise[3],
        1 => message.truncate(place),
        2 => message.extend_from_slice(&message.clone()[place..]),
        _ => message.insert(place, noise[3]),
    }
    message
}

/// What a data stream may bring: nothing of it is right.
fn garbage(seed: u64) -> Vec<u8> {
    let mut bytes = noise(20 + 300 * (seed % 4) as usize, seed);
    match seed % 3 {
        // A head of a message, of an echo.
        0 => bytes[..4].copy_from_slice(b"BIPF"),
        1 => bytes[..4].copy_from_slice(b"BIPE"),
        // Types that a transfer of files knows.
        _ => bytes[0] = 16 + bytes[0] % 6,
    }
    bytes
}

const SUMMARY: &str = r#"{"summary":{"streams":[],"processor":{"total":0.0,"user":0.0,"system":0.0},"one_way":null,"round_trip":null,"sending":null}}"#;

/// Goes so many steps by the rules, and then breaks them.
fn attack(attacker: &Attacker, kind: &Kind, seed: u64) {
    let say = |control: &Connection, message: &[u8]| {
        let _ = control.send(message.to_vec()).wait_for(LIMIT).unwrap();
    };
    let control = attacker.connect(attacker.port - 1);
    if seed.is_multiple_of(4) {
        say(&control, &spoilt(&kind.request, seed));
        // An answer of any kind; one that waits for more is left alone.
        let _ = control.recv().wait_for(LIMIT).expect("an answer or the end");
        return control.close(1, "");
    }
    say(&control, kind.request.as_bytes());
    let accept: serde_json::Value =
        serde_json::from_slice(&control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap()).unwrap();
    let test = accept["accept"]["test"].as_u64().unwrap_or_else(|| panic!("{accept}"));
    let ports: Vec<u16> = serde_json::from_value(accept["accept"]["ports"].clone()).unwrap();
    let streams: Vec<Stream> =
        (0..kind.streams).map(|n| Stream::open(attacker, kind, test, n, &ports)).collect();
    assert_eq!(text(&control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap()), "\"joined\"");
    match seed % 4 {
        1 => say(&control, &spoilt(READY, seed)),
        rest => {
            say(&control, READY.as_bytes());
            let start = control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
            assert_eq!(text(&start), "\"start\"");
            for number in 0..6 {
                streams.iter().for_each(|stream| stream.send(&garbage(seed * 10 + number)));
            }
            match rest {
                2 => say(&control, &spoilt(SUMMARY, seed)),
                _ => control.close(1, "gone"),
            }
        }
    }
    // Until the server has had enough; a test that goes on is left.
    let patience = std::time::Duration::from_millis(300);
    while let Ok(Ok(Some(_))) = control.recv().wait_for(patience) {}
    control.close(1, "");
    if let Some(Stream::Bats(stream)) = streams.first() {
        stream.close(1, "");
        assert!(!until_the_end(stream).1.is_empty());
    }
}

#[test]
fn fuzzed_signalling_ends_no_server_in_any_kind_of_test() {
    let scratch = Scratch::new("wild");
    let port = free_port();
    let _server = Server::start(port, &["--directory", &scratch.path("in")]);
    let attacker = Attacker::new(port);
    let kinds = kinds();
    for seed in 0..8 {
        for (number, kind) in (0..).zip(&kinds) {
            attack(&attacker, kind, seed + 100 * number);
        }
    }
    // All of its places are free again, and it serves as before.
    for options in [&["--bidir"][..], &["-m", "10", "-r"], &["-m", "11"], &["-m", "0"]] {
        let output = client(port, &[options, &["-t", "0.3", "-b", "1M"]].concat());
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_dir(scratch.path("in")).unwrap().count(), 0);
}
