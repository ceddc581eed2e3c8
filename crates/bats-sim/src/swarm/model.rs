//! Model of one direction of a connection: which messages it may deliver, by mode.

use bats_proto::ConnectionStats;
use bats_proto::config::Mode;
use bytes::Bytes;

use super::rng::mix;
use crate::transfer::number_at;

/// Bytes of the label of a message: its number and the tag of its direction.
pub(super) const LABEL_LEN: usize = 16;

/// The tag of all messages of one direction, different for each direction, connection and seed.
pub(super) fn tag(seed: u64, connection: usize, side: usize) -> u64 {
    mix(mix(seed) ^ (connection as u64) << 8 ^ side as u64)
}

/// Message `number`: its number, its tag, and bytes that derive from both, truncated to `size`.
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

/// Number and tag of a message; `None` if it is too short.
pub(super) fn label(message: &[u8]) -> Option<(u64, u64)> {
    Some((number_at(message, 0)?, number_at(message, 8)?))
}

/// One direction of a connection: the messages sent, and which of them were delivered.
#[derive(Clone, Debug)]
pub(super) struct DirectionModel {
    mode: Mode,
    tag: u64,
    /// Bytes of each message sent.
    sizes: Vec<u32>,
    /// Which of them were delivered.
    was_delivered: Vec<bool>,
    delivered: u64,
    bytes: u64,
}

impl DirectionModel {
    pub(super) fn new(mode: Mode, tag: u64) -> Self {
        Self { mode, tag, sizes: Vec::new(), was_delivered: Vec::new(), delivered: 0, bytes: 0 }
    }

    pub(super) fn tag(&self) -> u64 {
        self.tag
    }

    /// Number of messages accepted by `send`.
    pub(super) fn sent(&self) -> u64 {
        self.sizes.len() as u64
    }

    /// Number of messages delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Bytes of the messages delivered.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next message to send. It counts as sent after [`DirectionModel::on_sent`].
    pub(super) fn next_message(&self, size: usize) -> Bytes {
        content(self.tag, self.sent(), size).into()
    }

    /// Records that `send` accepted the next message, of `size` bytes.
    pub(super) fn on_sent(&mut self, size: usize) {
        self.sizes.push(u32::try_from(size).unwrap_or(u32::MAX));
        self.was_delivered.push(false);
    }

    /// Checks a delivered message. In reliable modes it must be the next one in order, in others
    /// one that was sent and not delivered before. It must be intact and of this direction.
    pub(super) fn receive(&mut self, message: &[u8]) -> Result<(), String> {
        let number = if self.mode.is_reliable() {
            self.delivered
        } else {
            label(message).ok_or("a message that is shorter than any message sent")?.0
        };
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(&size) = self.sizes.get(index) else {
            return Err(format!(
                "message {number} was delivered, but only {} were sent",
                self.sent()
            ));
        };
        if message != content(self.tag, number, size as usize) {
            let label = label(message);
            return Err(format!(
                "message {number} of {size} bytes arrived corrupted: {} bytes, label {label:?}",
                message.len()
            ));
        }
        if core::mem::replace(&mut self.was_delivered[index], true) {
            return Err(format!("message {number} was delivered twice"));
        }
        self.delivered += 1;
        self.bytes += message.len() as u64;
        Ok(())
    }

    /// Checks the counters of the receiver after it has seen the end of the messages.
    pub(super) fn end(&self, receiver: &ConnectionStats) -> Result<(), String> {
        let (sent, delivered) = (self.sent(), self.delivered);
        match self.mode {
            mode if mode.is_reliable() && delivered != sent => {
                Err(format!("{delivered} of {sent} messages were delivered before the end"))
            }
            Mode::Btp | Mode::Transparent if delivered + receiver.messages.lost != sent => {
                let lost = receiver.messages.lost;
                Err(format!("{sent} messages sent, {delivered} delivered, {lost} counted as lost"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bats_proto::MessageStats;

    use super::*;

    fn model_with_messages(mode: Mode) -> (DirectionModel, Vec<Bytes>) {
        let mut model = DirectionModel::new(mode, tag(1, 0, 0));
        let messages = (0..4)
            .map(|_| {
                let message = model.next_message(40);
                model.on_sent(40);
                message
            })
            .collect();
        (model, messages)
    }

    #[test]
    fn reliable_messages_must_arrive_in_order_and_completely() {
        let (mut model, messages) = model_with_messages(Mode::Brtp);
        model.receive(&messages[0]).unwrap();
        assert!(model.clone().receive(&messages[2]).is_err(), "a gap");
        assert!(model.clone().receive(&messages[0]).is_err(), "a duplicate");
        model.receive(&messages[1]).unwrap();
        assert!(model.end(&ConnectionStats::default()).is_err(), "two missing");
        model.receive(&messages[2]).unwrap();
        model.receive(&messages[3]).unwrap();
        assert!(model.receive(&messages[3]).is_err(), "more than were sent");
        model.end(&ConnectionStats::default()).unwrap();
    }

    #[test]
    fn unreliable_messages_may_arrive_in_any_order_but_once_and_must_be_accounted_for() {
        for mode in [Mode::Btp, Mode::Transparent] {
            let (mut model, messages) = model_with_messages(mode);
            model.receive(&messages[2]).unwrap();
            model.receive(&messages[0]).unwrap();
            assert!(model.clone().receive(&messages[2]).is_err(), "a duplicate");
            let stats = |lost| ConnectionStats {
                messages: MessageStats { lost, ..MessageStats::default() },
                ..ConnectionStats::default()
            };
            model.end(&stats(2)).unwrap();
            assert!(model.end(&stats(1)).is_err());
            assert!(model.end(&stats(3)).is_err());
        }
    }

    #[test]
    fn corrupted_messages_and_those_of_other_connections_are_detected() {
        for mode in [Mode::Brtp, Mode::Btp] {
            let (mut model, messages) = model_with_messages(mode);
            let (_, others) = {
                let mut other = DirectionModel::new(mode, tag(1, 1, 0));
                let message = other.next_message(40);
                other.on_sent(40);
                (other, message)
            };
            assert!(model.receive(&others).is_err());
            for at in 0..40 {
                let mut corrupted = messages[0].to_vec();
                corrupted[at] ^= 4;
                assert!(model.receive(&corrupted).is_err(), "byte {at}");
            }
            assert!(model.receive(&messages[0][..39]).is_err(), "truncated");
        }
    }
}
