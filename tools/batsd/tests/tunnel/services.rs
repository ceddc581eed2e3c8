//! SOCKS5, HTTP CONNECT and forwards: unmodified programs, and connections that end in each manner.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::Tunnel;
use crate::wan::Wan;

const LISTENERS: &str = r#"
[[proxy]]
listen = "127.0.0.1:1080"
exit = "10.255.0.2"
[[proxy]]
listen = "127.0.0.1:1081"
exit = "10.255.0.2"
users = { alice = "secret" }
[[forward]]
listen = "127.0.0.1:2000"
exit = "10.255.0.2"
to = "127.0.0.1:9000"
[[forward]]
listen = "127.0.0.1:5353"
protocol = "udp"
exit = "10.255.0.2"
to = "127.0.0.1:9053"
"#;
const EXIT: &str = "\n[exit]\nallow = [\"127.0.0.1:8000-9100\"]\n";

/// Runs code on a host: sockets that it opens stay there.
fn on<T: Send + 'static>(wan: &Wan, host: usize, run: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = wan.namespace(host);
    let enters = move || {
        let fd = std::os::fd::AsFd::as_fd(&namespace);
        rustix::thread::move_into_link_name_space(fd, None).unwrap();
        run()
    };
    thread::spawn(enters).join().unwrap()
}

fn listen(tunnel: &Tunnel, port: u16) -> TcpListener {
    on(&tunnel.wan, 1, move || TcpListener::bind(("127.0.0.1", port)).unwrap())
}

