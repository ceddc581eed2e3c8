//! Answers to peers without a connection that wait for the driver.

use core::net::IpAddr;
use std::collections::VecDeque;

use crate::datagram::Incoming;
use crate::remote::Remote;

/// Stateless answers (Retry, version negotiation) that wait for the driver. More are dropped; the
/// peer will retry.
const MAX_STATELESS_ANSWERS: usize = 64;

/// A datagram that answers another one.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) remote: Remote,
    /// The address that the other one was sent to.
    pub(super) local_ip: Option<IpAddr>,
    pub(super) payload: Vec<u8>,
}

/// The queue of answers.
#[derive(Debug, Default)]
pub(super) struct Answers {
    queue: VecDeque<Answer>,
    dropped: u64,
}

impl Answers {
    /// Queues an answer to a datagram, or drops it.
    pub(super) fn push(&mut self, datagram: &Incoming<'_>, payload: Vec<u8>) {
        // Never send more than was received, and bound the memory for unauthenticated peers.
        if payload.len() <= datagram.payload.len() && self.queue.len() < MAX_STATELESS_ANSWERS {
            let Incoming { remote, local_ip, .. } = *datagram;
            self.queue.push_back(Answer { remote, local_ip, payload });
        } else {
            self.dropped += 1;
        }
    }

    /// The next answer to send.
    pub(super) fn pop(&mut self) -> Option<Answer> {
        self.queue.pop_front()
    }

    /// An answer is not even written: there have been too many of its kind.
    pub(super) fn on_refused(&mut self) {
        self.dropped += 1;
    }

    /// Answers that were not sent.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}
