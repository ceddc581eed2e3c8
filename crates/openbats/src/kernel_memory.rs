//! Lack of kernel memory: a shortage that ends by itself must not end an endpoint or a program.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::io;

use rustix::io::Errno;

/// Whether the error of a socket call is a lack of kernel memory (`ENOMEM`, `ENOBUFS`), also of room in the queue of
/// an interface. The call may succeed soon. After a receive call the socket may stay ready, so callers pause.
#[must_use]
pub fn is_lack_of_memory(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOMEM | Errno::NOBUFS))
}
