//! Two sessions without links: what each sends is handed to the other one, as a link or a relay would.

use bytes::Bytes;

use super::*;
use crate::error::SendError;
use crate::relay::{LinkView, PathSetStats};
use crate::wire::flow::{DIRECT_FLOW, NodeId};

mod block_channels_tests;
mod receiving_tests;
mod relays_tests;
mod sending_tests;

const MS: Duration = Duration::from_millis(1);
const RTT: LinkRtt =
    LinkRtt { smoothed: Duration::from_millis(20), min: Duration::from_millis(20) };
const CAPACITY: LinkCapacity = LinkCapacity {
    window: 1 << 20,
    smoothed_rtt: RTT.smoothed,
    bytes_acked: 1 << 20,
    record_bytes: 0,
};
const PATH: PathView = PathView {
    rate_bytes_per_second: 10_000_000,
    smoothed_rtt: RTT.smoothed,
    ack_interval: Duration::from_millis(5),
    loss: 0.1,
    burst_factor: 1.0,
    loss_packets: 10_000,
    queue_delay: Duration::ZERO,
};
const OWN_MODES: [Mode; 4] = [Mode::Brtp, Mode::Brctp, Mode::Btp, Mode::Transparent];

/// What transports the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Link,
    /// So many links of a relay lead to the other node.
    Relays(usize),
    /// A link with the other node, without seals.
    Direct,
}

/// Two established sessions, the first one a client's. Nothing is lost unless a test drops it.
#[derive(Debug)]
struct Pair {
    now: Timestamp,
    over: Over,
    ends: [Session; 2],
    /// Coded packets sent so far by each.
    sent: [u64; 2],
    /// Each packet with a number divisible by it is lost; 0: none.
    lost: u64,
}

impl Pair {
    fn new(config: TransportConfig, over: Over) -> Self {
        let mode = config.mode;
        let config = Arc::new(config);
        let key = |source, destination| FlowKey {
            destination: NodeId(destination),
            source: NodeId(source),
            flow: if over == Over::Direct { 9 | DIRECT_FLOW } else { 9 },
        };
        let flows = [key(1, 2), key(2, 1)].map(|key| (over != Over::Link).then_some((key, false)));
        let mut ends =
            [0, 1].map(|end| Session::new(Arc::clone(&config), 7 + end as u64, flows[end]));
        for (end, session) in ends.iter_mut().enumerate() {
            let is_server = end == 1;
            let peer = local_parameters(&config, 7 + (1 - end) as u64);
            session.establish(mode, &peer, is_server);
            let now = Timestamp::from_millis(1_000);
            let limit = session.memory_limit();
            session.set_memory(now, limit, false, RTT.smoothed);
            let keys = (over != Over::Direct).then(|| SymbolKeys::plain(!is_server));
            let (early, _) = session.establish_end_to_end(keys, RTT.smoothed);
            assert!(early.is_empty());
        }
        Self { now: Timestamp::from_millis(1_000), over, ends, sent: [0; 2], lost: 0 }
    }

    fn of_mode(mode: Mode, over: Over) -> Self {
        Self::new(TransportConfig { mode, ..TransportConfig::default() }, over)
    }

    /// The next coded packet of an end.
    fn next(&mut self, end: usize) -> Option<(PacketKind, Vec<u8>)> {
        let mut out = Vec::new();
        let session = &mut self.ends[end];
        let kind = match self.over {
            Over::Link => session.next_coded(self.now, 1_440, &PATH, &mut out)?,
            Over::Relays(_) | Over::Direct => {
                let links = if let Over::Relays(links) = self.over { links } else { 1 };
                let view = LinkView { rate: 10_000_000, packet: 1_400, ..LinkView::default() };
                let path_set =
                    PathSetStats { links, rate: 20_000_000, slowest: Duration::from_millis(40) };
                // What waits may be reserved for another link.
                (0..links as u64).find_map(|turn| {
                    let link = (self.sent[end] + turn) % links as u64;
                    let first = FirstLink { link, view, recoded: false, path_set };
                    session.poll_end_to_end(self.now, &first, &PATH, || CAPACITY, &mut out)
                })?
            }
        };
        self.sent[end] += 1;
        Some((kind, out))
    }

