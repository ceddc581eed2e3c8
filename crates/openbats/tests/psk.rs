//! PSK mode over real sockets on loopback.

use std::net::UdpSocket;
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, ConnectError, Endpoint, Identity, Mode, PresharedKey,
    ServerOptions, SessionStore, StartError, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const PACKETS: [Mode; 4] = [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent];

fn key(byte: u8) -> PresharedKey {
    PresharedKey::new([byte; PresharedKey::LEN])
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
fn endpoints_with_the_same_key_connect_in_every_coded_mode() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ServerOptions::new(identity.clone()).modes(PACKETS).preshared_key(key(1));
    let server = start(options).unwrap();
    let client = Endpoint::builder().start().unwrap();
    let store = SessionStore::new(4);
    for mode in PACKETS {
        let options = trusting(&identity).mode(mode).sessions(&store).preshared_key(key(1));
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
fn clients_with_another_key_or_none_time_out() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let with_psk = start(ServerOptions::new(identity.clone()).preshared_key(key(1))).unwrap();
    let without_psk = start(ServerOptions::new(identity.clone())).unwrap();
    let client = Endpoint::builder().start().unwrap();
    let timed_out = ConnectError::Closed(CloseReason::HandshakeTimeout);
    for (server, options) in [
        (&with_psk, trusting(&identity)),
        (&with_psk, trusting(&identity).preshared_key(key(2))),
        (&without_psk, trusting(&identity).preshared_key(key(1))),
    ] {
        let attempt = client.connect(server.local_addr(), "localhost", options);
        assert_eq!(attempt.wait_for(LIMIT).unwrap().unwrap_err(), timed_out);
    }
}

/// A scanner that sends an unknown version finds the server without PSK, but not the one with it.
#[test]
fn a_scan_does_not_find_a_server_in_psk_mode() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let with_psk = start(ServerOptions::new(identity.clone()).preshared_key(key(1))).unwrap();
    let without_psk = start(ServerOptions::new(identity)).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A long-header packet of an unknown version.
    let mut probe = vec![0; 1_200];
    probe[..7].copy_from_slice(&[0xc0, 0x0a, 0x1a, 0x2a, 0x3a, 1, 7]);
    probe[7..9].copy_from_slice(&[1, 8]);
    // The server with PSK gets its packets first, and both are on this host: its answer would
    // arrive before the other's.
    for _ in 0..3 {
        socket.send_to(&probe, with_psk.local_addr()).unwrap();
    }
    socket.send_to(&probe, without_psk.local_addr()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut buffer = [0; 2_000];
    let (_, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(from, without_psk.local_addr());
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(socket.recv_from(&mut buffer).is_err(), "the server with PSK does not answer");
}

#[test]
fn modes_without_psk_are_refused() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let client = Endpoint::builder().start().unwrap();
    for mode in [Mode::Tcp, Mode::Udp, Mode::Quic] {
        for modes in [vec![mode], vec![Mode::Brtp, mode]] {
            let options = ServerOptions::new(identity.clone()).modes(modes).preshared_key(key(1));
            let refused = start(options).unwrap_err().to_string();
            assert!(refused.contains("PSK mode is for the modes 0 to 3"), "{refused}");
        }
        let options = trusting(&identity).mode(mode).preshared_key(key(1));
        let to = ([127, 0, 0, 1], 9).into();
        let attempt = client.connect(to, "localhost", options).wait_for(LIMIT).unwrap();
        let Err(ConnectError::Configuration(text)) = attempt else { panic!("{mode:?}") };
        assert!(text.contains("PSK mode is for the modes 0 to 3"), "{text}");
    }
}
