//! The sending end of the channels of a session.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use openbats::{Channel, ChannelError, Connection};
use tokio::io::AsyncWrite;

use super::format::{TUNNEL, count};

/// Channels of a session with packets: flows with another hash do not wait for each other. Chosen: with
/// eight flows, 63 % of the sessions have no two of them in one channel.
pub(in super::super) const MAX_CHANNELS: usize = 64;
/// Bytes that wait for a channel without room; what follows is dropped. Chosen: as much as a channel itself
/// queues, so that 64 channels that the peer does not read take 64 MiB more.
const MAX_UNWRITTEN: u64 = 1 << 20;
/// Time from the end of a channel until it is opened again. A peer that stops all 64 at once costs 320
/// channels a second.
const REOPEN: Duration = Duration::from_millis(200);

/// The channel of a flow.
pub(super) fn channel_of(hash: u64) -> usize {
    (hash as usize).rem_euclid(MAX_CHANNELS)
}

/// Whether an error of a channel is not one of the session.
fn is_of_channel(error: &io::Error) -> bool {
    // Stopped or finished; closed.
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected)
}

/// A channel, if it is open, and what waits for it.
#[derive(Default)]
struct Outgoing {
    channel: Option<Channel>,
    /// It is not opened before.
    closed_until: Option<Instant>,
    /// What the channel has no room for, and the number of packets in it.
    waiting: VecDeque<(Bytes, u64)>,
    /// Number of bytes that wait.
    bytes: u64,
    /// Bytes at the last look that are not sent.
    unsent: u64,
    /// Those of them that the peer's credit allows.
    sendable: u64,
}

impl Outgoing {
    fn push(&mut self, packets: Bytes, count: u64) {
        self.bytes = self.bytes.saturating_add(packets.len() as u64);
        self.waiting.push_back((packets, count));
        // Until the next look.
        self.unsent = self.unsent.max(1);
    }

    fn waiting_packets(&self) -> u64 {
        self.waiting.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Whether it is long enough since the peer has stopped it.
    fn may_open(&self) -> bool {
        self.closed_until.is_none_or(|until| until <= Instant::now())
    }

    /// Opens the channel if the peer allows one more. Otherwise, the task is woken up when it does.
    fn open(
        &mut self,
        context: &mut Context<'_>,
        connection: &Connection,
    ) -> Result<(), ChannelError> {
        if let Poll::Ready(opened) = pin!(connection.open_channel()).poll(context) {
            self.channel = Some(opened?);
            self.waiting.push_front((Bytes::from_static(&[TUNNEL]), 0));
            self.bytes = self.bytes.saturating_add(1);
        }
        Ok(())
    }

    /// Writes what waits, as far as there is room. Returns whether there was any.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let mut has_written = false;
        while let (Some(channel), Some((first, _))) = (&self.channel, self.waiting.front_mut()) {
            let Poll::Ready(written) = Pin::new(&mut &*channel).poll_write(context, first) else {
                break;
            };
            let written = written?;
            has_written = true;
            self.bytes = self.bytes.saturating_sub(written as u64);
            first.advance(written);
            if !first.has_remaining() {
                self.waiting.pop_front();
            }
        }
        Ok(has_written)
    }

    /// Counts the bytes that are not sent. A look costs a lock of the node, and most channels are idle.
    fn look(&mut self) {
        if self.unsent == 0 {
            return;
        }
        // The next write finds out if the channel has ended.
        let stats = self.channel.as_ref().and_then(|channel| channel.stats().ok());
        let stats = stats.unwrap_or_default();
        self.unsent = stats.bytes_queued.saturating_add(self.bytes);
        self.sendable = self.unsent.min(stats.credit);
    }

    /// Whether much waits for its turn in the session, and not for the peer to read the channel.
    fn is_full(&self) -> bool {
        self.bytes >= MAX_UNWRITTEN / 2 && self.sendable == self.unsent
    }
}

/// What the channels hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Bytes of these channels that are not sent, although the peer's credit allows it. Those of other
    /// channels of the session do not count: each channel has its turn.
    pub(super) unsent: u64,
    /// More packets would be dropped, if they were for the channel for which most waits.
    pub(super) is_full: bool,
}

/// The channels of a session, opened when they are first needed. One that the peer stops or does not read
/// costs its own packets only.
pub(super) struct OutgoingChannels {
    channels: [Outgoing; MAX_CHANNELS],
    dropped: u64,
}

impl OutgoingChannels {
    pub(super) fn new() -> Self {
        Self { channels: std::array::from_fn(|_| Outgoing::default()), dropped: 0 }
    }

    pub(super) fn look(&mut self) -> Held {
        self.channels.iter_mut().for_each(Outgoing::look);
        let add = |total: u64, one: &Outgoing| total.saturating_add(one.sendable);
        Held {
            unsent: self.channels.iter().fold(0, add),
            is_full: self.channels.iter().any(Outgoing::is_full),
        }
    }

    /// Number of packets that were dropped since the last call (those that wait at the end of the session are not
    /// among them), because their channel was stopped or the peer
    /// does not read it.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// The session has ended: returns the number of packets that waited, and were not counted before.
    pub(super) fn give_up(self) -> u64 {
        let waiting = self.channels.iter().map(Outgoing::waiting_packets);
        waiting.fold(self.dropped, u64::saturating_add)
    }