    fn hand_over(
        &mut self,
        to: usize,
        kind: PacketKind,
        payload: &[u8],
    ) -> Result<(), SessionFailure> {
        assert_eq!(self.ends[to].may_take_packet(self.now), Ok(true));
        self.ends[to].on_coded(self.now, kind, payload, RTT)
    }

    /// Hands the control frames of an end to the other one.
    fn exchange_control(&mut self, from: usize) {
        while self.ends[from].is_control_due(self.now) {
            let frames = self.ends[from].next_control(self.now, RTT);
            let to = &mut self.ends[1 - from];
            let is_end = frames.end.is_some();
            let frames = [
                frames.polluted.map(SessionFrame::SymbolPolluted),
                frames.credit.map(SessionFrame::Credit),
                frames.end.map(|(symbols, messages)| SessionFrame::End { symbols, messages }),
                frames.feedback.map(|feedback| SessionFrame::Rank(feedback, PATH)),
            ];
            for frame in frames.into_iter().flatten() {
                to.on_frame(self.now, frame).expect("an honest peer");
            }
            if is_end {
                self.ends[from].on_end_acknowledged();
            }
        }
    }

    /// Ten milliseconds in which each end sends at most 40 coded packets.
    fn step(&mut self) {
        for from in [0, 1] {
            for _ in 0..40 {
                let Some((kind, payload)) = self.next(from) else { break };
                if !self.sent[from].is_multiple_of(self.lost) {
                    self.hand_over(1 - from, kind, &payload).expect("an honest peer");
                }
            }
            self.exchange_control(1 - from);
            self.exchange_control(from);
        }
        self.now += MS * 10;
        for end in &mut self.ends {
            end.handle_timeout(self.now, &PATH);
            end.update_application(&CAPACITY);
        }
    }

    fn send(&mut self, from: usize, message: &[u8]) {
        let message = Bytes::copy_from_slice(message);
        self.ends[from].send(self.now, message, None, &CAPACITY).expect("there is space");
    }

    fn read(&mut self, end: usize) -> Vec<Bytes> {
        let mut messages = Vec::new();
        while let (Some(message), result) = self.ends[end].recv(self.now, RTT.smoothed) {
            assert_eq!(result, Ok(()));
            messages.push(message);
        }
        messages
    }

    fn events(&mut self, end: usize) -> Vec<Event> {
        core::iter::from_fn(|| self.ends[end].pop_event(true)).collect()
    }

    fn stats(&self, end: usize) -> ConnectionStats {
        let mut stats = ConnectionStats::default();
        stats.path.smoothed_rtt = RTT.smoothed;
        self.ends[end].add_stats(&mut stats);
        stats
    }
}

/// Messages that the tests send, so few that they are accepted before a link has asked for packets.
const COUNT: u64 = 45;

/// Messages of 0 to 8,000 bytes, so that some share a symbol and others take several.
fn messages(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| vec![number as u8; number * 97 % 8_000]).collect()
}

fn is_reliable(mode: Mode) -> bool {
    matches!(mode, Mode::Brtp | Mode::Brctp)
}

