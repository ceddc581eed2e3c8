//! The format of samples and control messages.
//!
//! A message consists of samples, one after the other. All numbers are little-endian.
//!
//! ```text
//!  0               4               8              12
//! +---------------+---------------+---------------+---------------+
//! | key           | publisher id  | sequence      | time stamp    |
//! +---------------+---------------+---------------+---------------+
//! | (nanoseconds) | target        | length        | payload ...
//! +---------------+---------------+---------------+-----
//! ```
//!
//! `target` is the id of the subscriber that must echo the sample, -1 for none, or a lower number
//! for a control message. `length` is the length of the payload.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt;

/// Length of the header, which is part of the length of a sample.
pub(crate) const HEADER: usize = 28;
/// Target of a sample that no subscriber echoes.
pub(crate) const NO_ECHO: i32 = -1;
/// First bytes of the messages that set up a test.
const MAGIC: [u8; 8] = *b"BATSPERF";
/// Version of this format.
const VERSION: u32 = 2;

/// The header of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: u32,
    pub(crate) publisher: u32,
    pub(crate) sequence: u32,
    pub(crate) stamp_ns: u64,
    pub(crate) target: i32,
    pub(crate) length: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        // The words of the message: the time stamp has two.
        let (stamp, stamp_high) = (self.stamp_ns as u32, (self.stamp_ns >> 32) as u32);
        let target = self.target as u32;
        let words =
            [self.key, self.publisher, self.sequence, stamp, stamp_high, target, self.length];
        let mut bytes = [0; HEADER];
        let (places, _) = bytes.as_chunks_mut::<4>();
        places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER]) -> Self {
        let mut words = [0; HEADER / 4];
        let (places, _) = bytes.as_chunks::<4>();
        words.iter_mut().zip(places).for_each(|(word, place)| *word = u32::from_le_bytes(*place));
        let [key, publisher, sequence, stamp, stamp_high, target, length] = words;
        Self {
            key,
            publisher,
            sequence,
            stamp_ns: u64::from(stamp) | u64::from(stamp_high) << 32,
            target: target as i32,
            length,
        }
    }
}

/// Takes the first sample of a message. `None` at the end, and if the rest is not a sample.
pub(crate) fn next_sample<'a>(message: &mut &'a [u8]) -> Option<(Header, &'a [u8])> {
    let (header, rest) = message.split_first_chunk::<HEADER>()?;
    let header = Header::decode(header);
    let length = usize::try_from(header.length).ok()?;
    let (payload, rest) = rest.split_at_checked(length)?;
    *message = rest;
    Some((header, payload))
}

/// The target of the first sample of a message.
pub(crate) fn target(message: &[u8]) -> Option<i32> {
    message.first_chunk::<HEADER>().map(|header| Header::decode(header).target)
}

/// What a publisher says about itself and its test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) domain: u32,
    pub(crate) publisher: u32,
    /// Identifies the process, so that two publishers with the same id are found.
    pub(crate) process: u64,
    pub(crate) data_length: u32,
    /// Number of messages after which the subscriber reports that it has taken them; 0: never.
    pub(crate) report_every: u32,
    pub(crate) keyed: bool,
    /// Number of keys.
    pub(crate) instances: u32,
}

/// What a subscriber says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) domain: u32,
    pub(crate) subscriber: u32,
    pub(crate) process: u64,
    /// Port on which it receives.
    pub(crate) port: u16,
}

/// Why a subscriber does not take part in the test of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Refusal {
    /// The publisher is of this domain.
    Domain(u32),
    /// The same process is connected already.
    Connected,
    /// Another publisher has this id.
    SameId(u32),
    /// Only one side has keys: the publisher, or the subscriber.
    Keyed { at_publisher: bool },
    /// The subscriber has this number of instances.
    Instances(u32),
    /// The subscriber has all of its publishers, which are this number.
    Full(u32),
}

impl Refusal {
    /// A number for the kind, and the value.
    fn encode(self) -> [u32; 2] {
        match self {
            Self::Domain(domain) => [0, domain],
            Self::Connected => [1, 0],
            Self::SameId(id) => [2, id],
            Self::Keyed { at_publisher } => [3, at_publisher.into()],
            Self::Instances(count) => [4, count],
            Self::Full(count) => [5, count],
        }
    }