    /// Opens a channel if it is not open.
    ///
    /// # Errors
    /// The session has ended, or has no channels.
    pub(super) fn open(
        &mut self,
        connection: &Connection,
        index: usize,
    ) -> Result<(), ChannelError> {
        match self.channels.get_mut(index) {
            Some(own) if own.channel.is_none() && own.may_open() => {
                own.open(&mut Context::from_waker(Waker::noop()), connection)
            }
            _ => Ok(()),
        }
    }

    /// Queues whole packets for a channel. While the peer allows no further one, they go to another.
    pub(super) fn push(&mut self, index: usize, packets: Vec<u8>) {
        let Some(own) = self.channels.get(index) else { return };
        let may_open = own.may_open();
        // The nearest one that is open, in a circle.
        let mut all = (index..MAX_CHANNELS).chain(0..index);
        let is_open = |at: &usize| self.channels.get(*at).is_some_and(|one| one.channel.is_some());
        let found = all.find(is_open).or(may_open.then_some(index));
        let count = count(&packets);
        match found.and_then(|at| self.channels.get_mut(at)) {
            Some(outgoing) if outgoing.bytes < MAX_UNWRITTEN => {
                outgoing.push(packets.into(), count)
            }
            _ => self.dropped = self.dropped.saturating_add(count),
        }
    }

