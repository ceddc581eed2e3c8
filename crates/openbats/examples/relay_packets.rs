//! Packets per processor second: a relay between two nodes, next to a plain forwarder of UDP datagrams with
//! GRO and GSO, alternating in the same run over loopback.
//!
//!     cargo run --release -p openbats --example relay_packets [SECONDS] [ROUNDS]
//!
//! The measured node is this process; the ends run in processes of their own, so that its processor time
//! is that of the relay. `recoding` has links that lose a twentieth of all packets (by emulated links in the
//! processes of the ends), so the relay recodes. Packets are those that leave the measured process. The figures
//! are medians with their range over the rounds (5 by default, of 3 s each). The exit code is 1 if a median is
//! below its goal.

#[path = "emulated/mod.rs"]
#[expect(dead_code, reason = "no link is cut here")]
mod emulated;

use std::io::{BufRead, BufReader, IoSliceMut, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use emulated::{EmulatedLink, lossy};
use openbats::node::{LinkOptions, LinkPolicy, Node, NodeId, RouteSet};
use openbats::{ClientOptions, Fingerprint, Identity, Trust, Wait};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const SOURCE: NodeId = NodeId(1);
const RELAY: NodeId = NodeId(2);
const SINK: NodeId = NodeId(3);
/// Time in which the rate of a transfer rises before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// Size of the messages and of the datagrams of the plain forwarder in bytes.
const MESSAGE: usize = 64 << 10;
const DATAGRAM: usize = 1_400;
/// Datagrams of one send call: what GSO and one IP packet allow.
const SEGMENTS: usize = 46;
/// Buffers of a receive call, as many as the driver of OpenBATS has.
const BUFFERS: usize = 16;
/// Goals: fractions of the packets of the forwarder for each processor second.
const FORWARDING_GOAL: f64 = 0.25;
const RECODING_GOAL: f64 = 0.15;

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Processor time of this process in seconds.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// An end in a process of its own; it is ended with this value.
struct End {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl End {
    fn start(role: &str) -> Result<Self> {
        let program = std::env::current_exe().context("no path of this program")?;
        let mut child = Command::new(program)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the {role}"))?;
        let input = child.stdin.take().context("no standard input")?;
        let output = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, input, output })
    }

    fn read(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            bail!("an end has stopped: see its error above");
        }
        Ok(line.trim().to_owned())
    }

    fn write(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }
}

/// Reads a line from the measured process.
fn words() -> Result<Vec<String>> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}

/// A link to the relay: direct, or through an emulated link that lasts as long as the value.
fn open_link(
    node: &Node,
    relay: SocketAddr,
    print: Fingerprint,
    loss: f64,
) -> Result<(Option<EmulatedLink>, openbats::node::Link)> {
    let path = if loss > 0.0 {
        let config = lossy(1_000, Duration::from_millis(2), loss);
        Some(EmulatedLink::start(relay, &config, node.id().0.into())?)
    } else {
        None
    };
    let to = path.as_ref().map_or(relay, EmulatedLink::address);
    let link = node.links().open(LinkOptions::new(to, Trust::fingerprint(print)))?;
    link.established().wait()?;
    Ok((path, link))
}

/// The process of an end: prints its fingerprint, reads `RELAY FINGERPRINT PEER_FINGERPRINT LOSS`, prints
/// `ready`, and runs until it is ended.
fn run_end(id: NodeId, peer: NodeId) -> Result<()> {
    let identity = Identity::generate(&["end"])?;
    println!("{}", identity.fingerprint());
    let words = words()?;
    let [relay, relay_print, peer_print, loss] = words.as_slice() else { bail!("four words") };
    let (relay_print, peer_print): (Fingerprint, Fingerprint) =
        (relay_print.parse()?, peer_print.parse()?);
    let node = Node::builder(id, identity).peer(peer, peer_print).start()?;
    let (_path, link) = open_link(&node, relay.parse()?, relay_print, loss.parse()?)?;
    node.routes().replace(RouteSet::new().to(peer, link.id()))?;
    println!("ready");
    if id == SINK {
        let receiver = node.accept().wait()?;
        while receiver.recv().wait()?.is_some() {}
        return Ok(());
    }
    let options = ClientOptions::new(Trust::fingerprint(peer_print));
    let sender = node.connect_node(peer, "end", options).wait()?;
    println!("connected");
    let message = bytes::Bytes::from(vec![0x5a; MESSAGE]);
    loop {
        sender.send(message.clone()).wait()?;
    }
}

