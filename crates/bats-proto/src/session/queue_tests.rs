//! The queues of a session at their exact limits: how symbols are filled, and what is held.

use bats_types::Timestamp;
use bytes::Bytes;

use super::channel::MESSAGE_CHARGE;
use super::partial::{Insertion, PART_OVERHEAD, PARTIAL_OVERHEAD, Partial};
use super::{DatagramQueue, Inbox, MESSAGE_OVERHEAD, Reassembly, SendQueue, SessionError};

const LATER: Timestamp = Timestamp::from_millis(1_000);

fn message(len: usize) -> Bytes {
    vec![7; len].into()
}

/// A message begins if at least 16 bytes of it fit, or all of it. Kind, length of the message and
/// length of the part precede them.
#[test]
fn message_begins_in_a_symbol_with_room_for_16_bytes_or_all_of_it() {
    for (len, size, written) in [
        (100, 20, 0),
        (100, 21, 1 + 2 + 1 + 16),
        (100, 100, 1 + 2 + 2 + 95),
        (100, 105, 1 + 2 + 2 + 100),
        (10, 13, 0),
        (10, 14, 1 + 1 + 1 + 10),
        (0, 3, 0),
        (0, 4, 1 + 1 + 1),
        (20_000, 22, 0),
        (20_000, 23, 1 + 4 + 1 + 16),
    ] {
        let mut queue = SendQueue::new();
        queue.push(message(len));
        assert_eq!(queue.bytes_held(), len + MESSAGE_OVERHEAD);
        assert_eq!(queue.fill_symbol(&mut vec![0; size]), written, "{len} bytes in {size}");
    }
    // A continuation has no length of the message.
    let mut queue = SendQueue::new();
    queue.push(message(100));
    assert_eq!(queue.fill_symbol(&mut [0; 50]), 1 + 2 + 1 + 45);
    assert_eq!(queue.bytes_held(), 55 + MESSAGE_OVERHEAD);
    assert_eq!(queue.fill_symbol(&mut [0; 18]), 0);
    assert_eq!(queue.fill_symbol(&mut [0; 19]), 1 + 1 + 16);
    assert_eq!((queue.fill_symbol(&mut [0; 99]), queue.bytes_held()), (1 + 1 + 39, 0));
}

#[test]
fn numbered_message_begins_in_a_symbol_with_room_for_16_bytes_or_all_of_it() {
    for (skipped, len, size, written) in [
        (0, 100, 22, 0),
        (0, 100, 23, 1 + 1 + 2 + 1 + 1 + 16),
        (0, 100, 107, 1 + 1 + 2 + 1 + 2 + 100),
        (64, 100, 23, 0),
        (64, 100, 24, 1 + 2 + 2 + 1 + 1 + 16),
        (0, 10, 15, 0),
        (0, 10, 16, 1 + 1 + 1 + 1 + 1 + 10),
        (0, 0, 5, 0),
        (0, 0, 6, 5),
    ] {
        let mut queue = DatagramQueue::default();
        queue.skip(skipped);
        assert!(queue.is_empty() && queue.next_bytes().is_none());
        queue.push(message(len), LATER);
        assert_eq!((queue.messages(), queue.next_bytes()), (skipped + 1, Some(len)));
        let (filled, expires) = queue.fill_symbol(Timestamp::ZERO, &mut vec![0; size]);
        assert_eq!(filled, written, "{len} bytes in {size}");
        assert_eq!(expires, if written > 0 { LATER } else { Timestamp::ZERO });
        assert_eq!(queue.messages(), skipped + 1);
    }
    let mut queue = DatagramQueue::default();
    queue.push(message(200), LATER);
    queue.push(message(30), Timestamp::from_millis(5));
    assert_eq!(queue.bytes_held(), 230 + 2 * MESSAGE_OVERHEAD);
    assert_eq!(queue.fill_symbol(Timestamp::ZERO, &mut [0; 107]).0, 107);
    assert_eq!((queue.next_bytes(), queue.bytes_held()), (Some(100), 130 + 2 * MESSAGE_OVERHEAD));
    // The offset of 100 takes two bytes. The second message follows in the same symbol.
    assert_eq!(
        queue.fill_symbol(Timestamp::ZERO, &mut [0; 300]),
        (1 + 1 + 2 + 2 + 2 + 100 + 5 + 30, LATER)
    );
    assert_eq!((queue.messages(), queue.bytes_held(), queue.is_empty()), (2, 0, true));
    assert!(!queue.is_finished());
    queue.finish();
    assert!(queue.is_finished());
}

/// Also if it expired behind one with a later deadline.
#[test]
fn no_symbol_has_an_expired_message() {
    let mut queue = DatagramQueue::default();
    queue.push(message(40), LATER);
    queue.push(message(0), Timestamp::ZERO);
    queue.push(message(50), Timestamp::from_millis(4));
    queue.push(message(60), LATER);
    let now = Timestamp::from_millis(5);
    queue.expire(now);
    assert_eq!(queue.expired(), 0, "the first one is in time");
    let (len, expires) = queue.fill_symbol(now, &mut [0; 300]);
    assert_eq!((len, expires), (5 + 40 + 5 + 60, LATER));
    assert_eq!((queue.expired(), queue.messages(), queue.bytes_held()), (2, 4, 0));
}

