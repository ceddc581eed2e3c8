//! The signalling: JSON messages over a BRTP connection to the port below the data's.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use openbats::{Connection, TransportConfig, Wait};
use serde::{Deserialize, Serialize};

use crate::cli::TransportMode;
use crate::clock::Clock;
use crate::latency::Percentiles;
use crate::processor::Utilization;
use crate::sending::Sending;
use crate::transport::Transport;

/// Grows when the messages change incompatibly.
pub(crate) const VERSION: u32 = 5;
/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How long the other side's summary may take: it waits until its streams have ended, each for a minute
/// at most as long as anything moves.
pub(crate) const SUMMARY_PATIENCE: Duration = Duration::from_secs(80);
/// How long the streams of a test may take to come, all together.
const GATHERING: Duration = Duration::from_secs(120);
/// Bytes of a message at most: the summary of 256 streams, or a piece of the other side's report.
const MAX_MESSAGE: usize = 1 << 20;
/// Bytes of the report in one message. JSON may escape a byte with six.
const PIECE: usize = 100 << 10;
/// Bytes of the other side's report that are sent and taken.
pub(crate) const MAX_OUTPUT: usize = 4 << 20;

/// What the data goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Carrier {
    /// OpenBATS.
    Bats,
    /// The kernel's TCP.
    Tcp,
    /// The kernel's UDP.
    Udp,
}

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Direction {
    /// From the client to the server.
    Forward,
    Reverse,
    /// Both ways, over streams of their own.
    Both,
}

/// What the client asks for.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) mode: TransportMode,
    /// Streams of each direction.
    pub(crate) streams: u16,
    pub(crate) carrier: Carrier,
    pub(crate) work: Work,
    pub(crate) title: Option<String>,
    /// The client wants the server's report.
    pub(crate) wants_output: bool,
    /// ... as JSON.
    pub(crate) wants_json: bool,
}

impl Request {
    /// Streams of all directions together.
    pub(crate) fn all_streams(&self) -> u16 {
        match &self.work {
            Work::Throughput(work) if work.direction == Direction::Both => {
                self.streams.saturating_mul(2)
            }
            _ => self.streams,
        }
    }
}

/// What the streams are for.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Work {
    Throughput(Throughput),
    Files {
        /// Files and directories.
        count: u64,
        bytes: u64,
    },
}

/// A test.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Throughput {
    pub(crate) direction: Direction,
    /// Length; of no meaning with `bytes` or `messages`.
    pub(crate) seconds: f64,
    /// Seconds at the beginning that do not count.
    pub(crate) omit: f64,
    /// Bytes of all streams of a direction together, 0 for no such end.
    pub(crate) bytes: u64,
    /// Messages of all streams of a direction together, 0 for no such end.
    pub(crate) messages: u64,
    /// Seconds between reports, 0 for none.
    pub(crate) interval: f64,
    /// Bits a second of each stream, 0 for no limit.
    pub(crate) bandwidth: u64,
    /// Bytes of a message.
    pub(crate) length: u32,
    /// Whether receivers send samples of the messages back.
    pub(crate) latency: bool,
    /// Milliseconds after which a message is of no use; `None` for the senders' default.
    pub(crate) deadline_ms: Option<u64>,
}

/// One stream's totals.
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
    /// Where times are measured: messages that were due and could not be sent before the end, and
    /// those that were to come back and did not.
    pub(crate) unsent: u64,
    pub(crate) unanswered: u64,
    /// What went wrong, if something did.
    pub(crate) error: Option<String>,
    /// The connection's figures, where it is one of OpenBATS.
    pub(crate) transport: Option<Transport>,
}

/// One side's view in the end.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summary {
    pub(crate) streams: Vec<Totals>,
    pub(crate) processor: Utilization,
    /// Of what this side received.
    pub(crate) one_way: Option<Percentiles>,
    /// Of what this side sent.
    pub(crate) round_trip: Option<Percentiles>,
    /// How this side sends, if it does.
    pub(crate) sending: Option<Sending>,
}

