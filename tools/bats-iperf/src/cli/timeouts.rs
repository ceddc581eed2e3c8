//! Timeouts of the data connections.

use std::time::Duration;

use clap::Args;

use crate::units::parse_timeout;

/// How long a stream or a transfer may make no progress.
#[derive(Clone, Debug, Args)]
pub(crate) struct TimeoutOptions {
    /// Idle timeout for receiving data: fail when a stream has received nothing, or a file transfer
    /// has made no progress, for this long (milliseconds, or with a unit, such as 5s). A server also ends a
    /// file transfer that is slower than 500 bytes per second over this time.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(crate) rcv_timeout: Duration,

    /// Timeout for sending: fail when a stream could not send, or received no acknowledgement
    /// (modes 1, 2, 10 and 12), for this long (milliseconds, or with a unit, such as 5s).
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_timeout)]
    pub(crate) snd_timeout: Duration,
}
