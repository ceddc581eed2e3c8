//! The receiving end of a stream.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::carrier::{Pipe, Received};
use crate::clock::{Clock, stamp_ns};
use crate::control::Hello;
use crate::latency::Recorder;
use crate::message::Head;
use crate::meter::{Jitter, Meter, Sequence};

/// How a stream is received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reception {
    /// What makes the sender's times this side's, nanoseconds.
    pub(crate) shift_ns: i64,
    /// Whether one-way times are recorded.
    pub(crate) latency: bool,
    /// How long nothing may come.
    pub(crate) timeout: Duration,
    /// How long it may go on in all.
    pub(crate) deadline: Duration,
    /// Messages of the sender that greet only.
    pub(crate) greetings: u64,
}

/// Receives until the sender has finished.
pub(crate) fn receive(
    pipe: &Pipe,
    meter: &Meter,
    reception: Reception,
    recorder: &mut Recorder,
) -> Result<()> {
    let clock = Clock::start();
    let mut jitter = Jitter::default();
    let mut sequence = Sequence::new();
    let mut is_omitting = false;
    loop {
        let message = match pipe.recv(reception.timeout)? {
            Received::Message(message) => message,
            Received::End => break,
            Received::Nothing => {
                bail!("nothing was received for {} s", reception.timeout.as_secs_f64())
            }
        };
        // A greeting that was repeated, as the first might have been lost.
        if Hello::decode(&message).is_some() {
            continue;
        }
        let arrived_ns = stamp_ns();
        if clock.elapsed() > reception.deadline {
            bail!("the sender does not come to an end");
        }
        let head = Head::of_message(&message)?;
        if is_omitting && !head.is_omitted {
            meter.set_base(clock.elapsed());
        }
        is_omitting = head.is_omitted;
        let is_new = sequence.insert(head.number);
        meter.set_sequence(&sequence);
        if !is_new {
            continue;
        }
        meter.count(message.len());
        meter.set_jitter(jitter.update(head.sent_ns, arrived_ns));
        if reception.latency && !head.is_omitted {
            let due_ns = i128::from(head.due_ns) + i128::from(reception.shift_ns);
            let passed = (i128::from(arrived_ns) - due_ns).max(0);
            recorder.record(u64::try_from(passed).unwrap_or(u64::MAX));
        }
        if head.wants_echo {
            pipe.send(head.echo(), reception.timeout, None)?;
        }
    }
    // The last messages may be missing, too, which their numbers cannot tell.
    if let Some(sent) = pipe.messages_sent_by_peer() {
        sequence.end_at(sent.saturating_sub(reception.greetings));
        meter.set_sequence(&sequence);
    }
    pipe.finish()
}