/// Packets per processor second of a relay between two nodes.
fn relay(length: Duration, loss: f64) -> Result<f64> {
    let identity = Identity::generate(&["relay"])?;
    let print = identity.fingerprint();
    let mut ends = [End::start("source")?, End::start("sink")?];
    let prints: [Fingerprint; 2] = [ends[0].read()?.parse()?, ends[1].read()?.parse()?];
    let node = Node::builder(RELAY, identity)
        .listen("127.0.0.1:0".parse()?)
        .relaying(true)
        .neighbour(prints[0], LinkPolicy::transit())
        .neighbour(prints[1], LinkPolicy::transit())
        .start()?;
    node.routes().replace(RouteSet::new().to(SOURCE, prints[0]).to(SINK, prints[1]))?;
    let address = node.local_addrs()[0];
    // The sink first: its link must be there when the source connects.
    for (end, peer) in [(1, 0), (0, 1)] {
        ends[end].write(&format!("{address} {print} {} {loss}", prints[peer]))?;
        let answer = ends[end].read()?;
        if answer != "ready" {
            bail!("unexpected answer of an end: {answer}");
        }
    }
    ends[0].read()?;
    std::thread::sleep(WARM_UP);
    let sent = || {
        let stats = node.relay_stats();
        stats.forwarded + stats.top_ups + stats.extras
    };
    let (packets, time) = (sent(), processor_seconds());
    std::thread::sleep(length);
    Ok((sent() - packets) as f64 / (processor_seconds() - time))
}

/// Sends datagrams to the address that the measured process names, until it is ended.
fn run_load() -> Result<()> {
    let to: SocketAddr = words()?.first().context("no address")?.parse()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let state = UdpSocketState::new((&socket).into())?;
    let contents = vec![0x5a; DATAGRAM * SEGMENTS.min(state.max_gso_segments().max(1))];
    loop {
        send(&socket, &state, to, &contents, DATAGRAM)?;
    }
}

/// Receives datagrams until it is ended.
fn run_drain() -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    println!("{}", socket.local_addr()?);
    let state = UdpSocketState::new((&socket).into())?;
    let mut buffers = Buffers::new();
    loop {
        buffers.receive(&socket, &state)?;
    }
}

/// Waits until the socket is ready; at most 100 ms.
fn wait(socket: &UdpSocket, flags: PollFlags) -> Result<()> {
    let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    poll(&mut [PollFd::new(socket, flags)], Some(&limit))?;
    Ok(())
}

fn send(
    socket: &UdpSocket,
    state: &UdpSocketState,
    destination: SocketAddr,
    contents: &[u8],
    size: usize,
) -> Result<()> {
    let segment_size = (contents.len() > size).then_some(size);
    let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
    loop {
        match state.try_send(socket.into(), &transmit) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                wait(socket, PollFlags::OUT)?;
            }
            other => return Ok(other?),
        }
    }
}

/// Receive buffers for datagrams that GRO has coalesced.
struct Buffers {
    bytes: Vec<u8>,
    metas: [RecvMeta; BUFFERS],
    count: usize,
}

impl Buffers {
    fn new() -> Self {
        Self { bytes: vec![0; BUFFERS << 16], metas: [RecvMeta::default(); BUFFERS], count: 0 }
    }

