//! The signalling: JSON messages over a BRTP connection to the port below the data's.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Connection, Wait};
use serde::{Deserialize, Serialize};

use crate::processor::Utilization;

/// Grows when the messages change incompatibly.
pub(crate) const VERSION: u32 = 1;
/// How long an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What the client asks for.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) streams: u16,
    pub(crate) work: Work,
}

/// What the streams are for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Throughput {
        seconds: f64,
        interval: f64,
        reverse: bool,
        /// Bits a second of each stream, 0 for no limit.
        bandwidth: u64,
        /// Octets of a message.
        length: u32,
    },
    Files {
        count: u64,
        bytes: u64,
    },
}

/// One stream's totals.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Totals {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    pub(crate) jitter_ms: f64,
    /// What went wrong, if something did.
    pub(crate) error: Option<String>,
}

/// All that is said.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Message {
    Request(Request),
    /// The server agrees; data connections show this number.
    Accept {
        test: u64,
    },
    Deny {
        reason: String,
    },
    /// All data connections are there: the test begins now.
    Start,
    /// One side's view in the end.
    Summary {
        streams: Vec<Totals>,
        processor: Utilization,
    },
}

/// Sends a message.
pub(crate) fn send(connection: &Connection, message: &Message) -> Result<()> {
    let text = serde_json::to_vec(message).context("cannot write a signalling message")?;
    connection.send(text).wait().context("the signalling connection broke")
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
    let Some(message) = message else { bail!("the peer has left the signalling connection") };
    serde_json::from_slice(&message).context("the peer's signalling is not understood")
}

/// The first message of a data connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Hello {
    pub(crate) test: u64,
    pub(crate) stream: u16,
}

const HELLO_MAGIC: &[u8; 6] = b"BIPRF1";

impl Hello {
    pub(crate) fn encode(self) -> Vec<u8> {
        [&HELLO_MAGIC[..], &self.test.to_be_bytes(), &self.stream.to_be_bytes()].concat()
    }

    pub(crate) fn decode(octets: &[u8]) -> Option<Self> {
        let (test, stream) = octets.strip_prefix(HELLO_MAGIC)?.split_at_checked(8)?;
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
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        for wrong in [
            &b""[..],
            b"BIPRF1",
            b"GET / HTTP/1.1\r\n",
            &[0; 16],
            &[hello.encode(), vec![0]].concat(),
        ] {
            assert_eq!(Hello::decode(wrong), None);
        }
    }

    #[test]
    fn messages_with_unknown_or_missing_fields_are_refused() {
        let request = Message::Request(Request {
            version: VERSION,
            streams: 2,
            work: Work::Files { count: 1, bytes: 9 },
        });
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), request);
        for wrong in ["{}", "[]", "\"start\"x", r#"{"accept":{}}"#, r#"{"exec":{"command":"x"}}"#] {
            assert!(serde_json::from_str::<Message>(wrong).is_err(), "{wrong}");
        }
    }
}
