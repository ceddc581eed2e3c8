//! Sessions inside TLS, without sockets: each end reads what the other one writes, in any
//! fragments.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity, tls_client};
use bats_proto::stream::{TlsStream, TlsStreamServer};
use bats_proto::{
    ClientConfig, CloseReason, Event, Identity, PeerTrust, ServerConfig, Timestamp, TransportConfig,
};

const NOW: Timestamp = Timestamp::ZERO;

fn identity() -> Identity {
    generate_identity(&["localhost".to_owned()]).unwrap()
}

fn client(trust: PeerTrust) -> TlsStream {
    let transport = Arc::new(TransportConfig::default());
    TlsStream::client(NOW, "localhost", &ClientConfig { trust, identity: None, transport }).unwrap()
}

fn server(identity: Identity) -> TlsStream {
    let server = TlsStreamServer::new(&ServerConfig {
        identity,
        transport: Arc::new(TransportConfig::default()),
        client_trust: None,
        retry_threshold: 0,
        max_connections: 1,
    });
    TlsStream::server(NOW, &server.unwrap()).unwrap()
}

/// Transfers bytes in fragments until both ends have nothing to send.
fn run(ends: &mut [TlsStream; 2], piece: usize) {
    loop {
        let mut is_silent = true;
        for from in 0..2 {
            let mut bytes = Vec::new();
            ends[from].transmit(NOW, &mut bytes, 10_000);
            is_silent &= bytes.is_empty();
            bytes.chunks(piece).for_each(|bytes| ends[1 - from].receive(NOW, bytes));
        }
        if is_silent {
            return;
        }
    }
}

fn events(end: &mut TlsStream) -> Vec<Event> {
    std::iter::from_fn(|| end.pop_event()).collect()
}

#[test]
fn messages_arrive_over_fragmented_tls_and_peers_are_identified() {
    for piece in [1, 7, 1_000, usize::MAX] {
        let identity = identity();
        let print = fingerprint(&identity.certificate_chain[0]);
        let mut ends = [client(PeerTrust::Fingerprints(vec![print])), server(identity)];
        run(&mut ends, piece);
        assert_eq!(events(&mut ends[0]), [Event::Connected]);
        assert_eq!(events(&mut ends[1]), [Event::Accepted]);
        assert_eq!((ends[0].peer_fingerprint(), ends[1].peer_fingerprint()), (Some(print), None));
        let message = vec![7; 200_000];
        ends[0].session_mut().send(message.clone().into()).unwrap();
        ends[0].session_mut().finish().unwrap();
        run(&mut ends, piece);
        assert_eq!(ends[1].session_mut().recv().unwrap(), message);
        assert!(ends[1].session().is_finished() && ends[0].session().is_all_acknowledged());
        let ((near_in, near_out), (far_in, far_out)) = (ends[0].bytes(), ends[1].bytes());
        assert_eq!((near_in, near_out), (far_out, far_in));
        assert!(near_out > 200_000);
        ends[1].session_mut().close(7, "enough");
        events(&mut ends[0]);
        run(&mut ends, piece);
        let expected = CloseReason::Peer { code: 7, reason: "enough".into() };
        assert_eq!(events(&mut ends[0]), [Event::Closed(expected)]);
    }
}

#[test]
fn untrusted_certificate_fails_the_handshake_on_both_ends() {
    let mut ends = [client(PeerTrust::Fingerprints(vec![[7; 32]])), server(identity())];
    run(&mut ends, usize::MAX);
    for end in &mut ends {
        let found = events(end);
        assert!(matches!(found[..], [Event::Closed(CloseReason::Handshake(_))]), "{found:?}");
    }
}

#[test]
fn corrupted_bytes_close_the_connection_without_delivery() {
    let mut ends = [client(PeerTrust::DangerousAcceptAny), server(identity())];
    run(&mut ends, usize::MAX);
    ends.iter_mut().for_each(|end| drop(events(end)));
    ends[0].session_mut().send(vec![1; 1_000].into()).unwrap();
    let mut bytes = Vec::new();
    ends[0].transmit(NOW, &mut bytes, 10_000);
    bytes[500] ^= 1;
    ends[1].receive(NOW, &bytes);
    assert_eq!(ends[1].session_mut().recv(), None);
    let found = events(&mut ends[1]);
    assert!(matches!(found[..], [Event::Closed(CloseReason::PeerMisbehaved(_))]), "{found:?}");
}

#[test]
fn stream_end_before_session_end_is_a_lost_connection() {
    let mut ends = [client(PeerTrust::DangerousAcceptAny), server(identity())];
    run(&mut ends, usize::MAX);
    events(&mut ends[1]);
    ends[1].on_lost("gone");
    assert_eq!(events(&mut ends[1]), [Event::Closed(CloseReason::Lost("gone".into()))]);
    // Without a peer the handshake time-out ends the connection.
    let mut handshaking = server(identity());
    let late = NOW + Duration::from_secs(10);
    assert_eq!(handshaking.session().next_timeout(), Some(late));
    handshaking.session_mut().handle_timeout(late);
    assert_eq!(events(&mut handshaking), [Event::Closed(CloseReason::HandshakeTimeout)]);
}

/// A client of TLS alone, after its handshake with `server` and the first frame of the session.
fn raw_client(server: &mut TlsStream) -> rustls::ClientConnection {
    let transport = Arc::new(TransportConfig::default());
    let config = ClientConfig { trust: PeerTrust::DangerousAcceptAny, identity: None, transport };
    let (tls, name) = tls_client(&config, "localhost", b"openbats-tcp/1").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(tls), name).unwrap();
    for _ in 0..5 {
        deliver(&mut client, server);
        let mut answer = Vec::new();
        server.transmit(NOW, &mut answer, 100_000);
        let mut answer = &answer[..];
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    let numbers: [u64; 3] = [1 << 20, 1 << 20, 30_000];
    let hello = [0, 0, 0, 25, 1].into_iter().chain(numbers.iter().flat_map(|n| n.to_be_bytes()));
    client.writer().write_all(&hello.collect::<Vec<_>>()).unwrap();
    deliver(&mut client, server);
    assert_eq!(events(server), [Event::Accepted]);
    client
}

/// Delivers what the client has to send.
fn deliver(client: &mut rustls::ClientConnection, server: &mut TlsStream) {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    server.receive(NOW, &bytes);
}

#[test]
fn floods_of_key_updates_end_the_connection() {
    const PING: [u8; 4] = [6, 0, 0, 0];
    let mut server = server(identity());
    let mut client = raw_client(&mut server);
    for _ in 0..40 {
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(&PING).unwrap();
        deliver(&mut client, &mut server);
    }
    assert!(server.session().is_open(), "some of them are correct");
    for _ in 0..40 {
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(&PING).unwrap();
        deliver(&mut client, &mut server);
    }
    let expected = CloseReason::PeerMisbehaved("too many TLS records without data".into());
    assert_eq!(events(&mut server).last(), Some(&Event::Closed(expected)));
}

#[test]
fn a_client_hello_in_many_records_ends_the_handshake() {
    let mut server = server(identity());
    let hello = [1, 0, 0xea, 0x60].into_iter().chain(std::iter::repeat_n(3, 200));
    let records: Vec<u8> = hello.flat_map(|byte| [22, 3, 1, 0, 1, byte]).collect();
    server.receive(NOW, &records);
    let closed = events(&mut server);
    let [Event::Closed(CloseReason::Handshake(text))] = &closed[..] else { panic!("{closed:?}") };
    assert_eq!(text, "too many TLS records without data");
}
