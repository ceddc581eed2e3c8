//! The control socket: Varlink calls of local programs.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bats_node::{Hop, NodeId};
use openbats::node::LinkStatus;
use openbats::{CloseReason, ConnectionStats, Fingerprint};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast::error::RecvError;

use super::clients::Clients;
use super::tunnel::{Lane, lock};
use super::{Worker, changes, drain, events, speedtest};
use crate::control::{DESCRIPTION, INTERFACE, MAX_CALL};

/// Time for a complete call to arrive, and for the client to read the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Serves clients until the process ends.
pub(super) fn serve(
    worker: Arc<Worker>,
    listener: std::os::unix::net::UnixListener,
) -> std::io::Result<impl Future<Output = ()> + Send> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    Ok(async move {
        let clients = Arc::new(Clients::default());
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Too many open descriptors: try again later.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
            match clients.enter(user, worker.reloads.may_change(user)) {
                Ok(place) => {
                    let worker = Arc::clone(&worker);
                    tokio::spawn(async move {
                        let _ = serve_client(&worker, user, stream).await;
                        drop(place);
                    });
                }
                // The buffer of a new connection has room for it. To read the call first would need a place, and to wait
                // for the event that it is writable, too.
                Err(reason) => _ = rustix::io::write(&stream, &encode(&error("Busy", reason))),
            }
        }
    })
}

async fn serve_client(worker: &Arc<Worker>, user: u32, stream: UnixStream) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut bytes = Vec::new();
        let mut limited = (&mut reader).take((MAX_CALL as u64).saturating_add(1));
        let read = tokio::time::timeout(TIMEOUT, limited.read_until(0, &mut bytes)).await;
        if read.map_err(std::io::Error::other)?? == 0 {
            return Ok(());
        }
        let is_whole = bytes.pop() == Some(0);
        if is_whole && wants_events(&bytes) {
            return send_events(worker, &mut reader, &mut writer).await;
        }
        let answer = match is_whole {
            true => answer(worker, user, &bytes).await,
            false => {
                invalid(format!("a call ends with a zero byte after at most {MAX_CALL} bytes"))
            }
        };
        send(&mut writer, answer).await?;
        if !is_whole {
            return Ok(());
        }
    }
}

fn encode(answer: &Value) -> Vec<u8> {
    format!("{answer}\0").into_bytes()
}

async fn send(writer: &mut OwnedWriteHalf, answer: Value) -> std::io::Result<()> {
    let bytes = encode(&answer);
    // It takes several times the memory of the bytes, which a client may read slowly.
    drop(answer);
    let written = tokio::time::timeout(TIMEOUT, writer.write_all(&bytes)).await;
    written.map_err(std::io::Error::other)?
}

/// Whether this call asks for events until the client closes.
pub(super) fn wants_events(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes).is_ok_and(|call| {
        let method = call.get("method").and_then(Value::as_str);
        let is_stream = call.get("more") == Some(&Value::Bool(true));
        is_stream && method.and_then(|name| name.strip_prefix(INTERFACE)) == Some(".Events")
    })
}

/// Sends the recent events, and new ones as they happen, until the client closes or sends something.
async fn send_events(
    worker: &Worker,
    reader: &mut BufReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
) -> std::io::Result<()> {
    let (mut events, mut new) = worker.events.follow();
    loop {
        let answer = json!({ "parameters": { "events": events }, "continues": true });
        send(writer, answer).await?;
        let event = tokio::select! {
            event = new.recv() => event,
            _ = reader.read_u8() => return Ok(()),
        };
        events = match event {
            Ok(event) => vec![event],
            Err(RecvError::Lagged(count)) => vec![events::missed(count)],
            Err(RecvError::Closed) => return Ok(()),
        };
    }
}

fn error(name: &str, reason: impl Into<String>) -> Value {
    json!({ "error": format!("{INTERFACE}.{name}"), "parameters": { "reason": reason.into() } })
}

fn invalid(reason: impl Into<String>) -> Value {
    error("Invalid", reason)
}

