//! Two hosts on a link: this process's network namespace, and a second one that a thread holds.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};

/// Addresses of the hosts in a version of IP.
pub(crate) struct Addresses {
    /// Of the near and of the far host on their link.
    pub(crate) near: &'static str,
    pub(crate) far: &'static str,
    /// Of no host until a case gives it to one.
    pub(crate) spare: &'static str,
    /// Of the far host behind a route of the near one.
    pub(crate) routed: &'static str,
    /// What follows an address that ip(8) gives to an interface. In IPv6, it is usable at once: no other host
    /// has it, and duplicate address detection (RFC 4862, section 5.4) takes a second.
    suffix: &'static str,
}

pub(crate) const V4: Addresses = Addresses {
    near: NEAR,
    far: FAR,
    spare: "10.9.0.3",
    routed: "10.10.0.2",
    suffix: "/24 dev wire",
};
pub(crate) const V6: Addresses = Addresses {
    near: "fd09::1",
    far: "fd09::2",
    spare: "fd09::3",
    routed: "fd0a::2",
    suffix: "/64 dev wire nodad",
};
pub(crate) const NEAR: &str = "10.9.0.1";
pub(crate) const FAR: &str = "10.9.0.2";

impl Addresses {
    /// Arguments of ip(8) that add, delete or replace an address of a host's link.
    pub(crate) fn change(&self, verb: &str, address: &str) -> String {
        format!("address {verb} {address}{}", self.suffix)
    }

    /// Bytes of the headers of IP and UDP.
    pub(crate) fn headers(&self) -> u16 {
        if is_v6(self.near) { 48 } else { 28 }
    }
}

pub(crate) fn is_v6(address: &str) -> bool {
    address.parse::<IpAddr>().unwrap().is_ipv6()
}

/// Any address of the version of `address`, and any port.
pub(crate) fn any(address: &str) -> SocketAddr {
    if is_v6(address) { "[::]:0" } else { "0.0.0.0:0" }.parse().unwrap()
}

type Job = Box<dyn FnOnce() + Send>;

/// The network namespace of the far host. Membership is per thread, so that a thread holds it.
pub(crate) struct FarHost(mpsc::Sender<Job>);

impl FarHost {
    fn new() -> (Self, i32) {
        let (jobs, received) = mpsc::channel::<Job>();
        let (started, id) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            started.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            received.into_iter().for_each(|job| job());
        });
        (Self(jobs), id.recv().unwrap())
    }

    /// Runs `work` on the far host. Its threads and child processes stay there.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.0.send(Box::new(move || done.send(work()).unwrap())).unwrap();
        result.recv().expect("the work on the far host does not panic")
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        self.run(move || ip(&arguments));
    }
}

/// Runs ip(8) on the near host.
pub(crate) fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Commands take milliseconds, and a path is usable a second after them at most, unless the kernel's lock of network
/// configuration (RTNL) is held for others, for example by programs that remove many namespaces.
const DELAY: Duration = Duration::from_secs(2);
/// Whether something of the present fault took that long.
static WAS_DELAYED: AtomicBool = AtomicBool::new(false);

/// What a case panics with whose connection ended because other users of the kernel made a fault longer than the idle
/// timeout.
pub(crate) struct Delayed;

/// Whether the present fault began or ended late because of other users of the kernel.
pub(crate) fn was_delayed() -> bool {
    WAS_DELAYED.load(Ordering::Relaxed)
}

/// Another fault begins.
pub(crate) fn forget_delays() {
    WAS_DELAYED.store(false, Ordering::Relaxed);
}

/// Does something that waits for nothing but the kernel, and remembers if that took long.
#[expect(clippy::disallowed_methods, reason = "the host's delays are measured, not the protocol")]
pub(crate) fn watch_for_delay<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    if took >= DELAY {
        WAS_DELAYED.store(true, Ordering::Relaxed);
        eprintln!("{what}: took {took:?}");
    }
    result
}

