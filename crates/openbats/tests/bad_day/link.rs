//! Faults of the link, of addresses and of routes.

use std::io::Read;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::network::{FAR, FarHost, NEAR, Probe, ROUTED, hosts, ip, run};
use crate::transfer::{Resumed, Transfer, attempt};
use crate::wait_until;

/// Duration of the long faults.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(4);
/// UDP payload of datagrams of the smallest MTU that the protocol requires.
const LARGE: usize = 1_200;

pub(crate) fn interface_down_and_up() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR);
    let path = Probe::new(&far, FAR, LARGE);
    let down = |far: &FarHost| far.ip("link set wire down");
    let up = |far: &FarHost| far.ip("link set wire up");
    transfer.outage(
        &|| path.passes(),
        LONG,
        || ip("link set wire down"),
        || ip("link set wire up"),
    );
    transfer.outage(&|| path.passes(), SHORT, || down(&far), || up(&far));
    transfer.finish();
}

/// Removes the client's address, and then the server's. Sending a datagram from a removed address fails
/// with EINVAL, as with an unsupported option. GSO and ECN must be in use again afterwards.
pub(crate) fn address_removed_and_given_back() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR);
    let path = Probe::new(&far, FAR, LARGE);
    let uses_gso_and_ecn = |what: &str| uses_gso_and_ecn(&far, &transfer, what);
    uses_gso_and_ecn("GSO and ECN before the fault");
    for _ in 0..2 {
        let remove = format!("address del {NEAR}/24 dev wire");
        let add = format!("address add {NEAR}/24 dev wire");
        transfer.outage(&|| path.passes(), SHORT, || ip(&remove), || ip(&add));
    }
    uses_gso_and_ecn("GSO and ECN after the client's address returned");
    far.ip("address add 10.9.0.3/24 dev wire");
    let remove = || far.run(|| ip(&format!("address del {FAR}/24 dev wire")));
    let add = || far.run(|| ip(&format!("address add {FAR}/24 dev wire")));
    transfer.outage(&|| path.passes(), SHORT, remove, add);
    uses_gso_and_ecn("GSO and ECN after the server's address returned");
    transfer.finish();
}

fn uses_gso_and_ecn(far: &FarHost, transfer: &Transfer, what: &str) {
    let seen = Capture::new(far, transfer.near.remote_addr().port());
    wait_until(what, || seen.has_gso_and_ecn());
}

/// Every kind of route that refuses packets, each with another error of the system; then no route.
pub(crate) fn route_flap() {
    let far = hosts();
    let transfer = Transfer::start(&far, ROUTED);
    let path = Probe::new(&far, ROUTED, LARGE);
    let route = format!("{ROUTED} via {FAR}");
    for kind in ["unreachable", "prohibit", "blackhole", "throw"] {
        let refuse = || ip(&format!("route replace {kind} {ROUTED}"));
        let restore = || {
            ip(&format!("route del {kind} {ROUTED}"));
            ip(&format!("route replace {route}"));
        };
        transfer.outage(&|| path.passes(), Duration::from_secs(2), refuse, restore);
    }
    let remove = || ip(&format!("route del {route}"));
    transfer.outage(&|| path.passes(), SHORT, remove, || ip(&format!("route add {route}")));
    // Faster than probe timeouts: the transfer does not end, and resumes.
    for _ in 0..50 {
        ip(&format!("route del {route}"));
        thread::sleep(Duration::from_millis(30));
        ip(&format!("route add {route}"));
        thread::sleep(Duration::from_millis(30));
    }
    transfer.resumes_within_three_probe_timeouts();
    uses_gso_and_ecn(&far, &transfer, "GSO and ECN after the route was restored");
    transfer.finish();
}

/// Packets dropped at the sender, whose calls fail with EPERM, and then at the receiver, without an error.
pub(crate) fn all_packets_dropped() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR);
    let path = Probe::new(&far, FAR, LARGE);
    let drop_all = |hook: &str| {
        run("nft", "add table inet fault");
        run(
            "nft",
            &format!("add chain inet fault every {{ type filter hook {hook} priority 0 ; }}"),
        );
        run("nft", "add rule inet fault every drop");
    };
    let accept = || run("nft", "delete table inet fault");
    transfer.outage(&|| path.passes(), LONG, || drop_all("output"), accept);
    let begin = || far.run(move || drop_all("input"));
    transfer.outage(&|| path.passes(), LONG, begin, || far.run(accept));
    transfer.finish();
}

/// The smallest MTU of IPv6 is 1,280 bytes. Over IPv4 it may be smaller, and 1,228 bytes suffice.
pub(crate) fn mtu_below_1280() {
    let far = hosts();
    // At the sender, whose calls fail with EMSGSIZE.
    attempt(|| {
        let lower = || ip("link set wire mtu 1250");
        mtu_falls_and_rises(&far, 1_222, &lower, &|| ip("link set wire mtu 1500"))
    });
    // At the receiver, which drops the packets. A veth link does not check the length of bursts with GSO.
    ip("link set wire gso_max_segs 1");
    attempt(|| {
        let lower = || far.ip("link set wire mtu 1250");
        mtu_falls_and_rises(&far, 1_240, &lower, &|| far.ip("link set wire mtu 1500"))
    });
}