async fn answer(worker: &Arc<Worker>, user: u32, bytes: &[u8]) -> Value {
    let (method, call_parameters) = match parse(bytes) {
        Ok(call) => call,
        Err(answer) => return answer,
    };
    let (interface, name) = method.rsplit_once('.').unwrap_or(("", &method));
    let parameters = match (interface, name) {
        ("org.varlink.service", "GetInfo") => json!({
            "vendor": "OpenBATS", "product": "batsd", "version": env!("CARGO_PKG_VERSION"),
            "url": env!("CARGO_PKG_REPOSITORY"), "interfaces": ["org.varlink.service", INTERFACE],
        }),
        ("org.varlink.service", "GetInterfaceDescription") => json!({ "description": DESCRIPTION }),
        (INTERFACE, "Status") => json!({ "status": status(worker) }),
        (INTERFACE, "Links") => json!({ "links": links(worker) }),
        (INTERFACE, "Peers") => json!({ "peers": peers(worker) }),
        (INTERFACE, "Sessions") => json!({ "sessions": sessions(worker) }),
        (INTERFACE, "Flows") => json!({ "flows": flows(worker) }),
        (INTERFACE, "Routes") => routes(worker),
        (INTERFACE, "Channels") => json!({ "channels": worker.services.channels() }),
        (INTERFACE, "Ping") => {
            let (node, is_stream) = match ping_parameters(&call_parameters) {
                Ok(parameters) => parameters,
                Err(answer) => return answer,
            };
            match worker.echoes.ping(worker, node, is_stream).await {
                Ok(time) => json!({ "rtt_ms": time.as_secs_f64() * 1e3 }),
                Err(reason) => return error("Unanswered", reason),
            }
        }
        (INTERFACE, "Trace") => {
            let node = match node_of(&call_parameters) {
                Ok(node) => node,
                Err(answer) => return answer,
            };
            match worker.traces.run(worker, node).await {
                Ok(result) => result,
                Err(reason) => return error("Unanswered", reason),
            }
        }
        (INTERFACE, "Events") => json!({ "events": worker.events.recent() }),
        (INTERFACE, "Metrics") => json!({ "text": metrics(worker) }),
        (
            INTERFACE,
            "Reload" | "LinkAdd" | "LinkDel" | "RouteAdd" | "RouteDel" | "Speedtest" | "Drain",
        ) if !worker.reloads.may_change(user) => {
            return error("Denied", "changes need root or the user of batsd: use sudo");
        }
        (INTERFACE, "Reload") => match worker.reloads.request().await {
            Ok(()) => json!({}),
            Err(reason) => return invalid(reason),
        },
        (INTERFACE, "Speedtest") => match speedtest(worker, &call_parameters).await {
            Ok(result) => result,
            Err(answer) => return answer,
        },
        (INTERFACE, "Drain") => {
            let time = match drain_time(&call_parameters) {
                Ok(time) => time,
                Err(answer) => return answer,
            };
            match drain::begin(worker, time) {
                Ok(result) => match result.await {
                    Ok(result) => result,
                    Err(_) => return error("Busy", "the node ends"),
                },
                Err(reason) => return error("Busy", reason),
            }
        }
        (INTERFACE, "LinkAdd" | "LinkDel" | "RouteAdd" | "RouteDel") => {
            let changed = changes::parse(name, &call_parameters, worker.relays)
                .and_then(|change| worker.change(&change));
            match changed {
                Ok(()) => json!({}),
                Err(reason) => return invalid(reason),
            }
        }
        _ => {
            return json!({
                "error": "org.varlink.service.MethodNotFound",
                "parameters": { "method": method.chars().take(100).collect::<String>() },
            });
        }
    };
    json!({ "parameters": parameters })
}

/// The method and the parameters of a call, or the answer to what is none.
pub(super) fn parse(bytes: &[u8]) -> Result<(String, Value), Value> {
    let mut call: Value =
        serde_json::from_slice(bytes).map_err(|error| invalid(format!("not JSON: {error}")))?;
    let Some(method) = call.get("method").and_then(Value::as_str).map(str::to_owned) else {
        return Err(invalid("a call is {\"method\": NAME, \"parameters\": {}}"));
    };
    let parameters = call.get_mut("parameters").map(Value::take).unwrap_or_default();
    Ok((method, parameters))
}

fn node_of(parameters: &Value) -> Result<NodeId, Value> {
    match parameters["node"].as_str().map(str::parse::<Ipv4Addr>) {
        Some(Ok(node)) => Ok(NodeId(node)),
        _ => Err(invalid("`node` is the ID of a node, written like an IPv4 address")),
    }
}

/// The node, and whether the reliable session is meant.
fn ping_parameters(parameters: &Value) -> Result<(NodeId, bool), Value> {
    let node = node_of(parameters)?;
    match parameters["class"].as_str() {
        Some("stream") => Ok((node, true)),
        None | Some("datagram") => Ok((node, false)),
        Some(_) => Err(invalid("`class` is `stream` or `datagram`")),
    }
}

