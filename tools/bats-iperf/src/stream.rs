//! One stream of a throughput test: messages with number, time and filler.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{BufMut, Bytes, BytesMut};
use openbats::{Connection, Wait};

use crate::clock::Clock;
use crate::meter::{Jitter, Meter};

const MAGIC: u32 = u32::from_be_bytes(*b"BIPF");
/// Magic, message number, sending time in nanoseconds on the sender's clock.
const HEADER: usize = 4 + 8 + 8;
const FILLER: u8 = 0x77;
/// Octets of a message unless asked otherwise.
pub(crate) const DEFAULT_LENGTH: u32 = 64 << 10;
/// Least octets of a message.
pub(crate) const MIN_LENGTH: u32 = 64;
/// How long a sender waits in the end for its data to arrive.
const DRAIN: Duration = Duration::from_secs(10);

/// How a stream sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    pub(crate) time: Duration,
    /// Bits a second, 0 for no limit.
    pub(crate) bandwidth: u64,
    pub(crate) length: u32,
}

/// The length of messages where none was asked for: ten milliseconds of a limited stream, so that
/// slow streams are smooth.
pub(crate) fn default_length(bandwidth: u64) -> u32 {
    if bandwidth == 0 {
        return DEFAULT_LENGTH;
    }
    u32::try_from(bandwidth / 8 / 100).unwrap_or(u32::MAX).clamp(1_024, DEFAULT_LENGTH)
}

fn message(number: u64, sent_at: Duration, length: usize) -> Bytes {
    let mut message = BytesMut::with_capacity(length);
    message.put_u32(MAGIC);
    message.put_u64(number);
    message.put_u64(sent_at.as_nanos() as u64);
    message.put_bytes(FILLER, length - HEADER);
    message.freeze()
}

/// The number and time of a message.
fn parse(message: &[u8]) -> Result<(u64, u64)> {
    let whole = message.split_at_checked(HEADER).filter(|(header, filler)| {
        header.starts_with(&MAGIC.to_be_bytes())
            && filler.first() == Some(&FILLER)
            && filler.last() == Some(&FILLER)
    });
    let Some((header, _)) = whole else { bail!("a message arrived corrupt") };
    let number = header[4..12].iter().fold(0, |number, &octet| number << 8 | u64::from(octet));
    let time = header[12..20].iter().fold(0, |time, &octet| time << 8 | u64::from(octet));
    Ok((number, time))
}

/// Sends for as long as the pace says, then waits until all has arrived.
pub(crate) fn send(connection: &Connection, meter: &Meter, pace: Pace) -> Result<()> {
    let clock = Clock::start();
    let length = pace.length as usize;
    let step = match pace.bandwidth {
        0 => Duration::ZERO,
        bandwidth => Duration::from_secs_f64(length as f64 * 8.0 / bandwidth as f64),
    };
    let mut due = Duration::ZERO;
    let mut number = 0;
    loop {
        if due > clock.elapsed() {
            thread::sleep(due.min(pace.time).saturating_sub(clock.elapsed()));
        }
        let now = clock.elapsed();
        if now >= pace.time {
            break;
        }
        due += step;
        let sending = connection.send(message(number, now, length));
        match sending.wait_for(pace.time.saturating_sub(now)) {
            Ok(sent) => sent.context("cannot send")?,
            // The time was over before there was room.
            Err(_) => break,
        }
        meter.count(length);
        number += 1;
    }
    connection
        .finish()
        .wait_for(DRAIN)
        .with_context(|| format!("not all data arrived within {} s", DRAIN.as_secs()))?
        .context("the connection broke before all data had arrived")
}

/// Receives until the sender has finished.
pub(crate) fn receive(connection: &Connection, meter: &Meter) -> Result<()> {
    let clock = Clock::start();
    let mut jitter = Jitter::default();
    let (mut expected, mut received) = (0, 0);
    while let Some(message) = connection.recv().wait().context("cannot receive")? {
        let (number, sent_at) = parse(&message)?;
        received += 1;
        expected = expected.max(number.saturating_add(1));
        meter.count(message.len());
        meter.set_lost(expected.saturating_sub(received));
        meter.set_jitter(jitter.update(sent_at, clock.elapsed().as_nanos() as u64));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let whole = message(7, Duration::from_nanos(1_234_567), MIN_LENGTH as usize);
        assert_eq!(whole.len(), MIN_LENGTH as usize);
        assert_eq!(parse(&whole).unwrap(), (7, 1_234_567));
        for place in [0, 3, HEADER, whole.len() - 1] {
            let mut broken = whole.to_vec();
            broken[place] ^= 1;
            assert!(parse(&broken).is_err(), "{place}");
        }
        assert!(parse(&whole[..HEADER]).is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn slow_streams_have_small_messages() {
        assert_eq!(default_length(0), DEFAULT_LENGTH);
        assert_eq!(default_length(64_000), 1_024);
        assert_eq!(default_length(8_000_000), 10_000);
        assert_eq!(default_length(u64::MAX), DEFAULT_LENGTH);
    }
}
