//! `bats_protocol_*`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::{config, connection, context, guard, guard_code, guard_quiet, text};
use crate::callback::{Callback, ConnectionFn, ListenFn, Owned, ReleaseFn};
use crate::event::Failure;
use crate::handles::{Handle, to_handle};
use crate::last_error;
use crate::protocol::{PROTOCOLS, Protocol};

fn get(handle: Handle) -> Result<Arc<Protocol>, Failure> {
    PROTOCOLS.get(handle).ok_or_else(|| Failure::invalid("no such protocol object"))
}

/// An object that makes connections with a copy of `config` (null: the defaults). Null if there
/// is no such context or configuration.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_create(context: Handle, config: Handle) -> Handle {
    guard(std::ptr::null_mut(), || {
        let made = context::get(context).and_then(|context| {
            if context.is_destroyed() {
                return Err(Failure::invalid("the context was destroyed"));
            }
            Ok(Protocol::create(&context, config::copy(config)?))
        });
        match made {
            Ok(protocol) => to_handle(protocol.id),
            Err(failure) => {
                last_error::set(&failure.text);
                std::ptr::null_mut()
            }
        }
    })
}

/// Ends everything of this object. Its ports are free and no callback of it runs when this
/// returns, other than one that calls it.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_destroy(protocol: Handle) {
    guard_quiet(|| {
        let protocol = get(protocol)?;
        drop(PROTOCOLS.remove(protocol.id));
        protocol.shut_down();
        Ok(())
    });
}

/// Another configuration for connections and listeners from now on.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_protocol_load_config(protocol: Handle, config: Handle) -> c_int {
    guard_code(|| {
        get(protocol)?.load_config(config::copy(config)?);
        Ok(())
    })
}

/// The place that a call names; without an address the configuration's counts.
///
/// # Safety
/// `address` is null or a C string.
unsafe fn place(address: *const c_char, port: u16) -> Result<Option<(String, u16)>, Failure> {
    // SAFETY: the caller says so.
    Ok(unsafe { text(address) }?.map(|address| (address, port)))
}

/// Begins a connection; the outcome comes as an event.
///
/// # Safety
/// `address` is null or a C string. The callback may be called with `user` until the connection
/// has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_protocol_start_connect(
    protocol: Handle,
    address: *const c_char,
    port: u16,
    call: Option<ConnectionFn>,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the caller says so.
    unsafe { openbats_protocol_start_connect(protocol, address, port, call, user, None) }
}

/// The same; `release` gives `user` back when the callback is not needed any more.
///
/// # Safety
/// As [`bats_protocol_start_connect`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_protocol_start_connect(
    protocol: Handle,
    address: *const c_char,
    port: u16,
    call: Option<ConnectionFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = Owned::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        // SAFETY: the caller says so.
        let place = unsafe { place(address, port) }?;
        get(protocol)?.start_connect(place, Callback::new(call, user))
    })
}

/// Begins to listen; the outcome comes as an event.
///
/// # Safety
/// `address` is null or a C string. The callback may be called with `user` until listening has
/// ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_protocol_start_listen(
    protocol: Handle,
    address: *const c_char,
    port: u16,
    call: Option<ListenFn>,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the caller says so.
    unsafe { openbats_protocol_start_listen(protocol, address, port, call, user, None) }
}

/// The same; `release` gives `user` back when the callback is not needed any more.
///
/// # Safety
/// As [`bats_protocol_start_listen`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_protocol_start_listen(
    protocol: Handle,
    address: *const c_char,
    port: u16,
    call: Option<ListenFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = Owned::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        // SAFETY: the caller says so.
        let place = unsafe { place(address, port) }?;
        get(protocol)?.start_listen(place, Callback::new(call, user))
    })
}

/// Accepts nothing more; STOPPED follows.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_stop_listen(protocol: Handle) -> c_int {
    guard_code(|| get(protocol)?.stop_listen())
}

/// Closes a connection of this object; CLOSED follows. A null connection is none and no error.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_stop_connection(protocol: Handle, connection: Handle) -> c_int {
    guard_code(|| {
        get(protocol)?;
        if !connection.is_null() {
            connection::get(connection)?.stop();
        }
        Ok(())
    })
}

/// The port that is listened at, 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_protocol_listen_port(protocol: Handle) -> u16 {
    guard(0, || get(protocol).ok().and_then(|p| p.bound()).map_or(0, |bound| bound.port()))
}
