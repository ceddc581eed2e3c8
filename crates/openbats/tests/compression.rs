//! Compression of single messages in every mode that has a handshake.
#![cfg(feature = "zstd")]

use std::net::SocketAddr;
use std::time::Duration;

use openbats::{
    ClientOptions, ConnectError, Connection, Endpoint, Identity, Mode, SendError, ServerOptions,
    StartError, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const MODES: [Mode; 6] =
    [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];

struct Pair {
    _server: Endpoint,
    _client: Endpoint,
    near: Connection,
    far: Connection,
}

fn localhost() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Connects; `compress` and `longest` are the settings of client and server.
fn pair(mode: Mode, compress: [bool; 2], longest: [usize; 2]) -> Pair {
    let transport = |max_message_size| TransportConfig {
        max_message_size,
        deadline: Duration::from_secs(60),
        ..TransportConfig::default()
    };
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let mut client_options = ClientOptions::new(trust).transport(transport(longest[0])).mode(mode);
    let mut server_options =
        ServerOptions::new(identity).transport(transport(longest[1])).modes([mode]);
    if compress[0] {
        client_options = client_options.compression(1);
    }
    if compress[1] {
        server_options = server_options.compression(3);
    }
    let server = Endpoint::builder().bind(localhost()).server(server_options).start().unwrap();
    let client = Endpoint::builder().bind(localhost()).start().unwrap();
    let near = client.connect(server.local_addr(), "localhost", client_options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    Pair { _server: server, _client: client, near, far }
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Compressible, incompressible and very short messages.
fn messages() -> Vec<Vec<u8>> {
    let text = |len| b"all work and no play ".iter().copied().cycle().take(len).collect();
    vec![vec![], vec![7], text(63), text(64), noise(64), text(1_400), noise(20_000), text(200_000)]
}

fn exchange(from: &Connection, to: &Connection) {
    for message in messages() {
        from.send(message.clone()).wait_for(LIMIT).unwrap().unwrap();
        let arrived = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert!(arrived == message, "{} bytes", message.len());
        from.try_send(message.clone()).unwrap();
        let within = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert!(within == message, "{} bytes", message.len());
        let hour = Duration::from_secs(3_600);
        from.send_within(message.clone(), hour).wait_for(LIMIT).unwrap().unwrap();
        assert!(to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap() == message);
    }
}

#[test]
fn messages_are_compressed_in_both_directions_in_every_mode() {
    for mode in MODES {
        let Pair { near, far, .. } = &pair(mode, [true, true], [1 << 20; 2]);
        assert!(near.is_compressed() && far.is_compressed(), "{mode:?}");
        exchange(near, far);
        exchange(far, near);
        let uncompressed: usize = 3 * messages().iter().map(Vec::len).sum::<usize>();
        for end in [near, far] {
            let sent = end.stats().messages.bytes_sent as usize;
            assert!(
                sent > 3 * 20_000 && sent < uncompressed / 5,
                "{mode:?}: {sent} of {uncompressed}"
            );
        }
        near.finish().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap(), None);
    }
}

#[test]
fn messages_are_uncompressed_unless_both_ends_compress() {
    for mode in MODES {
        for compress in [[true, false], [false, true], [false, false]] {
            let Pair { near, far, .. } = &pair(mode, compress, [1 << 20; 2]);
            assert!(!near.is_compressed() && !far.is_compressed(), "{mode:?} {compress:?}");
            exchange(near, far);
            exchange(far, near);
            let uncompressed = 3 * messages().iter().map(Vec::len).sum::<usize>() as u64;
            assert_eq!(near.stats().messages.bytes_sent, uncompressed);
        }
    }
}

#[test]
fn the_size_limit_applies_to_the_uncompressed_message() {
    for mode in MODES {
        // The server's limit applies to the client, and vice versa.
        let Pair { near, far, .. } = &pair(mode, [true, true], [100_000, 10_000]);
        let too_large = Err(SendError::TooLarge { size: 10_000, limit: 9_999 });
        assert_eq!(near.send(vec![0; 10_000]).wait_for(LIMIT).unwrap(), too_large, "{mode:?}");
        assert_eq!(near.try_send(vec![0; 10_000]), too_large);
        for longest in [vec![0; 9_999], noise(9_999)] {
            near.send(longest.clone()).wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), longest);
        }
        far.send(vec![1; 99_999]).wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(near.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), vec![1; 99_999]);
    }
}

#[test]
fn plain_udp_cannot_negotiate_compression() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let server_options = ServerOptions::new(identity).modes([Mode::Udp]).compression(1);
    let started = Endpoint::builder().bind(localhost()).server(server_options).start();
    assert!(matches!(started, Err(StartError::Configuration(why)) if why.contains("negotiate")));
    let client = Endpoint::builder().bind(localhost()).start().unwrap();
    let options = ClientOptions::new(Trust::dangerous_any()).mode(Mode::Udp).compression(1);
    let connected = client.connect(([127, 0, 0, 1], 9).into(), "localhost", options).wait();
    assert!(
        matches!(connected, Err(ConnectError::Configuration(why)) if why.contains("negotiate"))
    );
}

/// A message that is refused for lack of room is neither lost nor sent twice.
#[test]
fn blocked_messages_are_returned_unchanged() {
    let Pair { near, far, .. } = &pair(Mode::Brtp, [true, true], [1 << 20; 2]);
    let message = noise(300_000);
    let mut sent = 0;
    let refused = loop {
        match near.try_send(message.clone()) {
            Ok(()) => sent += 1,
            Err(SendError::Blocked(back)) => break back,
            Err(other) => panic!("{other}"),
        }
        assert!(sent < 10_000);
    };
    assert!(refused == message);
    for _ in 0..sent {
        assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap() == message);
    }
    near.writable().wait_for(LIMIT).unwrap().unwrap();
    near.send(refused).wait_for(LIMIT).unwrap().unwrap();
    assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap() == message);
}
