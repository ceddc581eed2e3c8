//! The modes over real sockets, through a proxy that drops datagrams at random.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, CongestionAlgorithm, ConnectError, Connection, Endpoint, Identity,
    Mode, RecvError, ServerOptions, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const ALL: [Mode; 4] = [Mode::Brtp, Mode::Brctp, Mode::Btp, Mode::Transparent];

/// Forwards datagrams between one client and a server, and drops a fraction of those to the server.
struct LossyProxy {
    address: SocketAddr,
    /// Dropped datagrams of 1,000.
    loss: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LossyProxy {
    fn start(server: SocketAddr, seed: u64) -> Self {
        let near = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let far = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = near.local_addr().unwrap();
        far.connect(server).unwrap();
        let (loss, is_stopped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let port = Arc::new(AtomicU64::new(0));
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        let forward = {
            let (near, far, port) = (near.clone(), far.clone(), port.clone());
            let (loss, is_stopped) = (loss.clone(), is_stopped.clone());
            thread::spawn(move || {
                let (mut bytes, mut state) = ([0; 65_536], seed);
                while !is_stopped.load(Ordering::Relaxed) {
                    let Ok((len, from)) = near.recv_from(&mut bytes) else { continue };
                    port.store(from.port().into(), Ordering::Relaxed);
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if (state >> 33) % 1_000 >= loss.load(Ordering::Relaxed) {
                        let _ = far.send(&bytes[..len]);
                    }
                }
            })
        };
        let backward = {
            let is_stopped = is_stopped.clone();
            thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while !is_stopped.load(Ordering::Relaxed) {
                    let Ok(len) = far.recv(&mut bytes) else { continue };
                    let port = port.load(Ordering::Relaxed) as u16;
                    let _ = near.send_to(&bytes[..len], ("127.0.0.1", port));
                }
            })
        };
        Self { address, loss, is_stopped, threads: vec![forward, backward] }
    }

    fn set_loss_per_1000(&self, datagrams: u64) {
        self.loss.store(datagrams, Ordering::Relaxed);
    }
}

impl Drop for LossyProxy {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Pair {
    proxy: LossyProxy,
    _server: Endpoint,
    _client: Endpoint,
    near: Connection,
    far: Connection,
}

fn pair(mode: Mode, transport: TransportConfig) -> Pair {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).transport(transport.clone()).modes(ALL))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let proxy = LossyProxy::start(server.local_addr(), mode as u64 + 1);
    let options = ClientOptions::new(trust).transport(transport).mode(mode);
    let near = client.connect(proxy.address, "localhost", options);
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    Pair { proxy, _server: server, _client: client, near, far }
}

/// A message with its number and content from which changes can be detected.
fn message(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend((4..len.max(4)).map(|place| (place as u32).wrapping_mul(number | 1) as u8));
    bytes
}

