//! Mode QUIC with messages as QUIC datagrams.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use openbats::{
    ClientOptions, ConnectError, Connection, Endpoint, Identity, Mode, SendError, ServerOptions,
    StartError, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);

fn localhost() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

struct Ends {
    server: Endpoint,
    client: Endpoint,
    trust: Trust,
    transport: TransportConfig,
}

fn ends(transport: TransportConfig, server_wants: bool) -> Ends {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let options = ServerOptions::new(identity)
        .transport(transport.clone())
        .modes([Mode::Quic])
        .quic_datagrams(server_wants);
    let server = Endpoint::builder().bind(localhost()).server(options).start().unwrap();
    let client = Endpoint::builder().bind(localhost()).start().unwrap();
    Ends { server, client, trust, transport }
}

impl Ends {
    fn connect(&self, client_wants: bool) -> Result<Connection, ConnectError> {
        let options = ClientOptions::new(self.trust.clone())
            .transport(self.transport.clone())
            .mode(Mode::Quic)
            .quic_datagrams(client_wants);
        self.client.connect(self.server.local_addr(), "localhost", options).wait_for(LIMIT).unwrap()
    }

    fn pair(&self) -> (Connection, Connection) {
        let near = self.connect(true).unwrap();
        (near, self.server.accept().wait_for(LIMIT).unwrap().unwrap())
    }
}

#[test]
fn datagrams_keep_their_boundaries_and_connections_finish() {
    let ends = ends(TransportConfig::default(), true);
    let (near, far) = ends.pair();
    for (from, to) in [(&near, &far), (&far, &near)] {
        assert_eq!(from.mode(), Mode::Quic);
        assert!(!from.is_reliable());
        let longest = from.longest_message().unwrap();
        assert!((1_000..1_500).contains(&longest), "{longest}");
        for len in [0, 1, 500, 1_000] {
            from.send(vec![len as u8; len]).wait_for(LIMIT).unwrap().unwrap();
            let arrived = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
            assert_eq!(arrived, vec![len as u8; len]);
        }
        from.flush().wait_for(LIMIT).unwrap().unwrap();
    }
    for number in 0..100_u8 {
        near.send(vec![number; 100]).wait_for(LIMIT).unwrap().unwrap();
    }
    near.finish().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(near.send("late").wait_for(LIMIT).unwrap(), Err(SendError::Finished));
    let mut numbers = BTreeSet::new();
    while let Some(message) = far.recv().wait_for(LIMIT).unwrap().unwrap() {
        assert!(message.len() == 100 && numbers.insert(message[0]));
    }
    // On loopback so few datagrams are not lost.
    assert_eq!(numbers.len(), 100);
    let stats = near.stats();
    assert_eq!((stats.messages.sent, stats.messages.received), (104, 4));
    assert_eq!(far.stats().messages.received, 104);
    // The other direction stays open.
    far.send("still").wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(near.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "still");
}

#[test]
fn messages_longer_than_a_datagram_are_refused() {
    let ends = ends(TransportConfig::default(), true);
    let (near, far) = ends.pair();
    let longest = near.longest_message().unwrap();
    let sent = near.try_send(vec![1; 2_000]);
    assert!(
        matches!(sent, Err(SendError::TooLarge { size: 2_000, limit }) if limit >= longest),
        "{sent:?}"
    );
    near.send(vec![2; longest]).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), vec![2; longest]);
}

#[test]
fn datagrams_need_both_ends() {
    for server_wants in [true, false] {
        let ends = ends(TransportConfig::default(), server_wants);
        let refused = ends.connect(!server_wants).unwrap_err().to_string();
        assert!(refused.contains("QUIC datagrams"), "{refused}");
        let good = ends.connect(server_wants).unwrap();
        assert_eq!(good.is_reliable(), !server_wants);
    }
}

#[test]
fn quic_datagrams_are_refused_in_other_modes() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ServerOptions::new(identity).quic_datagrams(true);
    let started = Endpoint::builder().bind(localhost()).server(options).start();
    assert!(matches!(started, Err(StartError::Configuration(why)) if why.contains("QUIC")));
    let client = Endpoint::builder().bind(localhost()).start().unwrap();
    let options = ClientOptions::new(Trust::dangerous_any()).mode(Mode::Tcp).quic_datagrams(true);
    let connected = client.connect(([127, 0, 0, 1], 9).into(), "localhost", options).wait();
    assert!(matches!(connected, Err(ConnectError::Configuration(why)) if why.contains("QUIC")));
}

/// A sender that is faster than QUIC and the receiver: messages expire before they are sent, or are
/// displaced in the receive queue, and all of them are counted.
#[test]
fn queues_are_bounded_and_dropped_messages_are_counted() {
    let transport = TransportConfig {
        receive_budget: 100_000,
        deadline: Duration::from_secs(60),
        ..TransportConfig::default()
    };
    let ends = ends(transport, true);
    let (near, far) = ends.pair();
    let mut blocked = 0;
    for number in 0..20_000_u32 {
        let message = number.to_be_bytes().repeat(250);
        let sent = if number % 2 == 0 {
            near.try_send(message)
        } else {
            near.try_send_within(message, Duration::ZERO)
        };
        match sent {
            Ok(()) => {}
            Err(SendError::Blocked(_)) => {
                blocked += 1;
                near.writable().wait_for(LIMIT).unwrap().unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    // On its own thread, without a timeout: a timeout would poll again and hide a missing wake-up.
    let (done, finished) = std::sync::mpsc::channel();
    let finishing = near.clone();
    std::thread::spawn(move || done.send(finishing.finish().wait()));
    finished.recv_timeout(LIMIT).unwrap().unwrap();
    assert!(near.stats().messages.expired > 0);
    let mut taken = 0;
    let mut last = None;
    while let Some(message) = far.recv().wait_for(LIMIT).unwrap().unwrap() {
        let number = u32::from_be_bytes(message[..4].try_into().unwrap());
        assert_eq!(message, number.to_be_bytes().repeat(250));
        assert!(last.replace(number) < Some(number));
        taken += 1;
    }
    // 100 fit into the queue; on a busy host more arrive while they are read.
    assert!((1..=1_000).contains(&taken), "{taken}");
    let lost = far.stats().messages.lost;
    let sent = 20_000 - blocked - near.stats().messages.expired;
    assert!(lost > 1_000 && lost + taken <= sent, "{lost} {taken} {sent}");
}

/// Datagrams keep a connection alive; without them it ends by idle timeout.
#[test]
fn datagrams_keep_the_connection_alive() {
    let transport =
        TransportConfig { idle_timeout: Duration::from_millis(600), ..TransportConfig::default() };
    let ends = ends(transport, true);
    let (near, far) = ends.pair();
    for _ in 0..15 {
        near.send("tick").wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "tick");
        std::thread::sleep(Duration::from_millis(100));
    }
    let idle = far.recv().wait_for(LIMIT).unwrap().unwrap_err().to_string();
    assert!(idle.contains("nothing") || idle.contains("idle"), "{idle}");
}

#[cfg(feature = "zstd")]
#[test]
fn a_long_message_fits_a_datagram_when_compressed() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let options =
        ServerOptions::new(identity).modes([Mode::Quic]).quic_datagrams(true).compression(1);
    let server = Endpoint::builder().bind(localhost()).server(options).start().unwrap();
    let client = Endpoint::builder().bind(localhost()).start().unwrap();
    let options = ClientOptions::new(trust).mode(Mode::Quic).quic_datagrams(true).compression(1);
    let near = client.connect(server.local_addr(), "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    near.send(vec![3; 50_000]).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), vec![3; 50_000]);
}
