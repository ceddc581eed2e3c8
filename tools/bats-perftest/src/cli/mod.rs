//! Command line of a test.

pub(crate) mod spelling;
pub(crate) mod table;
mod values;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use openbats::{Fingerprint, Goal, Mode};

use crate::ports;
use crate::wire::HEADER;
use spelling::{Given, Role};
pub(crate) use values::TRUST;

/// Largest sample of a connection in bytes: a message of OpenBATS.
const MAX_SAMPLE: u64 = 64 << 20;
/// Largest sample of the original in bytes.
const MAX_SAMPLE_OF_ORIGINAL: u64 = 2_147_482_620;
/// Largest UDP payload over IPv4 in bytes.
pub(crate) const MAX_DATAGRAM: u64 = 65_507;
/// Longest time of `-busyPoll` in microseconds.
pub(crate) const MAX_BUSY_POLL: u64 = 1_000_000;
const DEFAULT_BATCH: u64 = 8_192;
const DEFAULT_QUEUE: u64 = 50;
/// Most initialization pings and peers.
const MAX_COUNT: u64 = 100_000_000;
const MAX_PEERS: usize = 1_024;
/// Groups of the original for samples and announcements.
const SAMPLES_GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 1, 1);

/// What connects publishers and subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// An OpenBATS connection of this mode.
    Session(Mode),
    /// UDP sockets.
    Raw,
}

/// How samples are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batching {
    Off,
    /// Switched off because of this.
    Disabled(&'static str),
    /// Up to this number of bytes and of samples.
    On {
        bytes: usize,
        samples: usize,
    },
}

impl Batching {
    /// Samples in a message.
    pub(crate) fn samples(self) -> usize {
        if let Self::On { samples, .. } = self { samples } else { 1 }
    }
}

/// How a publisher keeps its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    Spin,
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    Csv,
    Json,
    Legacy,
}

/// A peer of `-peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    pub(crate) id: Option<u32>,
}

/// Options of both roles.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) data_length: usize,
    pub(crate) domain: u32,
    /// Own id among the publishers or subscribers.
    pub(crate) id: u32,
    /// Publishers or subscribers to wait for.
    pub(crate) peers_expected: usize,
    pub(crate) transport: Transport,
    pub(crate) transport_given: bool,
    pub(crate) goal: Goal,
    pub(crate) ipv6: bool,
    pub(crate) nic: Option<IpAddr>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) multicast: Option<Ipv4Addr>,
    pub(crate) blocking_sockets: bool,
    pub(crate) keyed: bool,
    pub(crate) instances: u32,
    pub(crate) cpu: bool,
    pub(crate) headers: bool,
    pub(crate) intervals: bool,
    pub(crate) output_format: OutputFormat,
    /// Latencies in CSV have three decimals.
    pub(crate) nanoseconds: bool,
    pub(crate) output_file: Option<PathBuf>,
    pub(crate) group: Option<Group>,
    /// How long a receiver looks for packets before it sleeps.
    pub(crate) busy_poll: Duration,
    pub(crate) verbosity: u8,
    pub(crate) cpus: Vec<usize>,
}

/// Messages received in groups: `-useReadThread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) delay: Duration,
    pub(crate) messages: usize,
}

