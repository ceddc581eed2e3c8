//! Signalling: JSON messages over a BRTP connection to the port below the data port.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use openbats::{Connection, TransportConfig, Wait};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::clock_offset::ClockOffset;
use crate::cpu::Utilization;
use crate::latency::Percentiles;
use crate::sender_settings::SenderSettings;
use crate::transport_mode::{Transport, TransportMode};
use crate::transport_stats::TransportStats;

/// Version of the signalling protocol; increases with incompatible changes.
pub(crate) const VERSION: u32 = 8;
/// How long the peer may take to reply.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the peer's summary may take: it follows the end of the peer's streams, which wait up to
/// a minute for their data to arrive.
pub(crate) const SUMMARY_TIMEOUT: Duration = Duration::from_secs(80);
/// How long all streams of a test together may take to connect.
const TOTAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum length of a message in bytes: the summary of 256 streams, or a chunk of a report.
const MAX_MESSAGE: usize = 1 << 20;
/// Bytes of a report in one message. JSON may escape one byte with six.
const OUTPUT_CHUNK: usize = 100 << 10;
/// How long a report may take, and how much longer for each whole [`OUTPUT_CHUNK`] of it: 42 kbit/s are enough, or
/// 250 kbit/s if JSON escapes each byte with six.
const OUTPUT_TIMEOUT: Duration = REPLY_TIMEOUT;
/// Maximum bytes of a report that are sent and accepted.
pub(crate) const MAX_OUTPUT: usize = 4 << 20;

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    /// From the client to the server.
    Forward,
    Reverse,
    /// Both directions, over separate streams.
    Both,
}

/// A test request of the client.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) mode: TransportMode,
    /// Streams in each direction.
    pub(crate) streams: u16,
    #[serde(rename = "carrier")]
    pub(crate) transport: Transport,
    pub(crate) work: Work,
    pub(crate) title: Option<String>,
    /// How long the client allows for setting up a connection, in seconds.
    pub(crate) connect_timeout: f64,
    /// The client wants the report of the server.
    pub(crate) wants_output: bool,
    /// The client wants that report as JSON.
    pub(crate) wants_json: bool,
}

impl Request {
    /// How long the client may take to connect a stream and to reply: as long as it allows, within
    /// limits.
    pub(crate) fn reply_timeout(&self) -> Duration {
        let asked = Duration::try_from_secs_f64(self.connect_timeout).unwrap_or_default();
        asked.clamp(REPLY_TIMEOUT, TOTAL_CONNECT_TIMEOUT)
    }

    /// The number of streams in all directions.
    pub(crate) fn all_streams(&self) -> u16 {
        match &self.work {
            Work::Throughput(work) if work.direction == Direction::Both => {
                self.streams.saturating_mul(2)
            }
            _ => self.streams,
        }
    }
}

/// What the streams transfer.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Work {
    Throughput(Throughput),
    Files {
        /// Number of files and directories.
        count: u64,
        bytes: u64,
    },
}

/// Parameters of a throughput test.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Throughput {
    pub(crate) direction: Direction,
    /// Duration; ignored if `bytes` or `messages` is set.
    pub(crate) seconds: f64,
    /// Initial seconds that are omitted from the results.
    pub(crate) omit: f64,
    /// Bytes of all streams of a direction together that end the test, 0 for no limit.
    pub(crate) bytes: u64,
    /// Messages of all streams of a direction together that end the test, 0 for no limit.
    pub(crate) messages: u64,
    /// Seconds between reports, 0 for none.
    pub(crate) interval: f64,
    /// Bits per second of each stream, 0 for no limit.
    pub(crate) bandwidth: u64,
    /// Length of a message in bytes.
    pub(crate) length: u32,
    /// The sender chooses the length, at most `length`, and unless `deadline_ms` is set also the
    /// deadline, by the path.
    pub(crate) is_fitted: bool,
    /// Whether receivers echo a sample of the messages.
    pub(crate) latency: bool,
    /// Deadline of a message in milliseconds; `None` for the sender's default.
    pub(crate) deadline_ms: Option<u64>,
}

/// Totals of one stream.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Totals {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    pub(crate) duplicates: u64,
    pub(crate) jitter_ms: f64,
    /// With latency measurement: messages that were due but not sent before the end, and messages
    /// whose echo did not arrive.
    pub(crate) unsent: u64,
    pub(crate) unanswered: u64,
    /// The error that ended the stream, if any.
    pub(crate) error: Option<String>,
    /// Statistics of the connection, if the transport is OpenBATS.
    #[serde(rename = "transport")]
    pub(crate) transport_stats: Option<TransportStats>,
}

