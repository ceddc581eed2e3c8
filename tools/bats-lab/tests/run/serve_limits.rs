//! `batslab serve` and clients that only take its time: other users of the machine can connect, too.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use super::serve::Server;
use super::support::batslab;

/// A server with so many descriptors.
fn start_with(descriptors: u32) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {descriptors}; exec \"$@\""), "sh"]);
    command.arg(batslab().get_program());
    Server::start_by(command, &[])
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn head(server: &Server, first: &str) -> String {
    format!(
        "{first} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n",
        server.address, server.token
    )
}

/// Sends a request on a connection that stays open; returns whether its response arrives.
fn is_served(server: &Server, stream: &mut TcpStream) -> bool {
    let request = head(server, "GET /api/runs") + "\r\n";
    let mut answer = [0; 15];
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_exact(&mut answer).is_ok()
        && answer == *b"HTTP/1.1 200 OK"
        && rest(stream).ends_with("[]")
}

/// What arrives up to the end of an empty list.
fn rest(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while !text.ends_with("\r\n\r\n[]") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
        text.push(byte[0].into());
    }
    text
}

#[test]
fn connections_without_the_token_do_not_keep_its_holder_out() {
    let server = start_with(320);
    let mut open = connect(&server);
    assert!(is_served(&server, &mut open));
    let page = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let api = page.replace("GET /", "GET /api/runs");
    for text in ["", "GET / HT", &page, &api] {
        let mut others: Vec<TcpStream> = (0..400).map(|_| connect(&server)).collect();
        for stream in &mut others {
            // The oldest ones may be closed already.
            let _ = stream.write_all(text.as_bytes());
        }
        assert!(is_served(&server, &mut connect(&server)), "{text}");
        assert!(is_served(&server, &mut open), "{text}");
    }
}

/// The next response on a connection that stays open: head and body. Empty if the connection is closed.
fn response(stream: &mut TcpStream) -> String {
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.ends_with("\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
        text.push(byte[0].into());
    }
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    if stream.read_exact(&mut body).is_err() {
        return String::new();
    }
    text + &String::from_utf8_lossy(&body)
}

/// A browser that reads files of runs has only the cookie on this connection.
#[test]
fn connections_with_the_cookie_are_kept() {
    let server = start_with(320);
    let mut with_token = connect(&server);
    let request = head(&server, "POST /api/session") + "Content-Length: 0\r\n\r\n";
    with_token.write_all(request.as_bytes()).unwrap();
    let answer = response(&mut with_token);
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect(&answer);
    let cookie = cookie.split(';').next().unwrap();
    let host = &server.address;
    let file =
        format!("GET /runs/none/none.html HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n");
    let mut reader = connect(&server);
    let mut is_served = || {
        let sent = reader.write_all(file.as_bytes());
        sent.is_ok() && response(&mut reader).starts_with("HTTP/1.1 404")
    };
    assert!(is_served());
    let _others: Vec<TcpStream> = (0..400).map(|_| connect(&server)).collect();
    // The others are accepted in order, so all that came before are accepted when this one is served.
    let mut last = connect(&server);
    let request = head(&server, "GET /api/runs") + "\r\n";
    last.write_all(request.as_bytes()).unwrap();
    assert!(response(&mut last).starts_with("HTTP/1.1 200"));
    assert!(is_served(), "it is the oldest one, but has presented the cookie");
}

#[test]
fn clients_that_do_not_finish_a_request_are_closed() {
    let server = Server::start(&[]);
    let page = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    let body = head(&server, "POST /api/check")
        + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    let long = page.replace("\r\n\r\n", &format!("\r\nX: {}", "x".repeat(70 << 10)));
    let cases = [
        ("", ""),
        ("GET / HTTP/1.1\r\nHost:", ""),
        (&*page, "200 OK"),
        (&*body, "408 Request Timeout"),
        (&*long, "431 Request Header Fields Too Large"),
    ];
    let streams = cases.map(|(text, _)| {
        let mut stream = connect(&server);
        let _ = stream.write_all(text.as_bytes());
        stream
    });
    for (mut stream, (text, status)) in streams.into_iter().zip(cases) {
        let mut answer = Vec::new();
        let begin = &text[..text.len().min(40)];
        // What the server did not read makes its end a reset.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{begin}: {error}");
        }
        let answer = String::from_utf8_lossy(&answer);
        let first = answer.lines().next().unwrap_or_default();
        assert_eq!(first.trim_start_matches("HTTP/1.1 "), status, "{begin}");
    }
}
