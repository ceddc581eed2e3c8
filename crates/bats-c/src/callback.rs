//! Callbacks: functions of the program that the library calls.

use std::ffi::{c_int, c_void};

use crate::event::{ChannelEvent, Event, ListenEvent};
use crate::handles::{Handle, to_handle};

/// `bats_connection_callback_t`.
pub type ConnectionFn = unsafe extern "C" fn(Handle, c_int, *const u8, c_int, *mut c_void) -> bool;
/// `bats_listen_callback_t`.
pub type ListenFn = unsafe extern "C" fn(Handle, c_int, *mut c_void);
/// `openbats_channel_callback_t`.
pub type ChannelFn = unsafe extern "C" fn(Handle, c_int, *const u8, usize, u64, *mut c_void);
/// `openbats_channel_accept_callback_t`.
pub type ChannelAcceptFn = unsafe extern "C" fn(Handle, Handle, *mut c_void);
/// Called with the user's pointer when the library no longer needs it.
pub type ReleaseFn = unsafe extern "C" fn(*mut c_void);

/// A pointer of the user. It is released once, by its release function.
pub(crate) struct UserPointer {
    pub(crate) pointer: *mut c_void,
    release: Option<ReleaseFn>,
}

// SAFETY: the interface states that the library calls callbacks and release functions on its
// threads, so the program permits the pointer to move there. The library only passes it on.
unsafe impl Send for UserPointer {}
// SAFETY: as above. The library calls the functions of one owner one at a time.
unsafe impl Sync for UserPointer {}

impl UserPointer {
    pub(crate) fn new(pointer: *mut c_void, release: Option<ReleaseFn>) -> Self {
        Self { pointer, release }
    }
}

impl Drop for UserPointer {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the user provided this function for this pointer. It is called exactly once.
            unsafe { release(self.pointer) }
        }
    }
}

/// A function of the user and the pointer that it is called with.
pub(crate) struct Callback<F> {
    call: F,
    user: UserPointer,
}

impl<F> Callback<F> {
    pub(crate) fn new(call: F, user: UserPointer) -> Self {
        Self { call, user }
    }
}

impl Callback<ConnectionFn> {
    /// Calls the function with an event. `data` is the message of [`Event::DataReceived`], else
    /// `None`.
    pub(crate) fn call(&self, id: usize, event: Event, data: Option<&[u8]>, length: c_int) {
        let pointer = data.map_or(std::ptr::null(), <[u8]>::as_ptr);
        // SAFETY: the user provided the function with the signature that the header declares. The
        // data live until it returns.
        unsafe { (self.call)(to_handle(id), event as c_int, pointer, length, self.user.pointer) };
    }
}

impl Callback<ListenFn> {
    pub(crate) fn call(&self, id: usize, event: ListenEvent) {
        // SAFETY: the user provided the function with the signature that the header declares.
        unsafe { (self.call)(to_handle(id), event as c_int, self.user.pointer) };
    }
}

impl Callback<ChannelFn> {
    /// Calls the function with an event. `data` is empty except for [`ChannelEvent::Data`].
    pub(crate) fn call(&self, id: usize, event: ChannelEvent, data: &[u8], code: u64) {
        let pointer = if data.is_empty() { std::ptr::null() } else { data.as_ptr() };
        // SAFETY: the user provided the function with the signature that the header declares. The
        // data live until it returns.
        unsafe {
            (self.call)(
                to_handle(id),
                event as c_int,
                pointer,
                data.len(),
                code,
                self.user.pointer,
            );
        }
    }
}

impl Callback<ChannelAcceptFn> {
    pub(crate) fn call(&self, connection: usize, channel: usize) {
        // SAFETY: the user provided the function with the signature that the header declares.
        unsafe { (self.call)(to_handle(connection), to_handle(channel), self.user.pointer) };
    }
}

pub(crate) type ConnectionCallback = Callback<ConnectionFn>;
pub(crate) type ListenCallback = Callback<ListenFn>;
pub(crate) type ChannelCallback = Callback<ChannelFn>;
pub(crate) type AcceptCallback = Callback<ChannelAcceptFn>;
