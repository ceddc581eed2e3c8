//! Messages over a byte stream that is fragmented, arbitrary or corrupted.

use core::time::Duration;
use std::sync::{Arc, OnceLock};

use bats_types::Timestamp;
use bytes::Bytes;

use super::script::Script;
use crate::config::{ClientConfig, PeerTrust, ServerConfig, TransportConfig};
use crate::crypto::{fingerprint, generate_identity};
use crate::stream::{Session, TlsStream, TlsStreamServer};

const MAX_MESSAGE: usize = 100_000;
const STEPS: usize = 300;
const START: Timestamp = Timestamp::from_millis(1_000);

/// Counters of a run, so that a test can check that it exercised something.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamReport {
    /// Messages delivered.
    pub delivered: usize,
    /// Whether the end that received arbitrary bytes was still open after them.
    pub survived: bool,
    /// Messages delivered by the session inside TLS.
    pub delivered_by_tls: usize,
}

fn config() -> TransportConfig {
    TransportConfig {
        max_message_size: MAX_MESSAGE,
        receive_budget: 3 << 20,
        idle_timeout: Duration::from_secs(3_600),
        ..TransportConfig::default()
    }
}

/// First an end that receives arbitrary bytes. Then two correct ends over a stream that delivers
/// fragments as the script determines. Then the same over a stream that corrupts a byte. Then sessions inside TLS,
/// over correct streams, with a corrupted byte, and with arbitrary bytes.
///
/// # Panics
/// A message is too long, more is held than was granted, a correct stream does not deliver
/// everything unchanged and in order, a corrupted one inside TLS delivers anything changed, or a closed session
/// sends more than a Close frame.
pub fn stream_run(data: &[u8]) -> StreamReport {
    let mut report = StreamReport { survived: garbage(data), ..StreamReport::default() };
    report.delivered = honest(data, None);
    let at = data.iter().take(4).fold(0, |at, &byte| at * 256 + usize::from(byte));
    let changed = 1 + data.last().copied().unwrap_or(0) % 255;
    honest(data, Some((at % 4_096, changed)));
    let kind = data.first().copied().unwrap_or(0) % 4;
    report.delivered_by_tls =
        inside_tls(data, (kind == 1).then_some((at % 8_192, changed)), kind > 1);
    report
}

/// The configuration of both ends of TLS; the certificate is made once.
fn tls_ends() -> [TlsStream; 2] {
    static CONFIG: OnceLock<(ClientConfig, TlsStreamServer)> = OnceLock::new();
    let (client, server) = CONFIG.get_or_init(|| {
        let identity = generate_identity(&["localhost".to_owned()]).expect("a certificate");
        let print = fingerprint(&identity.certificate_chain[0]);
        let transport = Arc::new(config());
        let server = ServerConfig {
            identity,
            client_trust: None,
            transport: transport.clone(),
            retry_threshold: usize::MAX,
            max_connections: 1,
        };
        let trust = PeerTrust::Fingerprints(vec![print]);
        let client = ClientConfig { trust, identity: None, transport };
        (client, TlsStreamServer::new(&server).expect("a server"))
    });
    let client = TlsStream::client(START, "localhost", client).expect("a client");
    [client, TlsStream::server(START, server).expect("a connection")]
}

/// As `honest`, inside TLS; with `is_garbage` the server gets the script's bytes between those of the client.
fn inside_tls(data: &[u8], change: Option<(usize, u8)>, is_garbage: bool) -> usize {
    let mut script = Script::new(data);
    let mut ends = tls_ends();
    let (mut sent, mut got) = (Vec::new(), 0);
    let (mut position, mut now) = (0, START);
    for step in 0..STEPS {
        now += Duration::from_millis(1);
        let over = script.is_empty();
        if over && got == sent.len() && step > 8 {
            break;
        }
        let [a, b] = script.array();
        let message = Bytes::from(vec![a ^ b; usize::from(u16::from_be_bytes([a, b])) % 5_000]);
        if !over && ends[0].session_mut().send(message.clone()).is_ok() {
            sent.push(message);
        }
        for from in 0..2 {
            let mut bytes = Vec::new();
            ends[from].transmit(now, &mut bytes, 1 << 16);
            if from == 0 {
                if let Some((at, how)) = change
                    && let Some(byte) = bytes.get_mut(at.wrapping_sub(position))
                {
                    *byte ^= how;
                }
                position += bytes.len();
                if is_garbage && a % 8 == 0 {
                    bytes.extend_from_slice(script.bytes());
                }
            }
            for piece in bytes.chunks(1 + usize::from(b) * 64) {
                ends[1 - from].receive(now, piece);
            }
            while ends[from].pop_event().is_some() {}
        }
        while let Some(message) = ends[1].session_mut().recv() {
            assert_eq!(sent.get(got), Some(&message), "in order, unchanged");
            got += 1;
        }
        ends.iter_mut().for_each(|end| end.session_mut().handle_timeout(now));
    }
    let is_honest = change.is_none() && !is_garbage;
    assert!(!is_honest || got == sent.len(), "{got} of {} inside TLS", sent.len());
    got
}

