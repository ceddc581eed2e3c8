//! Emulated link between the client and its socket: a UDP proxy on loopback with a `bats-netem`
//! link in each direction, driven in real time by its own thread. Needs no privileges.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use bats_netem::{Link, LinkStats, Output, Payload, Timestamp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli::Emulation;
use crate::clock::Clock;
use crate::stream::{Local, MEMORY_PAUSE};

/// Datagrams received from a socket before due ones are sent.
const BATCH: usize = 64;
/// Maximum sleep, and so the delay until the thread notices that it should stop.
const MAX_SLEEP: Duration = Duration::from_millis(50);
/// Socket buffers in bytes. Only the emulated link should lose datagrams.
const SOCKET_BUFFER: usize = 8 << 20;

#[derive(Clone, Debug)]
struct Datagram(Vec<u8>);

impl Payload for Datagram {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        if let Some(byte) = self.0.get_mut(at) {
            *byte ^= flip;
        }
    }

    /// The sockets do not set ECN, and these links have no marking threshold.
    fn mark(&mut self) {}
}

/// A running proxy; stopped when dropped.
#[derive(Debug)]
pub(crate) struct LinkProxy {
    address: SocketAddr,
    should_stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<[LinkStats; 2]>>,
}

impl LinkProxy {
    /// Starts a proxy between one socket of this process and `remote`. `local` is the address that
    /// `remote` sees, if given.
    pub(crate) fn start(emulation: &Emulation, local: &Local, remote: SocketAddr) -> Result<Self> {
        let front = open((Ipv4Addr::LOCALHOST, 0).into())?;
        let back = open(local.to_bind(remote))?;
        local.prepare(&back)?;
        back.connect(remote).with_context(|| format!("the emulated link cannot reach {remote}"))?;
        let address = front.local_addr()?;
        let should_stop = Arc::new(AtomicBool::new(false));
        let mut driver = Driver {
            front,
            back,
            client: None,
            forward: Link::new(emulation.link.clone(), emulation.seed),
            reverse: Link::new(emulation.link.clone(), emulation.seed.wrapping_add(1)),
            buffer: vec![0; 65_536],
            clock: Clock::start(),
        };
        let stop_flag = should_stop.clone();
        let thread = thread::Builder::new()
            .name("emulator".into())
            .spawn(move || {
                set_timer_slack();
                while !stop_flag.load(Ordering::Acquire) {
                    driver.poll_once();
                }
                [driver.forward.stats(), driver.reverse.stats()]
            })
            .context("cannot start the emulated link")?;
        Ok(Self { address, should_stop, thread: Some(thread) })
    }

    /// The address that the client sends to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the proxy and returns the statistics of both directions.
    pub(crate) fn stop(mut self) -> Option<[LinkStats; 2]> {
        self.should_stop.store(true, Ordering::Release);
        self.thread.take()?.join().ok()
    }
}

impl Drop for LinkProxy {
    fn drop(&mut self) {
        self.should_stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn set_timer_slack() {
    // The default slack of 50 us would add to every delay.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

fn open(address: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).context("cannot open a socket of the emulated link")?;
    socket.set_nonblocking(true)?;
    let raw = socket2::SockRef::from(&socket);
    // A smaller buffer, if the system limits it, is acceptable.
    #[cfg(target_os = "linux")]
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER).is_err() {
        let _ = raw.set_recv_buffer_size(SOCKET_BUFFER);
    }
    let _ = raw.set_send_buffer_size(SOCKET_BUFFER);
    Ok(socket)
}

struct Driver {
    front: UdpSocket,
    back: UdpSocket,
    /// The client socket: the first that sends a datagram.
    client: Option<SocketAddr>,
    forward: Link<Datagram>,
    reverse: Link<Datagram>,
    buffer: Vec<u8>,
    clock: Clock,
}

impl Driver {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.clock.elapsed()
    }

