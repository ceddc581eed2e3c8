//! Percentiles, means, medians with their spread, confidence intervals.

/// The quantile of values in rising order, by nearest rank. `fraction` is from 0 to 1.
pub(crate) fn percentile(values: &[f64], fraction: f64) -> Option<f64> {
    let rank = (fraction * values.len() as f64).ceil().max(1.0) as usize;
    values.get(rank.min(values.len()).checked_sub(1)?).copied()
}

/// The median of values and their minimum and maximum.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Spread {
    /// The mean of the two middle values if their number is even.
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Computes the statistics of these values, in any order.
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            (values[middle - 1] + values[middle]) / 2.0
        } else {
            values[middle]
        };
        Some(Self { median, min, max })
    }

    /// The same in another unit.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }
}

/// Mean and standard error of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) count: usize,
    pub(crate) mean: f64,
    /// Standard error of the mean; 0 for a single value.
    pub(crate) error: f64,
}

impl Sample {
    /// Computes the statistics of these values.
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error =
            if count > 1 { (squares / (count - 1) as f64 / count as f64).sqrt() } else { 0.0 };
        Some(Self { count, mean, error })
    }

    /// Half the width of the 95 % confidence interval of the mean, if there is more than one value.
    pub(crate) fn half_width(&self) -> Option<f64> {
        (self.count > 1).then(|| student(self.count as f64 - 1.0) * self.error)
    }
}

/// The difference `b - a` and half the width of its 95 % confidence interval (Welch), if both
/// samples have more than one value.
pub(crate) fn difference(a: &Sample, b: &Sample) -> (f64, Option<f64>) {
    let (va, vb) = (a.error.powi(2), b.error.powi(2));
    let difference = b.mean - a.mean;
    if a.count < 2 || b.count < 2 {
        return (difference, None);
    }
    let denominator = va * va / (a.count as f64 - 1.0) + vb * vb / (b.count as f64 - 1.0);
    let degrees_of_freedom = if denominator > 0.0 { (va + vb).powi(2) / denominator } else { 1e9 };
    (difference, Some(student(degrees_of_freedom) * (va + vb).sqrt()))
}

/// The mean difference `b - a` of pairs and half the width of its 95 % confidence interval.
pub(crate) fn paired_difference(a: &[f64], b: &[f64]) -> (f64, Option<f64>) {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
    Sample::from_values(&differences).map_or((0.0, None), |all| (all.mean, all.half_width()))
}

/// The 97.5 % point of Student's t distribution, by interpolation in 1/n between tabled values.
fn student(degrees_of_freedom: f64) -> f64 {
    const TABLE: [(f64, f64); 14] = [
        (1.0, 12.706),
        (2.0, 4.303),
        (3.0, 3.182),
        (4.0, 2.776),
        (5.0, 2.571),
        (6.0, 2.447),
        (7.0, 2.365),
        (8.0, 2.306),
        (10.0, 2.228),
        (15.0, 2.131),
        (20.0, 2.086),
        (30.0, 2.042),
        (60.0, 2.000),
        (1e9, 1.960),
    ];
    let degrees_of_freedom = degrees_of_freedom.clamp(1.0, 1e9);
    let above =
        TABLE.iter().position(|entry| entry.0 >= degrees_of_freedom).unwrap_or(TABLE.len() - 1);
    let (high, at_high) = TABLE[above];
    let (low, at_low) = TABLE[above.saturating_sub(1)];
    let span = 1.0 / low - 1.0 / high;
    if span <= 0.0 {
        return at_high;
    }
    at_high + (at_low - at_high) * (1.0 / degrees_of_freedom - 1.0 / high) / span
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.99), Some(99.0));
        assert_eq!(percentile(&values, 1.0), Some(100.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn spread_has_the_median_and_the_range() {
        let spread = |values: &[f64]| {
            let spread = Spread::from_values(values)?;
            Some((spread.median, spread.min, spread.max))
        };
        assert_eq!(spread(&[5.0, 1.0, 9.0]), Some((5.0, 1.0, 9.0)));
        assert_eq!(spread(&[4.0, 1.0, 9.0, 2.0]), Some((3.0, 1.0, 9.0)));
        assert_eq!(spread(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(spread(&[]), None);
        // One value far off moves the median by one place at most.
        assert_eq!(spread(&[1.0, 2.0, 3.0, 4.0, 1e9]), Some((3.0, 1.0, 1e9)));
        let scaled = Spread::from_values(&[2e6, 4e6, 8e6]).unwrap().scaled(1e-6);
        assert_eq!((scaled.median, scaled.min, scaled.max), (4.0, 2.0, 8.0));
    }

    #[test]
    fn confidence_interval_uses_student_t() {
        let sample = Sample::from_values(&[9.0, 10.0, 11.0]).unwrap();
        assert_eq!((sample.mean, sample.count), (10.0, 3));
        // 4.303 x 1 / sqrt(3)
        assert!((sample.half_width().unwrap() - 2.484).abs() < 1e-3);
        assert_eq!(Sample::from_values(&[1.0]).unwrap().half_width(), None);
        assert!((student(12.0) - 2.179).abs() < 2e-3 && (student(40.0) - 2.021).abs() < 2e-3);
    }

    #[test]
    fn difference_of_equal_samples_is_within_confidence() {
        let a = Sample::from_values(&[9.0, 10.0, 11.0]).unwrap();
        let b = Sample::from_values(&[19.0, 20.0, 21.0]).unwrap();
        let (same, width) = difference(&a, &a);
        assert!(same.abs() < width.unwrap());
        let (apart, width) = difference(&a, &b);
        assert!(apart > width.unwrap());
    }
}