    /// Receives once, after at most 100 ms; nothing may have arrived by then.
    fn receive(&mut self, socket: &UdpSocket, state: &UdpSocketState) -> Result<()> {
        let mut parts = self.bytes.chunks_exact_mut(1 << 16);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        self.count = 0;
        match state.recv(socket.into(), &mut slices, &mut self.metas) {
            Ok(count) => self.count = count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                wait(socket, PollFlags::IN)?;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// What the last call received: bytes, and the size of the datagrams in them.
    fn received(&self) -> impl Iterator<Item = (&[u8], usize)> {
        let parts = self.bytes.chunks_exact(1 << 16);
        parts.zip(&self.metas[..self.count]).map(|(part, meta)| (&part[..meta.len], meta.stride))
    }
}

/// Packets per processor second of a forwarder that does nothing else.
fn forwarder(length: Duration) -> Result<f64> {
    let mut sink = End::start("drain")?;
    let to: SocketAddr = sink.read()?.parse()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let state = UdpSocketState::new((&socket).into())?;
    let mut source = End::start("load")?;
    source.write(&socket.local_addr()?.to_string())?;
    let mut buffers = Buffers::new();
    let mut forward = |time: Duration| -> Result<u64> {
        let (start, mut packets) = (now(), 0);
        while start.elapsed() < time {
            buffers.receive(&socket, &state)?;
            for (contents, size) in buffers.received() {
                send(&socket, &state, to, contents, size)?;
                packets += contents.len().div_ceil(size.max(1)) as u64;
            }
        }
        Ok(packets)
    };
    forward(WARM_UP)?;
    let time = processor_seconds();
    let packets = forward(length)?;
    Ok(packets as f64 / (processor_seconds() - time))
}

/// Median and range of at least one value.
fn spread(mut values: Vec<f64>) -> (f64, String) {
    values.sort_by(f64::total_cmp);
    let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
    (median, format!("{median:.3} ({:.3} to {:.3})", values[0], values[values.len() - 1]))
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("source") => return run_end(SOURCE, SINK).map(|()| ExitCode::SUCCESS),
        Some("sink") => return run_end(SINK, SOURCE).map(|()| ExitCode::SUCCESS),
        Some("load") => return run_load().map(|()| ExitCode::SUCCESS),
        Some("drain") => return run_drain().map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let mut numbers = arguments
        .iter()
        .map(|text| text.parse::<u64>().with_context(|| format!("'{text}' is not a number")));
    let length = Duration::from_secs(numbers.next().unwrap_or(Ok(3))?.max(1));
    let rounds = numbers.next().unwrap_or(Ok(5))?.max(1);
    let mut all: [Vec<f64>; 3] = Default::default();
    for round in 1..=rounds {
        let figures =
            [relay(length, 0.0)?, relay(length, 0.05)?, forwarder(length)?].map(|one| one / 1e6);
        let [forwarding, recoding, plain] = figures;
        println!(
            "{round} million packets per processor second: forwarding {forwarding:.3}, recoding \
             {recoding:.3}, plain forwarder {plain:.3}"
        );
        for (values, figure) in all.iter_mut().zip(figures) {
            values.push(figure);
        }
    }
    println!(
        "median (minimum to maximum) of {rounds} rounds, million packets per processor second:"
    );
    let mut is_good = true;
    for (index, name) in ["forwarding", "recoding", "plain forwarder"].into_iter().enumerate() {
        let (_, text) = spread(all[index].clone());
        println!("  {name:<16} {text}");
    }
    for (index, name, goal) in [(0, "forwarding", FORWARDING_GOAL), (1, "recoding", RECODING_GOAL)]
    {
        let ratios = all[index].iter().zip(&all[2]).map(|(ours, plain)| ours / plain).collect();
        let (median, text) = spread(ratios);
        println!("  {name} / plain forwarder {text}, goal {goal}");
        is_good &= median >= goal;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