fn drain_time(parameters: &Value) -> Result<Duration, Value> {
    let (seconds, most) = (parameters["seconds"].as_f64().unwrap_or(-1.0), drain::MAX_SECONDS);
    match (0.0..=most).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(invalid(format!("`seconds` is a number from 0 to {most}"))),
    }
}

/// The node, whether this one sends, and for how long.
fn speedtest_parameters(parameters: &Value) -> Result<(NodeId, bool, Duration), Value> {
    let node = node_of(parameters)?;
    let sends = match parameters["direction"].as_str() {
        Some("out") => true,
        Some("in") => false,
        _ => return Err(invalid("`direction` is `out` or `in`")),
    };
    let most = speedtest::MAX_SECONDS;
    let seconds = parameters["seconds"].as_u64().filter(|seconds| (1..=most).contains(seconds));
    let Some(seconds) = seconds else {
        return Err(invalid(format!("`seconds` is a whole number from 1 to {most}")));
    };
    Ok((node, sends, Duration::from_secs(seconds)))
}

/// Whether the parameters of a call of a method of the node other than changes are valid.
pub(super) fn check_parameters(name: &str, parameters: &Value) -> Result<(), Value> {
    match name {
        "Ping" => ping_parameters(parameters).map(drop),
        "Trace" => node_of(parameters).map(drop),
        "Drain" => drain_time(parameters).map(drop),
        "Speedtest" => speedtest_parameters(parameters).map(drop),
        _ => Ok(()),
    }
}

async fn speedtest(worker: &Worker, parameters: &Value) -> Result<Value, Value> {
    let (node, sends, duration) = speedtest_parameters(parameters)?;
    let run = worker.speedtests.run(worker, node, sends, duration).await;
    run.map_err(|reason| error("Unanswered", reason))
}

fn status(worker: &Worker) -> Value {
    let stats = worker.node.relay_stats();
    let tun = worker.port.as_ref().map(|port| {
        let (counters, level) =
            (&port.counters, format!("{:?}", *lock(&port.level)).to_lowercase());
        json!({
            "offload": level,
            "packets_read": counters.read.load(Relaxed),
            "bytes_read": counters.read_bytes.load(Relaxed),
            "packets_written": counters.written.load(Relaxed),
            "bytes_written": counters.written_bytes.load(Relaxed),
            "dropped_no_owner": counters.no_owner.load(Relaxed),
            "dropped_foreign_source": counters.foreign_source.load(Relaxed),
            "dropped_malformed": counters.malformed.load(Relaxed),
            "refused_by_kernel": counters.refused_by_kernel.load(Relaxed),
            "segmented_here": counters.segmented_here.load(Relaxed),
        })
    });
    json!({
        "state": if worker.services.is_draining() { "draining" } else { "started" },
        "id": lock(&worker.plan).id,
        "fingerprint": worker.node.fingerprint().map(|print| format!("sha256:{print}")),
        "version": env!("CARGO_PKG_VERSION"),
        "worker_pid": std::process::id(),
        "worker_seconds": worker.started.elapsed().as_secs_f64(),
        "sandbox": {
            "file_system": worker.sandbox.file_system,
            "system_calls": worker.sandbox.system_calls,
        },
        "listen": worker.node.local_addrs().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "tun": tun,
        "services": worker.services.status(),
        "relay": {
            "forwarded": stats.forwarded, "top_ups": stats.top_ups, "extras": stats.extras,
            "delivered": stats.delivered, "non_innovative": stats.dropped.non_innovative,
            "refused": stats.dropped.refused, "unroutable": stats.dropped.unroutable,
        },
    })
}

fn traffic(stats: &ConnectionStats) -> Value {
    json!({
        "rtt_ms": stats.path.smoothed_rtt.as_secs_f64() * 1e3,
        "loss": stats.path.loss_estimate,
        "code_rate": stats.coding.code_rate,
        "delivery_bps": stats.congestion.delivery_bps,
        "cwnd_bytes": stats.congestion.cwnd_bytes,
        "in_flight_bytes": stats.congestion.in_flight_bytes,
        "send_buffer_bytes": stats.buffers.send_bytes,
        "limited_by": stats.congestion.limited_by,
        "bytes_sent": stats.packets.bytes_sent,
        "bytes_received": stats.packets.bytes_received,
        "packets_sent": stats.packets.sent,
        "packets_received": stats.packets.received,
        "packets_lost": stats.packets.lost,
        "messages_sent": stats.messages.sent,
        "messages_received": stats.messages.received,
        "mtu": stats.path.mtu,
    })
}

