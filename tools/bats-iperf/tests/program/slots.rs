//! Test and connection slots of a server: their number, and their release when clients disappear.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use openbats::{ConnectError, Connection, Wait};

use crate::misbehaving::{Attacker, LIMIT, READY, REQUEST, receive_json};
use crate::support::{Server, client, free_port, text, wait_until};

/// Maximum number of concurrent tests of a server.
const MAX_TESTS: usize = 64;

/// A request for a test of one day in which the next message is due in hours.
fn day_long_request(change: (&str, &str)) -> String {
    let request = REQUEST
        .replace(r#""direction":"forward""#, r#""direction":"reverse""#)
        .replace(r#""seconds":1.0"#, r#""seconds":86400.0"#)
        .replace(r#""bandwidth":1000000"#, r#""bandwidth":1"#);
    assert!(request.contains(change.0));
    request.replace(change.0, change.1)
}

fn start_test(control: &Connection) {
    control.send(READY).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(receive_json(control), "start");
}

fn accepted(attacker: &Attacker, request: &str) -> (Connection, [u8; 24], Vec<u16>) {
    let control = attacker.connect(attacker.port - 1);
    control.send(request.to_owned()).wait_for(LIMIT).unwrap().unwrap();
    let accept = &receive_json(&control)["accept"];
    let test = accept["test"].as_u64().unwrap();
    let ports = serde_json::from_value(accept["ports"].clone()).unwrap();
    let hello = [&16_u32.to_be_bytes()[..], b"BIPRF2", &test.to_be_bytes(), &[0, 0]].concat();
    let mut bytes = [0; 24];
    bytes[..20].copy_from_slice(&hello);
    (control, bytes, ports)
}

#[test]
fn slots_of_disconnected_clients_are_released() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    let mut streams = Vec::new();
    let mut controls = Vec::new();
    // Tests limited by time and by bytes.
    for change in [(r#""bytes":0"#, r#""bytes":0"#), (r#""bytes":0"#, r#""bytes":1000000000"#)] {
        for _ in 0..MAX_TESTS / 2 - 1 {
            let (control, data) = attacker.join_test(&day_long_request(change));
            start_test(&control);
            controls.push(control);
            streams.push(data);
        }
    }
    // Over the kernel's TCP, where the client keeps its end open.
    let mut open_streams = Vec::new();
    for _ in 0..2 {
        let (control, hello, ports) =
            accepted(&attacker, &day_long_request((r#""carrier":"bats""#, r#""carrier":"tcp""#)));
        let mut stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
        stream.write_all(&hello[..20]).unwrap();
        assert_eq!(receive_json(&control), "joined");
        start_test(&control);
        controls.push(control);
        open_streams.push(stream);
    }
    let full = client(port, &["-t", "0.2", "-b", "1M"]);
    assert!(text(&full.stderr).contains("too many tests"), "{}", text(&full.stderr));
    // Some close the signalling, some the data connection, some both.
    for (number, (control, data)) in controls.iter().zip(&streams).enumerate() {
        if number % 3 != 0 {
            control.close(1, "gone");
        }
        if number % 3 != 1 {
            data.close(1, "gone");
        }
    }
    controls[streams.len()..].iter().for_each(|control| control.close(1, "gone"));
    // All slots are released: the maximum number of tests can start again.
    let mut restarted = Vec::new();
    wait_until("slots are free", || {
        let control = attacker.connect(port - 1);
        control.send(day_long_request(("{", "{"))).wait_for(LIMIT).unwrap().unwrap();
        let is_accepted = receive_json(&control)["accept"].is_object();
        if is_accepted {
            restarted.push(control);
        }
        restarted.len() == MAX_TESTS
    });
}

/// Otherwise datagrams would continue for the whole test, to whichever host has the address then.
#[test]
fn datagrams_stop_when_signalling_ends() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    let request = day_long_request((r#""bandwidth":1"#, r#""bandwidth":1000000"#))
        .replace(r#""carrier":"bats""#, r#""carrier":"udp""#)
        .replace(r#""mode":"brtp""#, r#""mode":"udp""#);
    let (control, hello, ports) = accepted(&attacker, &request);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", ports[0])).unwrap();
    socket.send(&hello[4..20]).unwrap();
    assert_eq!(receive_json(&control), "joined");
    start_test(&control);
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..50 {
        socket.recv(&mut [0; 2_000]).expect("125 datagrams a second");
    }
    control.close(1, "gone");
    // Allow a few datagrams that signal the end.
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let more = (0..2_000).take_while(|_| socket.recv(&mut [0; 2_000]).is_ok()).count();
    assert!(more < 200, "{more} datagrams after the end");
}

/// Sessions, and connections that have not identified their test: the maximum number, and one more.
#[test]
fn unidentified_connections_are_limited() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    for (port, limit, words) in
        [(port - 1, 128, "too many sessions"), (port, 256, "too many connections")]
    {
        let mut silent = Vec::new();
        // A connection that has been open for 10 s has lost its slot.
        let refused = (0..4 * limit).find_map(|number| {
            let next = match attacker.try_connect(port) {
                Ok(next) => next,
                Err(ConnectError::Closed(end)) => return Some((number, end.to_string())),
                Err(error) => panic!("{error}"),
            };
            let timeout = Duration::from_millis(if number < limit { 0 } else { 500 });
            match next.recv().wait_for(timeout) {
                Ok(Err(end)) => Some((number, end.to_string())),
                other => {
                    assert!(other.is_err(), "{other:?}");
                    silent.push(next);
                    None
                }
            }
        });
        let (number, end) = refused.expect("the number of connections is limited");
        assert!(number >= limit && end.contains(words), "{number}: {end}");
        silent.iter().for_each(|silent| silent.close(1, "gone"));
        wait_until("a slot is free", || {
            attacker.try_connect(port).is_ok_and(|next| {
                std::thread::sleep(Duration::from_millis(50));
                next.close_reason().is_none()
            })
        });
    }
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
}
