//! What a subscriber does with a message, and answers.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::meter::{Meter, Publisher, lock};
use crate::clock::now_ns;
use crate::wire::{Control, HEADER, Header, next_sample, ping_target};

/// Handles a message of a publisher; passes the answers to `reply`.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub(super) fn handle(meter: &Meter, publisher: &Publisher, message: &[u8], reply: impl Fn(Bytes)) {
    // Sent without the lock: a send can wait.
    collect(meter, publisher, message).into_iter().for_each(reply);
}

/// Handles a message; returns the answers.
fn collect(meter: &Meter, publisher: &Publisher, message: &[u8]) -> Vec<Bytes> {
    let mut replies = Vec::new();
    let own = meter.announcement.subscriber;
    let at_ns = now_ns();
    let mut rest = message;
    let mut state = lock(publisher);
    state.on_message(at_ns);
    let mut is_control = false;
    let mut reply = |answer: Bytes| replies.push(answer);
    while let Some((header, body)) = next_sample(&mut rest) {
        if header.target >= -1 {
            state.on_sample(&header, at_ns, meter.filter);
            if header.target >= 0 && header.target as u32 == own {
                reply(copy(&header, body));
            }
            continue;
        }
        match Control::decode(&header, body) {
            Some(Control::Ping) => {
                // The answer is as long as the ping, as an echo is.
                reply(copy(&Header { target: ping_target(true), ..header }, body));
            }
            Some(Control::Hello(hello)) if hello == state.hello => {
                is_control = true;
                reply(Control::Announcement(meter.announcement).encode().into());
            }
            Some(Control::End { publisher, samples }) if publisher == state.hello.publisher => {
                is_control = true;
                state.on_end(samples, at_ns);
                reply(Control::Goodbye { subscriber: own, early: false }.encode().into());
            }
            Some(Control::KeepAlive { .. }) => is_control = true,
            _ => {
                meter.on_malformed();
                return replies;
            }
        }
    }
    if !rest.is_empty() {
        meter.on_malformed();
    }
    if !is_control {
        state.messages += 1;
        let every = u64::from(state.hello.report_every);
        if every > 0 && state.messages.is_multiple_of(every) {
            let messages = state.messages;
            reply(Control::Taken { subscriber: own, messages }.encode().into());
        }
    }
    if meter.leaves_early.load(Ordering::Acquire) {
        reply(Control::Goodbye { subscriber: own, early: true }.encode().into());
    }
    replies
}

/// A sample of its own.
fn copy(header: &Header, body: &[u8]) -> Bytes {
    let mut sample = Vec::with_capacity(HEADER + body.len());
    sample.extend_from_slice(&header.encode());
    sample.extend_from_slice(body);
    sample.into()
}