/// The links with their names: those that neighbours opened have none.
fn named_links(worker: &Worker) -> Vec<(Option<String>, LinkStatus)> {
    let list = worker.node.links().list();
    let control = lock(&worker.links);
    let name = |link: &LinkStatus| control.name(link.id.as_u64()).map(str::to_owned);
    list.into_iter().map(|link| (name(&link), link)).collect()
}

fn links(worker: &Worker) -> Vec<Value> {
    let hosts = worker.names.list();
    let describe = |(name, link): (Option<String>, LinkStatus)| {
        let advice = |reason: &CloseReason| worker.recorded.advice(name.as_deref()?, reason);
        let advice = link.last_end.as_ref().and_then(advice);
        let ended = link.last_end.map(|reason| reason.to_string());
        let unresolved = name.as_ref().and_then(|name| hosts.get(name)?.error.clone());
        let ends: Vec<String> = ended.into_iter().chain(advice).chain(unresolved).collect();
        json!({
            "name": name,
            "state": format!("{:?}", link.state).to_lowercase(),
            "opened_here": link.is_opened_here,
            "remote": link.remote.to_string(),
            "interface": link.interface,
            "fingerprint": link.fingerprint.map(|print| format!("sha256:{print}")),
            "first_use": name.as_ref().is_some_and(|name| worker.recorded.has(name)),
            "established": link.established,
            "last_end": (!ends.is_empty()).then(|| ends.join("; ")),
            "traffic": link.stats.as_ref().map(traffic),
        })
    };
    let without_address = hosts.iter().filter(|(_, host)| host.address.is_none());
    let waiting = without_address.map(|(name, host)| {
        json!({
            "name": name,
            "state": "waiting",
            "opened_here": true,
            "remote": host.link.host.to_string(),
            "interface": host.link.interface,
            "fingerprint": format!("sha256:{}", Fingerprint(host.link.fingerprint)),
            "first_use": worker.recorded.has(name),
            "established": 0,
            "last_end": host.error,
            "traffic": null,
        })
    });
    let unknown = worker.recorded.waiting().into_iter().map(|entry| {
        json!({
            "name": entry.link,
            "state": "waiting",
            "opened_here": true,
            "remote": entry.name(),
            "interface": entry.interface,
            "fingerprint": null,
            "first_use": true,
            "established": 0,
            "last_end": "the neighbour is asked for its certificate, which the configuration does not have",
            "traffic": null,
        })
    });
    let links = named_links(worker).into_iter().map(describe);
    links.chain(waiting).chain(unknown).collect()
}

fn peers(worker: &Worker) -> Vec<Value> {
    let (plan, table) = (lock(&worker.plan).clone(), worker.table());
    let describe = |(id, peer): (&bats_node::NodeId, &bats_node::Peer)| {
        let lane = |lane: &Lane| match (&*lock(&lane.session), &*lock(&lane.last_error)) {
            (Some(_), _) => "open".to_owned(),
            (None, Some(error)) => error.clone(),
            (None, None) => "opening".to_owned(),
        };
        let lanes = table.lanes.get(id);
        json!({
            "id": id,
            "fingerprint": format!("sha256:{}", Fingerprint(peer.fingerprint)),
            "prefixes": peer.prefixes,
            "link_local": table.has_link_local.then(|| bats_node::link_local(*id)),
            "neighbour": table.neighbours.contains(id),
            "stream": lanes.map(|lanes| lane(&lanes.stream)),
            "datagram": lanes.map(|lanes| lane(&lanes.datagram)),
        })
    };
    plan.peers.iter().map(describe).collect()
}

/// The link whose session transports the packets of a lane.
fn over_link(worker: &Worker, lane: &Lane) -> Option<Value> {
    let used = lane.used()?;
    let (name, link) = named_links(worker).into_iter().find(|(_, link)| link.id == used.link.0)?;
    let name = name.unwrap_or_else(|| link.remote.to_string());
    Some(json!({ "link": name, "traffic": traffic(&used.session.stats()) }))
}

