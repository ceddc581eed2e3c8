//! An emulated link between two UDP sockets on loopback: what arrives at one address is sent to
//! another after rate, delay and loss of `bats-netem`.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bats_netem::{Link, LinkConfig, Loss, Output, Payload, Timestamp};

/// Longest wait for a datagram before the link is polled again.
const LONGEST_WAIT: Duration = Duration::from_millis(5);
/// Requested receive buffers in bytes: bursts of the sender must fit.
const SOCKET_BUFFER: usize = 4 << 20;

#[derive(Clone)]
struct Datagram(Vec<u8>);

impl Payload for Datagram {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        self.0[at] ^= flip;
    }

    fn mark(&mut self) {}
}

/// State that the threads of both directions share.
struct Shared {
    /// Configuration to be applied, for each direction.
    changes: [Mutex<Option<LinkConfig>>; 2],
    /// Where the first datagram came from.
    client: Mutex<Option<SocketAddr>>,
    ends: AtomicBool,
}

/// A link; its threads end when it is dropped.
pub(crate) struct EmulatedLink {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A link with this rate in Mbit/s, a one-way delay, and this loss in both directions.
pub(crate) fn lossy(mbps: u64, delay: Duration, loss: f64) -> LinkConfig {
    LinkConfig {
        queue_bytes: Some(1 << 20),
        ..LinkConfig::with_rate(mbps * 1_000_000, delay).lossy(Loss::Iid(loss))
    }
}

impl EmulatedLink {
    /// A link to `target` for the one peer that sends to [`address`](Self::address).
    pub(crate) fn start(target: SocketAddr, config: &LinkConfig, seed: u64) -> io::Result<Self> {
        let near = socket((target.ip(), 0).into())?;
        let far = socket((target.ip(), 0).into())?;
        far.connect(target)?;
        let address = near.local_addr()?;
        let shared = Arc::new(Shared {
            changes: [Mutex::default(), Mutex::default()],
            client: Mutex::default(),
            ends: AtomicBool::new(false),
        });
        let mut threads = Vec::new();
        for direction in 0..2 {
            let ends = [near.try_clone()?, far.try_clone()?];
            let link = Link::new(config.clone(), seed.wrapping_mul(2) + direction as u64);
            let shared = shared.clone();
            threads.push(thread::spawn(move || forward(&ends, direction, link, &shared)));
        }
        Ok(Self { address, shared, threads })
    }

    /// The address to send to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes both directions.
    pub(crate) fn set(&self, config: &LinkConfig) {
        for change in &self.shared.changes {
            *change.lock().unwrap_or_else(PoisonError::into_inner) = Some(config.clone());
        }
    }

    /// Loses everything from now on.
    pub(crate) fn cut(&self) {
        self.set(&LinkConfig { black_hole: true, ..LinkConfig::default() });
    }
}

impl Drop for EmulatedLink {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    // A smaller buffer works, and drops bursts.
    let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(SOCKET_BUFFER);
    Ok(socket)
}

/// Moves the datagrams of one direction: 0 from near to far.
#[expect(clippy::disallowed_methods, reason = "the emulated link runs in real time")]
fn forward(
    [near, far]: &[UdpSocket; 2],
    direction: usize,
    mut link: Link<Datagram>,
    shared: &Shared,
) {
    let client = || *shared.client.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let now = || Timestamp::from_millis(1) + start.elapsed();
    let mut buffer = vec![0; 65_536];
    while !shared.ends.load(Ordering::Relaxed) {
        let change = &shared.changes[direction];
        if let Some(config) = change.lock().unwrap_or_else(PoisonError::into_inner).take() {
            link.set_config(now(), config);
        }
        let wait = loop {
            match link.poll(now()) {
                // Errors are losses: the other end may be closed.
                Output::Deliver(datagram) if direction == 0 => drop(far.send(&datagram.0)),
                Output::Deliver(datagram) => {
                    if let Some(client) = client() {
                        drop(near.send_to(&datagram.0, client));
                    }
                }
                Output::Timeout(at) => {
                    let wait = at.map_or(LONGEST_WAIT, |at| at - now());
                    break wait.clamp(Duration::from_micros(50), LONGEST_WAIT);
                }
            }
        };
        let from = [near, far][direction];
        if from.set_read_timeout(Some(wait)).is_err() {
            return;
        }
        if let Ok((length, sender)) = from.recv_from(&mut buffer) {
            if direction == 0 {
                *shared.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
            }
            link.handle(now(), Datagram(buffer[..length].to_vec()));
        }
    }
}
