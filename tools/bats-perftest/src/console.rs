//! Configuration, phases and progress on standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use openbats::Mode;

use crate::cli::{Batching, Common, PublisherOptions, SubscriberOptions, Transport};
use crate::clock::Clock;
use crate::ports;

/// Interval of progress lines that are not on a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const TERMINAL_INTERVAL: Duration = Duration::from_secs(1);

/// Prints a line on standard error. If that fails, there is no other place for it. Characters that a
/// terminal would obey are replaced: text of the other side can be in it.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", plain(line));
}

fn plain(line: &str) -> String {
    let of_one = |char: char| if char.is_control() && char != '\t' { '?' } else { char };
    line.chars().map(of_one).collect()
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

/// `any`: the subscriber takes the transport that each publisher chooses.
fn common(options: &Common, id: &str, any: bool, middle: &[String]) {
    print("Perftest Configuration:");
    let reliability = match options.is_reliable() {
        _ if any => "as the publisher has it",
        true => "Reliable",
        false => "Best Effort",
    };
    print(&format!("\tReliability: {reliability}"));
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
    let kind = if any { "as the publisher has it".to_owned() } else { transport_name(options) };
    print(&format!("\tKind: {kind}"));
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
        false => {
            print("Mode: THROUGHPUT TEST");
            print("      (Use \"-latencyTest\" for Latency Mode)");
        }
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
    // Whichever comes first.
    let mut ends = vec![format!("Number of samples: {}", options.iterations)];
    if let Some(time) = options.execution_time {
        ends.insert(0, format!("Execution time: {} seconds", time.as_secs()));
    }
    ends.extend(options.pause.map(|pause| format!("Sleep: {} milliseconds", pause.as_millis())));
    let queue = match options.send_queue {
        Some(queue) => format!("Send queue: {queue} {unit}"),
        None => "Send queue: no limit".to_owned(),
    };
    let mut middle = vec![
        format!("Latency count: 1 latency sample every {} {unit}", options.latency_count),
        format!("Data Size: {}", options.common.data_length),
        format!("Batching: {batching}"),
        format!("Publication Rate: {rate}"),
        queue,
    ];
    middle.extend(ends);
    common(&options.common, "Publisher", false, &middle);
    if options.common.group.is_some() {
        print("Note: -useReadThread concerns subscribers: a publisher receives each echo at once.");
    }
    if options.common.peers.is_empty() && options.common.id >= ports::LISTENING_PUBLISHERS {
        print(&format!(
            "Note: publisher {} hears only the multicast announcements of subscribers: only publishers \
             0 to {} have a port that -peer of a subscriber reaches.",
            options.common.id,
            ports::LISTENING_PUBLISHERS - 1
        ));
    }
}

/// Prints the configuration of a subscriber.
pub(crate) fn subscriber(options: &SubscriberOptions) {
    version();
    let mut middle = vec![format!("Data Size: {}", options.common.data_length)];
    if let Some((first, last)) = options.filter {
        middle.push(format!("Filter: keys {first} to {last}"));
    }
    let is_raw = options.common.transport == Transport::Raw;
    let any = !is_raw && !options.common.transport_given;
    common(&options.common, "Subscriber", any, &middle);
    if !options.common.blocking_sockets {
        print(
            "Note: -noBlockingSockets concerns publishers: a subscriber always waits for samples.",
        );
    }
    if is_raw && !options.common.peers.is_empty() {
        print("Note: a raw subscriber answers the publishers that address it, not -peer.");
    }
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

    /// Whether it is time to show something.
    pub(crate) fn is_due(&self) -> bool {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LINE_INTERVAL };
        self.is_on && self.clock.elapsed() >= self.shown + interval
    }

    /// Shows the number of samples if it is time for it.
    pub(crate) fn show(&mut self, samples: u64) {
        if self.is_due() {
            self.skip();
            print(&format!("{} s: {samples} samples", self.shown.as_secs()));
        }
    }

    /// Shows nothing for another interval.
    pub(crate) fn skip(&mut self) {
        self.shown = self.clock.elapsed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_the_other_side_controls_no_terminal() {
        assert_eq!(plain("\tclosed: \u{1b}[2J\r\nerror \u{9b}0m ü"), "\tclosed: ?[2J??error ?0m ü");
    }
}