fn sessions(worker: &Worker) -> Vec<Value> {
    let mut list = Vec::new();
    for (id, lanes) in &worker.table().lanes {
        for (class, lane) in [("stream", &lanes.stream), ("datagram", &lanes.datagram)] {
            let Some(session) = lock(&lane.session).clone() else { continue };
            let queue = lane.queue_stats();
            list.push(json!({
                "peer": id, "class": class, "direction": "out", "traffic": traffic(&session.stats()),
                "over_link": over_link(worker, lane),
                "queue": {
                    "packets": queue.packets, "bytes": queue.bytes, "dropped": queue.dropped,
                    "marked": queue.marked, "overflowed": queue.overflowed,
                    "delay_ms": queue.delay.as_secs_f64() * 1e3,
                },
            }));
        }
    }
    for ((id, is_stream), (session, _)) in lock(&worker.inbound).iter() {
        if session.close_reason().is_none() {
            let class = if *is_stream { "stream" } else { "datagram" };
            let traffic = traffic(&session.stats());
            list.push(json!({ "peer": id, "class": class, "direction": "in", "traffic": traffic }));
        }
    }
    list
}

/// The flows of sessions that this node sends, receives or relays.
fn flows(worker: &Worker) -> Vec<Value> {
    let node = |id: openbats::node::NodeId| Ipv4Addr::from_bits(id.0).to_string();
    let describe = |flow: openbats::node::FlowStatus| {
        json!({
            "source": node(flow.key.source), "destination": node(flow.key.destination),
            "flow": flow.key.flow,
            "packets_received": flow.packets_received, "bytes_received": flow.bytes_received,
            "packets_sent": flow.packets_sent, "bytes_sent": flow.bytes_sent,
            "queued": flow.queued, "bytes_held": flow.bytes_held, "unreported": flow.unreported,
            "idle_seconds": flow.idle.as_secs_f64(),
        })
    };
    worker.node.flows().into_iter().map(describe).collect()
}

fn routes(worker: &Worker) -> Value {
    let plan = lock(&worker.plan).clone();
    let names = named_links(worker);
    let control = lock(&worker.links).clone();
    let state = control.state();
    let ((found, fib), follows_kernel) = (control.kernel(), worker.kernel.is_followed());
    let names_of_interfaces = std::os::unix::net::UnixDatagram::unbound();
    let mut list = Vec::new();
    for (to, hops) in &state.routes {
        let via = hops.iter().map(|(hop, tier)| match hop {
            Hop::Link(name) => json!({ "link": name, "tier": tier }),
            Hop::Neighbour(print) => {
                json!({ "neighbour": format!("sha256:{}", Fingerprint(*print)), "tier": tier })
            }
            Hop::Accepted(number) => {
                let from = state.accepted.get(number).map(|link| link.address);
                json!({ "from": from, "tier": tier })
            }
        });
        let via: Vec<Value> = via.collect();
        let in_use: Vec<String> = worker
            .node
            .routes()
            .links_to(super::library_id(*to))
            .into_iter()
            .map(|(id, _)| match names.iter().find(|(_, link)| link.id == id) {
                Some((Some(name), _)) => name.clone(),
                Some((None, link)) => link.remote.to_string(),
                None => id.to_string(),
            })
            .collect();
        let is_fixed = plan.routes.contains_key(to);
        let source = if is_fixed { "static" } else { "kernel" };
        list.push(json!({ "to": to, "source": source, "via": via, "in_use": in_use }));
    }
    let interface = |index: u32| {
        let name = names_of_interfaces
            .as_ref()
            .ok()
            .and_then(|socket| rustix::net::netdevice::index_to_name(socket, index).ok());
        name.unwrap_or_else(|| format!("interface {index}"))
    };
    let mut ignored = Vec::new();
    for (to, reasons) in found.ignored.iter().filter(|(to, _)| !plan.routes.contains_key(*to)) {
        for reason in reasons {
            let hop = reason.hop();
            ignored.push(json!({
                "to": to,
                "gateway": hop.and_then(|hop| hop.gateway),
                "interface": hop.map(|hop| interface(hop.interface)),
                "reason": reason.to_string(),
            }));
        }
    }
    let prefixes = plan.peers.iter().flat_map(|(id, peer)| {
        peer.prefixes.iter().map(move |prefix| json!({ "prefix": prefix, "node": id }))
    });
    json!({
        "routes": list, "kernel": follows_kernel, "ignored": ignored,
        "left_out": fib.left_out, "unreadable": fib.unreadable,
        "prefixes": prefixes.collect::<Vec<_>>(),
    })
}

