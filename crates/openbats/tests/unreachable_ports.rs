//! Closed ports: connecting fails at once, and a server that vanished is noticed.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, ConnectError, Endpoint, Identity, Mode, ServerOptions,
    TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than the limit of the test.
const NEVER: Duration = Duration::from_secs(3_600);

fn without_timeouts(mode: Mode) -> TransportConfig {
    TransportConfig {
        mode,
        idle_timeout: NEVER,
        handshake_timeout: NEVER,
        ..TransportConfig::default()
    }
}

fn free_port(ip: &str) -> SocketAddr {
    UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap()
}

#[test]
fn connecting_to_a_closed_port_is_refused_in_every_mode() {
    for ip in ["127.0.0.1", "::1"] {
        // Mode UDP has no handshake: its connections end with the first message.
        for mode in Mode::ALL.into_iter().filter(|mode| *mode != Mode::Udp) {
            let client = Endpoint::builder().start().unwrap();
            let options =
                ClientOptions::new(Trust::dangerous_any()).transport(without_timeouts(mode));
            let result = client.connect(free_port(ip), "localhost", options).wait_for(LIMIT);
            let error = result.unwrap().unwrap_err();
            assert_eq!(error, ConnectError::Closed(CloseReason::Refused), "{mode:?} {ip}");
        }
    }
}

#[test]
fn several_attempts_to_one_closed_port_are_all_refused() {
    let client = Endpoint::builder().start().unwrap();
    let closed = free_port("127.0.0.1");
    let attempts: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            let options =
                ClientOptions::new(Trust::dangerous_any()).transport(without_timeouts(Mode::Brtp));
            thread::spawn(move || client.connect(closed, "localhost", options).wait_for(LIMIT))
        })
        .collect();
    for attempt in attempts {
        let error = attempt.join().unwrap().unwrap().unwrap_err();
        assert_eq!(error, ConnectError::Closed(CloseReason::Refused));
    }
}

/// The server is killed and started again with its certificate: it ends the connection, although its
/// port is open.
#[test]
fn a_restarted_server_is_noticed_long_before_the_idle_timeout() {
    for mode in [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent] {
        let identity = Identity::generate(&["localhost"]).unwrap();
        let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
        let start = || {
            let options = ServerOptions::new(identity.clone()).transport(without_timeouts(mode));
            let address = ([127, 0, 0, 1], 0).into();
            Endpoint::builder().bind(address).server(options).start().unwrap()
        };
        let server = start();
        let mut forwarder = Forwarder::to(server.local_addr());
        let client = Endpoint::builder().start().unwrap();
        let options = options.transport(without_timeouts(mode));
        let near = client.connect(forwarder.address, "localhost", options);
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        near.send(vec![1; 1_000]).wait_for(LIMIT).unwrap().unwrap();
        assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().is_some());
        // The client keeps its address, the other server knows nothing of the connection.
        let restarted = start();
        forwarder.switch_to(restarted.local_addr());
        let end = async {
            loop {
                let _ = near.try_send_within(vec![2; 1_000], Duration::from_secs(1));
                if let Ok(Err(_)) = near.recv().wait_for(Duration::from_millis(20)) {
                    return;
                }
            }
        };
        end.wait_for(LIMIT).unwrap();
        let reason = near.close_reason();
        assert!(
            matches!(&reason, Some(CloseReason::Lost(text)) if text.contains("restarted")),
            "{mode:?}: {reason:?}"
        );
        forwarder.stop();
    }
}

/// Forwards datagrams between one client and a server until it is stopped.
struct Forwarder {
    address: SocketAddr,
    server: Arc<Mutex<SocketAddr>>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Forwarder {
    fn to(server: SocketAddr) -> Self {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = near.local_addr().unwrap();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = is_stopped.clone();
        let server = Arc::new(Mutex::new(server));
        let current = server.clone();
        let thread = thread::spawn(move || {
            let far = UdpSocket::bind("127.0.0.1:0").unwrap();
            near.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            far.set_nonblocking(true).unwrap();
            let (mut client, mut buffer) = (None, vec![0; 65_536]);
            while !stopped.load(Ordering::SeqCst) {
                let server = *current.lock().unwrap();
                if let Ok((length, from)) = near.recv_from(&mut buffer) {
                    client = Some(from);
                    let _ = far.send_to(&buffer[..length], server);
                }
                while let (Ok((length, from)), Some(client)) = (far.recv_from(&mut buffer), client)
                {
                    if from == server {
                        let _ = near.send_to(&buffer[..length], client);
                    }
                }
            }
        });
        Self { address, server, is_stopped, thread: Some(thread) }
    }

    /// From now on the client's datagrams go to another server.
    fn switch_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = server;
    }

    /// Closes the port.
    fn stop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_server_that_vanished_is_noticed_long_before_the_idle_timeout() {
    for mode in [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent, Mode::Quic] {
        let identity = Identity::generate(&["localhost"]).unwrap();
        let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
        let server = Endpoint::builder()
            .bind(([127, 0, 0, 1], 0).into())
            .server(ServerOptions::new(identity).transport(without_timeouts(mode)))
            .start()
            .unwrap();
        let mut forwarder = Forwarder::to(server.local_addr());
        let client = Endpoint::builder().start().unwrap();
        let near = client.connect(
            forwarder.address,
            "localhost",
            options.transport(without_timeouts(mode)),
        );
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        near.send(vec![1; 1_000]).wait_for(LIMIT).unwrap().unwrap();
        assert!(far.recv().wait_for(LIMIT).unwrap().unwrap().is_some());
        assert_eq!(near.close_reason(), None);
        forwarder.stop();
        let end = async {
            loop {
                // Modes with deadlines stop to send a message that is not acknowledged.
                let _ = near.try_send_within(vec![2; 1_000], Duration::from_secs(1));
                if let Ok(Err(_)) = near.recv().wait_for(Duration::from_millis(20)) {
                    return;
                }
            }
        };
        end.wait_for(LIMIT).unwrap();
        assert!(
            matches!(near.close_reason(), Some(CloseReason::Lost(_))),
            "{mode:?}: {:?}",
            near.close_reason()
        );
    }
}