impl Common {
    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.transport, Transport::Session(mode) if mode.is_reliable())
    }

    /// The address to bind: that of `-nic`, or all addresses.
    pub(crate) fn bind_ip(&self) -> IpAddr {
        match self.nic {
            Some(ip) => ip,
            None if self.ipv6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
            None => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// Whom a publisher trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustOption {
    /// Trust on first use, with this file or that of the user.
    KnownHosts(Option<PathBuf>),
    Fingerprints(Vec<Fingerprint>),
    Any,
}

/// Options of a publisher.
#[derive(Clone, Debug)]
pub(crate) struct PublisherOptions {
    pub(crate) common: Common,
    pub(crate) trust: TrustOption,
    pub(crate) latency_test: bool,
    pub(crate) latency_count: u64,
    pub(crate) latency_file: Option<PathBuf>,
    pub(crate) iterations: u64,
    pub(crate) execution_time: Option<Duration>,
    pub(crate) batching: Batching,
    /// Samples per second.
    pub(crate) rate: Option<(f64, Pause)>,
    pub(crate) pause: Option<Duration>,
    /// Messages that a subscriber has not taken; `None`: no limit.
    pub(crate) send_queue: Option<u64>,
    pub(crate) initial_pings: u64,
    pub(crate) only_instance: Option<u32>,
    pub(crate) payload_file: Option<PathBuf>,
    pub(crate) cache_stats: bool,
    pub(crate) serialization_time: bool,
    pub(crate) low_resolution_clock: bool,
}

impl PublisherOptions {
    /// Whether the publisher waits for the echo of each message before the next one.
    pub(crate) fn is_ping_pong(&self) -> bool {
        self.latency_test && self.latency_count == 1 && self.common.peers_expected == 1
    }

    /// Messages that subscribers may have and not report as taken. Without a limit they report nothing. In a
    /// ping-pong at most one message is in flight: reports would only delay the next one.
    pub(crate) fn queue_limit(&self) -> Option<u64> {
        self.send_queue.filter(|_| !self.is_ping_pong())
    }
}

/// Options of a subscriber.
#[derive(Clone, Debug)]
pub(crate) struct SubscriberOptions {
    pub(crate) common: Common,
    /// First and last key that count.
    pub(crate) filter: Option<(u32, u32)>,
}

/// What to do.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Print(String),
    Publish(Box<PublisherOptions>),
    Subscribe(Box<SubscriberOptions>),
}

/// Parses the command line of a test, without the program's name.
///
/// # Errors
/// The command line is invalid; the error is for the user.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub(crate) fn parse(words: &[String]) -> Result<Command> {
    let given = spelling::parse(table::OPTIONS, words)?;
    if given.has("help") {
        return Ok(Command::Print(help()));
    }
    if given.has("version") {
        return Ok(Command::Print(format!("bats_perftest {}\n", env!("CARGO_PKG_VERSION"))));
    }
    let (publishes, subscribes) = (given.has("pub"), given.has("sub"));
    ensure!(!(publishes && subscribes), "-pub and -sub exclude each other");
    let (other, word) = match publishes {
        true => (Role::Subscriber, "subscribers"),
        false => (Role::Publisher, "publishers, which need -pub"),
    };
    if let Some(name) = given.only_for(other).filter(|&name| name != "pub" && name != "sub") {
        bail!("-{name} is only for {word}");
    }
    match publishes {
        true => publisher(&given).map(|options| Command::Publish(Box::new(options))),
        false => subscriber(&given).map(|options| Command::Subscribe(Box::new(options))),
    }
}

fn help() -> String {
    format!(
        "Measures samples per second, latency and loss between publishers and subscribers.\n\n\
         Usage: bats_perftest -pub [OPTIONS]\n       bats_perftest [-sub] [OPTIONS]\n       \
         bats_perftest sweep [OPTIONS] (see bats_perftest sweep -help)\n       \
         bats_perftest manual (prints the manual page)\n       bats_perftest completions SHELL (for bash, \
         fish or zsh)\n\n\
         Names match without regard to case, and every prefix of a name does. Tables go to standard \
         output, everything else to standard error. Exit codes: 0 success, 255 error.\n\n\
         Options:\n{}",
        spelling::help(table::OPTIONS)
    )
}