    /// Receives datagrams, sends due ones, then sleeps until either is possible.
    fn poll_once(&mut self) {
        let mut has_received = false;
        for _ in 0..BATCH {
            let Some((count, from)) = received(self.front.recv_from(&mut self.buffer)) else {
                break;
            };
            has_received = true;
            if *self.client.get_or_insert(from) == from {
                let datagram = Datagram(self.buffer[..count].to_vec());
                self.forward.handle(self.now(), datagram);
            }
        }
        for _ in 0..BATCH {
            let Some(count) = received(self.back.recv(&mut self.buffer)) else { break };
            has_received = true;
            let datagram = Datagram(self.buffer[..count].to_vec());
            self.reverse.handle(self.now(), datagram);
        }
        let mut next: Option<Timestamp> = None;
        let mut later = |at: Option<Timestamp>| {
            next = [next, at].into_iter().flatten().min();
        };
        loop {
            match self.forward.poll(self.now()) {
                // A datagram that the system does not accept is lost, as on any path.
                Output::Deliver(datagram) => drop(self.back.send(&datagram.0)),
                Output::Timeout(at) => break later(at),
            }
        }
        loop {
            match (self.reverse.poll(self.now()), self.client) {
                (Output::Deliver(datagram), Some(client)) => {
                    drop(self.front.send_to(&datagram.0, client));
                }
                (Output::Deliver(_), None) => {}
                (Output::Timeout(at), _) => break later(at),
            }
        }
        if !has_received {
            let until = next.map_or(MAX_SLEEP, |at| at - self.now()).min(MAX_SLEEP);
            let timeout = Timespec { tv_sec: 0, tv_nsec: until.subsec_nanos().into() };
            let mut files = [
                PollFd::from_borrowed_fd(self.front.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.back.as_fd(), PollFlags::IN),
            ];
            // An interrupted sleep is only a short one.
            let _ = poll(&mut files, Some(&timeout));
        }
    }
}

/// Errors report earlier datagrams (ICMP unreachable); the next call may succeed.
fn received<T>(result: std::io::Result<T>) -> Option<T> {
    if let Err(error) = &result
        && openbats::is_lack_of_memory(error)
    {
        // The datagram waits, and its socket stays ready.
        thread::sleep(MEMORY_PAUSE);
    }
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends datagrams through a proxy to an echo server. Each group waits for the previous one, so
    /// that system queues never overflow, however busy the machine is. The datagrams that the links
    /// deliver are known because their losses depend on the seed only.
    fn pass(text: &str, datagrams: usize) -> (usize, [LinkStats; 2]) {
        let matches = crate::cli::parse(["bats_iperf", "-c", "host", "--emulate", text]);
        let emulation = matches.unwrap().0.test.emulate.unwrap();
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut models =
            [0, 1].map(|path| Link::new(emulation.link.clone(), emulation.seed.wrapping_add(path)));
        let mut passing = |path: usize, now: Timestamp, count: usize| {
            for _ in 0..count {
                models[path].handle(now, Datagram(vec![0; 1_000]));
            }
            let later = now + Duration::from_millis(500);
            std::iter::from_fn(|| match models[path].poll(later) {
                Output::Deliver(_) => Some(()),
                Output::Timeout(_) => None,
            })
            .count()
        };
        let proxy =
            LinkProxy::start(&emulation, &Local::default(), server.local_addr().unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(proxy.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let should_stop = Arc::new(AtomicBool::new(false));
        let stop_flag = should_stop.clone();
        let echoing = thread::spawn(move || {
            let (mut arrived, mut buffer) = (0, [0; 2_000]);
            loop {
                match server.recv_from(&mut buffer) {
                    Ok((count, from)) => {
                        arrived += 1;
                        server.send_to(&buffer[..count], from).unwrap();
                    }
                    Err(_) if stop_flag.load(Ordering::Acquire) => return arrived,
                    Err(_) => {}
                }
            }
        });
        for round in 0..datagrams / 20 {
            for number in 0..20 {
                client.send(&[(round * 20 + number) as u8; 1_000]).unwrap();
            }
            let now = Timestamp::from_millis(1_000 * (round as u64 + 1));
            let there = passing(0, now, 20);
            let mut buffer = [0; 2_000];
            for _ in 0..passing(1, now, there) {
                client.recv(&mut buffer).expect("a datagram that the link delivers is echoed");
            }
        }
        should_stop.store(true, Ordering::Release);
        let arrived = echoing.join().unwrap();
        (arrived, proxy.stop().unwrap())
    }

    #[test]
    fn a_lossless_link_delivers_everything_in_both_directions() {
        let (arrived, stats) = pass("delay=2ms", 200);
        assert_eq!(arrived, 200);
        assert_eq!((stats[0].delivered, stats[1].offered), (200, 200));
    }

    #[test]
    fn a_lossy_link_loses_the_configured_fraction() {
        let (arrived, stats) = pass("loss=30%,seed=5", 1_000);
        assert_eq!(stats[0].offered, 1_000);
        assert_eq!(arrived as u64, stats[0].delivered);
        assert!((600..800).contains(&arrived), "{arrived}");
    }
}
