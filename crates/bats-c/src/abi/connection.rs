//! `bats_connection_*`.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use super::{copy_out, deadline, guard, guard_code, guard_quiet, text};
use crate::callback::{Callback, ConnectionFn, ReleaseFn, UserPointer};
use crate::event::{Code, Failure};
use crate::handles::Handle;
use crate::session::{Addresses, SESSIONS, Session};
use crate::stats::openbats_stats_t;

pub(super) fn get(handle: Handle) -> Result<Arc<Session>, Failure> {
    // The default of `IBatsConnection::OpenbatsHandle` in the C++ header.
    if handle.addr() == usize::MAX {
        return Err(Failure::invalid("the connection object is not one of this library"));
    }
    let missing = || Failure::new(Code::ConnectionClosed, "no such connection, or it has ended");
    SESSIONS.get(handle).ok_or_else(missing)
}

/// Sends one message. The bytes are copied before this returns.
///
/// # Safety
/// `data` points to `length` bytes, or `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_connection_send_data(
    connection: Handle,
    data: *const u8,
    length: c_int,
) -> c_int {
    guard_code(|| {
        // SAFETY: guaranteed by the caller.
        let message = unsafe { bytes(data, length) }?;
        get(connection)?.send(message, None)
    })
}

/// Sends one message with a deadline in milliseconds, 1 to 3600000. Modes 0, 3 and datagrams of
/// mode 12 neither start to send nor repair an expired message. Mode 11 sends at once; the other
/// modes deliver all messages, even late ones.
///
/// # Safety
/// As [`bats_connection_send_data`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_send_within(
    connection: Handle,
    data: *const u8,
    length: c_int,
    milliseconds: c_int,
) -> c_int {
    guard_code(|| {
        let deadline = deadline(milliseconds)?;
        // SAFETY: guaranteed by the caller.
        let message = unsafe { bytes(data, length) }?;
        get(connection)?.send(message, Some(deadline))
    })
}

/// # Safety
/// `data` points to `length` bytes, or `length` is 0. They do not change while the result is used.
unsafe fn bytes<'a>(data: *const u8, length: c_int) -> Result<&'a [u8], Failure> {
    let length = usize::try_from(length)
        .map_err(|_| Failure::invalid(format!("{length} is not a valid length")))?;
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::invalid("the data pointer is null")),
        // SAFETY: guaranteed by the caller, and the pointer is not null.
        (false, length) => Ok(unsafe { std::slice::from_raw_parts(data, length) }),
    }
}

/// Returns 1 if messages are compressed, because both ends enabled it.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_is_compressed(connection: Handle) -> c_int {
    guard(0, || get(connection).is_ok_and(|session| session.is_compressed()).into())
}

/// Sends the bytes of a file in order, as messages of at most the ideal length. SEND_COMPLETE and
/// ALL_DATA_ACKED follow, or SEND_DATA_ERROR.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_connection_send_file(
    connection: Handle,
    path: *const c_char,
) -> c_int {
    guard_code(|| {
        // SAFETY: guaranteed by the caller.
        let path = unsafe { text(path) }?.ok_or_else(|| Failure::invalid("no path"))?;
        get(connection)?.send_file(Path::new(&path))
    })
}

/// Sets the callback for the events of a connection. May be called from any thread or callback.
///
/// # Safety
/// The callback may be called with `user` until the connection has ended or another is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_connection_set_callback(
    connection: Handle,
    call: Option<ConnectionFn>,
    user: *mut c_void,
) {
    // SAFETY: guaranteed by the caller.
    unsafe { openbats_connection_set_callback(connection, call, user, None) };
}

/// As [`bats_connection_set_callback`]. `release` is called with `user` when the library no longer
/// needs the callback.
///
/// # Safety
/// As [`bats_connection_set_callback`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_set_callback(
    connection: Handle,
    call: Option<ConnectionFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = UserPointer::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        get(connection)?.set_callback(Callback::new(call, user));
        Ok(())
    })
}

/// Returns 1 if the connection would accept a message now.
#[unsafe(no_mangle)]
pub extern "C" fn bats_connection_is_writable(connection: Handle) -> c_int {
    guard(0, || get(connection).is_ok_and(|session| session.is_writable()).into())
}

