//! What a perfect code would do, to compare delays of `btp` with.

/// Symbols of one computation: the mean is good to some per cent.
const SYMBOLS: u32 = 1_000_000;

/// Mean delay beyond the path's, in times between two symbols, if each symbol is sent once, `sent` - 1
/// repairs for each are spread evenly among them, packets are lost independently with probability
/// `loss`, and each repair makes up for any one of the symbols before it. Nothing that does not know what
/// was lost can do better with evenly spread repairs, and no real code does as well.
///
/// `loss` is from 0 to 1, `sent` at least 1. Without enough repairs, `sent` (1 - `loss`) <= 1, the mean
/// has no limit and tells of the length of the computation only.
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
    // Number and sum of the times of the symbols that wait, and repairs that arrived since the first.
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
    fn known_cases() {
        assert_eq!(mean_delay(0.0, 1.5, 1), 0.0);
        // What was lost waits half an interval, and one more for each repair that is lost, too.
        let twice = mean_delay(0.1, 2.0, 1);
        assert!((0.05..0.10).contains(&twice), "{twice}");
        // More repairs, less delay; more loss, more.
        let thirty = [1.5, 1.6, 1.8].map(|sent| mean_delay(0.3, sent, 1));
        assert!(thirty[0] > thirty[1] && thirty[1] > thirty[2], "{thirty:?}");
        assert!(mean_delay(0.2, 1.6, 1) < thirty[1]);
    }

    #[test]
    fn at_thirty_per_cent_and_sixteen_tenths_it_is_four() {
        let means = [1, 2, 3].map(|seed| mean_delay(0.3, 1.6, seed));
        assert!(means.iter().all(|mean| (3.9..4.4).contains(mean)), "{means:?}");
    }
}
