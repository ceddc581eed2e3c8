//! Small runs of the examples that send a file through three recoding relays, with 20 % loss on
//! each of the four hops.

#[path = "../examples/file_over_relays/transfer.rs"]
mod stream;
#[path = "../examples/three_relays/transfer.rs"]
mod three_relays;

use bats_code::rfc::TinyMt32;

fn file(len: usize) -> Vec<u8> {
    let mut random = TinyMt32::new(9);
    (0..len).map(|_| random.next_u32() as u8).collect()
}

#[test]
fn rfc_9426_blocks_arrive_unchanged_over_three_relays() {
    for len in [0, 1, 1399, 1400, 150_000] {
        let data = file(len);
        let transfer = three_relays::transfer(&data).expect("a transfer");
        assert!(transfer.copy == data, "{len} bytes");
        assert_eq!(transfer.links.len(), 4, "three relays");
        assert_eq!(transfer.needed, len / 1400 + 1);
        assert!(transfer.received >= transfer.needed);
        if transfer.needed > 100 {
            for (sent, lost) in transfer.links {
                let loss = lost as f64 / sent as f64;
                assert!((0.1..0.3).contains(&loss), "{lost} of {sent}");
            }
        }
    }
}

#[test]
fn stream_windows_arrive_unchanged_over_three_relays() {
    for len in [1, 1408, 1409, 500_000] {
        let data = file(len);
        let transfer = stream::transfer(&data, &mut stream::Random(7)).expect("a transfer");
        assert!(transfer.copy == data, "{len} bytes");
        assert_eq!(transfer.symbols, len.div_ceil(1408) as u64);
        assert_eq!(transfer.sent.len(), stream::HOPS, "three relays");
        assert!(
            f64::from(transfer.sent[0]) * (1.0 - stream::LOSS) >= transfer.symbols as f64 * 0.8
        );
        if len == 500_000 {
            assert!((transfer.rank / transfer.planned - 1.0).abs() < 0.2, "{}", transfer.rank);
        }
    }
}
