//! Clients that violate the protocol at every step of every kind of test do not stop the server.

use std::net::{TcpStream, UdpSocket};

use openbats::{ClientOptions, Connection, Mode, Trust, Wait};

use crate::misbehaving::{Attacker, LIMIT, READY, REQUEST, receive_until_closed};
use crate::support::{Scratch, Server, client, free_port, noise, text};

/// A kind of test: its request, mode and number of streams.
struct TestKind {
    request: String,
    mode: Mode,
    streams: u16,
}

fn kinds() -> Vec<TestKind> {
    let test = |direction: &str, mode: &str, transport: &str| {
        REQUEST
            .replace(r#""direction":"forward""#, &format!(r#""direction":"{direction}""#))
            .replace(r#""mode":"brtp""#, &format!(r#""mode":"{mode}""#))
            .replace(r#""carrier":"bats""#, &format!(r#""carrier":"{transport}""#))
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
    .map(|(request, mode, streams)| TestKind { request, mode, streams })
    .into()
}

/// A data stream after its hello message.
enum Stream {
    Bats(Connection),
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Stream {
    fn open(attacker: &Attacker, kind: &TestKind, test: u64, number: u16, ports: &[u16]) -> Self {
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

    /// Sends and ignores errors.
    fn send(&self, bytes: &[u8]) {
        match self {
            Self::Bats(connection) => drop(connection.try_send(bytes.to_vec())),
            Self::Udp(socket) => drop(socket.send(bytes)),
            Self::Tcp(stream) => drop(std::io::Write::write_all(&mut &*stream, bytes)),
        }
    }
}

/// Corrupts a message: changes a byte, truncates it, or duplicates or inserts some bytes.
pub(crate) fn corrupted(message: &str, seed: u64) -> Vec<u8> {
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

/// Invalid content of a data stream.
fn garbage(seed: u64) -> Vec<u8> {
    let mut bytes = noise(20 + 300 * (seed % 4) as usize, seed);
    match seed % 3 {
        // The magic of a message or of an echo.
        0 => bytes[..4].copy_from_slice(b"BIPF"),
        1 => bytes[..4].copy_from_slice(b"BIPE"),
        // Message types of a file transfer.
        _ => bytes[0] = 16 + bytes[0] % 6,
    }
    bytes
}

const SUMMARY: &str = r#"{"summary":{"streams":[],"processor":{"total":0.0,"user":0.0,"system":0.0},"one_way":null,"round_trip":null,"sending":null}}"#;

/// Follows the protocol for some steps, then violates it.
fn attack(attacker: &Attacker, kind: &TestKind, seed: u64) {
    let say = |control: &Connection, message: &[u8]| {
        let _ = control.send(message.to_vec()).wait_for(LIMIT).unwrap();
    };
    let control = attacker.connect(attacker.port - 1);
    if seed.is_multiple_of(4) {
        say(&control, &corrupted(&kind.request, seed));
        // Any answer is accepted; a connection on which the server waits for more is closed.
        if control.recv().wait_for(LIMIT).is_err() {
            let message = corrupted(&kind.request, seed);
            let (stats, message) = (control.stats(), String::from_utf8_lossy(&message));
            panic!("neither an answer nor the end of the connection to {message:?}: {stats:#?}");
        }
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
        1 => say(&control, &corrupted(READY, seed)),
        step => {
            say(&control, READY.as_bytes());
            let start = control.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
            assert_eq!(text(&start), "\"start\"");
            for number in 0..6 {
                streams.iter().for_each(|stream| stream.send(&garbage(seed * 10 + number)));
            }
            match step {
                2 => say(&control, &corrupted(SUMMARY, seed)),
                _ => control.close(1, "gone"),
            }
        }
    }
    // Until the server closes the connection; a test that continues is abandoned.
    let timeout = std::time::Duration::from_millis(300);
    while let Ok(Ok(Some(_))) = control.recv().wait_for(timeout) {}
    control.close(1, "");
    if let Some(Stream::Bats(stream)) = streams.first() {
        stream.close(1, "");
        assert!(!receive_until_closed(stream).1.is_empty());
    }
}

#[test]
fn fuzzed_signalling_does_not_stop_the_server_in_any_mode() {
    let scratch = Scratch::new("fuzzing");
    let port = free_port();
    let _server = Server::start(port, &["--directory", &scratch.path("in")]);
    let attacker = Attacker::new(port);
    let kinds = kinds();
    for seed in 0..8 {
        for (number, kind) in (0..).zip(&kinds) {
            attack(&attacker, kind, seed + 100 * number);
        }
    }
    // All slots are free again, and the server still works.
    for options in [&["--bidir"][..], &["-m", "10", "-r"], &["-m", "11"], &["-m", "0"]] {
        let output = client(port, &[options, &["-t", "0.3", "-b", "1M"]].concat());
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
    }
    assert_eq!(std::fs::read_dir(scratch.path("in")).unwrap().count(), 0);
}
