//! What one direction of a connection may deliver, by mode.

use bats_proto::ConnectionStats;
use bats_proto::config::Mode;
use bytes::Bytes;

use super::draw::mix;

/// Least bytes of a message that names itself: its number and its direction.
pub(super) const NAMED: usize = 16;

/// The number that all messages of one direction carry: no other direction of any connection of
/// any seed has it.
pub(super) fn tag(seed: u64, connection: usize, side: usize) -> u64 {
    mix(mix(seed) ^ (connection as u64) << 8 ^ side as u64)
}

/// Message `number`: as many bytes as fit of its number and its tag, and noise that follows from
/// both.
fn content(tag: u64, number: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut x = mix(tag ^ number) | 1;
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = match index {
            0 => number,
            1 => tag,
            _ => {
                x = x.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(17) ^ number;
                x
            }
        };
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// Number and tag of a message that names itself.
pub(super) fn name(message: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    Some((word(0)?, word(8)?))
}

/// One direction of a connection: everything sent, and what of it was delivered.
#[derive(Clone, Debug)]
pub(super) struct Way {
    mode: Mode,
    tag: u64,
    /// Bytes of each message sent.
    sizes: Vec<u32>,
    /// Which of them were delivered.
    got: Vec<bool>,
    delivered: u64,
    bytes: u64,
}

impl Way {
    pub(super) fn new(mode: Mode, tag: u64) -> Self {
        Self { mode, tag, sizes: Vec::new(), got: Vec::new(), delivered: 0, bytes: 0 }
    }

    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// Messages taken by `send`.
    pub(super) fn sent(&self) -> u64 {
        self.sizes.len() as u64
    }

    /// Messages delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Their bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next message, which counts as sent once [`Way::took`] says so.
    pub(super) fn compose(&self, size: usize) -> Bytes {
        content(self.tag, self.sent(), size).into()
    }

    /// A message of `size` bytes was taken.
    pub(super) fn took(&mut self, size: usize) {
        self.sizes.push(u32::try_from(size).unwrap_or(u32::MAX));
        self.got.push(false);
    }

    /// A message was delivered: in BRTP the next one in order, otherwise one that was sent and not
    /// delivered before; never another one's, and never altered.
    pub(super) fn receive(&mut self, message: &[u8]) -> Result<(), String> {
        let number = if self.mode.is_reliable() {
            self.delivered
        } else {
            name(message).ok_or("a message shorter than any sent")?.0
        };
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(&size) = self.sizes.get(index) else {
            return Err(format!("message {number} was delivered, {} were sent", self.sent()));
        };
        if message != content(self.tag, number, size as usize) {
            let named = name(message);
            return Err(format!(
                "message {number} of {size} bytes is not what was sent, but {} bytes, {named:?}",
                message.len()
            ));
        }
        if core::mem::replace(&mut self.got[index], true) {
            return Err(format!("message {number} was delivered twice"));
        }
        self.delivered += 1;
        self.bytes += message.len() as u64;
        Ok(())
    }

    /// The receiver saw the end: what it counted is what was sent.
    pub(super) fn end(&self, receiver: &ConnectionStats) -> Result<(), String> {
        let (sent, delivered) = (self.sent(), self.delivered);
        match self.mode {
            mode if mode.is_reliable() && delivered != sent => {
                Err(format!("{delivered} of {sent} messages were there at the end"))
            }
            Mode::Btp | Mode::Transparent if delivered + receiver.messages_lost != sent => {
                let lost = receiver.messages_lost;
                Err(format!("{sent} messages sent, {delivered} delivered, {lost} counted as lost"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(mode: Mode) -> (Way, Vec<Bytes>) {
        let mut way = Way::new(mode, tag(1, 0, 0));
        let messages = (0..4)
            .map(|_| {
                let message = way.compose(40);
                way.took(40);
                message
            })
            .collect();
        (way, messages)
    }

    #[test]
    fn reliable_messages_come_in_order_and_all() {
        let (mut way, messages) = ways(Mode::Brtp);
        way.receive(&messages[0]).unwrap();
        assert!(way.clone().receive(&messages[2]).is_err(), "one left out");
        assert!(way.clone().receive(&messages[0]).is_err(), "one twice");
        way.receive(&messages[1]).unwrap();
        assert!(way.end(&ConnectionStats::default()).is_err(), "two missing");
        way.receive(&messages[2]).unwrap();
        way.receive(&messages[3]).unwrap();
        assert!(way.receive(&messages[3]).is_err(), "more than was sent");
        way.end(&ConnectionStats::default()).unwrap();
    }

    #[test]
    fn timely_messages_come_in_any_order_at_most_once_and_are_accounted_for() {
        for mode in [Mode::Btp, Mode::Transparent] {
            let (mut way, messages) = ways(mode);
            way.receive(&messages[2]).unwrap();
            way.receive(&messages[0]).unwrap();
            assert!(way.clone().receive(&messages[2]).is_err(), "one twice");
            let stats = |messages_lost| ConnectionStats { messages_lost, ..Default::default() };
            way.end(&stats(2)).unwrap();
            assert!(way.end(&stats(1)).is_err());
            assert!(way.end(&stats(3)).is_err());
        }
    }

    #[test]
    fn what_was_altered_or_is_of_another_connection_is_seen() {
        for mode in [Mode::Brtp, Mode::Btp] {
            let (mut way, messages) = ways(mode);
            let (_, others) = {
                let mut other = Way::new(mode, tag(1, 1, 0));
                let message = other.compose(40);
                other.took(40);
                (other, message)
            };
            assert!(way.receive(&others).is_err());
            for at in 0..40 {
                let mut altered = messages[0].to_vec();
                altered[at] ^= 4;
                assert!(way.receive(&altered).is_err(), "byte {at}");
            }
            assert!(way.receive(&messages[0][..39]).is_err(), "one cut short");
        }
    }
}