    /// Writes what waits, as far as there is room, and opens channels. Returns whether a channel has taken
    /// some of it, or was stopped.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        connection: &Connection,
    ) -> io::Result<bool> {
        let mut has_progress = false;
        for outgoing in &mut self.channels {
            if outgoing.channel.is_none() && outgoing.bytes > 0 {
                outgoing.open(context, connection)?;
            }
            match outgoing.write(context) {
                Ok(has_written) => has_progress |= has_written,
                Err(error) if is_of_channel(&error) => {
                    self.dropped = self.dropped.saturating_add(outgoing.waiting_packets());
                    let closed_until = Instant::now().checked_add(REOPEN);
                    *outgoing = Outgoing { closed_until, ..Outgoing::default() };
                    has_progress = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(has_progress)
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// The session has ended, or has no channels.
    pub(super) async fn write(&mut self, connection: &Connection) -> io::Result<()> {
        poll_fn(|context| Poll::Ready(self.poll_write(context, connection).map(drop))).await
    }

    /// Completes when a channel has taken some of what waits for it, or was stopped.
    ///
    /// # Errors
    /// The session has ended, or has no channels.
    pub(super) async fn flush(&mut self, connection: &Connection) -> io::Result<()> {
        poll_fn(|context| match self.poll_write(context, connection) {
            Ok(false) => Poll::Pending,
            other => Poll::Ready(other.map(drop)),
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use openbats::{
        ClientOptions, Endpoint, Identity, ServerOptions, TransportConfig, Trust, Wait,
    };

    use super::super::format::{self, Echo, packet};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);
    const PAUSE: Duration = Duration::from_millis(5);

    struct Pair {
        near: Connection,
        far: Connection,
        channels: OutgoingChannels,
        _endpoints: [Endpoint; 2],
    }

    /// A connection whose far end allows so many channels.
    fn pair(channels: u32) -> Pair {
        pair_with(channels, 1 << 20)
    }

    /// The same with another memory of the far end in bytes, from which the credit follows.
    fn pair_with(channels: u32, receive_budget: usize) -> Pair {
        let transport = |channels| TransportConfig {
            channels: Some(channels),
            receive_budget,
            max_message_size: 1 << 16,
            ..TransportConfig::default()
        };
        let identity = Identity::generate(&["localhost"]).unwrap();
        let trust = Trust::fingerprint(identity.fingerprint());
        let server = Endpoint::builder()
            .bind("127.0.0.1:0".parse().unwrap())
            .server(ServerOptions::new(identity).transport(transport(channels)))
            .start()
            .unwrap();
        let client = Endpoint::builder().start().unwrap();
        let options = ClientOptions::new(trust).transport(transport(1));
        let to = server.local_addr();
        let near = client.connect(to, "localhost", options).wait_for(LIMIT).unwrap().unwrap();
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        Pair { near, far, channels: OutgoingChannels::new(), _endpoints: [server, client] }
    }

    fn echo(number: u64) -> Vec<u8> {
        format::echo(Echo { is_reply: false, number })
    }

    impl Pair {
        fn send(&mut self, index: usize, packets: Vec<u8>) {
            self.push(index, packets);
            self.write();
        }

        fn push(&mut self, index: usize, packets: Vec<u8>) {
            self.channels.open(&self.near, index).unwrap();
            self.channels.push(index, packets);
        }

        fn write(&mut self) {
            self.channels.write(&self.near).wait_for(LIMIT).expect("it does not wait").unwrap();
        }

        fn accept(&self) -> Channel {
            let channel = self.far.accept_channel().wait_for(LIMIT).expect("a channel").unwrap();
            assert_eq!(read(&channel, 1), [TUNNEL]);
            channel
        }
    }

    fn read(channel: &Channel, length: usize) -> Vec<u8> {
        let mut all = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let read = channel.read(&mut all[filled..]).wait_for(LIMIT).expect("bytes").unwrap();
            assert!(read > 0, "the end");
            filled += read;
        }
        all
    }

    #[test]
    fn packets_go_to_an_open_channel_while_the_peer_allows_no_further_one() {
        let mut pair = pair(1);
        for (number, index) in [40, 3, 63, 40].into_iter().enumerate() {
            pair.send(index, echo(number as u64));
        }
        let expected: Vec<u8> = (0..4).flat_map(echo).collect();
        assert_eq!(read(&pair.accept(), expected.len()), expected);
        assert_eq!(pair.channels.take_dropped(), 0);
    }

    #[test]
    fn packets_wait_while_the_peer_allows_no_channel_at_all() {
        let mut pair = pair(0);
        for _ in 0..100 {
            pair.send(5, packet(bats_tun::Offload::default(), &[1; 60_000]));
        }
        assert_eq!(pair.channels.look(), Held { unsent: 0, is_full: false });
        // 18 packets of 60,005 bytes are the first that exceed the limit.
        assert_eq!(pair.channels.take_dropped(), 100 - 18);
        assert!(pair.channels.flush(&pair.near).wait_for(PAUSE).is_err(), "nothing to do");
    }

    #[test]
    fn a_stopped_channel_costs_its_own_packets_and_is_opened_again() {
        let mut pair = pair(8);
        pair.send(1, echo(0));
        pair.send(2, echo(1));
        let [stopped, other] = [pair.accept(), pair.accept()];
        assert_eq!(read(&stopped, echo(0).len()), echo(0));
        stopped.stop(7);
        let end = Instant::now() + LIMIT;
        while pair.channels.take_dropped() == 0 {
            assert!(Instant::now() < end, "the channel is not stopped");
            pair.send(1, echo(2));
            sleep(PAUSE);
        }
        // Until it is opened again, its packets go to the other one.
        pair.send(1, echo(3));
        pair.send(2, echo(4));
        let expected: Vec<u8> = [1, 3, 4].into_iter().flat_map(echo).collect();
        assert_eq!(read(&other, expected.len()), expected);
        sleep(REOPEN);
        pair.send(1, echo(5));
        pair.send(2, echo(6));
        assert_eq!(read(&pair.accept(), echo(5).len()), echo(5));
        assert_eq!(read(&other, echo(6).len()), echo(6));
        assert_eq!(pair.channels.take_dropped(), 0);
    }

    #[test]
    fn a_channel_that_is_not_read_drops_its_own_packets_and_holds_up_no_other() {
        let mut pair = pair(8);
        let large = packet(bats_tun::Offload::default(), &[1; 60_000]);
        let end = Instant::now() + LIMIT;
        let mut dropped = 0;
        while dropped < 10 {
            assert!(Instant::now() < end, "all packets find room");
            pair.send(0, large.clone());
            dropped += pair.channels.take_dropped();
        }
        // What the peer's credit allows has gone.
        while pair.channels.look().unsent > 0 {
            assert!(Instant::now() < end, "{:?}", pair.channels.look());
            sleep(PAUSE);
            pair.write();
        }
        assert!(!pair.channels.look().is_full);
        assert!(pair.channels.channels[0].bytes < MAX_UNWRITTEN + large.len() as u64);
        let unread = pair.accept();
        for number in 0..3 {
            pair.send(1, echo(number));
        }
        let expected: Vec<u8> = (0..3).flat_map(echo).collect();
        assert_eq!(read(&pair.accept(), expected.len()), expected);
        // Once it is read, it goes on where it stopped, with whole packets.
        for _ in 0..18 {
            assert_eq!(read(&unread, large.len()), large);
            pair.write();
        }
    }

    /// Packets that the peer's credit allows wait in the lane, and none is dropped.
    #[test]
    fn channels_are_full_while_half_of_what_may_wait_does() {
        let mut pair = pair_with(8, 256 << 20);
        let small = packet(bats_tun::Offload::default(), &[1; 10_000]);
        let mut pushed = 0_u64;
        while !pair.channels.look().is_full {
            pair.push(0, small.clone());
            pushed += small.len() as u64;
            assert!(pushed < MAX_UNWRITTEN, "never full");
        }
        assert!(pushed >= MAX_UNWRITTEN / 2);
        assert_eq!(pair.channels.take_dropped(), 0);
        let far = pair.far.clone();
        let reader = std::thread::spawn(move || {
            let channel = far.accept_channel().wait_for(LIMIT).expect("a channel").unwrap();
            read(&channel, pushed as usize + 1).len()
        });
        let end = Instant::now() + LIMIT;
        while pair.channels.look().is_full {
            assert!(Instant::now() < end, "{:?}", pair.channels.look());
            pair.write();
            sleep(PAUSE);
        }
        while !reader.is_finished() {
            pair.write();
            sleep(PAUSE);
        }
        assert_eq!(reader.join().unwrap(), pushed as usize + 1);
    }
}
