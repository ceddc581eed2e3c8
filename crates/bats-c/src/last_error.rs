//! The text of the last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// `text` as a C string, without zero bytes.
pub(crate) fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Stores the reason of a failed call for the calling thread.
pub(crate) fn set(text: &str) {
    LAST.with_borrow_mut(|last| *last = c_string(text));
}

/// The stored text; valid until the thread's next failure.
pub(crate) fn get() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
