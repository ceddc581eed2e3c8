//! A configured peer that sends no packets in the channels of the tunnel.

use std::path::Path;
use std::time::Duration;

use openbats::node::{LinkOptions, Node, RouteSet, Session};
use openbats::{
    Channel, ChannelError, ClientOptions, Fingerprint, Identity, Mode, TransportConfig, Trust, Wait,
};

use crate::node::{Daemon, LIMIT, free_udp_port, identity, node, start, wait_for};

/// First byte of a channel with packets.
const TUNNEL: u8 = 3;

/// A channel with these first bytes.
fn open(session: &Session, bytes: &[u8]) -> Channel {
    let channel = session.open_channel().wait_for(LIMIT).unwrap().unwrap();
    channel.write_all(bytes).wait_for(LIMIT).unwrap().unwrap();
    channel
}

fn is_stopped(channel: &Channel) -> bool {
    for _ in 0..250 {
        match channel.write(&[]).wait_for(LIMIT).unwrap() {
            Err(ChannelError::Stopped { code: 1 }) => return true,
            Err(error) => panic!("{error}"),
            Ok(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    false
}

/// Reads a number of bytes.
fn read(channel: &Channel, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        let mut bytes = vec![0; length - all.len()];
        let read = channel.read(&mut bytes).wait_for(LIMIT).unwrap().unwrap();
        assert!(read > 0, "it ends after {all:?}");
        all.extend(&bytes[..read]);
    }
    all
}

/// A daemon with these lines of configuration, a node that is its peer, and a session with the daemon.
fn peer(folder: &Path, more: &str) -> (Daemon, Node, Session) {
    let path = |host: usize| folder.join(format!("{host}.pem"));
    let prints = [0, 1].map(|host| identity(&path(host)));
    let print = |host: usize| -> Fingerprint {
        prints[host].trim_start_matches("sha256:").parse().unwrap()
    };
    let port = free_udp_port();
    let text = node(folder, 1, port, "")
        + &format!("[[peer]]\nid = \"10.255.0.1\"\nfingerprint = \"{}\"\n", prints[0])
        + more;
    let daemon = start(folder, 1, &text);
    let id = |host: u8| openbats::node::NodeId(u32::from_be_bytes([10, 255, 0, host]));
    let pem = std::fs::read(path(0)).unwrap();
    let transport = TransportConfig { channels: Some(64), ..TransportConfig::default() };
    let near = Node::builder(id(1), Identity::from_pem("test", &pem).unwrap())
        .peer(id(2), print(1))
        .transport(transport.clone())
        .start()
        .unwrap();
    let to = ([127, 0, 0, 1], port).into();
    let link = near.links().open(LinkOptions::new(to, Trust::fingerprint(print(1)))).unwrap();
    link.established().wait_for(LIMIT).unwrap().unwrap();
    near.routes().replace(RouteSet::new().to(id(2), link.id())).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(print(1)));
    let options = options.transport(transport).mode(Mode::Brtp);
    let session = near.connect_node(id(2), "node", options).wait_for(LIMIT).unwrap().unwrap();
    (daemon, near, session)
}

/// The session of the daemon, in whose channels it answers.
fn answers(near: &Node) -> Session {
    loop {
        let session = near.accept().wait_for(LIMIT).unwrap().unwrap();
        if session.mode() == Mode::Brtp {
            return session;
        }
    }
}

/// The start of a channel with an echo request (4) or an echo (8).
fn echo(flags: u8) -> Vec<u8> {
    [&[TUNNEL, flags, 0, 0, 0, 8][..], &7u64.to_be_bytes()].concat()
}

#[test]
fn a_node_that_is_no_exit_refuses_requests_of_programs() {
    let folder = tempfile::tempdir().unwrap();
    let (_daemon, _near, session) = peer(folder.path(), "");
    for request in [&[2][..], &[1, 1, 127, 0, 0, 1, 0, 1]] {
        assert_eq!(read(&open(&session, request), 1), [2]);
    }
}

#[test]
fn channels_that_are_hostile_end_and_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    // Peers of an exit may have more channels than those of the tunnel.
    let (_daemon, near, session) = peer(folder.path(), "[exit]\nallow = [\"192.0.2.1:1\"]\n");
    let unknown_flags = open(&session, &[TUNNEL, 32, 0, 0, 0, 1]);
    let wrong_length = open(&session, &[TUNNEL, 4, 0, 0, 0, 9]);
    assert!(is_stopped(&unknown_flags) && is_stopped(&wrong_length));
    assert_eq!(read(&open(&session, &[9]), 1), [7], "no request");
    // The start of a packet that never ends, in all channels but one.
    let waiting: Vec<_> =
        (0..63).map(|_| open(&session, &[TUNNEL, 0, 0, 0, 0xff, 0xff, 0x45])).collect();
    let echo = echo(4);
    let asking = open(&session, &echo);
    let answers = answers(&near);
    let answering = answers.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    let expected = self::echo(8);
    assert_eq!(read(&answering, expected.len()), expected);
    assert!(is_stopped(&open(&session, &[TUNNEL, 0])), "one channel too many");
    // The others go on, byte by byte.
    for byte in &echo[1..] {
        asking.write_all(&[*byte]).wait_for(LIMIT).unwrap().unwrap();
    }
    assert_eq!(read(&answering, expected.len() - 1), expected[1..]);
    drop(waiting);
}

#[test]
fn a_peer_that_stops_a_channel_gets_another_one_in_the_same_session() {
    let folder = tempfile::tempdir().unwrap();
    let (_daemon, near, session) = peer(folder.path(), "");
    let asking = open(&session, &echo(4));
    let answers = answers(&near);
    let expected = echo(8);
    for _ in 0..3 {
        let answering = std::thread::scope(|scope| {
            let accepts = scope.spawn(|| answers.accept_channel().wait_for(LIMIT).unwrap());
            while !accepts.is_finished() {
                asking.write_all(&echo(4)[1..]).wait_for(LIMIT).unwrap().unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            accepts.join().unwrap().expect("the session goes on")
        });
        assert_eq!(read(&answering, expected.len()), expected);
        answering.stop(9);
    }
    assert_eq!(answers.close_reason(), None);
}

#[test]
fn a_peer_gets_a_quarter_of_the_connections_of_an_exit() {
    let folder = tempfile::tempdir().unwrap();
    let (_daemon, _near, session) = peer(folder.path(), "[exit]\nallow = [\"192.0.2.1:1\"]\n");
    // Requests that are not complete have their places for 10 s.
    let waiting: Vec<_> = (0..1_024).map(|_| open(&session, &[1])).collect();
    // Channels are served side by side.
    wait_for("all places to be taken", || read(&open(&session, &[2]), 1) == [1]);
    waiting.iter().for_each(|channel| channel.reset(1));
    // Associations of UDP are accepted again.
    wait_for("the places to be free", || read(&open(&session, &[2]), 1) == [0]);
}