fn common(given: &Given, role: Role) -> Result<Common> {
    let (transport, ipv6) = values::transport(given)?;
    let is_raw = transport == Transport::Raw;
    let domain = given.number("domain", 0, 250)?.unwrap_or(1) as u32;
    let data_length =
        given.number("dataLen", HEADER as u64, MAX_SAMPLE_OF_ORIGINAL)?.unwrap_or(100);
    ensure!(
        data_length <= MAX_SAMPLE,
        "-dataLen {data_length}: a sample is one message of OpenBATS, of at most {MAX_SAMPLE} bytes"
    );
    ensure!(
        !is_raw || data_length <= MAX_DATAGRAM,
        "-dataLen {data_length}: a raw sample is one datagram, of at most {MAX_DATAGRAM} bytes"
    );
    let multicast = match given.value("multicastAddr") {
        Some(text) => Some(values::multicast_address(text)?),
        None => given.has("multicast").then_some(SAMPLES_GROUP),
    };
    ensure!(
        multicast.is_none() || is_raw,
        "-multicast needs -rawTransport: an OpenBATS connection has two ends"
    );
    ensure!(
        multicast.is_none() || !ipv6,
        "-multicast with -transport UDPv6: multicast is over IPv4 only"
    );
    let peers: Vec<Peer> =
        given.values("peer").map(|text| values::peer(text, ipv6)).collect::<Result<_>>()?;
    ensure!(peers.len() < MAX_PEERS, "at most {} peers", MAX_PEERS - 1);
    ensure!(
        !is_raw || multicast.is_some() || !peers.is_empty(),
        "-rawTransport needs -peer ADDRESS (or -multicast): it has no discovery"
    );
    let nic = given.last_of(&["nic", "allowInterfaces"]);
    let nic = nic.map(|name| values::interface(name, ipv6)).transpose()?;
    let blocking_sockets = !given.has("noBlockingSockets");
    ensure!(blocking_sockets || is_raw, "-noBlockingSockets needs -rawTransport");
    let keyed = given.has("keyed");
    let instances = given.number("instances", 1, u32::MAX.into())?;
    ensure!(keyed || instances.unwrap_or(1) == 1, "-instances needs -keyed");
    let group = given.has("useReadThread");
    let delay = given.number("waitsetDelayUsec", 0, 1_000_000)?;
    let messages = given.number("waitsetEventCount", 1, 1_000_000)?;
    ensure!(
        group || delay.is_none() && messages.is_none(),
        "-waitsetDelayUsec and -waitsetEventCount need -useReadThread"
    );
    let group = group.then(|| Group {
        delay: Duration::from_micros(delay.unwrap_or(100)),
        messages: messages.unwrap_or(5) as usize,
    });
    let (own, expected) = match role {
        Role::Publisher => ("pidMultiPubTest", "numSubscribers"),
        _ => ("sidMultiSubTest", "numPublishers"),
    };
    let id = given.number(own, 0, i32::MAX as u64)?.unwrap_or(0) as u32;
    match role {
        Role::Publisher => drop(ports::publisher(domain, id)?),
        _ => drop(ports::subscriber(domain, id)?),
    }
    // A subscriber announces itself to these publishers, a publisher connects to these subscribers.
    for id in peers.iter().filter_map(|peer| peer.id) {
        match role {
            Role::Publisher => drop(ports::subscriber(domain, id)?),
            _ => ensure!(
                ports::publisher(domain, id)?.is_some(),
                "-peer with id {id}: only publishers 0 to {} have a port for announcements; without \
                 -peer, multicast reaches the others",
                ports::LISTENING_PUBLISHERS - 1
            ),
        }
    }
    Ok(Common {
        data_length: data_length as usize,
        domain,
        id,
        peers_expected: given.number(expected, 1, 10_000)?.unwrap_or(1) as usize,
        transport,
        transport_given: given.has("transport") || given.has("bestEffort"),
        goal: values::goal(given, transport)?,
        ipv6,
        nic,
        peers,
        multicast,
        blocking_sockets,
        keyed,
        instances: instances.unwrap_or(1) as u32,
        cpu: given.has("cpu"),
        headers: !given.has("noOutputHeaders"),
        intervals: !given.has("noPrintIntervals"),
        output_format: values::output_format(given.value("outputFormat"))?,
        nanoseconds: given.has("nanosecondResolution"),
        output_file: given.value("outputFile").map(PathBuf::from),
        group,
        busy_poll: Duration::from_micros(given.number("busyPoll", 0, MAX_BUSY_POLL)?.unwrap_or(0)),
        verbosity: given.number("verbosity", 0, 3)?.unwrap_or(1) as u8,
        cpus: given.value("threadCPUAffinity").map(values::cpus).transpose()?.unwrap_or_default(),
    })
}

fn subscriber(given: &Given) -> Result<SubscriberOptions> {
    let common = common(given, Role::Subscriber)?;
    let filter = given.value("cft").map(values::key_range).transpose()?;
    ensure!(filter.is_none() || common.keyed, "-cft needs -keyed");
    Ok(SubscriberOptions { common, filter })
}