/// Returns how a new transfer goes on after a lower MTU, with packets of at most `largest` bytes. A higher
/// MTU stops nothing.
fn mtu_falls_and_rises(far: &FarHost, largest: u16, lower: &dyn Fn(), raise: &dyn Fn()) -> Resumed {
    let transfer = Transfer::start(far, FAR);
    wait_until("the path MTU is found", || transfer.near.stats().path_mtu == 1_472);
    let (before, stalled) = (transfer.near.stats().probe_timeouts, transfer.stalled());
    lower();
    wait_until("the path MTU falls", || transfer.near.stats().path_mtu <= largest);
    let expired = transfer.near.stats().probe_timeouts - before;
    let resumed = transfer.probe_timeouts_until_progress();
    let probe_timeouts = resumed.probe_timeouts + expired;
    let resumed = Resumed { probe_timeouts, stalled: transfer.stalled() - stalled };
    raise();
    transfer.resumes_within_three_probe_timeouts();
    transfer.finish();
    resumed
}

/// Small packets pass, but no data. The log names the remedy.
pub(crate) fn mtu_below_the_smallest() {
    let log = crate::host::Log::start();
    let far = hosts();
    let transfer = Transfer::start(&far, FAR);
    let path = Probe::new(&far, FAR, LARGE);
    let (lower, raise) = (|| ip("link set wire mtu 1000"), || ip("link set wire mtu 1500"));
    transfer.outage(&|| path.passes(), LONG, lower, raise);
    uses_gso_and_ecn(&far, &transfer, "GSO and ECN after the MTU was raised");
    log.contains("raise the MTU of the interface to at least 1280 bytes");
    transfer.finish();
}

/// Any host can forge ICMP errors. None may end an endpoint, or a connection with a peer that answers.
pub(crate) fn icmp_errors_of_every_code() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR);
    transfer.await_progress();
    let near_port = transfer.near.local_addr().port();
    let far_port = transfer.near.remote_addr().port();
    let to_near = icmp_errors((NEAR, near_port), (FAR, far_port));
    let to_far = icmp_errors((FAR, far_port), (NEAR, near_port));
    let send = |errors: Vec<Vec<u8>>, to: &str| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        let to: SocketAddr = format!("{to}:0").parse().unwrap();
        // More than the I/O thread reads from the error queue at once.
        for error in (0..40).flat_map(|_| &errors) {
            let _ = socket.send_to(error, &to.into());
        }
    };
    far.run(move || send(to_near, NEAR));
    transfer.await_progress();
    send(to_far, FAR);
    transfer.await_progress();
    thread::sleep(Duration::from_secs(2));
    transfer.finish();
}

/// ICMP messages of all types and codes of errors (RFC 792), each about a datagram between two ports.
fn icmp_errors(from: (&str, u16), to: (&str, u16)) -> Vec<Vec<u8>> {
    let ip = |text: &str| text.parse::<std::net::Ipv4Addr>().unwrap().octets();
    let codes = [(3, 0..16), (4, 0..1), (11, 0..2), (12, 0..3)];
    let all = codes.into_iter().flat_map(|(kind, codes)| codes.map(move |code| (kind, code)));
    all.map(|(kind, code)| {
        let mut bytes = vec![kind, code, 0, 0, 0, 0, 0x05, 0x00];
        bytes.extend([0x45, 0, 0x04, 0xcc, 0, 1, 0x40, 0, 64, 17, 0, 0]);
        bytes.extend(ip(from.0));
        bytes.extend(ip(to.0));
        bytes.extend(from.1.to_be_bytes());
        bytes.extend(to.1.to_be_bytes());
        bytes.extend([0x04, 0xb8, 0, 0, 0x40, 1, 2, 3, 4, 5, 6, 7]);
        let sum = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = sum.sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
        bytes
    })
    .collect()
}

/// Frames that the far host receives.
struct Capture {
    socket: Socket,
    port: u16,
}

impl Capture {
    fn new(far: &FarHost, port: u16) -> Self {
        const IPV4: u16 = 0x0800;
        let socket = far.run(|| {
            let protocol = Protocol::from(i32::from(IPV4.to_be()));
            Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap()
        });
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        Self { socket, port }
    }

    /// Whether the next frame to the port has a mark of ECN-capable transport (RFC 3168) and is longer
    /// than the MTU: a burst that GSO joins, which a veth link does not split.
    fn has_gso_and_ecn(&self) -> bool {
        let mut frame = [0; 65_536];
        let Ok(length) = (&self.socket).read(&mut frame) else { return false };
        // Ethernet header, IPv4 header without options, UDP ports.
        let is_to_port = frame[23] == 17 && frame[36..38] == self.port.to_be_bytes();
        is_to_port && frame[15] & 3 != 0 && length > 1_514
    }
}