/// One side's results at the end of a test.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summary {
    pub(crate) streams: Vec<Totals>,
    pub(crate) processor: Utilization,
    /// Latency of messages that this side received.
    pub(crate) one_way: Option<Percentiles>,
    /// Latency of messages that this side sent.
    pub(crate) round_trip: Option<Percentiles>,
    /// Sender settings of this side, if it sends.
    pub(crate) sending: Option<SenderSettings>,
}

/// A message of the signalling protocol.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    Request(Request),
    /// The server accepts the test; data connections present this number.
    Accept {
        test: u64,
        /// Ports for the kernel's transports: one for TCP, one per stream for UDP.
        ports: Vec<u16>,
    },
    Deny {
        reason: String,
    },
    /// All data connections of the test are established.
    Joined,
    /// Requests the server's clock.
    Ping,
    Pong {
        at_ns: u64,
    },
    /// The client is ready.
    Ready {
        clock: ClockOffset,
        /// Hello messages that it has sent on each data connection.
        #[serde(rename = "greetings")]
        hellos: u64,
    },
    /// Starts the test.
    Start,
    Summary(Box<Summary>),
    /// A chunk of this side's report.
    Output {
        text: String,
        last: bool,
    },
}

/// Timeout for the streams of a test to connect. Each stream restarts it, because many streams take
/// long on a slow or distant host, but the total is bounded.
#[derive(Debug)]
pub(crate) struct ConnectTimeout {
    clock: Clock,
    each: Duration,
    last: Duration,
}

impl ConnectTimeout {
    /// Allows each stream this long.
    pub(crate) fn start(each: Duration) -> Self {
        Self { clock: Clock::start(), each, last: Duration::ZERO }
    }

    /// Records that a stream has connected, or that the peer made other progress.
    pub(crate) fn progress(&mut self) {
        self.last = self.clock.elapsed();
    }

    /// How long the next stream may still take.
    pub(crate) fn left(&self) -> Duration {
        Self::left_at(self.each, self.last, self.clock.elapsed())
    }

    fn left_at(each: Duration, last: Duration, now: Duration) -> Duration {
        last.saturating_add(each).min(TOTAL_CONNECT_TIMEOUT).saturating_sub(now)
    }
}

/// Configuration of the signalling connections, which transfer little data.
pub(crate) fn transport_config() -> TransportConfig {
    TransportConfig {
        max_message_size: MAX_MESSAGE,
        send_budget: 4 << 20,
        receive_budget: 4 << 20,
        // The connection is idle during the test.
        keep_alive: Some(Duration::from_secs(5)),
        ..TransportConfig::default()
    }
}

/// Sends a message.
pub(crate) fn send(connection: &Connection, message: &Message) -> Result<()> {
    let text = serde_json::to_vec(message).context("cannot encode a signalling message")?;
    connection
        .send(text)
        .wait_for(REPLY_TIMEOUT)
        .context("the peer does not accept data on the signalling connection")?
        .context("the signalling connection failed")
}

/// Receives the next message.
///
/// # Errors
/// No message arrived within `timeout`, it is invalid, or the connection failed.
pub(crate) fn receive(connection: &Connection, timeout: Duration) -> Result<Message> {
    let message = connection
        .recv()
        .wait_for(timeout)
        .context("no message on the signalling connection")?
        .context("the signalling connection failed")?;
    decode_message(message)
}

fn decode_message(message: Option<Bytes>) -> Result<Message> {
    let Some(message) = message else { bail!("the peer has closed the signalling connection") };
    parse(&message)
}

/// Parses a message of the peer.
pub(crate) fn parse(message: &[u8]) -> Result<Message> {
    serde_json::from_slice(message).context("the peer sent an invalid signalling message")
}

/// Like [`receive`], but calls `again` every `every` until the message arrives.
pub(crate) fn receive_meanwhile(
    connection: &Connection,
    timeout: Duration,
    every: Duration,
    mut again: impl FnMut() -> Result<()>,
) -> Result<Message> {
    let clock = Clock::start();
    while clock.elapsed() < timeout {
        if let Ok(message) = connection.recv().wait_for(every) {
            let message = message.context("the signalling connection failed")?;
            return decode_message(message);
        }
        again()?;
    }
    receive(connection, Duration::ZERO)
}

