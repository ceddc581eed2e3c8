//! The functions of the C interface, a file for each kind of object.

mod channel;
mod config;
mod connection;
mod context;
mod protocol;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::Duration;

pub use channel::*;
pub use config::*;
pub use connection::*;
pub use context::*;
pub use protocol::*;

use crate::event::{Code, Failure};
use crate::last_error;

/// Runs the body of an interface function. Returns `otherwise` if it panics.
fn guard<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        last_error::set("internal error: a panic was caught; please report it");
        otherwise
    })
}

/// Runs the body of a function that returns a `bats_error_t`.
fn guard_code(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard(Code::InvalidParam as c_int, || crate::event::to_code(body()))
}

/// Runs the body of a function without a result. Its failure is stored as the last error.
fn guard_quiet(body: impl FnOnce() -> Result<(), Failure>) {
    guard_code(body);
}

/// The C string at a pointer; `None` for a null pointer.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero byte and does not change during the
/// call.
unsafe fn text(text: *const c_char) -> Result<Option<String>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller, and the pointer is not null.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Failure::invalid("a string argument is not UTF-8")),
    }
}

/// Maximum deadline in milliseconds: one hour.
const MAX_DEADLINE_MS: c_int = 3_600_000;

/// Checks a deadline in milliseconds.
fn deadline(milliseconds: c_int) -> Result<Duration, Failure> {
    let wrong = || {
        Failure::invalid(format!("a deadline of {milliseconds} ms is not 1 to {MAX_DEADLINE_MS}"))
    };
    match u64::try_from(milliseconds) {
        Ok(ms) if (1..=MAX_DEADLINE_MS).contains(&milliseconds) => Ok(Duration::from_millis(ms)),
        _ => Err(wrong()),
    }
}

/// Copies a text with a final zero byte to a buffer and truncates it if necessary. Returns the
/// length of the whole text in bytes.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
unsafe fn copy_out(text: &str, buffer: *mut c_char, size: usize) -> usize {
    let text = last_error::c_string(text);
    let bytes = text.to_bytes();
    if !buffer.is_null() && size > 0 {
        let fits = bytes.len().min(size - 1);
        // SAFETY: the caller guarantees `size` bytes, and `fits < size`. The library owns the text,
        // so the two do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, fits);
            buffer.add(fits).write(0);
        }
    }
    bytes.len()
}

/// The reason why the last failed call of this thread failed. In a FAILED, TIMEOUT, ERROR or
/// SEND_DATA_ERROR callback, the reason for the event. Never null; valid until the thread's next
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_last_error() -> *const c_char {
    guard(c"".as_ptr(), last_error::get)
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_version() -> *const c_char {
    static VERSION: LazyLock<std::ffi::CString> =
        LazyLock::new(|| last_error::c_string(env!("CARGO_PKG_VERSION")));
    VERSION.as_ptr()
}

/// A description of a `bats_error_t`.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_strerror(code: c_int) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"invalid parameter",
        2 => c"listening failed",
        3 => c"connecting failed",
        4 => c"accepting failed",
        5 => c"out of memory",
        6 => c"timed out",
        7 => c"the connection is closed",
        8 => c"sending failed",
        _ => c"unknown error",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_reported_as_the_last_error() {
        assert_eq!(guard(7, || panic!("must be caught")), 7);
        // SAFETY: the library owns the text.
        let text = unsafe { text(openbats_last_error()) }.unwrap().unwrap();
        assert!(text.contains("panic"), "{text}");
    }

    #[test]
    fn a_text_is_truncated_to_its_buffer() {
        let mut buffer = [1; 4];
        // SAFETY: the buffer has four bytes.
        let len = unsafe { copy_out("abcdef", buffer.as_mut_ptr(), 4) };
        assert_eq!((len, buffer.map(|byte| byte as u8)), (6, *b"abc\0"));
        // SAFETY: nothing is written to a null pointer.
        assert_eq!(unsafe { copy_out("abc", std::ptr::null_mut(), 4) }, 3);
    }
}