/// Runs a program with arguments without blanks, which must succeed.
pub(crate) fn run(program: &str, arguments: &str) {
    let command = || Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    let output = watch_for_delay(&format!("{program} {arguments}"), command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
}

/// Lets the first failed assertion print what the kernel knows of both hosts, so that it shows whether the fault was
/// still there: the far one's namespace is that of `thread`.
fn describe_hosts_on_panic(thread: i32) {
    static FIRST: Once = Once::new();
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        FIRST.call_once(|| {
            let far = format!("--net=/proc/self/task/{thread}/ns/net");
            for (host, namespace) in [("near", "--net=/proc/self/ns/net"), ("far", &far)] {
                for what in ["-s link", "address", "route", "-6 route", "neighbour"] {
                    let namespace = namespace.replace("self", &std::process::id().to_string());
                    let mut command = Command::new("nsenter");
                    command.arg(namespace).arg("ip").args(what.split(' ')).arg("show");
                    match command.output() {
                        Ok(output) => eprintln!(
                            "{host}: ip {what} show\n{}{}",
                            String::from_utf8_lossy(&output.stdout),
                            String::from_utf8_lossy(&output.stderr),
                        ),
                        Err(error) => eprintln!("{host}: nsenter: {error}"),
                    }
                }
            }
        });
    }));
}

/// Makes both hosts and the link between them: interface `wire` at both.
pub(crate) fn hosts() -> FarHost {
    let (far, thread) = FarHost::new();
    describe_hosts_on_panic(thread);
    ip("link set lo up");
    ip("link add wire type veth peer name other");
    ip(&format!("link set other netns {thread}"));
    ip("link set wire up");
    far.ip("link set other name wire");
    far.ip("link set lo up");
    far.ip("link set wire up");
    for addresses in [V4, V6] {
        ip(&addresses.change("add", addresses.near));
        far.ip(&addresses.change("add", addresses.far));
        let usable = if is_v6(addresses.routed) { " nodad" } else { "" };
        far.ip(&format!("address add {} dev lo{usable}", addresses.routed));
        ip(&format!("route add {} via {}", addresses.routed, addresses.far));
    }
    far
}

/// A path for single datagrams from the near to an address of the far host and back, to see that it is usable.
pub(crate) struct Probe {
    near: UdpSocket,
    far: UdpSocket,
    size: usize,
    /// The datagrams sent, the last of which has this number.
    sent: AtomicU64,
}

impl Probe {
    /// Datagrams have `size` bytes and are not fragmented.
    pub(crate) fn new(far: &FarHost, address: &'static str, size: usize) -> Self {
        let far = far.run(move || UdpSocket::bind((address, 0)).unwrap());
        let near = UdpSocket::bind(any(address)).unwrap();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
            if is_v6(address) {
                set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::PROBE).unwrap();
            } else {
                set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::PROBE).unwrap();
            }
        }
        Self { near, far, size, sent: AtomicU64::new(0) }
    }

    /// Whether a datagram that is sent now passes, and one back. One that was sent before, and arrived after
    /// the wait for it had ended on a busy host, says nothing of the path as it is.
    pub(crate) fn passes(&self) -> bool {
        let number = (self.sent.fetch_add(1, Ordering::Relaxed) + 1).to_be_bytes();
        let mut bytes = vec![0; self.size];
        bytes[..number.len()].copy_from_slice(&number);
        let arrives = |at: &UdpSocket| {
            let mut received = [0; 8];
            loop {
                let (_, from) = at.recv_from(&mut received).ok()?;
                if received == number {
                    return Some(from);
                }
            }
        };
        // Errors are what the fault makes of sending.
        let _ = self.near.send_to(&bytes, self.far.local_addr().unwrap());
        let Some(back) = arrives(&self.far) else { return false };
        let _ = self.far.send_to(&bytes, back);
        arrives(&self.near).is_some()
    }
}