/// The best message size in bytes; 0 if the connection does not exist.
#[unsafe(no_mangle)]
pub extern "C" fn bats_connection_get_ideal_buffer_length(connection: Handle) -> c_int {
    guard(0, || get(connection).map_or(0, |session| session.ideal_length() as c_int))
}

/// Keeps the handle valid after the end of the connection, until a matching release.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_retain(connection: Handle) -> c_int {
    guard_code(|| {
        get(connection)?.retain();
        Ok(())
    })
}

/// Releases a reference of [`openbats_connection_retain`]. Does not close the connection.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_release(connection: Handle) {
    guard_quiet(|| {
        get(connection)?.release();
        Ok(())
    });
}

/// Attaches an object of the program to the connection. `release` is called with it when the
/// connection ends or another object is attached.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_attach(
    connection: Handle,
    object: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let object = UserPointer::new(object, release);
        get(connection)?.attach(object);
        Ok(())
    })
}

/// The attached object, or null. May be used only in callbacks of the connection.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_attachment(connection: Handle) -> *mut c_void {
    guard(std::ptr::null_mut(), || {
        get(connection).map_or(std::ptr::null_mut(), |session| session.attachment())
    })
}

/// # Safety
/// `buffer` is null or has room for `size` bytes.
unsafe fn address(
    connection: Handle,
    which: fn(Addresses) -> Option<SocketAddr>,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    guard(0, || {
        let address = get(connection).ok().and_then(|session| which(session.addresses()));
        let text = address.map(|address| address.ip().to_string()).unwrap_or_default();
        // SAFETY: guaranteed by the caller.
        unsafe { copy_out(&text, buffer, size) }
    })
}

fn port(connection: Handle, which: fn(Addresses) -> Option<SocketAddr>) -> u16 {
    guard(0, || {
        let address = get(connection).ok().and_then(|session| which(session.addresses()));
        address.map_or(0, |address| address.port())
    })
}

/// Copies the peer's IP address as text. Returns its length.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_remote_address(
    connection: Handle,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { address(connection, |addresses| addresses.remote, buffer, size) }
}

/// Copies the local IP address as text. Returns its length.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_local_address(
    connection: Handle,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { address(connection, |addresses| addresses.local, buffer, size) }
}

/// The peer's port; 0 if it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_remote_port(connection: Handle) -> u16 {
    port(connection, |addresses| addresses.remote)
}

/// The local port; 0 if it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_connection_local_port(connection: Handle) -> u16 {
    port(connection, |addresses| addresses.local)
}

/// Copies the reason why the connection failed or ended. Returns its length, 0 if there is none.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_error(
    connection: Handle,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    guard(0, || {
        let text = get(connection).map(|session| session.error()).unwrap_or_default();
        // SAFETY: guaranteed by the caller.
        unsafe { copy_out(&text, buffer, size) }
    })
}

/// Copies the SHA-256 fingerprint of the peer's certificate. Returns its length, 0 if the peer presented
/// none.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_peer_fingerprint(
    connection: Handle,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    guard(0, || {
        let fingerprint = get(connection).ok().and_then(|session| session.peer_fingerprint());
        let text = fingerprint.map(|fingerprint| fingerprint.to_string()).unwrap_or_default();
        // SAFETY: guaranteed by the caller.
        unsafe { copy_out(&text, buffer, size) }
    })
}

/// Reads the statistics; after the end, the last ones. The caller sets `stats->size` to the size of
/// its struct, and the function sets it to the number of bytes written.
///
/// # Safety
/// `stats` is null or points to `stats->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_stats(
    connection: Handle,
    stats: *mut openbats_stats_t,
) -> c_int {
    guard_code(|| {
        if stats.is_null() {
            return Err(Failure::invalid("the statistics pointer is null"));
        }
        // SAFETY: the pointer is not null, and `size` is the first field in every version.
        let room = unsafe { (&raw const (*stats).size).read_unaligned() } as usize;
        if room < size_of::<u32>() {
            return Err(Failure::invalid("stats->size is not set"));
        }
        let mut sample = get(connection)?.stats();
        let filled = room.min(size_of::<openbats_stats_t>());
        sample.size = filled as u32;
        // SAFETY: the caller provides `size` bytes, and the sample has at least `filled`.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const sample).cast::<u8>(),
                stats.cast::<u8>(),
                filled,
            );
        }
        Ok(())
    })
}