fn garbage(data: &[u8]) -> bool {
    let mut script = Script::new(data);
    let is_client = script.u8() & 1 == 0;
    let config = config();
    let (mut session, mut now) = (Session::new(START, is_client, &config), START);
    let mut peer = Session::new(START, !is_client, &config);
    if script.u8() & 3 != 0 {
        // Starts with a valid Hello; otherwise almost no input gets beyond the first frame.
        let mut hello = Vec::new();
        peer.transmit(now, &mut hello, 1_000);
        session.receive(now, &hello);
    }
    let mut last_words = 0;
    for _ in 0..STEPS {
        if script.is_empty() {
            break;
        }
        now += Duration::from_millis(u64::from(script.u8()));
        session.receive(now, script.bytes());
        session.handle_timeout(now);
        let was_over = session.is_closed();
        while let Some(message) = session.recv() {
            assert!(message.len() <= MAX_MESSAGE);
        }
        let stats = session.stats(now);
        assert!(stats.buffers.receive_bytes <= config.receive_budget as u64 + MAX_MESSAGE as u64);
        let mut out = Vec::new();
        session.transmit(now, &mut out, 10_000);
        last_words += u32::from(was_over && !out.is_empty());
        assert!(last_words <= 1, "no frame follows the Close frame");
        while session.pop_event().is_some() {}
    }
    session.is_open()
}

/// Returns the number of messages of the first end that the second one received.
fn honest(data: &[u8], change: Option<(usize, u8)>) -> usize {
    let mut script = Script::new(data);
    let config = config();
    let mut ends = [Session::new(START, true, &config), Session::new(START, false, &config)];
    let mut in_flight: [Vec<u8>; 2] = Default::default();
    let (mut sent, mut got) = (Vec::new(), Vec::<Bytes>::new());
    let (mut bytes_delivered, mut now) = (0, START);
    let is_honest = change.is_none();
    for step in 0..4 * STEPS {
        now += Duration::from_millis(1);
        let over = script.is_empty();
        if over && got.len() == sent.len() && step > 8 {
            break;
        }
        let [kind, a, b] = script.array();
        if !over && kind & 1 == 0 {
            let len = usize::from(u16::from_be_bytes([a, b])) * usize::from(1 + (kind >> 1 & 1));
            let message = Bytes::from(vec![a ^ b; len.min(MAX_MESSAGE)]);
            if ends[0].send(message.clone()).is_ok() {
                sent.push(message);
            }
        }
        for from in 0..2 {
            let bytes = &mut in_flight[from];
            let before = bytes.len();
            let limit = if over { 1 << 20 } else { usize::from(a) * 16 + 1 };
            if bytes.len() < limit {
                ends[from].transmit(now, bytes, limit);
            }
            if from == 0 {
                for byte in &mut bytes[before..] {
                    if let Some((at, how)) = change
                        && bytes_delivered == at
                    {
                        *byte ^= how;
                    }
                    bytes_delivered += 1;
                }
            }
            let piece = if over { bytes.len() } else { bytes.len().min(1 + usize::from(b) * 8) };
            let rest = bytes.split_off(piece);
            let piece = core::mem::replace(bytes, rest);
            ends[1 - from].receive(now, &piece);
        }
        while let Some(message) = ends[1].recv() {
            assert!(message.len() <= MAX_MESSAGE);
            assert!(!is_honest || sent.get(got.len()) == Some(&message), "in order, unchanged");
            got.push(message);
        }
        for end in &mut ends {
            end.handle_timeout(now);
            while end.pop_event().is_some() {}
            assert!(!is_honest || end.is_open() || step < 8, "{:?}", end.violation_found());
        }
    }
    assert!(!is_honest || got.len() == sent.len(), "{} of {}", got.len(), sent.len());
    got.len()
}
