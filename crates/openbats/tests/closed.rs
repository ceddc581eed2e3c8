//! Closed mode over real sockets on loopback.

use std::net::UdpSocket;
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, ClosedKey, ConnectError, Endpoint, Identity, Mode, ServerOptions,
    SessionStore, StartError, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const PACKETS: [Mode; 4] = [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent];

fn key(byte: u8) -> ClosedKey {
    ClosedKey::new([byte; ClosedKey::LEN])
}

fn start(options: ServerOptions) -> Result<Endpoint, StartError> {
    Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).server(options).start()
}

fn trusting(identity: &Identity) -> ClientOptions {
    let transport =
        TransportConfig { handshake_timeout: Duration::from_secs(1), ..TransportConfig::default() };
    ClientOptions::new(Trust::fingerprint(identity.fingerprint())).transport(transport)
}

#[test]
fn ends_with_the_same_key_speak_in_every_mode_of_packets() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ServerOptions::new(identity.clone()).modes(PACKETS).closed_key(key(1));
    let server = start(options).unwrap();
    let client = Endpoint::builder().start().unwrap();
    let store = SessionStore::new(4);
    for mode in PACKETS {
        let options = trusting(&identity).mode(mode).sessions(&store).closed_key(key(1));
        let near = client.connect(server.local_addr(), "localhost", options);
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        for (from, to) in [(&near, &far), (&far, &near)] {
            from.send_within("hello", LIMIT).wait_for(LIMIT).unwrap().unwrap();
            let got = to.recv().wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(got.as_deref(), Some(&b"hello"[..]), "{mode:?}");
        }
    }
}

#[test]
fn whoever_has_another_key_or_none_times_out() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let closed = start(ServerOptions::new(identity.clone()).closed_key(key(1))).unwrap();
    let open = start(ServerOptions::new(identity.clone())).unwrap();
    let client = Endpoint::builder().start().unwrap();
    let timed_out = ConnectError::Closed(CloseReason::HandshakeTimeout);
    for (server, options) in [
        (&closed, trusting(&identity)),
        (&closed, trusting(&identity).closed_key(key(2))),
        (&open, trusting(&identity).closed_key(key(1))),
    ] {
        let tried = client.connect(server.local_addr(), "localhost", options);
        assert_eq!(tried.wait_for(LIMIT).unwrap().unwrap_err(), timed_out);
    }
}

/// What a scanner may send finds the open server, and not the closed one.
#[test]
fn a_scan_does_not_find_a_closed_server() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let closed = start(ServerOptions::new(identity.clone()).closed_key(key(1))).unwrap();
    let open = start(ServerOptions::new(identity)).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A long packet of a version that nobody speaks.
    let mut bait = vec![0; 1_200];
    bait[..7].copy_from_slice(&[0xc0, 0x0a, 0x1a, 0x2a, 0x3a, 1, 7]);
    bait[7..9].copy_from_slice(&[1, 8]);
    // The closed one is asked first, and both are on this host: an answer of its would be there by
    // the time of the other's.
    for _ in 0..3 {
        socket.send_to(&bait, closed.local_addr()).unwrap();
    }
    socket.send_to(&bait, open.local_addr()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut buffer = [0; 2_000];
    let (_, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from, open.local_addr());
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(socket.recv_from(&mut buffer).is_err(), "nothing else comes");
}

#[test]
fn modes_that_cannot_be_closed_say_so() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let client = Endpoint::builder().start().unwrap();
    for mode in [Mode::Tcp, Mode::Udp, Mode::Quic] {
        for modes in [vec![mode], vec![Mode::Brtp, mode]] {
            let options = ServerOptions::new(identity.clone()).modes(modes).closed_key(key(1));
            let refused = start(options).unwrap_err().to_string();
            assert!(refused.contains("closed mode is for the modes 0 to 3"), "{refused}");
        }
        let options = trusting(&identity).mode(mode).closed_key(key(1));
        let to = ([127, 0, 0, 1], 9).into();
        let tried = client.connect(to, "localhost", options).wait_for(LIMIT).unwrap();
        let Err(ConnectError::Configuration(text)) = tried else { panic!("{mode:?}") };
        assert!(text.contains("closed mode is for the modes 0 to 3"), "{text}");
    }
}