    fn decode(kind: u32, value: u32) -> Option<Self> {
        match kind {
            0 => Some(Self::Domain(value)),
            1 => Some(Self::Connected),
            2 => Some(Self::SameId(value)),
            3 => Some(Self::Keyed { at_publisher: value != 0 }),
            4 => Some(Self::Instances(value)),
            5 => Some(Self::Full(value)),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Domain(domain) => write!(f, "a publisher of domain {domain} connected"),
            Self::Connected => f.write_str("connected already"),
            Self::SameId(id) => write!(f, "there is another publisher with id {id}"),
            Self::Keyed { at_publisher } => {
                let (with, without) = match at_publisher {
                    true => ("publisher", "subscriber"),
                    false => ("subscriber", "publisher"),
                };
                write!(f, "the {with} has -keyed and the {without} has not: use it on both")
            }
            Self::Instances(count) => write!(
                f,
                "the subscriber has -instances {count} and the publisher another number: use the same on \
                 both"
            ),
            Self::Full(count) => write!(f, "all {count} publishers are connected"),
        }
    }
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Hello(Hello),
    Announcement(Announcement),
    /// Initialization ping; the subscriber answers the whole message with a pong.
    Ping,
    Pong,
    /// The publisher has sent this number of samples, and no more follow.
    End {
        publisher: u32,
        samples: u64,
    },
    /// The subscriber ends after the end mark (or, `early`, before it).
    Goodbye {
        subscriber: u32,
        early: bool,
    },
    KeepAlive {
        subscriber: u32,
    },
    /// The subscriber has taken this number of messages.
    Taken {
        subscriber: u32,
        messages: u64,
    },
    /// The answer to a hello over raw UDP. Connections say it when they close.
    Refused(Refusal),
}

const HELLO: i32 = -2;
const ANNOUNCEMENT: i32 = -3;
const PING: i32 = -4;
const PONG: i32 = -5;
const END: i32 = -6;
const GOODBYE: i32 = -7;
const KEEP_ALIVE: i32 = -8;
const TAKEN: i32 = -9;
const REFUSED: i32 = -10;

/// Marks a message of samples as initialization pings, or as the answer.
pub(crate) fn ping_target(answer: bool) -> i32 {
    if answer { PONG } else { PING }
}