/// How long a report may have taken of which so many bytes are there.
fn output_deadline(timeout: Duration, bytes: usize) -> Duration {
    let chunks = u32::try_from(bytes / OUTPUT_CHUNK).unwrap_or(u32::MAX);
    timeout.saturating_mul(chunks.saturating_add(1))
}

/// Sends a report in chunks. Fails if the peer does not take all of it in time: a server keeps the slot
/// of the test meanwhile.
pub(crate) fn send_output(connection: &Connection, text: &str) -> Result<()> {
    let clock = Clock::start();
    let mut remaining = text;
    loop {
        let sent = text.len().saturating_sub(remaining.len());
        if clock.elapsed() > output_deadline(OUTPUT_TIMEOUT, sent) {
            bail!("the peer takes the report too slowly");
        }
        let fits = |end: &usize| remaining.is_char_boundary(*end);
        let end = (0..=remaining.len().min(OUTPUT_CHUNK)).rev().find(fits).unwrap_or(0);
        let (chunk, after) = remaining.split_at(end);
        let last = after.is_empty();
        send(connection, &Message::Output { text: chunk.to_owned(), last })?;
        if last {
            return Ok(());
        }
        remaining = after;
    }
}

/// Receives a report.
pub(crate) fn receive_output(connection: &Connection) -> Result<String> {
    receive_output_within(connection, OUTPUT_TIMEOUT)
}

/// Like [`receive_output`], but gives up when less has arrived than a whole chunk in each `timeout` after the
/// first: each message may take a while, but a peer could send small ones without end.
fn receive_output_within(connection: &Connection, timeout: Duration) -> Result<String> {
    let clock = Clock::start();
    let mut whole = String::new();
    loop {
        let deadline = output_deadline(timeout, whole.len());
        let left = deadline.saturating_sub(clock.elapsed());
        let received = receive(connection, left.min(REPLY_TIMEOUT));
        if clock.elapsed() >= deadline {
            bail!("the peer's report has not arrived within {} s", deadline.as_secs_f64());
        }
        let Message::Output { text, last } = received? else {
            bail!("the peer sent an unexpected message");
        };
        if text.is_empty() && !last {
            bail!("the peer sent an empty chunk of a report");
        }
        whole.push_str(&text);
        if whole.len() > MAX_OUTPUT {
            bail!("the peer's report is too long");
        }
        if last {
            return Ok(whole);
        }
    }
}

/// The hello message: the first message of a data connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) test: u64,
    pub(crate) stream: u16,
}

const HELLO_MAGIC: &[u8; 6] = b"BIPRF2";
/// Length of a hello message in bytes.
pub(crate) const HELLO_LENGTH: usize = 16;

