//! Channels in symbols, without the layers below.

use std::collections::{BTreeMap, VecDeque};

use super::script::Script;
use crate::session::channel::{ChannelError, ChannelId, ChannelLimits, Channels};
use crate::session::{Reassembly, SendQueue};

/// Channels that each end may have open.
const CHANNELS: u64 = 6;
const RECEIVE_BUDGET: usize = 60_000;
const SEND_BUDGET: usize = 200_000;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChannelReport {
    /// Bytes that the applications have read.
    pub read: u64,
    /// Symbols of arbitrary bytes that were accepted.
    pub accepted: u64,
}

fn limits() -> ChannelLimits {
    ChannelLimits::new(CHANNELS, RECEIVE_BUDGET, SEND_BUDGET)
}

fn end(is_server: bool) -> Channels {
    Channels::new(is_server, limits(), limits().parameters())
}

/// Two correct ends whose applications and symbols follow the script; then one that gets the script
/// as symbols.
///
/// # Panics
/// A correct end commits a violation, bytes are changed, or memory grows beyond the budget.
pub fn channels_run(data: &[u8]) -> ChannelReport {
    ChannelReport { read: correct(data), accepted: garbage(data) }
}

/// The byte at an offset of a channel from an end.
fn byte(from: usize, id: ChannelId, offset: u64) -> u8 {
    (offset.wrapping_mul(29) ^ id.number() ^ from as u64) as u8
}

fn correct(data: &[u8]) -> u64 {
    let mut script = Script::new(data);
    let mut ends = [end(false), end(true)];
    let mut messages = [SendQueue::new(), SendQueue::new()];
    let mut reassemblies = [(); 2].map(|()| Reassembly::new(limits().max_message()));
    let mut symbols: [VecDeque<(Vec<u8>, bool)>; 2] = Default::default();
    let mut ids = Vec::new();
    let mut offsets: BTreeMap<(usize, ChannelId, bool), u64> = BTreeMap::new();
    let mut read = 0;
    while !script.is_empty() {
        let step = script.u8();
        let at = usize::from(step & 1);
        let id = ids.get(usize::from(step >> 1) % 8 % ids.len().max(1)).copied();
        let amount = usize::from(script.u8());
        match (step >> 4, id) {
            (0 | 1, _) => ids.extend(ends[at].open_channel().ok()),
            (2 | 3, Some(id)) => {
                let offset = offsets.entry((at, id, true)).or_default();
                let end = *offset + amount as u64 * 8;
                let data: Vec<u8> = (*offset..end).map(|i| byte(at, id, i)).collect();
                *offset += ends[at].write(id, &data).unwrap_or(0) as u64;
            }
            (4 | 5, Some(id)) => {
                let mut out = vec![0; amount * 16];
                let offset = offsets.entry((1 - at, id, false)).or_default();
                if let Ok(Some(len)) = ends[at].read(id, &mut out) {
                    let found = out[..len].iter().zip(*offset..);
                    found.for_each(|(found, i)| assert_eq!(*found, byte(1 - at, id, i)));
                    *offset += len as u64;
                    read += len as u64;
                }
            }
            (6, Some(id)) => _ = ends[at].finish(id),
            (7, Some(id)) if amount % 4 == 0 => ends[at].reset(id, amount as u64),
            (7, Some(id)) if amount % 4 == 1 => ends[at].stop(id, amount as u64),
            (7, Some(id)) => {
                let set = ends[at].set_weight(id, amount as u8);
                assert!(matches!(set, Ok(()) | Err(ChannelError::Closed)));
            }
            (8, _) => messages[at].push(vec![7; amount * 8].into()),
            (9 | 10, _) => {
                messages[at].set_credit(ends[at].message_credit());
                let mut symbol = vec![0; 64 + amount];
                let len = ends[at].fill_symbol(&mut messages[at], &mut symbol);
                symbol.truncate(len);
                symbols[at].push_back((symbol, false));
            }
            (11, _) => {
                let held = symbols[at].len().max(1);
                if let Some((symbol, is_handed_up)) = symbols[at].get_mut(amount % held)
                    && !*is_handed_up
                    && ends[1 - at].takes_early()
                {
                    // As a block, which keeps what has to wait.
                    let as_block = amount & 0x80 != 0;
                    let taken = match as_block {
                        true => ends[1 - at].take_early(symbol).map(drop),
                        false => ends[1 - at].feed_early(symbol).map(drop),
                    };
                    assert_eq!(taken, Ok(()), "symbols of a correct end are accepted");
                    *is_handed_up = !as_block;
                }
            }
            _ => {
                if let Some((symbol, is_handed_up)) = symbols[at].pop_front() {
                    let (to, channels) = (1 - at, Some(&mut ends[1 - at]));
                    let taken = reassemblies[to].feed_with(&symbol, channels, is_handed_up);
                    assert_eq!(taken, Ok(()), "symbols of a correct end are accepted");
                    while let Some(message) = reassemblies[to].pop() {
                        ends[to].on_message_taken(message.len());
                    }
                }
            }
        }
        for end in &ends {
            assert!(end.bytes_held() <= RECEIVE_BUDGET);
        }
    }
    read
}

/// Symbols of arbitrary bytes, each with its length in the first byte.
fn garbage(data: &[u8]) -> u64 {
    let (mut channels, mut rest) = (end(true), data);
    let mut reassembly = Reassembly::new(limits().max_message());
    let mut accepted = 0;
    while let Some((&len, tail)) = rest.split_first() {
        let (symbol, tail) = tail.split_at(usize::from(len).min(tail.len()));
        rest = tail;
        let taken = if len % 4 == 2 {
            channels.take_early(&mut symbol.to_vec()).map(drop)
        } else if len % 4 == 0 && channels.takes_early() {
            channels.feed_early(symbol).map(drop)
        } else {
            reassembly.feed_with(symbol, Some(&mut channels), false)
        };
        if taken.is_err() {
            break;
        }
        accepted += 1;
        assert!(channels.bytes_held() <= RECEIVE_BUDGET && channels.open() <= CHANNELS as usize);
    }
    accepted
}