#[test]
fn messages_begin_below_the_credit_and_end_with_a_mark() {
    let mut queue = SendQueue::new();
    assert!(queue.is_empty() && !queue.is_sendable() && !queue.is_finished());
    (0..3).for_each(|_| queue.push(message(100)));
    assert!(queue.is_sendable());
    let charge = 100 + MESSAGE_CHARGE;
    for (credit, is_sendable) in
        [(0, false), (1, true), (charge, false), (charge + 1, true), (2 * charge, false)]
    {
        queue.set_credit(credit);
        assert_eq!(queue.is_sendable(), is_sendable, "credit of {credit} bytes");
        let written = queue.fill_symbol(&mut [0; 500]);
        assert_eq!(written, if is_sendable { 1 + 2 + 2 + 100 } else { 0 });
    }
    queue.finish();
    queue.set_credit(2 * charge + 1);
    // A message that has begun needs no more credit.
    assert_eq!(queue.fill_symbol(&mut [0; 60]), 1 + 2 + 1 + 55);
    assert!(queue.is_sendable() && queue.is_finished() && !queue.is_empty());
    assert_eq!(queue.fill_symbol(&mut [0; 60]), 1 + 1 + 45 + 1);
    assert!(queue.is_empty() && !queue.is_sendable() && queue.is_finished());
    assert_eq!(queue.fill_symbol(&mut [0; 60]), 0, "one mark");
}

#[test]
fn reassembly_holds_and_expects_the_bytes_of_a_message() {
    let mut queue = SendQueue::new();
    queue.push(message(100));
    queue.finish();
    let mut reassembly = Reassembly::new(100);
    assert_eq!((reassembly.bytes_held(), reassembly.bytes_missing()), (0, 0));
    for (size, held, missing) in [(50, 45, 55), (49, 91, 9), (49, 100, 0)] {
        let mut symbol = vec![0; size];
        let len = queue.fill_symbol(&mut symbol);
        reassembly.feed(&symbol[..len]).unwrap();
        assert_eq!((reassembly.bytes_held(), reassembly.bytes_missing()), (held, missing));
    }
    assert!(!reassembly.is_finished(), "a message is left");
    assert_eq!(reassembly.pop(), Some(message(100)));
    assert!(reassembly.is_finished());
    assert_eq!(reassembly.feed(&[1, 1, 1, 9]), Err(SessionError::AfterEnd));

    let mut queue = SendQueue::new();
    queue.push(message(100));
    let mut symbol = [0; 200];
    let len = queue.fill_symbol(&mut symbol);
    let too_long = Reassembly::new(99).feed(&symbol[..len]);
    assert_eq!(too_long, Err(SessionError::TooLong(100)));
}

#[test]
fn inbox_takes_one_message_beyond_its_budget() {
    let mut inbox = Inbox::default();
    assert!(inbox.is_empty() && inbox.has_room(0));
    inbox.push(message(10));
    inbox.push(message(20));
    let held = 30 + 2 * MESSAGE_OVERHEAD;
    assert_eq!(inbox.bytes_held(), held);
    assert!(inbox.has_room(held) && !inbox.has_room(held - 1));
    assert_eq!(inbox.pop(), Some(message(10)));
    assert_eq!(inbox.bytes_held(), 20 + MESSAGE_OVERHEAD);
    assert_eq!((inbox.pop(), inbox.pop(), inbox.bytes_held()), (Some(message(20)), None, 0));
}

/// A part that grows doubles, up to the end of the message.
#[test]
fn memory_of_a_partial_message_is_that_of_its_parts() {
    let mut partial = Partial::new(1_000, 0);
    assert_eq!((partial.cost(), partial.length()), (PARTIAL_OVERHEAD, 1_000));
    let mut present = 0;
    for (len, capacity) in [(100, 100), (10, 220), (110, 220), (1, 442), (221, 442), (100, 1_000)] {
        assert_eq!(partial.insert(present, &vec![7; len]), Insertion::Incomplete);
        present += len;
        assert_eq!(partial.cost(), PARTIAL_OVERHEAD + PART_OVERHEAD + capacity, "{present} bytes");
    }
    // Parts behind a gap.
    partial.insert(900, &[7; 20]);
    partial.insert(800, &[7; 30]);
    assert_eq!(partial.cost(), PARTIAL_OVERHEAD + 3 * PART_OVERHEAD + 1_000 + 20 + 30);
    assert_eq!(partial.insert(present, &vec![7; 1_000 - present]), Insertion::Complete);
    assert_eq!(partial.into_message(), message(1_000));
}