impl Hello {
    pub(crate) fn encode(self) -> Vec<u8> {
        [&HELLO_MAGIC[..], &self.test.to_be_bytes(), &self.stream.to_be_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (test, stream) = bytes.strip_prefix(HELLO_MAGIC)?.split_at_checked(8)?;
        Some(Self {
            test: u64::from_be_bytes(test.try_into().ok()?),
            stream: u16::from_be_bytes(stream.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_messages_round_trip_and_invalid_ones_are_rejected() {
        let hello = Hello { test: 0x1234_5678_9abc_def0, stream: 7 };
        assert_eq!(hello.encode().len(), HELLO_LENGTH);
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        for wrong in [
            &b""[..],
            b"BIPRF2",
            b"GET / HTTP/1.1\r\n",
            &[0; 16],
            &[hello.encode(), vec![0]].concat(),
        ] {
            assert_eq!(Hello::decode(wrong), None);
        }
    }

    #[test]
    fn each_stream_restarts_the_connect_timeout_up_to_a_limit() {
        let seconds = Duration::from_secs;
        assert_eq!(ConnectTimeout::left_at(REPLY_TIMEOUT, seconds(0), seconds(0)), REPLY_TIMEOUT);
        assert_eq!(
            ConnectTimeout::left_at(REPLY_TIMEOUT, seconds(15), seconds(18)),
            REPLY_TIMEOUT - seconds(3)
        );
        assert_eq!(
            ConnectTimeout::left_at(REPLY_TIMEOUT, seconds(15), seconds(36)),
            Duration::ZERO
        );
        assert_eq!(ConnectTimeout::left_at(REPLY_TIMEOUT, seconds(119), seconds(119)), seconds(1));
        assert_eq!(
            ConnectTimeout::left_at(REPLY_TIMEOUT, seconds(500), seconds(500)),
            Duration::ZERO
        );
    }

    #[test]
    fn messages_with_unknown_or_missing_fields_are_rejected() {
        let request = Message::Request(Request {
            version: VERSION,
            mode: TransportMode::Brtp,
            streams: 2,
            transport: Transport::Bats,
            work: Work::Files { count: 1, bytes: 9 },
            title: None,
            connect_timeout: 10.0,
            wants_output: false,
            wants_json: false,
        });
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), request);
        let more = text.replace("\"streams\":2", "\"streams\":2,\"command\":\"x\"");
        assert!(serde_json::from_str::<Message>(&more).is_err(), "{more}");
        for wrong in ["{}", "[]", "\"start\"x", r#"{"accept":{}}"#, r#"{"exec":{"command":"x"}}"#] {
            assert!(serde_json::from_str::<Message>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_longest_summary_and_output_chunk_fit_in_a_message() {
        let totals = Totals {
            error: Some("\u{1}".repeat(200)),
            transport_stats: Some(TransportStats::default()),
            seconds: f64::MAX,
            ..Totals::default()
        };
        let summary = Summary { streams: vec![totals; 256], ..Summary::default() };
        let text = serde_json::to_vec(&Message::Summary(Box::new(summary))).unwrap();
        assert!(text.len() < MAX_MESSAGE, "{}", text.len());
        let chunk = Message::Output { text: "\u{1}".repeat(OUTPUT_CHUNK), last: true };
        assert!(serde_json::to_vec(&chunk).unwrap().len() < MAX_MESSAGE);
    }

    /// Ends of signalling connections, one after the other, between the same endpoints.
    fn signalling() -> impl FnMut() -> (Connection, Connection) {
        use openbats::{ClientOptions, Endpoint, Identity, Mode, ServerOptions, Trust};
        let identity = Identity::generate(&["localhost"]).unwrap();
        let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
        let server = ServerOptions::new(identity).transport(transport_config()).modes([Mode::Brtp]);
        let server = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).server(server);
        let server = server.start().unwrap();
        let client = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start().unwrap();
        move || {
            let connecting = client.connect(
                server.local_addr(),
                "localhost",
                options.clone().transport(transport_config()),
            );
            let near = connecting.wait_for(REPLY_TIMEOUT).unwrap().unwrap();
            let far = server.accept().wait_for(REPLY_TIMEOUT).unwrap().unwrap();
            (near, far)
        }
    }

    #[test]
    fn reports_above_the_maximum_length_are_rejected() {
        let mut connect = signalling();
        for (bytes, is_taken) in [(MAX_OUTPUT, true), (MAX_OUTPUT + 1, false)] {
            let (near, far) = connect();
            std::thread::scope(|scope| {
                scope.spawn(|| send_output(&far, &"x".repeat(bytes)));
                let report = receive_output(&near);
                assert_eq!(report.is_ok_and(|text| text.len() == bytes), is_taken, "{bytes}");
                near.close(0, "");
            });
        }
    }

    #[test]
    fn a_report_may_take_as_long_as_its_chunks() {
        let seconds = |bytes| output_deadline(OUTPUT_TIMEOUT, bytes).as_secs();
        assert_eq!((seconds(0), seconds(OUTPUT_CHUNK - 1), seconds(OUTPUT_CHUNK)), (20, 20, 40));
        assert_eq!(seconds(MAX_OUTPUT), 20 * 41);
        assert!(seconds(usize::MAX) > 0);
    }

    /// Each chunk arrives long before the timeout for a message.
    #[test]
    fn a_report_without_an_end_is_given_up() {
        let mut connect = signalling();
        for (chunk, limit, why) in [
            ("", Duration::from_secs(60), "empty chunk"),
            ("x", Duration::from_millis(300), "not arrived"),
        ] {
            let (near, far) = connect();
            let (done, ended) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let message = Message::Output { text: chunk.to_owned(), last: false };
                    while send(&far, &message).is_ok() {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                });
                scope.spawn(|| done.send(receive_output_within(&near, limit)));
                let report = ended.recv_timeout(Duration::from_secs(10));
                near.close(0, "");
                let error = report.expect("it waits for more").unwrap_err();
                assert!(error.to_string().contains(why), "{chunk:?}: {error:#}");
            });
        }
        // That of a test without results.
        let (near, far) = connect();
        send_output(&far, "").unwrap();
        assert_eq!(receive_output(&near).unwrap(), "");
    }
}
