//! Delay of an ideal code, the reference for the delays of command `btp`.

/// Symbols simulated for one mean, which is then accurate to some per cent.
const SYMBOLS: u32 = 1_000_000;

/// Mean delay of an ideal code in excess of the path delay, in symbol intervals.
///
/// Each symbol is sent once, and `sent` - 1 repairs per symbol are spread evenly among the symbols.
/// Packets are lost independently with probability `loss`. Each repair replaces any one lost symbol
/// before it. A sender without feedback and with evenly spread repairs cannot do better, and no
/// real code does as well.
///
/// `loss` is from 0 to 1, `sent` at least 1. With too few repairs, `sent` (1 - `loss`) <= 1, the
/// mean is unbounded and depends only on the length of the computation.
pub fn mean_delay(loss: f64, sent: f64, seed: u64) -> f64 {
    let mut state = seed;
    let mut is_lost = || {
        // SplitMix64 (Steele, Lea, Flood, 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((word ^ (word >> 31)) >> 11) as f64) < loss * (1_u64 << 53) as f64
    };
    let (mut total, mut due) = (0.0, 0.0);
    // Count and summed send times of the missing symbols, and repairs received since the first one.
    let (mut waiting, mut since, mut repairs) = (0_u32, 0.0, 0_u32);
    for number in 0..SYMBOLS {
        if is_lost() {
            waiting += 1;
            since += f64::from(number);
        }
        due += (sent - 1.0).max(0.0);
        let now = due.floor();
        for repair in 1..=now as u32 {
            if waiting == 0 || is_lost() {
                continue;
            }
            repairs += 1;
            if repairs >= waiting {
                let time = f64::from(number) + f64::from(repair) / (now + 1.0);
                total += time * f64::from(waiting) - since;
                (waiting, since, repairs) = (0, 0.0, 0);
            }
        }
        due -= now;
    }
    total / f64::from(SYMBOLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_delay_falls_with_repairs_and_grows_with_loss() {
        assert_eq!(mean_delay(0.0, 1.5, 1), 0.0);
        // A lost symbol waits half an interval, and one more for each lost repair.
        let twice = mean_delay(0.1, 2.0, 1);
        assert!((0.05..0.10).contains(&twice), "{twice}");
        // More repairs reduce the delay; more loss increases it.
        let thirty = [1.5, 1.6, 1.8].map(|sent| mean_delay(0.3, sent, 1));
        assert!(thirty[0] > thirty[1] && thirty[1] > thirty[2], "{thirty:?}");
        assert!(mean_delay(0.2, 1.6, 1) < thirty[1]);
    }

    #[test]
    fn mean_delay_is_four_intervals_at_thirty_per_cent_loss_and_1_6_packets_per_symbol() {
        let means = [1, 2, 3].map(|seed| mean_delay(0.3, 1.6, seed));
        assert!(means.iter().all(|mean| (3.9..4.4).contains(mean)), "{means:?}");
    }
}