/// Prometheus' text format. Labels name links and peers, never flows, so the configuration
/// bounds their number.
fn metrics(worker: &Worker) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        let _ = writeln!(text, "# HELP bats_{name} {help}\n# TYPE bats_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "bats_{name}{{{labels}}} {value}");
        }
    };
    let links = named_links(worker);
    let of_links = |value: &dyn Fn(&LinkStatus) -> Option<f64>| -> Vec<(String, f64)> {
        let sample = |(name, link): &(Option<String>, LinkStatus)| {
            let name = name.clone().unwrap_or_else(|| format!("from {}", link.remote));
            Some((format!("link=\"{name}\""), value(link)?))
        };
        links.iter().filter_map(sample).collect()
    };
    let of_stats =
        |value: fn(&ConnectionStats) -> f64| of_links(&|link| link.stats.as_ref().map(value));
    let is_up =
        |link: &LinkStatus| Some(f64::from(u8::from(link.state == openbats::node::LinkState::Up)));
    family("link_up", "gauge", "Whether the link is established and answers.", of_links(&is_up));
    let rtt = of_stats(|stats| stats.path.smoothed_rtt.as_secs_f64());
    family("link_rtt_seconds", "gauge", "Smoothed RTT.", rtt);
    family(
        "link_loss_ratio",
        "gauge",
        "Estimate of the loss.",
        of_stats(|stats| stats.path.loss_estimate),
    );
    let sent = of_stats(|stats| stats.packets.bytes_sent as f64);
    family("link_sent_bytes", "gauge", "Bytes sent since the link was established.", sent);
    let received = of_stats(|stats| stats.packets.bytes_received as f64);
    family(
        "link_received_bytes",
        "gauge",
        "Bytes received since the link was established.",
        received,
    );
    let table = worker.table();
    let lanes = || {
        table.lanes.iter().flat_map(|(id, lanes)| {
            [("stream", &lanes.stream), ("datagram", &lanes.datagram)]
                .map(|(class, lane)| (format!("peer=\"{id}\",class=\"{class}\""), lane))
        })
    };
    let open = |(labels, lane): (String, &Arc<Lane>)| {
        (labels, f64::from(u8::from(lock(&lane.session).is_some())))
    };
    family("session_up", "gauge", "Whether the session is open.", lanes().map(open).collect());
    let code_rate = lanes().filter_map(|(labels, lane)| {
        let session = lock(&lane.session).clone()?;
        Some((labels, session.stats().coding.code_rate))
    });
    let help = "Source symbols per coded packet sent.";
    family("session_code_rate", "gauge", help, code_rate.collect());
    let stats = worker.node.relay_stats();
    let relayed = [
        ("forwarded", stats.forwarded),
        ("top_up", stats.top_ups),
        ("extra", stats.extras),
        ("delivered", stats.delivered),
        ("non_innovative", stats.dropped.non_innovative),
        ("refused", stats.dropped.refused),
        ("unroutable", stats.dropped.unroutable),
    ];
    let sample = |(fate, value): (&str, u64)| (format!("fate=\"{fate}\""), value as f64);
    let help = "Packets of the relay.";
    family("relay_packets_total", "counter", help, relayed.map(sample).into());
    let queue = |value: fn(bats_node::QueueStats) -> f64| {
        lanes().map(|(labels, lane)| (labels, value(lane.queue_stats()))).collect::<Vec<_>>()
    };
    let delay = queue(|queue| queue.delay.as_secs_f64());
    family("queue_delay_seconds", "gauge", "Time that the last packet has waited.", delay);
    let dropped = queue(|queue| queue.dropped.saturating_add(queue.overflowed) as f64);
    family("queue_dropped_packets_total", "counter", "Packets dropped by the queue.", dropped);
    let marked = queue(|queue| queue.marked as f64);
    family("queue_marked_packets_total", "counter", "Packets marked with CE by the queue.", marked);
    if let Some(port) = &worker.port {
        let counters = &port.counters;
        let values = [
            ("read", &counters.read),
            ("written", &counters.written),
            ("no_owner", &counters.no_owner),
            ("foreign_source", &counters.foreign_source),
            ("malformed", &counters.malformed),
            ("refused_by_kernel", &counters.refused_by_kernel),
        ];
        let sample = |(fate, value): (&str, &std::sync::atomic::AtomicU64)| {
            (format!("fate=\"{fate}\""), value.load(Relaxed) as f64)
        };
        family(
            "tun_packets_total",
            "counter",
            "Packets of the TUN device.",
            values.map(sample).into(),
        );
    }
    text
}