impl Control {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let mut header = Header::default();
        match *self {
            Self::Hello(hello) => {
                header = Header { target: HELLO, publisher: hello.publisher, ..header };
                body.extend_from_slice(&MAGIC);
                for word in [VERSION, hello.domain, hello.data_length, hello.report_every] {
                    body.extend_from_slice(&word.to_le_bytes());
                }
                body.extend_from_slice(&hello.process.to_le_bytes());
                body.push(hello.keyed.into());
                body.extend_from_slice(&hello.instances.to_le_bytes());
            }
            Self::Announcement(announcement) => {
                header = Header { target: ANNOUNCEMENT, key: announcement.subscriber, ..header };
                body.extend_from_slice(&MAGIC);
                for word in [VERSION, announcement.domain, announcement.port.into()] {
                    body.extend_from_slice(&word.to_le_bytes());
                }
                body.extend_from_slice(&announcement.process.to_le_bytes());
            }
            Self::Ping => header.target = PING,
            Self::Pong => header.target = PONG,
            Self::End { publisher, samples } => {
                header = Header { target: END, publisher, stamp_ns: samples, ..header };
            }
            Self::Goodbye { subscriber, early } => {
                header =
                    Header { target: GOODBYE, key: subscriber, sequence: early.into(), ..header };
            }
            Self::KeepAlive { subscriber } => {
                header = Header { target: KEEP_ALIVE, key: subscriber, ..header };
            }
            Self::Taken { subscriber, messages } => {
                header = Header { target: TAKEN, key: subscriber, stamp_ns: messages, ..header };
            }
            Self::Refused(refusal) => {
                header.target = REFUSED;
                body.extend_from_slice(&MAGIC);
                let [kind, value] = refusal.encode();
                for word in [VERSION, kind, value] {
                    body.extend_from_slice(&word.to_le_bytes());
                }
            }
        }
        header.length = body.len() as u32;
        [&header.encode()[..], &body].concat()
    }

    /// The control message that a sample is, if it is one. Unknown ones are ignored.
    pub(crate) fn decode(header: &Header, body: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let is_ours = || Some(body.get(..8)? == MAGIC && word(8)? == VERSION);
        match header.target {
            HELLO if is_ours()? => Some(Self::Hello(Hello {
                publisher: header.publisher,
                domain: word(12)?,
                data_length: word(16)?,
                report_every: word(20)?,
                process: long(24)?,
                keyed: *body.get(32)? != 0,
                instances: word(33)?,
            })),
            ANNOUNCEMENT if is_ours()? => Some(Self::Announcement(Announcement {
                subscriber: header.key,
                domain: word(12)?,
                port: u16::try_from(word(16)?).ok()?,
                process: long(20)?,
            })),
            PING => Some(Self::Ping),
            PONG => Some(Self::Pong),
            END => Some(Self::End { publisher: header.publisher, samples: header.stamp_ns }),
            GOODBYE => Some(Self::Goodbye { subscriber: header.key, early: header.sequence != 0 }),
            KEEP_ALIVE => Some(Self::KeepAlive { subscriber: header.key }),
            TAKEN => Some(Self::Taken { subscriber: header.key, messages: header.stamp_ns }),
            REFUSED if is_ours()? => Refusal::decode(word(12)?, word(16)?).map(Self::Refused),
            _ => None,
        }
    }

    /// The control message that a message begins with.
    pub(crate) fn of_message(mut message: &[u8]) -> Option<Self> {
        let (header, body) = next_sample(&mut message)?;
        Self::decode(&header, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_control_messages_survive_encoding() {
        let header = Header {
            key: 1,
            publisher: 2,
            sequence: 3,
            stamp_ns: u64::MAX - 4,
            target: NO_ECHO,
            length: 5,
        };
        let message = [&header.encode()[..], b"12345", &header.encode()[..], b"1234"].concat();
        let mut rest = &message[..];
        assert_eq!(next_sample(&mut rest), Some((header, &b"12345"[..])));
        assert_eq!(next_sample(&mut rest), None);
        assert_eq!(rest.len(), HEADER + 4);
        let hello = Hello {
            domain: 1,
            publisher: 2,
            process: 3 << 40,
            data_length: 4,
            report_every: 5,
            keyed: true,
            instances: 6,
        };
        let announcement = Announcement { domain: 1, subscriber: 2, process: 3, port: 4 };
        for control in [
            Control::Hello(hello),
            Control::Announcement(announcement),
            Control::Ping,
            Control::Pong,
            Control::End { publisher: 7, samples: 1 << 40 },
            Control::Goodbye { subscriber: 3, early: true },
            Control::KeepAlive { subscriber: 3 },
            Control::Taken { subscriber: 3, messages: 1 << 40 },
            Control::Refused(Refusal::Domain(1)),
            Control::Refused(Refusal::Connected),
            Control::Refused(Refusal::SameId(2)),
            Control::Refused(Refusal::Keyed { at_publisher: true }),
            Control::Refused(Refusal::Keyed { at_publisher: false }),
            Control::Refused(Refusal::Instances(3)),
            Control::Refused(Refusal::Full(4)),
        ] {
            let bytes = control.encode();
            assert_eq!(Control::of_message(&bytes), Some(control));
            for length in 0..bytes.len() {
                assert_eq!(Control::of_message(&bytes[..length]), None, "{control:?} {length}");
            }
        }
    }

    #[test]
    fn a_refusal_is_shorter_than_the_hello_that_it_answers() {
        // Over raw UDP the sender of a hello may be invented: an answer must not multiply traffic.
        let refused = Control::Refused(Refusal::Full(u32::MAX)).encode();
        assert!(refused.len() < Control::Hello(Hello::default()).encode().len());
        assert_eq!(Control::of_message(&message_of_kind(6)), None);
    }

    fn message_of_kind(kind: u32) -> Vec<u8> {
        let mut message = Control::Refused(Refusal::Connected).encode();
        message[HEADER + 12..HEADER + 16].copy_from_slice(&kind.to_le_bytes());
        message
    }

    #[test]
    fn messages_of_other_versions_are_not_understood() {
        let mut hello = Control::Hello(Hello::default()).encode();
        hello[HEADER] ^= 1;
        assert_eq!(Control::of_message(&hello), None);
        hello[HEADER] ^= 1;
        hello[HEADER + 8] ^= 1;
        assert_eq!(Control::of_message(&hello), None);
    }
}
