//! Faults of the link, of addresses and of routes.

use std::io::Read;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::network::{Addresses, FAR, FarHost, NEAR, Probe, hosts, ip, is_v6, run};
use crate::transfer::{Resumed, Sender, Transfer, attempt};
use crate::wait_until;

/// Duration of the long faults: two thirds of the default idle timeout.
const LONG: Duration = Duration::from_secs(20);
/// Long enough that timers back off as far as they do.
const MEDIUM: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_secs(4);
/// UDP payload of datagrams of the smallest MTU that the protocol requires.
const LARGE: usize = 1_200;

/// An interface that goes down loses its addresses of IPv6; they are given back when it is up.
pub(crate) fn interface_down_and_up(addresses: &'static Addresses) {
    let far = hosts();
    let transfer = Transfer::start(&far, addresses.far, Sender::Near);
    let path = Probe::new(&far, addresses.far, LARGE);
    let down = || ip("link set wire down");
    let up = |address| {
        ip("link set wire up");
        ip(&addresses.change("replace", address));
    };
    transfer.outage(&|| path.passes(), LONG, down, || up(addresses.near));
    let far_up = || far.run(move || up(addresses.far));
    transfer.outage(&|| path.passes(), SHORT, || far.run(down), far_up);
    transfer.finish();
}

/// The client's interface, while the server sends: its client has nothing to send but acknowledgements.
pub(crate) fn interface_down_and_up_at_receiver(addresses: &'static Addresses) {
    let far = hosts();
    let transfer = Transfer::start(&far, addresses.far, Sender::Far);
    let path = Probe::new(&far, addresses.far, LARGE);
    let up = || {
        ip("link set wire up");
        ip(&addresses.change("replace", addresses.near));
    };
    for time in [SHORT, MEDIUM] {
        transfer.outage(&|| path.passes(), time, || ip("link set wire down"), up);
    }
    transfer.finish();
}

/// The client's address, while the server sends.
pub(crate) fn address_removed_from_receiver(addresses: &'static Addresses) {
    let far = hosts();
    let transfer = Transfer::start(&far, addresses.far, Sender::Far);
    let path = Probe::new(&far, addresses.far, LARGE);
    for time in [SHORT, MEDIUM] {
        let remove = || ip(&addresses.change("del", addresses.near));
        let add = || ip(&addresses.change("add", addresses.near));
        transfer.outage(&|| path.passes(), time, remove, add);
    }
    transfer.finish();
}

/// Removes the client's address, and then the server's. Sending a datagram from a removed address fails
/// with EINVAL, as with an unsupported option. GSO and ECN must be in use again afterwards.
pub(crate) fn address_removed_and_given_back(addresses: &'static Addresses) {
    let far = hosts();
    let transfer = Transfer::start(&far, addresses.far, Sender::Near);
    let path = Probe::new(&far, addresses.far, LARGE);
    let uses_gso_and_ecn = |what: &str| uses_gso_and_ecn(&far, &transfer, what);
    uses_gso_and_ecn("GSO and ECN before the fault");
    for _ in 0..2 {
        let remove = || ip(&addresses.change("del", addresses.near));
        let add = || ip(&addresses.change("add", addresses.near));
        transfer.outage(&|| path.passes(), SHORT, remove, add);
    }
    uses_gso_and_ecn("GSO and ECN after the client's address returned");
    far.ip(&addresses.change("add", addresses.spare));
    let remove = || far.ip(&addresses.change("del", addresses.far));
    let add = || far.ip(&addresses.change("add", addresses.far));
    transfer.outage(&|| path.passes(), SHORT, remove, add);
    uses_gso_and_ecn("GSO and ECN after the server's address returned");
    transfer.finish();
}

fn uses_gso_and_ecn(far: &FarHost, transfer: &Transfer, what: &str) {
    let seen = Capture::new(far, transfer.near.remote_addr());
    wait_until(what, || seen.has_gso_and_ecn());
}

/// Every kind of route that refuses packets, each with another error of the system; then no route.
pub(crate) fn route_flap(addresses: &'static Addresses) {
    let far = hosts();
    let Addresses { far: gateway, routed, .. } = addresses;
    let transfer = Transfer::start(&far, routed, Sender::Near);
    let path = Probe::new(&far, routed, LARGE);
    let route = format!("{routed} via {gateway}");
    for kind in ["unreachable", "prohibit", "blackhole", "throw"] {
        let refuse = || ip(&format!("route replace {kind} {routed}"));
        let restore = || {
            ip(&format!("route del {kind} {routed}"));
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
    transfer.resumes_in_time();
    uses_gso_and_ecn(&far, &transfer, "GSO and ECN after the route was restored");
    transfer.finish();
}

fn drop_all(hook: &str) {
    run("nft", "add table inet fault");
    run("nft", &format!("add chain inet fault every {{ type filter hook {hook} priority 0 ; }}"));
    run("nft", "add rule inet fault every drop");
}

fn drop_nothing() {
    run("nft", "delete table inet fault");
}

/// Packets dropped at the sender, whose calls fail with EPERM, and then at the receiver, without an error.
pub(crate) fn all_packets_dropped() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Near);
    let path = Probe::new(&far, FAR, LARGE);
    transfer.outage(&|| path.passes(), LONG, || drop_all("output"), drop_nothing);
    let begin = || far.run(move || drop_all("input"));
    transfer.outage(&|| path.passes(), LONG, begin, || far.run(drop_nothing));
    transfer.finish();
}

