//! Frames, message frames, reports and transport parameters of bounded size.

use crate::batch_rank::{BatchRank, MAX_BATCHES};
use crate::channel::ChannelFrame;
use crate::frame::{self, Frame, MAX_ACK_RANGES};
use crate::message::{self, MessageFrame};
use crate::parameters::TransportParameters;
use crate::rank::RankFeedback;
use crate::varint::{MAX_VARINT, Reader, Writer};

/// The frame in `bytes`, after a check that it takes bytes and that encoding it gives the same one.
fn check_frame(bytes: &[u8]) {
    let mut ranges = Vec::new();
    let mut reader = Reader::new(bytes);
    let Ok(Some(decoded)) = frame::decode(&mut reader, &mut ranges) else { return };
    assert!(reader.remaining() < bytes.len());
    let mut buffer = [0; 128];
    let mut writer = Writer::new(&mut buffer);
    let is_written = match &decoded {
        Frame::Ack(header) => {
            assert!(!ranges.is_empty() && ranges.len() as u64 <= MAX_ACK_RANGES);
            assert_eq!(ranges[0].1, header.largest);
            frame::encode_ack(&mut writer, header, &ranges)
        }
        other => frame::encode(&mut writer, other),
    };
    assert!(is_written.is_some());
    let len = writer.written();
    let mut ranges_again = Vec::new();
    let again = frame::decode(&mut Reader::new(&buffer[..len]), &mut ranges_again);
    assert_eq!(again, Ok(Some(decoded.clone())));
    assert!(!matches!(decoded, Frame::Ack(_)) || ranges == ranges_again);
}

crate::harnesses! {
    frame_of_any_bytes_encodes_to_the_same unwind 20 (bytes: [u8; 16], len: u8) {
        check_frame(&bytes[..usize::from(len) % 17]);
    }

    /// The types with the most fields are frequent.
    frame_of_each_type_encodes_to_the_same unwind 20 (kind: u8, bytes: [u8; 24]) {
        let mut bytes = bytes;
        bytes[0] = [1, 2, 2, 3, 4, 6, 7, 8, 9, 0x0a, 0x0b, 0x10, 0x11][usize::from(kind % 13)];
        check_frame(&bytes);
    }

    ack_ranges_descend_with_gaps unwind 8 (largest: u32, fields: [u8; 7]) {
        let mut bytes = [0; 32];
        let mut writer = Writer::new(&mut bytes);
        let count = u64::from(fields[0] % 4);
        let mut write = |value: u64| assert!(writer.varint(value).is_some());
        // Type, largest, delay, arrival time, ECN count, number of further ranges, ranges.
        [2, u64::from(largest), 0, 0, 0, count].into_iter().for_each(&mut write);
        fields.iter().for_each(|&field| write(u64::from(field % 64)));
        let mut ranges = Vec::new();
        let decoded = frame::decode(&mut Reader::new(&bytes), &mut ranges);
        if let Ok(Some(Frame::Ack(header))) = decoded {
            assert_eq!(ranges.len() as u64, count + 1);
            assert_eq!((header.largest, ranges[0].1), (u64::from(largest), u64::from(largest)));
            assert!(ranges.iter().all(|&(first, last)| first <= last));
            assert!(ranges.windows(2).all(|pair| pair[1].1 + 1 < pair[0].0));
        }
    }

    message_frame_of_any_bytes_is_within_them unwind 20 (bytes: [u8; 16], len: u8) {
        let len = usize::from(len) % 17;
        let mut reader = Reader::new(&bytes[..len]);
        let Ok(Some(decoded)) = message::decode(&mut reader) else { return };
        let data: &[u8] = match decoded {
            MessageFrame::Message { total, data } => {
                assert!(total <= MAX_VARINT);
                data
            }
            MessageFrame::Datagram { id, total, offset, data } => {
                assert!(id.max(total).max(offset) <= MAX_VARINT);
                data
            }
            MessageFrame::Continuation(data) => data,
            MessageFrame::Channel(ChannelFrame::Data { id, offset, data, .. }) => {
                assert!(id.max(offset) <= MAX_VARINT);
                data
            }
            MessageFrame::Fin | MessageFrame::Channel(_) => &[],
        };
        assert!(data.len() + reader.remaining() < len);
    }

    message_frames_of_any_bytes_end unwind 20 (bytes: [u8; 16]) {
        let mut reader = Reader::new(&bytes);
        let mut frames = 0;
        while let Ok(Some(_)) = message::decode(&mut reader) {
            frames += 1;
            assert!(frames <= 16);
        }
    }

    rank_feedback_of_any_bytes_is_consistent unwind 20 (bytes: [u8; 16], entries: u8) {
        let mut bytes = bytes;
        bytes[5] = entries % 4;
        let Some(feedback) = RankFeedback::decode(&mut Reader::new(&bytes)) else { return };
        assert!(feedback.decoded_below <= feedback.seen_end && feedback.seen_end <= MAX_VARINT);
        assert!(feedback.wasted <= feedback.coded);
        let mut first = feedback.decoded_below;
        for entry in &feedback.entries {
            assert!(entry.first >= first && entry.span > 0 && entry.missing > 0);
            assert!(entry.first + entry.span <= MAX_VARINT);
            first = entry.first;
        }
        let mut buffer = [0; 128];
        let mut writer = Writer::new(&mut buffer);
        assert!(feedback.encode(&mut writer).is_some());
        let len = writer.written();
        assert_eq!(RankFeedback::decode(&mut Reader::new(&buffer[..len])), Some(feedback));
    }

    batch_ranks_of_any_bytes_are_bounded unwind 20 (fields: [u8; 4], ranks: [u8; 12]) {
        // The key, then four short integers and the ranks.
        let mut bytes = [0; 29];
        bytes[12] = fields[0] % 4;
        for (byte, field) in bytes[13..16].iter_mut().zip(&fields[1..]) {
            *byte = field % 64;
        }
        bytes[16] = ranks[0] % 64;
        bytes[17..].copy_from_slice(&ranks);
        let Some(report) = BatchRank::decode(&mut Reader::new(&bytes)) else { return };
        assert!(report.ranks.len() <= MAX_BATCHES);
        assert_eq!(report.ranks.len(), usize::from(bytes[16]));
        assert!(report.ranks.iter().all(|&rank| rank <= 16));
        let mut buffer = [0; 128];
        let mut writer = Writer::new(&mut buffer);
        assert!(report.encode(&mut writer).is_some());
        let len = writer.written();
        assert!(len < report.bound());
        assert_eq!(BatchRank::decode(&mut Reader::new(&buffer[..len])), Some(report));
    }

    transport_parameters_of_any_bytes_are_in_range unwind 20 (id: u8, bytes: [u8; 10]) {
        let mut bytes = bytes;
        bytes[0] = id % 18;
        bytes[1] %= 12;
        let Some(parameters) = TransportParameters::decode(&bytes) else { return };
        assert!((64..=8_896).contains(&parameters.max_symbol_size));
        assert!((16..=512).contains(&parameters.window_cap));
        assert!(parameters.max_udp_payload >= 1_200 && parameters.max_message_size <= 1 << 40);
    }
}
