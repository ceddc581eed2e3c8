//! Functions of the program that the library calls.

use std::ffi::{c_int, c_void};

use crate::event::{Event, ListenEvent};
use crate::handles::{Handle, to_handle};

/// `bats_connection_callback_t`.
pub type ConnectionFn = unsafe extern "C" fn(Handle, c_int, *const u8, c_int, *mut c_void) -> bool;
/// `bats_listen_callback_t`.
pub type ListenFn = unsafe extern "C" fn(Handle, c_int, *mut c_void);
/// Gives the user's pointer back when the library has no use for it any more.
pub type ReleaseFn = unsafe extern "C" fn(*mut c_void);

/// A pointer of the user's, given back once.
pub(crate) struct Owned {
    pub(crate) pointer: *mut c_void,
    release: Option<ReleaseFn>,
}

// SAFETY: the interface says that callbacks and release functions are called from the library's
// threads, so whoever hands a pointer over allows it to move there. Here it is only passed on.
unsafe impl Send for Owned {}
// SAFETY: as above; the library calls the functions of one owner one at a time.
unsafe impl Sync for Owned {}

impl Owned {
    pub(crate) fn new(pointer: *mut c_void, release: Option<ReleaseFn>) -> Self {
        Self { pointer, release }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the user gave this function for this pointer; it is called exactly once.
            unsafe { release(self.pointer) }
        }
    }
}

/// A function and the pointer that goes with it.
pub(crate) struct Callback<F> {
    call: F,
    user: Owned,
}

impl<F> Callback<F> {
    pub(crate) fn new(call: F, user: Owned) -> Self {
        Self { call, user }
    }
}

impl Callback<ConnectionFn> {
    /// Tells of an event; `data` is a message for [`Event::DataReceived`] and otherwise nothing.
    pub(crate) fn call(&self, id: usize, event: Event, data: Option<&[u8]>, length: c_int) {
        let pointer = data.map_or(std::ptr::null(), <[u8]>::as_ptr);
        // SAFETY: the function is the user's, with the signature that the header declares. The
        // data lives until it returns.
        unsafe { (self.call)(to_handle(id), event as c_int, pointer, length, self.user.pointer) };
    }
}

impl Callback<ListenFn> {
    pub(crate) fn call(&self, id: usize, event: ListenEvent) {
        // SAFETY: the function is the user's, with the signature that the header declares.
        unsafe { (self.call)(to_handle(id), event as c_int, self.user.pointer) };
    }
}

pub(crate) type ConnectionCallback = Callback<ConnectionFn>;
pub(crate) type ListenCallback = Callback<ListenFn>;
