//! Messages in symbols, without the layers below.

use bats_types::Timestamp;
use bytes::Bytes;

use crate::session::{DatagramAssembly, DatagramQueue, Reassembly, SendQueue};

const MAX_MESSAGE: usize = 2_000;
const MAX_SYMBOL: usize = 300;
/// Memory for incomplete messages of BTP: less than the longest input needs.
const BUDGET: usize = 8_000;

/// Feeds arbitrary symbols to a session, then valid ones to another, in BRTP and in BTP. `data`
/// consists of parts, each with its length in the first byte.
///
/// # Panics
/// A message is too long, memory grows beyond the input or its budget, or valid messages are changed.
pub fn session_run(data: &[u8]) {
    let mut parts = Vec::new();
    let mut rest = data;
    while let Some((&len, tail)) = rest.split_first() {
        let (part, tail) = tail.split_at(usize::from(len).min(tail.len()));
        parts.push(part);
        rest = tail;
    }
    garbage(&parts);
    honest(&parts);
    garbage_datagrams(&parts);
    honest_datagrams(&parts);
}

fn garbage(symbols: &[&[u8]]) {
    let mut reassembly = Reassembly::new(MAX_MESSAGE);
    let mut fed = 0;
    for symbol in symbols {
        fed += symbol.len();
        let was_finished = reassembly.is_finished();
        if reassembly.feed(symbol).is_err() {
            return;
        }
        assert!(reassembly.bytes_held() <= fed.min(MAX_MESSAGE + symbol.len()));
        while let Some(message) = reassembly.pop() {
            assert!(!was_finished, "no message follows the end");
            assert!(message.len() <= MAX_MESSAGE);
        }
    }
}

/// The parts are messages; their lengths also determine the sizes of symbols.
fn honest(parts: &[&[u8]]) {
    let mut queue = SendQueue::new();
    let messages: Vec<Bytes> = parts.iter().map(|part| Bytes::copy_from_slice(part)).collect();
    messages.iter().for_each(|message| queue.push(message.clone()));
    queue.finish();
    let mut reassembly = Reassembly::new(MAX_MESSAGE);
    let mut got = Vec::new();
    let mut sizes = parts.iter().map(|part| 64 + part.len() % (MAX_SYMBOL - 64)).cycle();
    while !queue.is_empty() {
        let mut symbol = vec![0; sizes.next().unwrap_or(MAX_SYMBOL)];
        assert!(queue.fill_symbol(&mut symbol) > 0, "a symbol takes some bytes");
        assert_eq!(reassembly.feed(&symbol), Ok(()));
        got.extend(core::iter::from_fn(|| reassembly.pop()));
    }
    assert_eq!(got, messages);
    assert!(reassembly.is_finished() && queue.bytes_held() == 0);
}

fn garbage_datagrams(symbols: &[&[u8]]) {
    let mut assembly = DatagramAssembly::new(MAX_MESSAGE, BUDGET);
    let mut delivered = 0;
    for symbol in symbols {
        if assembly.feed(symbol).is_err() {
            return;
        }
        while let Some(message) = assembly.pop() {
            delivered += 1;
            assert!(message.len() <= MAX_MESSAGE);
        }
        assert!(assembly.bytes_held() <= BUDGET);
    }
    // A frame has at least two bytes, and each message one frame.
    assert!(delivered <= symbols.iter().map(|symbol| symbol.len()).sum::<usize>());
}

/// As [`honest`], but symbols are lost, duplicated and swapped: what is delivered was sent, and once.
fn honest_datagrams(parts: &[&[u8]]) {
    let mut queue = DatagramQueue::default();
    // The number in front makes each message unique.
    let messages: Vec<Bytes> = (0_u32..)
        .zip(parts)
        .map(|(number, part)| [&number.to_be_bytes()[..], part].concat().into())
        .collect();
    let later = Timestamp::ZERO + core::time::Duration::from_secs(1);
    messages.iter().for_each(|message| queue.push(message.clone(), later));
    let mut choices = parts.iter().map(|part| part.first().copied().unwrap_or_default()).cycle();
    let mut symbols = Vec::new();
    let mut lost = false;
    while !queue.is_empty() {
        let choice = choices.next().unwrap_or_default();
        let mut symbol = vec![0; 64 + usize::from(choice) % (MAX_SYMBOL - 64)];
        let (length, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
        assert!(length > 0, "a symbol takes some bytes");
        symbol.truncate(length);
        match choice % 8 {
            0 => lost = true,
            1 => symbols.extend([symbol.clone(), symbol]),
            2 if !symbols.is_empty() => symbols.insert(symbols.len() - 1, symbol),
            _ => symbols.push(symbol),
        }
    }
    assert_eq!(queue.bytes_held(), 0);
    let mut assembly = DatagramAssembly::new(MAX_MESSAGE, 1 << 20);
    let mut got = Vec::new();
    for symbol in &symbols {
        assert_eq!(assembly.feed(symbol), Ok(()));
        got.extend(core::iter::from_fn(|| assembly.pop()));
    }
    assembly.finish(queue.messages());
    assert_eq!(assembly.lost() + got.len() as u64, messages.len() as u64);
    assert_eq!(assembly.bytes_held(), 0, "incomplete messages are discarded at the end");
    got.sort();
    assert!(got.windows(2).all(|pair| pair[0] != pair[1]), "a message is delivered once");
    assert!(got.iter().all(|message| messages.binary_search(message).is_ok()));
    assert!(lost || got.len() == messages.len(), "nothing was lost");
}
