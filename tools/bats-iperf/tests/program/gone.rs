//! Places of a server: how many there are, and that those of clients that vanish are taken back.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::time::Duration;

use openbats::{Connection, Wait};

use crate::hostile::{Attacker, LIMIT, READY, REQUEST, word};
use crate::support::{Server, client, eventually, free_port, text};

/// Tests that a server has at a time.
const PLACES: usize = 64;

/// A test of a day in which a message is due in hours.
fn endless(change: (&str, &str)) -> String {
    let request = REQUEST
        .replace(r#""direction":"forward""#, r#""direction":"reverse""#)
        .replace(r#""seconds":1.0"#, r#""seconds":86400.0"#)
        .replace(r#""bandwidth":1000000"#, r#""bandwidth":1"#);
    assert!(request.contains(change.0));
    request.replace(change.0, change.1)
}

fn begin(control: &Connection) {
    control.send(READY).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(word(control), "start");
}

fn accepted(attacker: &Attacker, request: &str) -> (Connection, [u8; 24], Vec<u16>) {
    let control = attacker.connect(attacker.port - 1);
    control.send(request.to_owned()).wait_for(LIMIT).unwrap().unwrap();
    let accept = &word(&control)["accept"];
    let test = accept["test"].as_u64().unwrap();
    let ports = serde_json::from_value(accept["ports"].clone()).unwrap();
    let hello = [&16_u32.to_be_bytes()[..], b"BIPRF2", &test.to_be_bytes(), &[0, 0]].concat();
    let mut bytes = [0; 24];
    bytes[..20].copy_from_slice(&hello);
    (control, bytes, ports)
}

#[test]
fn places_of_clients_that_have_gone_are_free_again() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    let mut streams = Vec::new();
    let mut controls = Vec::new();
    // By time, by bytes, without a limit of the rate over a path that is full.
    for change in [(r#""bytes":0"#, r#""bytes":0"#), (r#""bytes":0"#, r#""bytes":1000000000"#)] {
        for _ in 0..PLACES / 2 - 1 {
            let (control, data) = attacker.join(&endless(change));
            begin(&control);
            controls.push(control);
            streams.push(data);
        }
    }
    // The kernel's TCP, of which the client keeps its end.
    let mut kept = Vec::new();
    for _ in 0..2 {
        let (control, hello, ports) =
            accepted(&attacker, &endless((r#""carrier":"bats""#, r#""carrier":"tcp""#)));
        let mut stream = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
        stream.write_all(&hello[..20]).unwrap();
        assert_eq!(word(&control), "joined");
        begin(&control);
        controls.push(control);
        kept.push(stream);
    }
    let full = client(port, &["-t", "0.2", "-b", "1M"]);
    assert!(text(&full.stderr).contains("too many tests"), "{}", text(&full.stderr));
    // Some leave the signalling, some the data, some both.
    for (number, (control, data)) in controls.iter().zip(&streams).enumerate() {
        if number % 3 != 0 {
            control.close(1, "gone");
        }
        if number % 3 != 1 {
            data.close(1, "gone");
        }
    }
    controls[streams.len()..].iter().for_each(|control| control.close(1, "gone"));
    // All of them: as many tests as there may be begin anew.
    let mut anew = Vec::new();
    eventually("places are free", || {
        let control = attacker.connect(port - 1);
        control.send(endless(("{", "{"))).wait_for(LIMIT).unwrap().unwrap();
        let is_accepted = word(&control)["accept"].is_object();
        if is_accepted {
            anew.push(control);
        }
        anew.len() == PLACES
    });
}

/// Datagrams would go on for as long as the test, to whoever has the address then.
#[test]
fn datagrams_end_with_the_signalling() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    let request = endless((r#""bandwidth":1"#, r#""bandwidth":1000000"#))
        .replace(r#""carrier":"bats""#, r#""carrier":"udp""#)
        .replace(r#""mode":"brtp""#, r#""mode":"udp""#);
    let (control, hello, ports) = accepted(&attacker, &request);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", ports[0])).unwrap();
    socket.send(&hello[4..20]).unwrap();
    assert_eq!(word(&control), "joined");
    begin(&control);
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..50 {
        socket.recv(&mut [0; 2_000]).expect("125 datagrams a second");
    }
    control.close(1, "gone");
    // Farewells aside, which are few.
    socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    let more = (0..2_000).take_while(|_| socket.recv(&mut [0; 2_000]).is_ok()).count();
    assert!(more < 200, "{more} datagrams came after the end");
}

/// Sessions, and connections that have not said whose they are: as many as there may be, and one more.
#[test]
fn whoever_says_nothing_has_few_places() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    let attacker = Attacker::new(port);
    for (port, places, words) in
        [(port - 1, 128, "too many sessions"), (port, 256, "too many connections")]
    {
        let mut silent = Vec::new();
        // One that has taken its place for ten seconds has lost it.
        let refused = (0..4 * places).find_map(|number| {
            let next = attacker.connect(port);
            let patience = Duration::from_millis(if number < places { 0 } else { 500 });
            match next.recv().wait_for(patience) {
                Ok(Err(end)) => Some((number, end.to_string())),
                other => {
                    assert!(other.is_err(), "{other:?}");
                    silent.push(next);
                    None
                }
            }
        });
        let (number, end) = refused.expect("there is an end of places");
        assert!(number >= places && end.contains(words), "{number}: {end}");
        silent.iter().for_each(|silent| silent.close(1, "gone"));
        eventually("a place is free", || {
            let next = attacker.connect(port);
            std::thread::sleep(Duration::from_millis(50));
            next.close_reason().is_none()
        });
    }
    assert!(client(port, &["-t", "0.3", "-b", "1M"]).status.success());
}