/// The server's clock less the client's, and how far that may be wrong.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockOffset {
    pub(crate) offset_ns: i64,
    pub(crate) error_ns: u64,
}

/// All that is said.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    Request(Request),
    /// The server agrees; data connections show this number.
    Accept {
        test: u64,
        /// Ports of the kernel's carriers: one for TCP, one a stream for UDP.
        ports: Vec<u16>,
    },
    Deny {
        reason: String,
    },
    /// All data connections have come to the test.
    Joined,
    /// Asks for the server's clock.
    Ping,
    Pong {
        at_ns: u64,
    },
    /// The client is ready.
    Ready {
        clock: ClockOffset,
        /// Greetings that it has sent on each data connection.
        greetings: u64,
    },
    /// The test begins now.
    Start,
    Summary(Box<Summary>),
    /// A piece of this side's report.
    Output {
        text: String,
        last: bool,
    },
}

/// Patience with the streams of a test: each has its time after the one before, as many of them take
/// long on a slow or far host, but they have not for ever.
#[derive(Debug)]
pub(crate) struct Gathering {
    clock: Clock,
    last: Duration,
}

impl Gathering {
    pub(crate) fn start() -> Self {
        Self { clock: Clock::start(), last: Duration::ZERO }
    }

    /// A stream has come.
    pub(crate) fn progress(&mut self) {
        self.last = self.clock.elapsed();
    }

    /// How long the next one may still take.
    pub(crate) fn left(&self) -> Duration {
        Self::left_at(self.last, self.clock.elapsed())
    }

    fn left_at(last: Duration, now: Duration) -> Duration {
        (last + PATIENCE).min(GATHERING).saturating_sub(now)
    }
}

/// Limits of the signalling connections: little is said on them.
pub(crate) fn transport() -> TransportConfig {
    TransportConfig {
        max_message_size: MAX_MESSAGE,
        send_budget: 4 << 20,
        receive_budget: 4 << 20,
        // It is silent during the test.
        keep_alive: Some(Duration::from_secs(5)),
        ..TransportConfig::default()
    }
}

/// Sends a message.
pub(crate) fn send(connection: &Connection, message: &Message) -> Result<()> {
    let text = serde_json::to_vec(message).context("cannot write a signalling message")?;
    connection
        .send(text)
        .wait_for(PATIENCE)
        .context("the peer takes nothing on the signalling connection")?
        .context("the signalling connection broke")
}

/// The next message.
///
/// # Errors
/// None came within `patience`, it is not understood, or the connection broke.
pub(crate) fn receive(connection: &Connection, patience: Duration) -> Result<Message> {
    let message = connection
        .recv()
        .wait_for(patience)
        .context("no word on the signalling connection")?
        .context("the signalling connection broke")?;
    understood(message)
}

fn understood(message: Option<Bytes>) -> Result<Message> {
    let Some(message) = message else { bail!("the peer has left the signalling connection") };
    serde_json::from_slice(&message).context("the peer's signalling is not understood")
}

/// As [`receive`], doing something again and again until the message comes.
pub(crate) fn receive_meanwhile(
    connection: &Connection,
    patience: Duration,
    every: Duration,
    mut again: impl FnMut() -> Result<()>,
) -> Result<Message> {
    let clock = Clock::start();
    while clock.elapsed() < patience {
        if let Ok(message) = connection.recv().wait_for(every) {
            let message = message.context("the signalling connection broke")?;
            return understood(message);
        }
        again()?;
    }
    receive(connection, Duration::ZERO)
}

/// Sends a report in pieces.
pub(crate) fn send_output(connection: &Connection, text: &str) -> Result<()> {
    let mut rest = text;
    loop {
        let fits = |end: &usize| rest.is_char_boundary(*end);
        let end = (0..=rest.len().min(PIECE)).rev().find(fits).unwrap_or(0);
        let (piece, after) = rest.split_at(end);
        let last = after.is_empty();
        send(connection, &Message::Output { text: piece.to_owned(), last })?;
        if last {
            return Ok(());
        }
        rest = after;
    }
}

