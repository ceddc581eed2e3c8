//! Body of the fuzz target `node_control`; `tests/replay.rs` replays its corpus. Not part of the API.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bats_node::{NodeId, Plan};
use bats_tun::{HEADER, Offload, Packet};
use openbats::Mode;
use serde_json::Value;

use super::speedtest::Speedtests;
use super::trace::Message;
use super::tunnel::Lane;
use super::tunnel::format::{self, Content, Parts};
use super::{changes, control, echo};
use crate::channel::{Setup, ToKeeper, ToWorker};
use crate::config::Config;
use crate::control::{INTERFACE, MAX_CALL};
use crate::proxy::request::{Request, decode_datagram, encode_datagram};
use crate::proxy::target::Target;
use crate::proxy::{Parsed, http_connect, socks5};

/// A node with a link, a host and two peers, whose plan the calls change.
const NODE: &str = "\
[node]
id = '10.255.0.1'
relay = true
[[link]]
name = 'north'
remote = '192.0.2.7:4900'
fingerprint = '0707070707070707070707070707070707070707070707070707070707070707'
transit = true
[[link]]
name = 'south'
remote = 'node.example.org:4900'
fingerprint = '0808080808080808080808080808080808080808080808080808080808080808'
[[peer]]
id = '10.255.0.2'
fingerprint = '0909090909090909090909090909090909090909090909090909090909090909'
remote = '192.0.2.9:4900'
prefixes = ['10.66.0.2']
[[peer]]
id = '10.255.0.3'
fingerprint = '0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a'
prefixes = ['10.66.0.3']
[routes]
static = [{ to = '10.255.0.3', via = ['north', 'south'] }]
";
/// Answers to a message of a peer. The budget of answers allows far fewer at once.
const MAX_ANSWERS: u64 = 100;

/// What the bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlReport {
    /// Whether they are a call with valid parameters.
    pub is_call: bool,
    /// Whether they are a call that changes links or routes.
    pub is_change: bool,
    /// Packets and other parts of a message of the tunnel.
    pub parts: u32,
    /// Messages of traces and of the channel between the processes.
    pub messages: u32,
    /// Messages of programs at the proxy, and requests and datagrams of channels.
    pub requests: u32,
}

/// Parses `data` as every message that a local program or a peer may send to the worker: calls of the control socket,
/// messages of the tunnel, of links and of speed tests, and messages of SOCKS5, HTTP CONNECT and channels. What is
/// encoded here parses to the same; what is answered and stored is limited.
///
/// # Panics
/// A property is violated.
#[must_use]
pub fn node_control_run(data: &[u8]) -> ControlReport {
    let mut report = ControlReport::default();
    if data.len() <= MAX_CALL {
        take_call(data, &mut report);
    }
    take_tunnel_message(data, &mut report);
    if let Some(message) = Message::decode(data) {
        report.messages += 1;
        assert_eq!(message.encode(), data);
    }
    report.messages += u32::from(serde_json::from_slice::<ToKeeper>(data).is_ok());
    report.messages += u32::from(serde_json::from_slice::<ToWorker>(data).is_ok());
    if let Ok(setup) = serde_json::from_slice::<Setup>(data) {
        report.messages += 1;
        let encoded = serde_json::to_vec(&setup).expect("a setup can be encoded");
        let again: Setup = serde_json::from_slice(&encoded).expect("an encoded setup parses");
        assert!(setup.text == again.text && setup.path == again.path);
    }
    take_requests(data, &mut report);
    report
}

fn plan() -> &'static Plan {
    static PLAN: OnceLock<Plan> = OnceLock::new();
    PLAN.get_or_init(|| {
        let config = Config::parse(Path::new("node.toml"), NODE);
        config.unwrap_or_else(|error| panic!("{error}")).plan
    })
}

fn take_call(data: &[u8], report: &mut ControlReport) {
    let wants_events = control::wants_events(data);
    let (method, parameters) = match control::parse(data) {
        Ok(call) => call,
        Err(answer) => {
            assert!(!wants_events);
            return check_answer(&answer);
        }
    };
    let Some(name) = method.strip_prefix(INTERFACE).and_then(|rest| rest.strip_prefix('.')) else {
        return;
    };
    match name {
        "LinkAdd" | "LinkDel" | "RouteAdd" | "RouteDel" => {
            for relays in [false, true] {
                let changed = changes::parse(name, &parameters, relays).and_then(|change| {
                    report.is_call = true;
                    plan().with(&change).map_err(|error| error.to_string())
                });
                match changed {
                    Ok(plan) => {
                        report.is_change = true;
                        assert!(plan.check().is_ok(), "{plan:?}");
                    }
                    Err(reason) => assert!(!reason.is_empty()),
                }
            }
        }
        _ => match control::check_parameters(name, &parameters) {
            Ok(()) => report.is_call = true,
            Err(answer) => check_answer(&answer),
        },
    }
}

