//! Configuration, phases and progress on standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use openbats::Mode;

use crate::cli::{Batching, Common, PublisherOptions, SubscriberOptions, Transport};
use crate::clock::Clock;

/// Interval of progress lines that are not on a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const TERMINAL_INTERVAL: Duration = Duration::from_secs(1);

/// Prints a line on standard error. If that fails, there is no other place for it.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn yes(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

fn transport_name(options: &Common) -> String {
    match options.transport {
        Transport::Raw => "UDP sockets".to_owned(),
        Transport::Session(mode) => match mode {
            Mode::Btp => "BTP",
            Mode::Brtp => "BRTP",
            Mode::Brctp => "BRCTP",
            Mode::Transparent => "TRANSPARENT",
            Mode::Tcp => "TCP with TLS 1.3",
            Mode::Quic => "QUIC",
            _ => "other",
        }
        .to_owned(),
    }
}

fn common(options: &Common, id: &str, middle: &[String]) {
    print("Perftest Configuration:");
    print(&format!(
        "\tReliability: {}",
        if options.is_reliable() { "Reliable" } else { "Best Effort" }
    ));
    print(&format!("\tKeyed: {}", yes(options.keyed)));
    if options.keyed {
        print(&format!("\tInstances: {}", options.instances));
    }
    print(&format!("\t{id} ID: {}", options.id));
    middle.iter().for_each(|line| print(&format!("\t{line}")));
    let receive = match options.group {
        None => "Listeners".to_owned(),
        Some(group) => format!(
            "WaitSet with event count {} and delay {} usec",
            group.messages,
            group.delay.as_micros()
        ),
    };
    print(&format!("\tReceive using: {receive}"));
    print(&format!("\tDomain: {}", options.domain));
    print("");
    print("Transport Configuration:");
    print(&format!("\tKind: {}", transport_name(options)));
    if let Some(nic) = options.nic {
        print(&format!("\tNic: {nic}"));
    }
    let multicast = options.multicast.map_or("False".to_owned(), |group| format!("True ({group})"));
    print(&format!("\tUse Multicast: {multicast}"));
    if !options.peers.is_empty() {
        let peers: Vec<String> = options.peers.iter().map(|peer| peer.ip.to_string()).collect();
        print(&format!("\tInitial peers: {}", peers.join(", ")));
    }
    print("");
}

fn version() {
    print(&format!("bats_perftest {} (OpenBATS)", env!("CARGO_PKG_VERSION")));
    print("");
}

/// Prints the configuration of a publisher.
pub(crate) fn publisher(options: &PublisherOptions) {
    version();
    match options.latency_test {
        true => print("Mode: LATENCY TEST (Ping-Pong test)"),
        false => print("Mode: THROUGHPUT TEST\n      (Use \"-latencyTest\" for Latency Mode)"),
    }
    print("");
    let batching = match options.batching {
        Batching::Off => "No".to_owned(),
        Batching::Disabled(reason) => format!("Disabled by bats_perftest: {reason}."),
        Batching::On { bytes, samples } => {
            format!("{bytes} Bytes, {samples} samples (Use \"-batchSize 0\" to disable batching)")
        }
    };
    let unit = if options.batching.samples() > 1 { "batches" } else { "samples" };
    let rate = match options.rate {
        None => "Unlimited (Not set)".to_owned(),
        Some((rate, pause)) => format!("{rate:.0} Samples/s ({pause:?})"),
    };
    let end = match options.execution_time {
        Some(time) => format!("Execution time: {} seconds", time.as_secs()),
        None => format!("Number of samples: {}", options.iterations),
    };
    let queue = match options.send_queue {
        Some(queue) => format!("Send queue: {queue} {unit}"),
        None => "Send queue: no limit".to_owned(),
    };
    common(
        &options.common,
        "Publisher",
        &[
            format!("Latency count: 1 latency sample every {} {unit}", options.latency_count),
            format!("Data Size: {}", options.common.data_length),
            format!("Batching: {batching}"),
            format!("Publication Rate: {rate}"),
            end,
            queue,
        ],
    );
}

/// Prints the configuration of a subscriber.
pub(crate) fn subscriber(options: &SubscriberOptions) {
    version();
    let mut middle = vec![format!("Data Size: {}", options.common.data_length)];
    if let Some((first, last)) = options.filter {
        middle.push(format!("Filter: keys {first} to {last}"));
    }
    common(&options.common, "Subscriber", &middle);
}

/// Shows that a test without interval rows goes on.
#[derive(Debug)]
pub(crate) struct Progress {
    clock: Clock,
    shown: Duration,
    is_terminal: bool,
    is_on: bool,
}

impl Progress {
    /// `is_on`: there are no interval rows.
    pub(crate) fn new(is_on: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { clock: Clock::start(), shown: Duration::ZERO, is_terminal, is_on }
    }

    /// Shows the number of samples if it is time for it.
    pub(crate) fn show(&mut self, samples: u64) {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LINE_INTERVAL };
        let elapsed = self.clock.elapsed();
        if !self.is_on || elapsed < self.shown + interval {
            return;
        }
        self.shown = elapsed;
        print(&format!("{} s: {samples} samples", elapsed.as_secs()));
    }
}
