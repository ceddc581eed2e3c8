//! What a packet acknowledges, and in how many ranges: `quinn-proto` reports the number of frames only.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

/// The acknowledgements of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Acks {
    pub(super) ranges: u64,
    /// The largest number, or 0.
    pub(super) largest: u64,
}

/// The acknowledgements in the frames of a packet, up to the first frame that `quinn-proto` refuses, too.
pub(super) fn acks(mut frames: &[u8]) -> Acks {
    let mut acks = Acks::default();
    while let Some((&first, rest)) = frames.split_first() {
        // Padding and PING, of which a packet may consist.
        if first <= 1 {
            frames = rest;
        } else if take_frame(&mut frames, &mut acks).is_none() {
            break;
        }
    }
    acks
}

/// Takes a frame (RFC 9000 section 19, RFC 9221, and the extension for the frequency of acknowledgements).
fn take_frame(frames: &mut &[u8], acks: &mut Acks) -> Option<()> {
    let kind = take_varint(frames)?;
    match kind {
        0x02 | 0x03 => {
            let largest = take_varint(frames)?;
            take_varint(frames)?;
            let more = take_varint(frames)?;
            take_varint(frames)?;
            acks.largest = acks.largest.max(largest);
            acks.ranges = acks.ranges.saturating_add(1);
            for _ in 0..more {
                take_varints(frames, 2)?;
                acks.ranges = acks.ranges.saturating_add(1);
            }
            take_varints(frames, if kind == 0x03 { 3 } else { 0 })
        }
        0x00 | 0x01 | 0x1e | 0x1f => Some(()),
        0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => take_varints(frames, 1),
        0x05 | 0x11 | 0x15 => take_varints(frames, 2),
        0x04 => take_varints(frames, 3),
        0xaf => take_varints(frames, 4),
        0x07 | 0x31 => take_bytes(frames),
        0x06 | 0x1d => {
            take_varint(frames)?;
            take_bytes(frames)
        }
        0x1c => {
            take_varints(frames, 2)?;
            take_bytes(frames)
        }
        0x08..=0x0f => {
            take_varints(frames, if kind & 4 == 0 { 1 } else { 2 })?;
            if kind & 2 == 0 {
                *frames = &[];
                return Some(());
            }
            take_bytes(frames)
        }
        0x30 => {
            *frames = &[];
            Some(())
        }
        0x18 => {
            take_varints(frames, 2)?;
            let (&len, rest) = frames.split_first()?;
            *frames = rest.get(usize::from(len).checked_add(16)?..)?;
            Some(())
        }
        0x1a | 0x1b => {
            *frames = frames.get(8..)?;
            Some(())
        }
        _ => None,
    }
}

fn take_varints(bytes: &mut &[u8], number: usize) -> Option<()> {
    (0..number).try_for_each(|_| take_varint(bytes).map(drop))
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, _) = bytes.split_first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    let (&first, more) = number.split_first()?;
    Some(more.iter().fold(u64::from(first & 0x3f), |number, &byte| number << 8 | u64::from(byte)))
}

/// Takes a length and so many bytes.
fn take_bytes(bytes: &mut &[u8]) -> Option<()> {
    let len = usize::try_from(take_varint(bytes)?).ok()?;
    *bytes = bytes.get(len..)?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledgements of three ranges and of one, the second with counts of ECN.
    const ACKS: [&[u8]; 2] =
        [&[2, 0x40, 200, 0, 2, 1, 0, 0, 3, 0x40, 100], &[3, 9, 0, 0, 1, 1, 2, 3]];

    #[test]
    fn ranges_are_counted_behind_frames_of_any_kind() {
        let id = [&[0x18, 1, 0, 8][..], &[7; 24]].concat();
        let challenge = [&[0x1a][..], &[7; 8]].concat();
        let frames: [&[u8]; 26] = [
            &[0, 0, 0],
            &[1],
            &[0x04, 1, 2, 3],
            &[0x05, 1, 2],
            &[0x06, 0, 2, 9, 9],
            &[0x07, 2, 9, 9],
            &[0x0a, 0, 1, 9],
            &[0x0b, 0, 1, 9],
            &[0x0e, 0, 0x40, 0, 1, 9],
            &[0x0f, 0, 0, 0],
            &[0x10, 0x80, 0, 0, 9],
            &[0x11, 0, 0xc0, 0, 0, 0, 0, 0, 0, 9],
            &[0x12, 1],
            &[0x13, 1],
            &[0x14, 1],
            &[0x15, 0, 1],
            &[0x16, 1],
            &[0x17, 1],
            &id,
            &[0x19, 1],
            &challenge,
            &[0x1c, 1, 0, 2, 9, 9],
            &[0x1d, 1, 2, 9, 9],
            &[0x1e],
            &[0x31, 2, 9, 9],
            &[0x40, 0xaf, 1, 2, 3, 4],
        ];
        for frame in frames {
            let packet = [frame, ACKS[0], frame, ACKS[1], frame].concat();
            assert_eq!(acks(&packet), Acks { ranges: 4, largest: 200 }, "{frame:x?}");
        }
        // The last frame of a packet may have no length.
        for last in [&[0x08, 0][..], &[0x0d, 0, 0], &[0x30]] {
            assert_eq!(acks(&[ACKS[0], last, ACKS[1]].concat()).ranges, 3, "{last:x?}");
        }
    }

    #[test]
    fn packets_that_end_early_or_have_unknown_frames_are_counted_up_to_there() {
        let packet = ACKS.concat();
        for len in 0..packet.len() {
            let Acks { ranges, .. } = acks(&packet[..len]);
            assert!(ranges <= 4 && (len < ACKS[0].len() || ranges >= 3), "{len}: {ranges}");
        }
        assert_eq!(acks(&[ACKS[0], &[0x20], ACKS[1]].concat()).ranges, 3);
        // A number of ranges that cannot be.
        assert_eq!(acks(&[2, 1, 0, 0xff, 255, 255, 255, 255, 255, 255, 255, 0, 1, 1]).ranges, 2);
        assert_eq!(acks(&[]), Acks::default());
    }
}
