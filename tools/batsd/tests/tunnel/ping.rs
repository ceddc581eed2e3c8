//! Echo requests of ICMP and ICMPv6.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// Time between two requests, and for the last answer.
const INTERVAL: Duration = Duration::from_millis(20);
const LAST_ANSWER: Duration = Duration::from_secs(1);
static IDENTIFIER: AtomicU16 = AtomicU16::new(7);

/// Requests to an address.
pub(crate) struct Ping {
    to: IpAddr,
    from: Option<IpAddr>,
    times: u16,
    size: usize,
    interface: Option<&'static str>,
}

impl Ping {
    pub(crate) fn new(to: &str) -> Self {
        Self { to: to.parse().unwrap(), from: None, times: 1, size: 56, interface: None }
    }

    pub(crate) fn times(self, times: u16) -> Self {
        Self { times, ..self }
    }

    pub(crate) fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    pub(crate) fn from(self, from: &str) -> Self {
        Self { from: Some(from.parse().unwrap()), ..self }
    }

    /// Over this interface: link-local addresses and groups need it.
    pub(crate) fn over(self, interface: &'static str) -> Self {
        Self { interface: Some(interface), ..self }
    }

    /// Sends the requests in a namespace and returns the number of those that are answered.
    pub(crate) fn count(self, namespace: File) -> usize {
        let numbers: BTreeSet<u16> = self.run(namespace).into_iter().map(|(_, n)| n).collect();
        numbers.len()
    }

    /// Sends the requests in a namespace and returns the addresses that answered.
    pub(crate) fn answering(self, namespace: File) -> BTreeSet<IpAddr> {
        self.run(namespace).into_iter().map(|(address, _)| address).collect()
    }

    fn run(self, namespace: File) -> BTreeSet<(IpAddr, u16)> {
        let run = move || {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
            self.run_here()
        };
        thread::spawn(run).join().unwrap()
    }

    /// The addresses that answered, each with the numbers of the requests.
    fn run_here(&self) -> BTreeSet<(IpAddr, u16)> {
        let (domain, protocol) = match self.to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
        socket.bind_device(self.interface.map(str::as_bytes)).unwrap();
        if let Some(from) = self.from {
            socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
        }
        let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
        // Only for its calls with addresses of the standard library.
        let socket = UdpSocket::from(socket);
        let mut answered = BTreeSet::new();
        let has_several = self.to.is_multicast();
        for number in 0..self.times {
            let _ = socket.send_to(&self.request(identifier, number), SocketAddr::new(self.to, 0));
            let is_last = number + 1 == self.times;
            let end = Instant::now() + if is_last { LAST_ANSWER } else { INTERVAL };
            let is_done = |answers: usize| !has_several && answers >= usize::from(self.times);
            while Instant::now() < end && !is_done(answered.len()) {
                let left =
                    end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                socket.set_read_timeout(Some(left)).unwrap();
                let mut bytes = [0; 256];
                // A longer answer is truncated; its beginning suffices.
                let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
                let bytes = &bytes[..length];
                let (header, reply) = if self.to.is_ipv4() { (20, 0) } else { (0, 129) };
                let Some(answer) = bytes.get(header..header + 8) else { continue };
                if answer[0] == reply && answer[4..6] == identifier.to_be_bytes() {
                    answered.insert((from.ip(), u16::from_be_bytes([answer[6], answer[7]])));
                }
            }
        }
        answered
    }

    fn request(&self, identifier: u16, number: u16) -> Vec<u8> {
        let mut bytes = vec![0; 8 + self.size];
        bytes[0] = if self.to.is_ipv4() { 8 } else { 128 };
        bytes[4..6].copy_from_slice(&identifier.to_be_bytes());
        bytes[6..8].copy_from_slice(&number.to_be_bytes());
        // The kernel computes that of ICMPv6. The rest of the bytes are zero.
        if self.to.is_ipv4() {
            let words =
                bytes.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
            let sum: u32 = words.sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
            bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes
    }
}
