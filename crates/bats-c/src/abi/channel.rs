//! `openbats_channel_*`.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{guard, guard_code};
use crate::callback::{Callback, ChannelAcceptFn, ChannelFn, ReleaseFn, UserPointer};
use crate::channel::{CHANNELS, Channel};
use crate::event::{Code, Failure};
use crate::handles::{Handle, to_handle};

/// Codes of channels are less than this.
const CODES: u64 = 1 << 62;

fn get(handle: Handle) -> Result<Arc<Channel>, Failure> {
    let missing = || Failure::new(Code::ConnectionClosed, "no such channel, or it has ended");
    CHANNELS.get(handle).ok_or_else(missing)
}

fn check_code(code: u64) -> Result<u64, Failure> {
    match code {
        0..CODES => Ok(code),
        _ => Err(Failure::invalid(format!("{code} is not a code: 2^62 and more are not possible"))),
    }
}

/// Opens a channel of a connection. Returns its handle, null on an error.
///
/// # Safety
/// The callback may be called with `user` until the channel has ended or another is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_channel_open(
    connection: Handle,
    call: Option<ChannelFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> Handle {
    guard(std::ptr::null_mut(), || {
        let user = UserPointer::new(user, release);
        let mut opened = std::ptr::null_mut();
        let result = call.ok_or_else(|| Failure::invalid("no callback")).and_then(|call| {
            let session = super::connection::get(connection)?;
            opened = to_handle(session.open_channel(Callback::new(call, user))?);
            Ok(())
        });
        crate::event::to_code(result);
        opened
    })
}

/// Sets the callback for channels that the peer opens.
///
/// # Safety
/// The callback may be called with `user` until the connection has ended or another is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_connection_accept_channels(
    connection: Handle,
    call: Option<ChannelAcceptFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = UserPointer::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        super::connection::get(connection)?.accept_channels(Callback::new(call, user))
    })
}

/// Sets the callback for the events of a channel.
///
/// # Safety
/// The callback may be called with `user` until the channel has ended or another is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_channel_set_callback(
    channel: Handle,
    call: Option<ChannelFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = UserPointer::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        get(channel)?.set_callback(Callback::new(call, user));
        Ok(())
    })
}

/// Queues bytes and returns their number, -1 on an error.
///
/// # Safety
/// `data` points to `length` bytes, or `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_channel_write(
    channel: Handle,
    data: *const u8,
    length: usize,
) -> isize {
    guard(-1, || {
        let mut queued = -1;
        let mut write = || {
            let data = match (data.is_null(), length) {
                (_, 0) => &[][..],
                (true, _) => return Err(Failure::invalid("the data pointer is null")),
                (false, _) if isize::try_from(length).is_err() => {
                    return Err(Failure::invalid(format!("{length} is not a valid length")));
                }
                // SAFETY: guaranteed by the caller, and the pointer is not null.
                (false, _) => unsafe { std::slice::from_raw_parts(data, length) },
            };
            // At most `length`.
            queued = get(channel)?.write(data)? as isize;
            Ok(())
        };
        crate::event::to_code(write());
        queued
    })
}

/// Ends the sending direction after all bytes.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_finish(channel: Handle) -> c_int {
    guard_code(|| get(channel)?.finish())
}

/// Gives up the sending direction.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_reset(channel: Handle, code: u64) -> c_int {
    guard_code(|| get(channel)?.reset(check_code(code)?))
}

/// Reads no more.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_stop(channel: Handle, code: u64) -> c_int {
    guard_code(|| get(channel)?.stop(check_code(code)?))
}

/// Starts (1) or ends (0) a pause of the events of received data.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_pause(channel: Handle, pause: c_int) -> c_int {
    guard_code(|| {
        get(channel)?.set_paused(pause != 0);
        Ok(())
    })
}

/// Sets the weight, 1 to 255.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_set_weight(channel: Handle, weight: c_int) -> c_int {
    guard_code(|| match u8::try_from(weight) {
        Ok(weight @ 1..) => get(channel)?.set_weight(weight),
        _ => Err(Failure::invalid(format!("a weight of {weight} is not 1 to 255"))),
    })
}

/// The number of a channel; 0 before it is open.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_id(channel: Handle) -> u64 {
    guard(0, || get(channel).map_or(0, |channel| channel.number()))
}

/// Closes a channel and invalidates its handle.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_channel_close(channel: Handle) -> c_int {
    guard_code(|| {
        get(channel)?.close();
        Ok(())
    })
}
