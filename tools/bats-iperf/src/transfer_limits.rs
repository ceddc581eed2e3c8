//! When a transfer of files is given up.

use std::time::Duration;

use crate::cli::Options;
use crate::progress::{MIN_RATE, ProgressMeter};

/// Longest time of a transfer to a server, without `--server-max-duration`: as that of a test.
const LONGEST: Duration = Duration::from_secs(86_400);

/// When a transfer is given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferLimits {
    /// Longest time without progress.
    stall: Duration,
    /// Least bytes per second, over as long a time.
    min_rate: u64,
    longest: Option<Duration>,
}

impl TransferLimits {
    /// Those of a server: a client that sends next to nothing would keep a place, and the free space that
    /// it was promised.
    pub(crate) fn of_server(options: &Options) -> Self {
        // A server that receives no faster itself waits for half of that.
        let own = options.service.server_bitrate_limit.map_or(u64::MAX, |limit| limit / 8 / 2);
        Self {
            stall: options.timeouts.rcv_timeout,
            min_rate: MIN_RATE.min(own),
            longest: Some(options.service.server_max_duration.unwrap_or(LONGEST)),
        }
    }

    /// Those of a client, whose user can end it.
    pub(crate) fn of_client(options: &Options) -> Self {
        Self { stall: options.timeouts.rcv_timeout, min_rate: 0, longest: None }
    }

    /// Why the transfer is given up now, if it is.
    pub(crate) fn exceeded(&self, progress: &ProgressMeter, arrived: u64) -> Option<String> {
        if progress.idle_time() > self.stall {
            return Some("the transfer stalled".to_owned());
        }
        if !progress.check_rate(arrived, self.min_rate, self.stall) {
            return Some(format!("the transfer is slower than {} bytes/s", self.min_rate));
        }
        let is_over = self.longest.is_some_and(|longest| progress.elapsed() > longest);
        is_over.then(|| {
            "the longest time of a transfer to this server is over; \
             another transfer continues where this one ended, with --merge at the server for \
             directories"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn a_server_limits_the_time_and_the_rate_of_transfers_by_default() {
        let limits = |options: &str| {
            let arguments = format!("bats_iperf -s --directory /tmp {options}");
            TransferLimits::of_server(&cli::parse(arguments.split_whitespace()).unwrap().0)
        };
        let of_default = limits("");
        assert_eq!((of_default.longest, of_default.min_rate), (Some(LONGEST), MIN_RATE));
        let longest = limits("--server-max-duration 60").longest;
        assert_eq!(longest, Some(Duration::from_secs(60)));
        // It receives 125 bytes per second itself.
        assert_eq!(limits("--server-bitrate-limit 1k").min_rate, 62);
    }
}
