//! Messages that arrive in an order that only a misbehaving peer causes.

use crate::session::{DatagramAssembly, Reassembly, SessionError};

/// A symbol with one DATAGRAM frame that holds a whole message of one byte.
fn datagram(id: u64) -> Vec<u8> {
    let mut symbol = vec![0; 32];
    let mut writer = crate::wire::varint::Writer::new(&mut symbol);
    writer.u8(4).unwrap();
    [id, 1, 0, 1].into_iter().for_each(|field| writer.varint(field).unwrap());
    writer.u8(7).unwrap();
    symbol
}

/// The window remembers 4,096 messages by their number modulo 4,096. Neither a newer nor an older
/// message with the same remainder is known.
#[test]
fn messages_outside_of_the_remembered_window_are_not_taken_as_known() {
    const WINDOW: u64 = 4_096;
    let mut assembly = DatagramAssembly::new(1_000, 4_000);
    for id in [5, 5 + WINDOW, 5 + 2 * WINDOW, 5 + 7 * WINDOW] {
        assert!(!assembly.has_delivered(id), "{id} was not received");
        assembly.feed(&datagram(id)).unwrap();
        assert!(assembly.pop().is_some(), "{id} is delivered");
        assert!(assembly.has_delivered(id) && !assembly.has_delivered(id + WINDOW));
        assert!(id < WINDOW || !assembly.has_delivered(id - WINDOW), "{id}");
        assembly.feed(&datagram(id)).unwrap();
        assert_eq!(assembly.pop(), None, "{id} is delivered once");
    }
}

/// One below the oldest message of the window: whether it was delivered is not recorded any more, so
/// it is not delivered. The oldest one of the window is.
#[test]
fn window_of_messages_has_4096_numbers() {
    for (behind, is_delivered) in [(4_095, true), (4_096, false)] {
        let mut assembly = DatagramAssembly::new(1_000, 4_000);
        assembly.feed(&datagram(10_000)).unwrap();
        assert!(assembly.pop().is_some());
        assembly.feed(&datagram(10_000 - behind)).unwrap();
        assert_eq!(assembly.pop().is_some(), is_delivered, "{behind} behind");
    }
}

/// Frames of BRTP: a message of three bytes of which one has arrived, then each frame that must not
/// follow.
#[test]
fn nothing_but_continuations_follows_the_first_part_of_a_message() {
    let begun = [1, 3, 1, 9];
    for (name, next) in [
        ("a whole message", &[1, 1, 1, 8][..]),
        ("an empty message", &[1, 0, 0]),
        ("the first part of another message", &[1, 5, 1, 8]),
        ("the end mark", &[3]),
        ("more than the message", &[2, 3, 8, 8, 8]),
    ] {
        for in_one_symbol in [true, false] {
            let mut reassembly = Reassembly::new(1_000);
            let result = if in_one_symbol {
                reassembly.feed(&[&begun, next].concat())
            } else {
                reassembly.feed(&begun).unwrap();
                reassembly.feed(next)
            };
            assert_eq!(result, Err(SessionError::Sequence), "{name}");
            assert_eq!(reassembly.pop(), None, "{name}");
            assert!(!reassembly.is_finished());
        }
    }
    let mut reassembly = Reassembly::new(1_000);
    reassembly.feed(&[&begun[..], &[2, 2, 8, 7, 3]].concat()).unwrap();
    assert_eq!(reassembly.pop().as_deref(), Some(&[9, 8, 7][..]));
    assert!(reassembly.is_finished());
}