fn number_of(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// Receives messages until the end; returns their numbers in the order of arrival.
fn collect(connection: &Connection) -> Vec<u32> {
    let mut numbers = Vec::new();
    while let Some(bytes) = connection.recv().wait_for(LIMIT).unwrap().unwrap() {
        let number = number_of(&bytes);
        assert!(bytes == message(number, length(number)), "message {number} was changed");
        numbers.push(number);
    }
    numbers
}

/// Lengths from less than a symbol to several packets.
fn length(number: u32) -> usize {
    4 + (number as usize * 37) % 3_000
}

const MESSAGES: u32 = 3_000;

/// Sends messages at a steady rate; returns the numbers of those that arrived.
fn flow(pair: &Pair) -> Vec<u32> {
    thread::scope(|scope| {
        let received = scope.spawn(|| collect(&pair.far));
        for number in 0..MESSAGES {
            pair.near.send(message(number, length(number))).wait_for(LIMIT).unwrap().unwrap();
            if number % 10 == 9 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
        received.join().unwrap()
    })
}

#[test]
fn unreliable_modes_deliver_each_message_once_or_count_it_as_lost() {
    for mode in [Mode::Btp, Mode::Transparent] {
        let pair = pair(mode, TransportConfig::default());
        assert_eq!((pair.near.mode(), pair.far.mode()), (mode, mode));
        pair.proxy.set_loss_per_1000(80);
        let received = flow(&pair);
        let distinct: BTreeSet<u32> = received.iter().copied().collect();
        assert_eq!(distinct.len(), received.len(), "{mode:?} repeats messages");
        assert!(distinct.iter().all(|&number| number < MESSAGES), "{mode:?}");
        let stats = pair.far.stats();
        assert_eq!(stats.messages.received, received.len() as u64, "{mode:?}");
        let lost = stats.messages.lost;
        assert_eq!(stats.messages.received + lost, u64::from(MESSAGES), "{mode:?}: {stats:?}");
        match mode {
            // About 8 % of one or two packets per message are lost, and none is repaired.
            Mode::Transparent => {
                assert!(lost > 100, "{stats:?}");
                assert_eq!(stats.coding.symbols_repaired, 0, "{stats:?}");
            }
            _ => {
                assert!(stats.coding.symbols_repaired > 100, "{stats:?}");
                assert!(lost < stats.coding.symbols_repaired / 2, "{stats:?}");
                assert!(
                    stats.coding.repair_delay >= stats.coding.longest_repair_delay,
                    "{stats:?}"
                );
                assert!(stats.coding.longest_repair_delay > Duration::ZERO, "{stats:?}");
            }
        }
    }
}

#[test]
fn reliable_modes_deliver_every_message_despite_loss() {
    for mode in [Mode::Brtp, Mode::Brctp] {
        let pair = pair(mode, TransportConfig::default());
        assert_eq!((pair.near.mode(), pair.far.mode()), (mode, mode));
        pair.proxy.set_loss_per_1000(80);
        assert!(flow(&pair).into_iter().eq(0..MESSAGES), "{mode:?}");
        let (near, far) = (pair.near.stats(), pair.far.stats());
        assert_eq!((far.messages.lost, far.messages.expired), (0, 0), "{mode:?}");
        assert_eq!(near.messages.sent, u64::from(MESSAGES), "{mode:?}");
        assert_eq!(far.messages.received, u64::from(MESSAGES), "{mode:?}");
        assert_eq!(near.messages.bytes_sent, far.messages.bytes_received, "{mode:?}");
        assert!(
            near.path.smoothed_rtt > Duration::ZERO && near.congestion.cwnd_bytes > 0,
            "{mode:?}: {near:?}"
        );
        assert!(near.packets.lost > 0 && near.buffers.send_bytes == 0, "{mode:?}: {near:?}");
    }
}

#[test]
fn brctp_delivers_messages_of_many_blocks_and_empty_ones() {
    let pair = pair(Mode::Brctp, TransportConfig::default());
    pair.proxy.set_loss_per_1000(50);
    let object = message(1, 5 << 20);
    for bytes in [object.clone(), Vec::new(), message(2, 9)] {
        pair.near.send(bytes).wait_for(LIMIT).unwrap().unwrap();
    }
    // The other direction, too.
    pair.far.send(message(3, 70_000)).wait_for(LIMIT).unwrap().unwrap();
    let next = |connection: &Connection| connection.recv().wait_for(LIMIT).unwrap().unwrap();
    assert!(next(&pair.far).unwrap() == object);
    assert_eq!(next(&pair.far).unwrap().len(), 0);
    assert!(next(&pair.far).unwrap() == message(2, 9));
    assert!(next(&pair.near).unwrap() == message(3, 70_000));
    pair.near.flush().wait_for(LIMIT).unwrap().unwrap();
    pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(next(&pair.far), None);
    assert!(pair.far.stats().coding.symbols_decoded > 0);
}

/// At 1 Mbit/s a message of 50 kB takes 0.4 s: the messages queued behind it expire.
#[test]
fn expired_messages_are_not_sent() {
    let transport = TransportConfig {
        congestion: CongestionAlgorithm::FixedRate { bits_per_second: 1_000_000 },
        deadline: Duration::from_secs(600),
        ..TransportConfig::default()
    };
    let pair = pair(Mode::Btp, transport);
    let length = 50_000;
    pair.near.send(message(0, length)).wait_for(LIMIT).unwrap().unwrap();
    for number in 1..4 {
        let within = Duration::from_millis(1);
        match number {
            3 => pair.near.try_send_within(message(number, length), within).unwrap(),
            _ => pair.near.send_within(message(number, length), within).wait().unwrap(),
        }
    }
    // This message has the connection's deadline.
    pair.near.send(message(4, length)).wait_for(LIMIT).unwrap().unwrap();
    pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
    let mut received = Vec::new();
    while let Some(bytes) = pair.far.recv().wait_for(LIMIT).unwrap().unwrap() {
        assert!(bytes == message(number_of(&bytes), length));
        received.push(number_of(&bytes));
    }
    assert_eq!(received, [0, 4]);
    assert_eq!(pair.near.stats().messages.expired, 3);
    assert_eq!(pair.far.stats().messages.lost, 3);
}

/// What `finish` has confirmed stays delivered after a close.
#[test]
fn finish_returns_after_the_peer_knows_the_end_despite_loss() {
    for mode in ALL {
        for round in 0..10 {
            let pair = pair(mode, TransportConfig::default());
            pair.proxy.set_loss_per_1000(300);
            pair.near.send(message(round, length(round))).wait_for(LIMIT).unwrap().unwrap();
            pair.near.finish().wait_for(LIMIT).unwrap().unwrap();
            pair.near.close(7, "done");
            let received = collect(&pair.far);
            let stats = pair.far.stats();
            assert_eq!(received.len() as u64 + stats.messages.lost, 1, "{mode:?}: {stats:?}");
        }
    }
}

#[test]
fn a_server_refuses_modes_that_it_does_not_offer() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).modes([Mode::Btp, Mode::Brtp]))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let connect = |mode| {
        let options = ClientOptions::new(trust.clone()).mode(mode);
        client.connect(server.local_addr(), "localhost", options).wait_for(LIMIT).unwrap()
    };
    for mode in [Mode::Brtp, Mode::Btp] {
        let near = connect(mode).unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!((near.mode(), far.mode()), (mode, mode));
        near.close(0, "");
        assert!(matches!(far.recv().wait_for(LIMIT).unwrap(), Err(RecvError::Closed(_))));
        // The mode is known after the end, too.
        assert_eq!(far.mode(), mode);
    }
    // The client may be established before the server's refusal arrives.
    let reason = match connect(Mode::Transparent) {
        Err(ConnectError::Closed(reason)) => reason,
        Err(error) => panic!("{error}"),
        Ok(near) => match near.recv().wait_for(LIMIT).unwrap() {
            Err(RecvError::Closed(reason)) => reason,
            other => panic!("{other:?}"),
        },
    };
    let text = match &reason {
        CloseReason::ReportedByPeer(text) | CloseReason::Handshake(text) => text,
        other => panic!("{other:?}"),
    };
    assert!(text.contains("mode 3"), "{text}");
}

/// Messages that expire before they are sent block neither later messages nor the end.
#[test]
fn expired_messages_do_not_block_others() {
    let transport = TransportConfig {
        idle_timeout: Duration::from_secs(5),
        deadline: Duration::from_secs(60),
        ..TransportConfig::default()
    };
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).transport(transport.clone()).modes([Mode::Btp]))
        .start()
        .unwrap();
    // The failure depends on timing within milliseconds: many rounds, each of some milliseconds.
    for round in 0..150 {
        let client = Endpoint::builder().start().unwrap();
        let options = ClientOptions::new(trust.clone()).transport(transport.clone());
        let near = client.connect(server.local_addr(), "localhost", options.mode(Mode::Btp));
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        near.send("in time").wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "in time");
        for _ in 0..[200, 20, 3, 60][round % 4] {
            let late = near.send_within(vec![1; 50_000], Duration::from_micros(1));
            late.wait_for(LIMIT).unwrap().unwrap();
        }
        near.finish().wait_for(LIMIT).unwrap().unwrap();
    }
}
