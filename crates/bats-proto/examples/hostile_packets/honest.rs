//! Honest packets: a client sends messages to a server, or asks for a connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::wire::short_header::{PacketKind, ShortHeader};
use bats_proto::{
    ClientConfig, CloseReason, CongestionAlgorithm, Endpoint, EndpointConfig, Event, Input, Mode,
    Output, PeerTrust, Received, Timestamp,
};
use bytes::Bytes;

use crate::harness::{Harness, MS, server, transport};
use crate::{Attack, measured};

/// Bytes of the messages together; they fill a thousand packets.
const BYTES: usize = 1_400_000;

/// What the honest packets for the comparison with a case are.
#[derive(Debug)]
enum Kind {
    FirstFlights,
    Acknowledgements,
    Transfer(Traffic),
}

/// Their messages have the size of the hostile messages, if the hostile packets contain complete messages.
fn kind(case: &str) -> Option<Kind> {
    let (mode, attack) = case.split_once('-')?;
    // Each message costs work, and an honest application may send small ones, too.
    let message_bytes = match attack {
        "empty-messages" => 0,
        "tiny-messages" | "distant-messages" => 1,
        _ => 14_000,
    };
    Some(match mode {
        "handshake" => Kind::FirstFlights,
        "acks" => Kind::Acknowledgements,
        "channels" => Kind::Transfer(Traffic::Channels(Mode::Brtp)),
        "brctp" if attack.contains("channel") => Kind::Transfer(Traffic::Channels(Mode::Brctp)),
        _ => {
            // Repairs of long windows, as a lossy path with many packets in flight has them.
            let is_lossy = attack.contains("linked-repairs") || attack == "repairs-solved-at-once";
            let mode = crate::attacks::mode(mode)?;
            Kind::Transfer(Traffic::Messages { mode, bytes: message_bytes, is_lossy })
        }
    })
}

/// Names the honest packets of a case: those of cases with equal names are the same.
pub(crate) fn name(case: &str) -> Option<String> {
    kind(case).map(|kind| format!("{kind:?}").replace(' ', ""))
}

/// Measures the honest packets for the comparison with a case.
pub(crate) fn run(case: &str) -> Option<(u64, bool)> {
    Some(match kind(case)? {
        Kind::FirstFlights => first_flights(),
        Kind::Acknowledgements => acknowledgements(),
        Kind::Transfer(traffic) => transfer(&traffic),
    })
}

/// Bytes of messages that fill a symbol.
const SYMBOL_BYTES: usize = 1_390;

/// Delay of the lossy path in each direction.
const DELAY: Duration = Duration::from_millis(50);

/// Channels of a client that uses channels.
const CHANNELS: usize = 2_000;

/// Rate of the lossy path.
const RATE: CongestionAlgorithm = CongestionAlgorithm::FixedRate { bits_per_second: 100_000_000 };

/// What the client sends, without delay and loss unless it says otherwise.
#[derive(Debug)]
enum Traffic {
    /// Messages of so many bytes each. `is_lossy`: over a path on which one of ten data packets arrives, so
    /// that nearly all symbols of the longest windows are decoded from repairs. BTP, which does not wait for
    /// more repairs, has the longest windows where packets are lost in bursts: half of them, four in a row, the most of which
    /// it still delivers 95 %.
    Messages { mode: Mode, bytes: usize, is_lossy: bool },
    /// Single bytes, each on another channel.
    Channels(Mode),
}

