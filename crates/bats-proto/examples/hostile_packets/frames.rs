//! Control packets that are full of frames, and packets from ever new addresses.

use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::frame::{self, Frame, MAX_OTHER_FRAMES};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;

use super::{MEASURED, packet, quietly};
use crate::Attack;
use crate::harness::MS;

/// Packets with as many frames as are allowed; `frame` is given how many were sent before.
fn full<'a>(target: &mut Attack, frame: impl Fn(u64) -> Frame<'a>) {
    for number in 0..MEASURED {
        let first = number * MAX_OTHER_FRAMES as u64;
        let datagram = packet(target, PacketKind::Control, |writer| {
            (first..first + MAX_OTHER_FRAMES as u64)
                .try_for_each(|n| frame::encode(writer, &frame(n)))
        });
        target.push(datagram);
        target.harness.received.clear();
    }
}

pub(super) fn credits(target: &mut Attack) {
    full(target, |_| Frame::Credit(1));
}

pub(super) fn challenges(target: &mut Attack) {
    full(target, Frame::PathChallenge);
}

/// Responses to challenges that the server has not sent.
pub(super) fn responses(target: &mut Attack) {
    full(target, Frame::PathResponse);
}

/// TLS data after the handshake, in single bytes with gaps.
pub(super) fn crypto(target: &mut Attack) {
    full(target, |n| Frame::Crypto { offset: 60_000 - 2 * (n % 30_000), data: &[7] });
}

/// The state: a thousand symbols have arrived, and two others are known to be missing. Measured: the end of the
/// flow, again and again.
pub(super) fn ends(target: &mut Attack) {
    const SYMBOLS: u64 = 1_000;
    let mut state: Vec<Vec<u8>> = (0..SYMBOLS)
        .map(|number| {
            packet(target, PacketKind::Source, |writer: &mut Writer<'_>| {
                SourceHeader::new(number).encode(writer)?;
                writer.u8(0)
            })
        })
        .collect();
    state.push(packet(target, PacketKind::Repair, |writer| {
        RepairHeader { batch: 0, column: 0, first: SYMBOLS as u32, count: 2 }.encode(writer)?;
        writer.u8(0)
    }));
    quietly(target, state);
    full(target, |_| Frame::End { symbols: SYMBOLS + 2, messages: 0 });
}

/// The state: packets that the client has not acknowledged, and more data. Measured: responses from ever new
/// addresses, which the server takes for its client's, with what it then sends.
pub(super) fn new_addresses(target: &mut Attack) {
    const BEFORE: u64 = 100;
    target.harness.try_send_from_server(1_400_000);
    for number in 0..BEFORE + MEASURED {
        target.harness.advance(MS);
        target.harness.received.clear();
        let host = [10, 1, (number / 200) as u8, (number % 200) as u8];
        target.harness.remote = (host, 4_000).into();
        let ping =
            packet(target, PacketKind::Control, |writer| frame::encode(writer, &Frame::Ping));
        quietly(target, vec![ping]);
        let challenge = target.harness.challenge().expect("each new address is challenged");
        let response = packet(target, PacketKind::Control, |writer| {
            frame::encode(writer, &Frame::PathResponse(challenge))
        });
        if number < BEFORE { quietly(target, vec![response]) } else { target.push(response) }
    }
    let changes = target.harness.stats().path.changes;
    // One in a probe timeout.
    assert!(changes > 2, "{changes} of {} addresses were validated", BEFORE + MEASURED);
}