#[test]
fn messages_of_all_modes_arrive_over_links_and_relays_and_are_counted() {
    for (mode, over) in OWN_MODES.into_iter().flat_map(|mode| {
        [Over::Link, Over::Relays(1), Over::Relays(2), Over::Direct].map(|over| (mode, over))
    }) {
        let context = format!("{mode:?} over {over:?}");
        let mut pair = Pair::of_mode(mode, over);
        pair.lost = if mode == Mode::Transparent { 0 } else { 9 };
        let sent = messages(COUNT as usize);
        let bytes: u64 = sent.iter().map(|message| message.len() as u64).sum();
        assert!(!pair.ends[0].has_data() && pair.ends[0].is_all_acknowledged());
        for message in &sent {
            pair.send(0, message);
        }
        assert!(pair.ends[0].has_data() && !pair.ends[0].is_all_acknowledged());
        assert_eq!(pair.ends[0].has_end_to_end_data(), over != Over::Link);
        let held = pair.stats(0).buffers.send_bytes;
        assert_eq!(held, bytes + COUNT * MESSAGE_OVERHEAD as u64, "{context}");
        assert!(pair.ends[0].end_to_end_backlog() >= bytes);
        let mut received = Vec::new();
        for step in 0..300 {
            if step == 30 {
                pair.ends[0].finish().expect("it is open");
                let more = pair.ends[0].send(pair.now, Bytes::new(), None, &CAPACITY);
                assert!(matches!(more, Err(SendError::Finished)), "{context}");
            }
            pair.step();
            received.extend(pair.read(1));
        }
        let expected: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
        if is_reliable(mode) || mode == Mode::Transparent {
            let mut received: Vec<&[u8]> = received.iter().map(|message| &message[..]).collect();
            if !is_reliable(mode) {
                // In the order of arrival: longer ones may be complete later.
                received.sort_by_key(|message| expected.iter().position(|sent| sent == message));
            }
            assert_eq!(received, expected, "{context}");
        } else {
            // Over relays the losses are not known to the sender, so that it makes few repairs.
            let least = if over == Over::Link { 40 } else { 25 };
            assert!(received.len() >= least, "{context}: {} of {COUNT}", received.len());
            let sent = &expected;
            assert!(received.iter().all(|message| sent.contains(&&message[..])));
        }
        assert!(pair.ends[0].is_all_acknowledged() && !pair.ends[0].has_data(), "{context}");
        assert!(!pair.ends[0].awaits_decoding() && pair.ends[1].is_finished(), "{context}");
        assert_eq!(pair.ends[0].end_to_end_backlog(), 0);

        let (own, peers) = (pair.stats(0), pair.stats(1));
        assert_eq!((own.messages.sent, own.messages.bytes_sent), (COUNT, bytes), "{context}");
        assert_eq!((own.messages.received, own.messages.bytes_received), (0, 0));
        let read: u64 = received.iter().map(|message| message.len() as u64).sum();
        let counted = (peers.messages.received, peers.messages.bytes_received);
        assert_eq!(counted, (received.len() as u64, read), "{context}");
        let coded = own.coding.source_packets_sent
            + own.coding.proactive_packets_sent
            + own.coding.top_up_packets_sent;
        assert_eq!(coded, pair.sent[0], "{context}");
        assert_eq!(
            own.coding.code_rate,
            own.coding.source_packets_sent as f64 / coded as f64,
            "{context}"
        );
        assert_eq!(own.buffers.send_bytes, 0, "{context}");
        let arrived = coded - coded.checked_div(pair.lost).unwrap_or(0);
        assert_eq!(peers.coding.coded_packets_received, arrived, "{context}");
        if pair.lost > 0 && (is_reliable(mode) || over == Over::Link) {
            assert!(
                own.coding.proactive_packets_sent + own.coding.top_up_packets_sent > 0,
                "{context}"
            );
        }
        if mode == Mode::Btp {
            assert_eq!(peers.messages.lost, COUNT - received.len() as u64, "{context}");
        }
        let (own_events, peers_events) = (pair.events(0), pair.events(1));
        assert!(own_events.contains(&Event::AllAcknowledged), "{context}: {own_events:?}");
        assert!(peers_events.contains(&Event::Readable), "{context}: {peers_events:?}");
        assert!(pair.read(1).is_empty());
        assert_eq!(
            (own.coding.symbols_polluted, own.packets.malformed, own.packets.refused),
            (0, 0, 0)
        );
        // What is kept although nothing is to be done is little.
        pair.ends.iter_mut().for_each(LinkSession::trim);
        assert_eq!((pair.stats(0).buffers.send_bytes, pair.ends[1].receive_buffer_bytes()), (0, 0));
    }
}