/// An error says why.
fn check_answer(answer: &Value) {
    let reason = answer["parameters"]["reason"].as_str();
    assert!(answer["error"].is_string() && reason.is_some_and(|reason| !reason.is_empty()));
}

fn take_tunnel_message(data: &[u8], report: &mut ControlReport) {
    // Accepted requests for speed tests start a task.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let _inside = runtime.enter();
    let peer = NodeId(Ipv4Addr::new(10, 255, 0, 2));
    let (lane, echoes) = (Arc::new(Lane::new(Mode::Brtp)), echo::Echoes::default());
    let speedtests = Speedtests::default();
    if let Ok(mut allowed) = speedtests.allowed.write() {
        *allowed = Arc::new([peer].into());
    }
    let (mut packets, mut count) = (Vec::new(), 0);
    let fed = Parts::default().feed(&mut data.to_vec(), usize::MAX, |content| {
        count += 1;
        match content {
            Content::Echo(echo) => echoes.take(peer, Some(&lane), echo),
            Content::Speedtest(message) => speedtests.take(peer, Some(&lane), message),
            Content::Packet(offload, bytes) => {
                packets.push(format::packet(offload, bytes));
                take_packet(offload, bytes);
            }
        }
    });
    report.parts += count;
    assert!(lane.queue_stats().packets <= MAX_ANSWERS, "{:?}", lane.queue_stats());
    // Wherever the bytes are cut, the packets are the same.
    let (mut parts, mut again, mut fed_again) = (Parts::default(), 0, Ok(0));
    for piece in data.chunks(1 + data.len() % 7) {
        let mut piece = piece.to_vec();
        fed_again = fed_again.and_then(|_| parts.feed(&mut piece, usize::MAX, |_| again += 1));
    }
    assert_eq!((fed, count), (fed_again, again));
    for mut packet in packets {
        let parsed = format::parse(&mut packet);
        assert!(matches!(parsed, Ok(Content::Packet(..))), "{parsed:?}");
    }
}

fn take_packet(offload: Offload, bytes: &[u8]) {
    let Some(packet) = Packet::parse(bytes) else { return };
    assert!(packet.payload <= bytes.len());
    let mut copy = bytes.to_vec();
    let header = offload.header_for(&mut copy);
    assert!(header.is_err() || copy.len() == bytes.len() && HEADER == 10);
    if let Ok(segments) = offload.segments(bytes) {
        let total: usize = segments.iter().map(Vec::len).sum();
        // A segment has 48 bytes of payload at least, and headers of 120 bytes at most.
        assert!(total <= 4 * bytes.len() + 256, "{total} of {} bytes", bytes.len());
    }
}

fn complete<T, E>(parsed: Result<Parsed<T>, E>, data: &[u8]) -> Option<T> {
    match parsed {
        Ok(Parsed::Complete(value, length)) => {
            assert!((1..=data.len()).contains(&length), "{length} of {}", data.len());
            Some(value)
        }
        Ok(Parsed::Incomplete) | Err(_) => None,
    }
}

fn take_requests(data: &[u8], report: &mut ControlReport) {
    if let Some(request) = complete(Request::decode(data), data) {
        report.requests += 1;
        let encoded = request.encode();
        assert_eq!(complete(Request::decode(&encoded), &encoded), Some(request));
    }
    if let Some((target, payload)) = complete(decode_datagram(data), data) {
        report.requests += 1;
        let encoded = encode_datagram(&target, &payload).expect("a datagram that was decoded");
        assert_eq!(complete(decode_datagram(&encoded), &encoded), Some((target, payload)));
    }
    let commands = [
        complete(socks5::greeting(data), data).is_some(),
        complete(socks5::credentials(data), data).is_some(),
    ];
    report.requests += commands.map(u32::from).iter().sum::<u32>();
    if let Some(command) = complete(socks5::command(data), data) {
        report.requests += 1;
        if let socks5::Command::Connect(target) = command {
            check_target(&target);
        }
    }
    if let Some((target, payload)) = socks5::datagram(data) {
        report.requests += 1;
        let encoded = socks5::encode_datagram(&target, payload);
        assert_eq!(socks5::datagram(&encoded), Some((target, payload)));
    }
    match http_connect::parse(data) {
        Ok(Parsed::Complete(connect, length)) => {
            report.requests += 1;
            assert!(length <= http_connect::MAX_HEAD && length <= data.len());
            check_target(&connect.target);
        }
        Ok(Parsed::Incomplete) => assert!(data.len() < http_connect::MAX_HEAD),
        Err(refusal) => assert!(http_connect::refuse(refusal).ends_with('\n')),
    }
}

/// A destination is written and encoded, and is the same again.
fn check_target(target: &Target) {
    assert_eq!(target.to_string().parse::<Target>().as_ref(), Ok(target));
    let mut encoded = Vec::new();
    target.encode(&mut encoded);
    assert_eq!(complete(Target::decode(&encoded), &encoded).as_ref(), Some(target));
}
