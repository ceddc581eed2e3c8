//! The functions that C calls, one file per group of `bats-api`.

mod config;
mod connection;
mod context;
mod protocol;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::Duration;

pub use config::*;
pub use connection::*;
pub use context::*;
pub use protocol::*;

use crate::event::{Code, Failure};
use crate::last_error;

/// Runs the body of a function of the interface: a panic becomes `otherwise`.
fn guard<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        last_error::set("internal error: a panic was caught; please report it");
        otherwise
    })
}

/// The code of a result, or that of a panic.
fn guard_code(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard(Code::InvalidParam as c_int, || crate::event::to_code(body()))
}

/// Notes why a function without a result did nothing.
fn guard_quiet(body: impl FnOnce() -> Result<(), Failure>) {
    guard_code(body);
}

/// The text behind a pointer; `None` behind a null pointer.
///
/// # Safety
/// `text` is null or points to a string that ends with a zero and does not change meanwhile.
unsafe fn text(text: *const c_char) -> Result<Option<String>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller says so, and the pointer is not null.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(Failure::invalid("a text that is not UTF-8")),
    }
}

/// The longest deadline that is kept.
const MAX_DEADLINE_MS: c_int = 3_600_000;

/// A deadline given in milliseconds.
fn deadline(milliseconds: c_int) -> Result<Duration, Failure> {
    let wrong = || {
        Failure::invalid(format!("a deadline of {milliseconds} ms is not 1 to {MAX_DEADLINE_MS}"))
    };
    match u64::try_from(milliseconds) {
        Ok(ms) if (1..=MAX_DEADLINE_MS).contains(&milliseconds) => Ok(Duration::from_millis(ms)),
        _ => Err(wrong()),
    }
}

/// Copies a text with its zero to a buffer, cut if need be; the bytes of the whole text.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
unsafe fn copy_out(text: &str, buffer: *mut c_char, size: usize) -> usize {
    let text = last_error::c_string(text);
    let bytes = text.to_bytes();
    if !buffer.is_null() && size > 0 {
        let fits = bytes.len().min(size - 1);
        // SAFETY: the caller says that the buffer has `size` bytes, and `fits < size`; the text
        // is ours, so the two do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, fits);
            buffer.add(fits).write(0);
        }
    }
    bytes.len()
}

/// Why the last call of this thread failed; inside a FAILED, TIMEOUT, ERROR or SEND_DATA_ERROR
/// callback, why that event came. Never null; valid until the thread's next failure.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_last_error() -> *const c_char {
    guard(c"".as_ptr(), last_error::get)
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_version() -> *const c_char {
    static VERSION: LazyLock<std::ffi::CString> =
        LazyLock::new(|| last_error::c_string(env!("CARGO_PKG_VERSION")));
    VERSION.as_ptr()
}

/// A text for a `bats_error_t`.
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
    fn a_panic_is_caught_and_said() {
        assert_eq!(guard(7, || panic!("must not get out")), 7);
        // SAFETY: the library's own text.
        let text = unsafe { text(openbats_last_error()) }.unwrap().unwrap();
        assert!(text.contains("panic"), "{text}");
    }

    #[test]
    fn a_text_is_cut_to_its_buffer() {
        let mut buffer = [1; 4];
        // SAFETY: the buffer has four bytes.
        let len = unsafe { copy_out("abcdef", buffer.as_mut_ptr(), 4) };
        assert_eq!((len, buffer.map(|byte| byte as u8)), (6, *b"abc\0"));
        // SAFETY: nothing is written to a null pointer.
        assert_eq!(unsafe { copy_out("abc", std::ptr::null_mut(), 4) }, 3);
    }
}