/// Receives a report.
pub(crate) fn receive_output(connection: &Connection) -> Result<String> {
    let mut whole = String::new();
    loop {
        let Message::Output { text, last } = receive(connection, PATIENCE)? else {
            bail!("the peer answers out of turn");
        };
        whole.push_str(&text);
        if whole.len() > MAX_OUTPUT {
            bail!("the peer's report is too long");
        }
        if last {
            return Ok(whole);
        }
    }
}

/// Text of a peer, fit to be printed.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(1_000).map(|char| if char.is_control() { '?' } else { char }).collect()
}

/// The first message of a data connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) test: u64,
    pub(crate) stream: u16,
}

const HELLO_MAGIC: &[u8; 6] = b"BIPRF2";
/// Bytes of a hello.
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
    fn a_hello_survives_and_others_are_refused() {
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
    fn streams_that_come_have_more_time_but_not_for_ever() {
        let seconds = Duration::from_secs;
        assert_eq!(Gathering::left_at(seconds(0), seconds(0)), PATIENCE);
        assert_eq!(Gathering::left_at(seconds(15), seconds(18)), PATIENCE - seconds(3));
        assert_eq!(Gathering::left_at(seconds(15), seconds(36)), Duration::ZERO);
        assert_eq!(Gathering::left_at(seconds(119), seconds(119)), seconds(1));
        assert_eq!(Gathering::left_at(seconds(500), seconds(500)), Duration::ZERO);
    }

    #[test]
    fn messages_with_unknown_or_missing_fields_are_refused() {
        let request = Message::Request(Request {
            version: VERSION,
            mode: TransportMode::Brtp,
            streams: 2,
            carrier: Carrier::Bats,
            work: Work::Files { count: 1, bytes: 9 },
            title: None,
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
    fn the_longest_summary_and_the_worst_piece_fit() {
        let totals = Totals {
            error: Some("\u{1}".repeat(200)),
            transport: Some(Transport::default()),
            seconds: f64::MAX,
            ..Totals::default()
        };
        let summary = Summary { streams: vec![totals; 256], ..Summary::default() };
        let text = serde_json::to_vec(&Message::Summary(Box::new(summary))).unwrap();
        assert!(text.len() < MAX_MESSAGE, "{}", text.len());
        let piece = Message::Output { text: "\u{1}".repeat(PIECE), last: true };
        assert!(serde_json::to_vec(&piece).unwrap().len() < MAX_MESSAGE);
    }

    #[test]
    fn a_report_of_the_other_side_has_so_many_bytes() {
        use openbats::{ClientOptions, Endpoint, Identity, Mode, ServerOptions, Trust};
        let identity = Identity::generate(&["localhost"]).unwrap();
        let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
        let server = ServerOptions::new(identity).transport(transport()).modes([Mode::Brtp]);
        let server = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).server(server);
        let server = server.start().unwrap();
        let client = Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start().unwrap();
        for (bytes, is_taken) in [(MAX_OUTPUT, true), (MAX_OUTPUT + 1, false)] {
            let connecting = client.connect(
                server.local_addr(),
                "localhost",
                options.clone().transport(transport()),
            );
            let near = connecting.wait_for(PATIENCE).unwrap().unwrap();
            let far = server.accept().wait_for(PATIENCE).unwrap().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| send_output(&far, &"x".repeat(bytes)));
                let report = receive_output(&near);
                assert_eq!(report.is_ok_and(|text| text.len() == bytes), is_taken, "{bytes}");
                near.close(0, "");
            });
        }
    }

    #[test]
    fn text_cannot_drive_a_terminal() {
        assert_eq!(printable("a\x1b[31m\n"), "a?[31m?");
        assert_eq!(printable(&"é".repeat(5_000)).chars().count(), 1_000);
    }
}
