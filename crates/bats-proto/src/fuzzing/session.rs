//! Messages in symbols, without the layers below.

use bytes::Bytes;

use crate::session::{Reassembly, SendQueue};

const MAX_MESSAGE: usize = 2_000;
const MAX_SYMBOL: usize = 300;

/// Feeds arbitrary symbols to a session, then valid ones to another. `data` consists of parts, each
/// with its length in the first byte.
///
/// # Panics
/// A message is too long, memory grows beyond the input, or valid messages are changed.
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