fn transfer(traffic: &Traffic) -> (u64, bool) {
    let mut transport = transport();
    let (mut message_bytes, mut is_lossy) = (0, false);
    match *traffic {
        Traffic::Messages { mode, bytes, is_lossy: lossy } => {
            (transport.mode, message_bytes, is_lossy) = (mode, bytes, lossy);
        }
        Traffic::Channels(mode) => {
            (transport.mode, transport.channels) = (mode, Some(CHANNELS as u32));
        }
    }
    if is_lossy {
        transport.congestion = RATE;
    }
    let mode = transport.mode;
    let (to, from) = (([10, 0, 0, 9], 4_433).into(), Harness::address());
    let mut server = server(transport.clone(), 1_000, 10);
    let config = EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
    let mut client = Endpoint::new(config, [3; 32]).expect("a client");
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport),
    };
    let mut now = Timestamp::from_millis(1_000);
    let handle = client.connect(now, to, "server", config).expect("a valid configuration");
    let (mut packets, mut queued, mut accepted) = (0, 0, None);
    let (mut buffer, mut scratch) = (Vec::with_capacity(65_536), Vec::with_capacity(65_536));
    let message = Bytes::from(vec![7; message_bytes]);
    let delay = if is_lossy { DELAY } else { Duration::ZERO };
    // Datagrams in transit, and when they arrive.
    let (mut to_server, mut to_client) = (VecDeque::new(), VecDeque::new());
    let (mut sent, mut is_closed) = (0, false);
    let (mut channels, mut opened) = (Vec::new(), Vec::new());
    let most = if is_lossy { 5_000 } else { 1_000 };
    let mut losses = Bursts::default();
    // Until the sender knows how long bursts are.
    let mut warm_up = 10_000;
    while packets < most && now < Timestamp::from_millis(60_000) {
        now += MS;
        client.handle(now, Input::Timeout);
        server.handle(now, Input::Timeout);
        let mut quiet = false;
        while !quiet {
            quiet = true;
            while let Some(datagrams) = transmit(&mut client, now, &mut buffer) {
                to_server.extend(datagrams.into_iter().map(|datagram| (now + delay, datagram)));
            }
            while let Some(mut datagram) = pop_due(&mut to_server, now) {
                quiet = false;
                let data = ShortHeader::decode(&datagram)
                    .is_some_and(|header| header.kind != PacketKind::Control);
                if data && datagram.len() > 1_000 {
                    sent += 1;
                    let is_lost = match mode {
                        Mode::Btp => losses.is_lost(),
                        _ => sent % 10 != 0,
                    };
                    if is_lossy && is_lost {
                        continue;
                    }
                    if is_lossy && mode == Mode::Btp && warm_up > 0 {
                        warm_up -= 1;
                        let payload = &mut datagram;
                        let received = Received { remote: from, local_ip: None, ecn: 0, payload };
                        server.handle(now, Input::Datagram(received));
                        continue;
                    }
                    is_closed |= measured(&mut server, now, from, &mut datagram, &mut scratch);
                    packets += 1;
                } else {
                    let payload = &mut datagram;
                    let received = Received { remote: from, local_ip: None, ecn: 0, payload };
                    server.handle(now, Input::Datagram(received));
                }
            }
            loop {
                match server.poll(now, &mut buffer) {
                    Output::Transmit(sent) => {
                        let datagrams = buffer.chunks(sent.segment_size).map(<[u8]>::to_vec);
                        to_client.extend(datagrams.map(|datagram| (now + delay, datagram)));
                    }
                    Output::Event(handle, Event::Accepted) => accepted = Some(handle),
                    Output::Event(_, Event::Closed(CloseReason::PeerMisbehaved(_))) => {
                        is_closed = true;
                    }
                    Output::Event(..) => {}
                    Output::Timeout(_) => break,
                }
            }
            while let Some(mut payload) = pop_due(&mut to_client, now) {
                quiet = false;
                let payload = &mut payload;
                let received = Received { remote: to, local_ip: None, ecn: 0, payload };
                client.handle(now, Input::Datagram(received));
            }
            if let Some(handle) = accepted {
                while server.recv(now, handle).is_some() {}
                while let Ok(Some(id)) = server.accept_channel(handle) {
                    opened.push(id);
                }
                for &id in &opened {
                    // There may be nothing to read.
                    _ = server.read_channel(now, handle, id, &mut [0; 64]);
                }
            }
        }
        if let Traffic::Channels(_) = traffic {
            while channels.len() < CHANNELS
                && let Ok(id) = client.open_channel(now, handle)
            {
                channels.push(id);
            }
            for &id in &channels {
                _ = client.write_channel(now, handle, id, &[7]);
            }
            continue;
        }
        if mode == Mode::Btp && is_lossy {
            // A quarter of the rate of the path, so that there is room for all repairs.
            for _ in 0..2 {
                _ = client.send(now, handle, message.slice(..SYMBOL_BYTES));
            }
            continue;
        }
        while (queued < BYTES || is_lossy) && client.send(now, handle, message.clone()).is_ok() {
            // Together with what a message of a few bytes takes in a symbol.
            queued += message.len() + 3;
        }
    }
    assert!(packets >= most / 10 * 9, "{packets} of {most} packets were measured");
    (packets, is_closed)
}

/// Losses of 50 % in bursts of four on average.
#[derive(Debug, Default)]
struct Bursts {
    draws: u32,
    is_lost: bool,
}

impl Bursts {
    fn is_lost(&mut self) -> bool {
        // A linear congruential generator; its upper bits are random enough.
        self.draws = self.draws.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let draw = self.draws >> 16 & 0x3ff;
        self.is_lost = if self.is_lost { draw >= 256 } else { draw < 256 };
        self.is_lost
    }
}

/// The next datagram in transit that has arrived.
fn pop_due(in_transit: &mut VecDeque<(Timestamp, Vec<u8>)>, now: Timestamp) -> Option<Vec<u8>> {
    let is_due = in_transit.front().is_some_and(|&(at, _)| at <= now);
    if is_due { in_transit.pop_front().map(|(_, datagram)| datagram) } else { None }
}

/// The next datagrams of the client.
fn transmit(client: &mut Endpoint, now: Timestamp, buffer: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    loop {
        match client.poll(now, buffer) {
            Output::Transmit(sent) => {
                return Some(buffer.chunks(sent.segment_size).map(<[u8]>::to_vec).collect());
            }
            Output::Event(..) => {}
            Output::Timeout(_) => return None,
        }
    }
}

/// First flights of clients that the server answers. With the stand-in this excludes the TLS
/// handshake, so that the bound is stricter than with certificates.
fn first_flights() -> (u64, bool) {
    let mut attack = Attack::new(Harness::established(transport()));
    for number in 2..102 {
        let client = bats_proto::fuzzing::MisbehavingClient::new(number);
        let parameters =
            TransportParameters { connection_id: client.cid(), ..TransportParameters::default() };
        attack.harness.remote = bats_proto::fuzzing::MisbehavingClient::address(number);
        attack.push(client.first_flight(&parameters.encode(0), &[]));
    }
    (attack.packets, false)
}

/// Acknowledgements of two packets each, as an honest receiver sends them.
fn acknowledgements() -> (u64, bool) {
    let mut attack = Attack::new(Harness::established(transport()));
    for _ in 0..300 {
        attack.harness.received.clear();
        attack.harness.send_from_server(2_600);
        let mut numbers: Vec<u64> =
            attack.harness.take_packets().into_iter().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        let Some(&last) = numbers.last() else { continue };
        let first = *numbers.first().unwrap_or(&last);
        let first = if last - first == numbers.len() as u64 - 1 { first } else { last };
        let ack = crate::attacks::ack(&mut attack, &[(first, last)]);
        attack.push(ack);
    }
    (attack.packets, false)
}