fn publisher(given: &Given) -> Result<PublisherOptions> {
    let common = common(given, Role::Publisher)?;
    let latency_test = given.has("latencyTest");
    ensure!(!latency_test || common.id == 0, "-latencyTest is only for publisher 0");
    let default_iterations = if latency_test { 10_000_000 } else { 100_000_000 };
    let iterations = given.number("numIter", 1, u64::MAX)?.unwrap_or(default_iterations);
    let latency_count = given.number("latencyCount", 1, u64::MAX)?;
    let latency_count = match latency_count {
        Some(count) => {
            ensure!(
                count <= iterations,
                "-latencyCount {count} is greater than -numIter {iterations}"
            );
            count
        }
        None if latency_test => 1,
        None => iterations.min(10_000),
    };
    let rate = values::rate(given, common.data_length)?;
    let pause = given.number("sleep", 0, 3_600_000)?.filter(|&ms| ms > 0);
    ensure!(rate.is_none() || pause.is_none(), "-sleep and -pubRate exclude each other");
    let batching = batching(given, &common, latency_test, rate.is_some())?;
    ensure!(
        common.transport != Transport::Raw || given.value("sendQueueSize").is_none(),
        "-sendQueueSize: raw UDP has no acknowledgements, so no queue; limit it with -pubRate"
    );
    let send_queue = send_queue(given)?;
    let pings = match given.number("initialBurstSize", 0, MAX_COUNT)? {
        Some(count) => count,
        None if common.transport == Transport::Raw => 1,
        None => {
            let filled = send_queue.unwrap_or(DEFAULT_QUEUE) * batching.samples() as u64;
            filled.max(common.instances.into()).min(MAX_COUNT)
        }
    };
    let only_instance = given.number("writeInstance", 0, u64::from(common.instances) - 1)?;
    ensure!(only_instance.is_none() || common.keyed, "-writeInstance needs -keyed");
    let low_resolution_clock = given.has("lowResolutionClock");
    ensure!(
        !low_resolution_clock || latency_test && latency_count == 1,
        "-lowResolutionClock needs -latencyTest with -latencyCount 1"
    );
    Ok(PublisherOptions {
        trust: values::trust(given, common.transport)?,
        latency_test,
        latency_count,
        latency_file: given.value("latencyFile").map(PathBuf::from),
        iterations,
        execution_time: given.number("executionTime", 1, 1 << 31)?.map(Duration::from_secs),
        batching,
        rate,
        pause: pause.map(Duration::from_millis),
        send_queue: send_queue.filter(|_| common.is_reliable()),
        initial_pings: pings,
        only_instance: only_instance.map(|key| key as u32),
        payload_file: given.value("loadDataFromFile").map(PathBuf::from),
        cache_stats: given.has("cacheStats") || given.has("writerStats"),
        serialization_time: given.has("showSerializationTime"),
        low_resolution_clock,
        common,
    })
}

/// Messages that a subscriber has not taken, at most; `None`: no limit.
pub(crate) fn send_queue(given: &Given) -> Result<Option<u64>> {
    match given.value("sendQueueSize") {
        Some("-1") => Ok(None),
        _ => Ok(Some(given.number("sendQueueSize", 1, MAX_COUNT)?.unwrap_or(DEFAULT_QUEUE))),
    }
}

fn batching(given: &Given, common: &Common, latency: bool, has_rate: bool) -> Result<Batching> {
    let is_raw = common.transport == Transport::Raw;
    let max = if is_raw { MAX_DATAGRAM } else { MAX_SAMPLE };
    let asked = given.number("batchSize", 0, max)?;
    let bytes = match asked {
        Some(0) => return Ok(Batching::Off),
        None if is_raw => return Ok(Batching::Off),
        Some(bytes) => bytes,
        None if has_rate => return Ok(Batching::Disabled("a rate is set")),
        None => DEFAULT_BATCH,
    };
    if latency {
        return Ok(Batching::Disabled("latency test"));
    }
    let (bytes, length) = (bytes as usize, common.data_length);
    match bytes / length {
        0 | 1 => Ok(Batching::Disabled("fewer than two samples fit")),
        samples => Ok(Batching::On { bytes, samples }),
    }
}

/// Parses a command line for tests.
#[cfg(test)]
pub(crate) fn parse_line(line: &str) -> Result<Command> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    parse(&words)
}

#[cfg(test)]
mod tests;
