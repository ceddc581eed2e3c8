//! Receiver of a stream.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::{Clock, stamp_ns};
use crate::control::Hello;
use crate::latency::Recorder;
use crate::message::Header;
use crate::meter::{Jitter, Meter, Sequence};
use crate::stream::{DataStream, Received};

/// Parameters of a receiving stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReceiverParams {
    /// Offset in nanoseconds from the sender's clock to this side's.
    pub(crate) shift_ns: i64,
    /// Whether one-way times are recorded.
    pub(crate) latency: bool,
    /// Longest time without received data.
    pub(crate) timeout: Duration,
    /// Hello messages that the sender sent; they are not test messages.
    pub(crate) hellos: u64,
}

/// Receives until the sender has finished.
pub(crate) fn receive(
    data_stream: &DataStream,
    meter: &Meter,
    params: ReceiverParams,
    recorder: &mut Recorder,
) -> Result<()> {
    let clock = Clock::start();
    let mut jitter = Jitter::default();
    let mut sequence = Sequence::new();
    let mut is_omitting = false;
    loop {
        let message = match data_stream.recv(params.timeout)? {
            Received::Message(message) => message,
            Received::End => break,
            Received::Nothing => {
                bail!("nothing was received for {} s", params.timeout.as_secs_f64())
            }
        };
        // A repeated hello message: the sender repeats it in case the first is lost.
        if Hello::decode(&message).is_some() {
            continue;
        }
        let arrived_ns = stamp_ns();
        let header = Header::from_message(&message)?;
        if is_omitting && !header.is_omitted {
            meter.start_counting(clock.elapsed());
        }
        is_omitting = header.is_omitted;
        let is_new = sequence.insert(header.number);
        meter.set_sequence(&sequence);
        if !is_new {
            continue;
        }
        meter.count(message.len());
        meter.set_jitter(jitter.update(header.sent_ns, arrived_ns));
        if params.latency && !header.is_omitted {
            let due_ns = i128::from(header.due_ns) + i128::from(params.shift_ns);
            let passed = (i128::from(arrived_ns) - due_ns).max(0);
            recorder.record(u64::try_from(passed).unwrap_or(u64::MAX));
        }
        if header.wants_echo {
            data_stream.send(header.echo(), params.timeout, None)?;
        }
    }
    // The last messages may be lost, too, which message numbers cannot show.
    if let Some(sent) = data_stream.messages_sent_by_peer() {
        sequence.end_at(sent.saturating_sub(params.hellos));
        meter.set_sequence(&sequence);
    }
    data_stream.finish()
}
