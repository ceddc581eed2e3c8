//! Random numbers by index, and elementary functions from exactly rounded operations. A schedule is
//! a function of its seed and the time, with the same value on every platform.

/// Word `index` of the sequence of `seed` (SplitMix64, Steele, Lea and Flood 2014).
pub(crate) fn word(seed: u64, index: u64) -> u64 {
    let mut x = seed ^ index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Uniform in 0..1, with 53 bits.
pub(crate) fn uniform(seed: u64, index: u64) -> f64 {
    (word(seed, index) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Approximately normal, mean 0, variance 1: the sum of twelve uniform numbers less six, so at most
/// six standard deviations.
pub(crate) fn normal(seed: u64, index: u64) -> f64 {
    let mut sum = 0_u64;
    for part in 0..3 {
        let mut bits = word(seed, index.wrapping_mul(3).wrapping_add(part));
        for _ in 0..4 {
            sum += bits & 0xffff;
            bits >>= 16;
        }
    }
    // Each of the twelve numbers is the middle of an interval of 1/65536.
    (sum as f64 + 6.0) / 65_536.0 - 6.0
}

/// Exponentially distributed with mean 1.
pub(crate) fn exponential(seed: u64, index: u64) -> f64 {
    -ln(1.0 - uniform(seed, index))
}

/// The exponential function; `x` is limited to -700..700.
pub(crate) fn exp(x: f64) -> f64 {
    let x = if x.is_nan() { 0.0 } else { x.clamp(-700.0, 700.0) };
    let power = (x / core::f64::consts::LN_2).round();
    let rest = x - power * core::f64::consts::LN_2;
    let (mut sum, mut term) = (1.0, 1.0);
    for n in 1..18 {
        term *= rest / f64::from(n);
        sum += term;
    }
    // The clamp above keeps the exponent within -1010..1010.
    sum * f64::from_bits(((power as i64 + 1_023) as u64) << 52)
}

/// The natural logarithm of a positive, normal number.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.max(f64::MIN_POSITIVE).to_bits();
    let power = (bits >> 52) as i64 - 1_023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1_023 << 52));
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut sum, mut term) = (0.0, s);
    for n in 0..20 {
        sum += term / f64::from(2 * n + 1);
        term *= s * s;
    }
    2.0 * sum + power as f64 * core::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elementary_functions_agree_with_the_standard_library() {
        for i in -3_000..3_000 {
            let x = f64::from(i) / 100.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "{x}");
            let y = (f64::from(i) / 50.0).exp();
            assert!((ln(y) - y.ln()).abs() < 1e-12, "{y}");
        }
        assert!(exp(f64::INFINITY).is_finite() && exp(f64::NAN).is_finite());
        assert!(ln(0.0).is_finite());
    }

    #[test]
    fn moments_of_the_distributions() {
        const N: u64 = 100_000;
        let mean = |f: &dyn Fn(u64) -> f64| (0..N).map(f).sum::<f64>() / N as f64;
        assert!((mean(&|i| uniform(1, i)) - 0.5).abs() < 0.005);
        assert!(mean(&|i| normal(2, i)).abs() < 0.01);
        assert!((mean(&|i| normal(2, i).powi(2)) - 1.0).abs() < 0.02);
        assert!((mean(&|i| normal(2, i) * normal(2, i + 1))).abs() < 0.01);
        assert!((mean(&|i| exponential(3, i)) - 1.0).abs() < 0.02);
    }
}
