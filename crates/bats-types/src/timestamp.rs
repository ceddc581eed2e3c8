#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time in nanoseconds since an epoch that the driver chooses.
///
/// The sans-IO crates never read a clock; their driver passes the time to each call. The epoch is
/// the start of the run in the simulator and the start of the process on sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch itself.
    pub const ZERO: Self = Self(0);
    /// The largest time, 584 years after the epoch: later than every time in use.
    pub const MAX: Self = Self(u64::MAX);

    /// The time that is `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The time that is `micros` microseconds after the epoch; saturates at [`Timestamp::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// The time that is `millis` milliseconds after the epoch; saturates at [`Timestamp::MAX`].
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the epoch, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Seconds since the epoch.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The earlier of two times that may be missing. Cheaper than the minimum of an iterator that flattens them, which
    /// takes a hundred instructions.
    #[must_use]
    pub fn earlier(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The time elapsed since `earlier`; zero if `earlier` is later than `self`.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time minus `duration`, not before the epoch.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, duration: Duration) {
        self.0 = self.0.saturating_add(nanos(duration));
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// Same as [`Timestamp::saturating_since`].
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let second = Duration::from_secs(1);
        assert_eq!(Timestamp::MAX + second, Timestamp::MAX);
        assert_eq!(Timestamp::ZERO - Timestamp::MAX, Duration::ZERO);
        assert_eq!(Timestamp::from_millis(5).saturating_sub(second), Timestamp::ZERO);
        assert_eq!(Timestamp::from_millis(1500) - Timestamp::from_millis(500), second);
    }

    #[test]
    fn earlier_time_is_chosen_of_those_that_are_there() {
        let (a, b) = (Some(Timestamp::from_millis(1)), Some(Timestamp::from_millis(2)));
        assert_eq!([Timestamp::earlier(a, b), Timestamp::earlier(b, a)], [a, a]);
        let [none, first, second] =
            [(None, None), (a, None), (None, b)].map(|(a, b)| Timestamp::earlier(a, b));
        assert_eq!([none, first, second], [None, a, b]);
    }
}