fn connect(tunnel: &Tunnel, port: u16) -> TcpStream {
    let stream = on(&tunnel.wan, 0, move || TcpStream::connect(("127.0.0.1", port)).unwrap());
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Connects by SOCKS5 to a port of the exit's loopback, and returns the code of the reply.
fn socks(tunnel: &Tunnel, port: u16) -> (TcpStream, u8) {
    let mut stream = connect(tunnel, 1080);
    let request = [&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat();
    stream.write_all(&request).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    (stream, reply[3])
}

#[test]
fn curl_goes_through_socks5_and_http_connect() {
    need!();
    let tunnel = Tunnel::start_with(0.05, [LISTENERS, EXIT]);
    let content: Vec<u8> = (0..2_000_000u32).map(|x| ((x * 31) >> 3) as u8).collect();
    std::fs::write(tunnel.folder.path().join("page"), &content).unwrap();
    let mut server = tunnel.wan.command(1);
    server.args(["python3", "-m", "http.server", "8080", "--bind", "127.0.0.1", "--directory"]);
    server.arg(tunnel.folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().unwrap();
    sleep(Duration::from_secs(1));
    let curl = |arguments: &str, url: &str| {
        let command = format!("curl -sS --max-time 60 {arguments} http://{url}");
        let output = tunnel.wan.on(0, &command);
        (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The name is one of the exit: there is no server on this host.
    for arguments in [
        "--socks5-hostname 127.0.0.1:1080",
        "--proxy http://127.0.0.1:1080 --proxytunnel",
        "--socks5-hostname alice:secret@127.0.0.1:1081",
        "--proxy http://alice:secret@127.0.0.1:1081 --proxytunnel",
    ] {
        for host in ["localhost", "127.0.0.1"] {
            let (page, error) = curl(arguments, &format!("{host}:8080/page"));
            assert!(page == content, "{arguments} {host}: {} bytes, {error}", page.len());
        }
    }
    for (arguments, url, expected) in [
        ("--proxy http://127.0.0.1:1080 --proxytunnel", "127.0.0.1:22/", "403"),
        ("--proxy http://127.0.0.1:1080 --proxytunnel", "127.0.0.1:8081/", "502"),
        ("--proxy http://127.0.0.1:1080 --proxytunnel", "192.0.2.2:8080/", "403"),
        ("--proxy http://alice:wrong@127.0.0.1:1081 --proxytunnel", "127.0.0.1:8080/", "407"),
        ("--socks5-hostname 127.0.0.1:1080", "127.0.0.1:22/", "(2)"),
        ("--socks5-hostname 127.0.0.1:1080", "127.0.0.1:8081/", "(5)"),
        ("--socks5-hostname 127.0.0.1:1080", "no-such-name.invalid:8080/", "(4)"),
        ("--socks5-hostname 127.0.0.1:1081", "127.0.0.1:8080/", "No authentication method"),
    ] {
        let (_, error) = curl(arguments, url);
        eprintln!("curl {arguments} {url}: {}", error.trim());
        assert!(error.contains(expected), "{url}: {error}");
    }
    let _ = server.kill();
    let _ = server.wait();
    let status = tunnel.daemons[1].ctl("status").unwrap();
    eprintln!("{}", status["status"]["services"]);
    assert_eq!(status["status"]["services"]["exit"]["served"], 8, "{status}");
    assert_eq!(status["status"]["services"]["exit"]["denied"], 3, "{status}");
}

#[test]
fn half_close_and_reset_are_carried() {
    need!();
    let tunnel = Tunnel::start_with(0.02, [LISTENERS, EXIT]);
    let server = listen(&tunnel, 9000);
    // The server answers once it has read the end.
    let mut client = connect(&tunnel, 2000);
    let (mut accepted, _) = server.accept().unwrap();
    client.write_all(&vec![7; 300_000]).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut received = Vec::new();
    accepted.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), 300_000);
    accepted.write_all(&received).unwrap();
    drop(accepted);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert!(answer == received, "{} bytes", answer.len());
    // A reset of either end reaches the other one.
    for resets_client in [true, false] {
        let client = connect(&tunnel, 2000);
        let (accepted, _) = server.accept().unwrap();
        let (first, mut second) = match resets_client {
            true => (client, accepted),
            false => (accepted, client),
        };
        rustix::net::sockopt::set_socket_linger(&first, Some(Duration::ZERO)).unwrap();
        drop(first);
        second.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let error = second.read(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{resets_client}");
    }
    // Nothing listens: a forward has no other words than a reset.
    drop(server);
    let error = connect(&tunnel, 2000).read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn datagrams_go_through_forwards_and_socks5() {
    need!();
    let tunnel = Tunnel::start_with(0.02, [LISTENERS, EXIT]);
    let server = on(&tunnel.wan, 1, || UdpSocket::bind("127.0.0.1:9053").unwrap());
    thread::spawn(move || {
        let mut buffer = [0; 65_535];
        while let Ok((length, from)) = server.recv_from(&mut buffer) {
            if &buffer[..length] == b"end" {
                return;
            }
            buffer[..length].reverse();
            let _ = server.send_to(&buffer[..length], from);
        }
    });
    let bind = || {
        let socket = on(&tunnel.wan, 0, || UdpSocket::bind("127.0.0.1:0").unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    };
    // Two programs: each gets its own answers.
    let mut buffer = [0; 65_535];
    let sockets = [bind(), bind()];
    for round in 0..20u8 {
        for (index, socket) in sockets.iter().enumerate() {
            socket.send_to(&[round, index as u8, 3], "127.0.0.1:5353").unwrap();
        }
        for (index, socket) in sockets.iter().enumerate() {
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..length], [3, index as u8, round]);
        }
    }
    let mut control = connect(&tunnel, 1080);
    control.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut reply = [0; 12];
    control.read_exact(&mut reply).unwrap();
    assert_eq!(reply[2..10], [5, 0, 0, 1, 127, 0, 0, 1]);
    let relay = ("127.0.0.1", u16::from_be_bytes([reply[10], reply[11]]));
    let socket = bind();
    let large = vec![9; 8_000];
    for payload in [&b"abc"[..], &large] {
        let header = [0, 0, 0, 1, 127, 0, 0, 1, 0x23, 0x5d];
        socket.send_to(&[&header[..], payload].concat(), relay).unwrap();
        let length = socket.recv(&mut buffer).unwrap();
        let answer: Vec<u8> = payload.iter().rev().copied().collect();
        assert_eq!(buffer[..length], [&header[..], &answer].concat());
    }
    // What is not allowed goes nowhere, and garbage does no harm.
    socket.send_to(&[0, 0, 0, 1, 127, 0, 0, 1, 0, 53, 1], relay).unwrap();
    socket.send_to(&[0xff; 9], relay).unwrap();
    socket.send_to(&[&[0, 0, 0, 1, 127, 0, 0, 1, 0x23, 0x5d][..], b"xy"].concat(), relay).unwrap();
    let length = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[10..length], b"yx");
    // The association ends with its connection.
    let port = relay.1;
    drop(control);
    let end = Instant::now() + Duration::from_secs(5);
    while on(&tunnel.wan, 0, move || UdpSocket::bind(("127.0.0.1", port))).is_err() {
        assert!(Instant::now() < end, "the socket of the association stays open");
        sleep(Duration::from_millis(20));
    }
    sockets[0].send_to(b"end", "127.0.0.1:5353").unwrap();
}

#[test]
fn a_reader_that_stops_stops_its_writer_and_no_other() {
    need!();
    let tunnel = Tunnel::start_with(0.0, [LISTENERS, EXIT]);
    let server = listen(&tunnel, 9000);
    let mut stalled = connect(&tunnel, 2000);
    let (held, _) = server.accept().unwrap();
    stalled.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let chunk = vec![1; 1 << 16];
    let mut written = 0;
    while written < 256 << 20 {
        match stalled.write(&chunk) {
            Ok(length) => written += length,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    eprintln!("a writer without a reader was stopped after {} KiB", written >> 10);
    assert!(written < 64 << 20, "{written} bytes are held for a reader that does not read");
    // Another connection goes on.
    let mut other = connect(&tunnel, 2000);
    let (mut accepted, _) = server.accept().unwrap();
    let reads = thread::spawn(move || {
        let mut bytes = Vec::new();
        accepted.read_to_end(&mut bytes).map(|_| bytes.len())
    });
    let start = Instant::now();
    for _ in 0..64 {
        other.write_all(&chunk).unwrap();
    }
    drop(other);
    assert_eq!(reads.join().unwrap().unwrap(), 64 << 16);
    eprintln!("4 MiB on another connection took {:.2} s", start.elapsed().as_secs_f64());
    // The stalled connection goes on, too, once it is read, without a missing byte.
    let reads = thread::spawn(move || {
        let (mut held, mut buffer, mut total) = (held, vec![0; 1 << 16], 0);
        while let Ok(length @ 1..) = held.read(&mut buffer) {
            total += length;
        }
        total
    });
    drop(stalled);
    assert_eq!(reads.join().unwrap(), written);
}

#[test]
fn connections_beyond_the_limit_get_an_error_and_others_go_on() {
    need!();
    let tunnel = Tunnel::start_with(0.0, [LISTENERS, EXIT]);
    let server = listen(&tunnel, 9000);
    let echo = server.try_clone().unwrap();
    thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((stream, _)) = echo.accept() {
            held.push(stream);
        }
    });
    let mut open = Vec::new();
    for number in 0..1_024 {
        let (stream, code) = socks(&tunnel, 9000);
        assert_eq!(code, 0, "connection {number}");
        open.push(stream);
    }
    let (_, code) = socks(&tunnel, 9000);
    assert_eq!(code, 1, "general failure: the limit is reached");
    let mut http = connect(&tunnel, 1080);
    http.write_all(b"CONNECT 127.0.0.1:9000 HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    http.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("limit"), "{text}");
    let status = tunnel.daemons[0].ctl("status").unwrap();
    eprintln!("{}", status["status"]["services"]);
    assert_eq!(status["status"]["services"]["connections"]["open"], 1_024);
    assert_eq!(status["status"]["services"]["connections"]["over_limit"], 2);
    // Resets: the server keeps its half of a connection that is closed.
    for stream in open.drain(1_000..) {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(10);
    while socks(&tunnel, 9000).1 != 0 {
        let status = || tunnel.daemons[0].ctl("status").unwrap()["status"]["services"].to_string();
        assert!(Instant::now() < end, "closed connections give no room: {}", status());
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn hostile_bytes_at_the_listeners_do_no_harm() {
    need!();
    let tunnel = Tunnel::start_with(0.0, [LISTENERS, EXIT]);
    let worker = tunnel.daemons[0].worker();
    let mut random = 7u64;
    for round in 0..200 {
        let mut stream = connect(&tunnel, 1080 + round % 2);
        let bytes: Vec<u8> = (0..1 + round * 5)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 56) as u8
            })
            .collect();
        let start: &[u8] = if round % 3 == 0 { &[5, 1, 0, 5, 1, 0] } else { b"CONNECT " };
        let _ = stream.write_all(&[start, &bytes].concat());
    }
    // A program that says nothing, and one that sends no end.
    let _silent = connect(&tunnel, 1080);
    let mut endless = connect(&tunnel, 1080);
    let _ = endless.write_all(&vec![b'x'; 1 << 20]);
    assert_eq!(socks(&tunnel, 22).1, 2);
    assert_eq!(tunnel.daemons[0].worker(), worker);
}
