//! Body of a fuzz target; `tests/replay.rs` replays its corpus. Not part of the API.

use std::sync::OnceLock;
use std::time::Duration;

use openbats::file::fuzzing::{FileReport, file_messages_run};
use serde_json::Value;

use crate::cli::{self, Options};
use crate::client;
use crate::control::{
    self, Direction, Hello, Message, Request, Summary, Throughput, Totals, VERSION, Work,
};
use crate::message::Header;
use crate::outcome::Outcome;
use crate::printable::printable;
use crate::report::json::TestInfo;
use crate::report::{html, json, text};
use crate::server::check::check;
use crate::stream::{tcp, udp};
use crate::test;
use crate::transport_mode::{Transport, TransportMode};

/// What the bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Whether it is a message of the control connection.
    pub is_control: bool,
    /// Whether it is a request that a server accepts.
    pub is_accepted: bool,
    /// Headers, echoes, hello and end messages of data streams.
    pub data_messages: u32,
    /// Messages and names of file transfers.
    pub files: FileReport,
}

/// Parses `data` as every message that a peer may send: of the control connection, of data streams, and of transfers
/// of files. What parses is encoded and parses to the same. An accepted request gives the parameters of a test, and
/// reports of a test with the peer's summary can be written.
///
/// # Panics
/// A property is violated.
pub fn iperf_messages_run(data: &[u8]) -> Report {
    let mut report = Report::default();
    if let Ok(message) = control::parse(data) {
        report.is_control = true;
        let encoded = serde_json::to_vec(&message).expect("a message can be encoded");
        let again = control::parse(&encoded).expect("an encoded message parses");
        assert!(is_same(&value(&message), &value(&again)), "{message:?} became {again:?}");
        match message {
            Message::Request(request) => report.is_accepted = take_request(&request),
            Message::Summary(summary) => take_summary(*summary),
            Message::Deny { reason } => assert_printable(&printable(&reason)),
            Message::Output { text, .. } => {
                text.lines().for_each(|line| assert_printable(&printable(line)));
            }
            _ => {}
        }
    }
    if let Ok(header) = Header::from_message(data) {
        report.data_messages += 1;
        let again = Header::from_message(&header.message(data.len()));
        assert_eq!(again.expect("an encoded header parses"), header);
    }
    if let Ok(header) = Header::from_echo(data) {
        report.data_messages += 1;
        assert_eq!(Header::from_echo(&header.echo()).expect("an encoded echo parses"), header);
    }
    if let Some(hello) = Hello::decode(data) {
        report.data_messages += 1;
        assert_eq!(hello.encode(), data);
    }
    report.data_messages += u32::from(udp::end_of(data).is_some());
    if let Ok(messages) = tcp::split(data) {
        let length: usize = messages.iter().map(|message| message.len() + 4).sum();
        assert!(length <= data.len());
    }
    report.files = file_messages_run(data);
    report
}

fn value(message: &Message) -> Value {
    serde_json::to_value(message).expect("a message can be encoded")
}

/// Whether two values are equal. The parser may round a number to a neighbour of the nearest one.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, one)| other.get(key).is_some_and(|other| is_same(one, other)))
        }
        (Value::Number(one), Value::Number(other)) if one.is_f64() => {
            let [one, other] = [one.as_f64(), other.as_f64()].map(Option::unwrap_or_default);
            one == other || (one - other).abs() <= one.abs() * 1e-15
        }
        _ => one == other,
    }
}

fn assert_printable(text: &str) {
    assert!(!text.chars().any(char::is_control), "{text:?}");
    assert!(text.chars().count() <= 1_000, "{text:?}");
}

/// A server that accepts files.
fn server() -> &'static Options {
    static OPTIONS: OnceLock<Options> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let arguments = ["bats_iperf", "-s", "--directory", "/"];
        cli::parse(arguments).expect("options of a server").0
    })
}

/// Checks a request as a server does, and takes the parameters of an accepted one.
fn take_request(request: &Request) -> bool {
    let limits = control::REPLY_TIMEOUT..=Duration::from_secs(120);
    assert!(limits.contains(&request.reply_timeout()));
    if let Err(reason) = check(request, server()) {
        assert_printable(&reason);
        return false;
    }
    assert!((1..=256).contains(&request.all_streams()));
    if let Work::Throughput(work) = &request.work {
        let params = client::params(work, Duration::from_secs(1));
        assert!(params.time.is_none_or(|time| time > Duration::ZERO));
        assert!(Duration::try_from_secs_f64(work.interval).is_ok());
        let sides = test::sides(work.direction, request.streams, false);
        assert_eq!(sides.len(), usize::from(request.all_streams()));
        let _ = server().sender_settings(request.mode, request.transport).printable();
    }
    true
}

/// Writes the reports of a test whose peer sent this summary, at both ends.
fn take_summary(summary: Summary) {
    let remote = client::checked_summary(summary);
    let request = Request {
        version: VERSION,
        mode: TransportMode::Btp,
        streams: 2,
        transport: Transport::Bats,
        work: Work::Throughput(Throughput {
            direction: Direction::Both,
            seconds: 10.0,
            omit: 0.0,
            bytes: 0,
            messages: 0,
            interval: 1.0,
            bandwidth: 0,
            length: 1_000,
            is_fitted: false,
            latency: true,
            deadline_ms: None,
        }),
        title: None,
        connect_timeout: 10.0,
        wants_output: false,
        wants_json: true,
    };
    for is_client in [true, false] {
        let own = Summary { streams: vec![Totals::default(); 4], ..Summary::default() };
        let outcome = Outcome {
            sides: test::sides(Direction::Both, 2, is_client),
            is_client,
            intervals: Vec::new(),
            left_out: 0,
            summary: own,
        };
        for line in text::summary(&outcome, Some(&remote), true) {
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        let test_info = TestInfo {
            connected: Vec::new(),
            connecting_to: None,
            accepted: None,
            test: 1,
            request: request.clone(),
            has_iperf3_protocol: true,
            emulate: None,
        };
        let document = json::document(&test_info, &outcome, Some(&remote));
        html::page(&document).expect("a page");
    }
}
