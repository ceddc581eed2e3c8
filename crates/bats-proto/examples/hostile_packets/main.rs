//! Packets for an instruction counter: `hostile_packets CASE honest|hostile`. `.ci/hostile-packets`
//! runs it under callgrind, which counts the instructions of [`measured`] only, and compares a
//! hostile packet with an honest one. Prints the number of packets measured and whether the
//! connection is closed for misbehaviour.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

#[path = "../../tests/harness/mod.rs"]
mod harness;

mod attacks;
mod honest;
mod relay;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use bats_proto::{Endpoint, Event, Input, Output, Received, Timestamp};
use harness::Harness;

/// Interval of packets: full-size ones at 120 Mbit/s.
const INTERVAL: Duration = Duration::from_micros(100);

/// What the endpoint does for a datagram, and for the timers that are due. Returns whether it closes
/// the connection. The counter counts this function only.
#[inline(never)]
fn measured(
    server: &mut Endpoint,
    now: Timestamp,
    remote: SocketAddr,
    payload: &mut [u8],
    buffer: &mut Vec<u8>,
) -> bool {
    server.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
    let mut is_closed = false;
    loop {
        match server.poll(now, buffer) {
            Output::Timeout(Some(at)) if at <= now => server.handle(now, Input::Timeout),
            Output::Timeout(_) => return is_closed,
            Output::Event(_, Event::Closed(_)) => is_closed = true,
            _ => {}
        }
    }
}

/// A peer and the server that it attacks.
struct Attack {
    harness: Harness,
    buffer: Vec<u8>,
    packets: u64,
    is_closed: bool,
}

impl Attack {
    fn new(harness: Harness) -> Self {
        Self { harness, buffer: Vec::with_capacity(65_536), packets: 0, is_closed: false }
    }

    /// Hands a datagram to the server after an interval. Takes what the server delivers.
    /// Packets after the connection was closed do not count.
    fn push(&mut self, mut datagram: Vec<u8>) {
        if self.is_closed {
            return;
        }
        let harness = &mut self.harness;
        harness.now += INTERVAL;
        let (now, remote) = (harness.now, harness.remote);
        self.is_closed |=
            measured(&mut harness.server, now, remote, &mut datagram, &mut self.buffer);
        self.packets += 1;
        if let Some(handle) = harness.handle {
            while harness.server.recv(now, handle).is_some() {}
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["--list"] => {
            attacks::NAMES.iter().chain(relay::NAMES).for_each(|name| println!("{name}"));
            return ExitCode::SUCCESS;
        }
        [case, kind @ ("honest" | "hostile")] => relay::run(case, kind == "hostile")
            .or_else(|| if kind == "hostile" { attacks::run(case) } else { honest::run(case) }),
        _ => None,
    };
    let Some((packets, is_closed)) = outcome else {
        eprintln!("usage: hostile_packets --list | CASE honest|hostile");
        return ExitCode::FAILURE;
    };
    println!("{packets} {}", if is_closed { "closed" } else { "open" });
    ExitCode::SUCCESS
}