/// Packets dropped at the client while the server sends: its own, so that the server hears nothing, and then the
/// server's.
pub(crate) fn all_packets_dropped_at_receiver() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Far);
    let path = Probe::new(&far, FAR, LARGE);
    transfer.outage_of_answers(&|| path.passes(), SHORT, || drop_all("output"), drop_nothing);
    transfer.outage(&|| path.passes(), MEDIUM, || drop_all("input"), drop_nothing);
    transfer.finish();
}

/// At the sender, whose calls fail with EMSGSIZE, and then at the receiver, which drops the packets. Over IPv4
/// an MTU of 1,228 bytes suffices; one below 1,280 bytes ends IPv6 on the interface.
pub(crate) fn mtu_lowered(addresses: &'static Addresses) {
    let far = hosts();
    let mtu = if is_v6(addresses.near) { 1_300 } else { 1_250 };
    let lower = format!("link set wire mtu {mtu}");
    let raise = "link set wire mtu 1500";
    let passes = mtu - addresses.headers();
    let fall_and_rise = |largest, lower: &dyn Fn(), raise: &dyn Fn()| {
        attempt(|| mtu_falls_and_rises(&far, (addresses, Sender::Near), largest, lower, raise));
    };
    fall_and_rise(passes, &|| ip(&lower), &|| ip(raise));
    // A veth link lets packets pass that are a tag of VLAN longer, and does not check bursts with GSO.
    ip("link set wire gso_max_segs 1");
    fall_and_rise(passes + 4, &|| far.ip(&lower), &|| far.ip(raise));
}

/// At the client's interface, while the server sends: packets that are too large arrive from a link whose sender knows
/// nothing of it.
pub(crate) fn mtu_lowered_at_receiver(addresses: &'static Addresses) {
    let far = hosts();
    let mtu = if is_v6(addresses.near) { 1_300 } else { 1_250 };
    let lower = format!("link set wire mtu {mtu}");
    far.ip("link set wire gso_max_segs 1");
    let largest = mtu - addresses.headers() + 4;
    let (lower, raise) = (|| ip(&lower), || ip("link set wire mtu 1500"));
    attempt(|| mtu_falls_and_rises(&far, (addresses, Sender::Far), largest, &lower, &raise));
}

/// Returns how a new transfer goes on after a lower MTU, with packets of at most `largest` bytes. A higher
/// MTU stops nothing; a search finds it ten minutes later (`RAISE_INTERVAL` of `bats-proto`), too long for this test.
fn mtu_falls_and_rises(
    far: &FarHost,
    (addresses, sender): (&Addresses, Sender),
    largest: u16,
    lower: &dyn Fn(),
    raise: &dyn Fn(),
) -> Resumed {
    let transfer = Transfer::start(far, addresses.far, sender);
    let path_mtu = || transfer.sender.stats().path.mtu;
    // The search stops when the bounds are 16 bytes apart.
    let full = 1_500 - addresses.headers();
    wait_until("the path MTU is found", || (full - 16..=full).contains(&path_mtu()));
    let mut timeouts = transfer.timeouts();
    lower();
    wait_until("the path MTU falls", || {
        timeouts.look();
        path_mtu() <= largest
    });
    let resumed = transfer.resume(timeouts);
    raise();
    transfer.resumes_in_time();
    transfer.finish();
    resumed
}

/// Small packets pass, but no data. The log names the remedy. Over IPv4 only: IPv6 has no such MTU.
pub(crate) fn mtu_below_the_smallest() {
    let log = crate::host::Log::start();
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Near);
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
    let transfer = Transfer::start(&far, FAR, Sender::Near);
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
    to: SocketAddr,
}

impl Capture {
    fn new(far: &FarHost, to: SocketAddr) -> Self {
        let protocol: u16 = if to.is_ipv6() { 0x86dd } else { 0x0800 };
        let socket = far.run(move || {
            let protocol = Protocol::from(i32::from(protocol.to_be()));
            Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap()
        });
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        Self { socket, to }
    }

    /// Whether the next frame to the address's port has a mark of ECN-capable transport (RFC 3168) and is longer
    /// than the MTU: a burst that GSO joins, which a veth link does not split.
    fn has_gso_and_ecn(&self) -> bool {
        let mut frame = [0; 65_536];
        let Ok(length) = (&self.socket).read(&mut frame) else { return false };
        // After the Ethernet header, the header of IPv4 or IPv6 without options.
        let (protocol, marks, port) = match self.to.is_ipv6() {
            true => (frame[20], frame[15] >> 4, &frame[56..58]),
            false => (frame[23], frame[15], &frame[36..38]),
        };
        let is_to_port = protocol == 17 && port == self.to.port().to_be_bytes();
        is_to_port && marks & 3 != 0 && length > 1_514
    }
}
