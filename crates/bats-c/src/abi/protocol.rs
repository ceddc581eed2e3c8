//! `bats_protocol_*`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::{config, connection, context, guard, guard_code, guard_quiet, text};
use crate::callback::{Callback, ConnectionFn, ListenFn, ReleaseFn, UserPointer};
use crate::config::DefaultTrust;
use crate::context::Member;
use crate::event::{Code, Failure};
use crate::handles::{Handle, to_handle};
use crate::last_error;
use crate::protocol::{PROTOCOLS, Protocol};

fn get(handle: Handle) -> Result<Arc<Protocol>, Failure> {
    PROTOCOLS.get(handle).ok_or_else(|| Failure::invalid("no such protocol object"))
}

/// Creates a protocol object, which opens connections with a copy of `config` (null: the defaults).
/// Returns null if the context or configuration does not exist.
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

/// Destroys a protocol object with its connections and listener. When this returns, its ports are
/// free, and none of its callbacks runs except one that called this function.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_destroy(protocol: Handle) {
    guard_quiet(|| {
        let protocol = get(protocol)?;
        drop(PROTOCOLS.remove(protocol.id));
        protocol.shut_down();
        Ok(())
    });
}

/// Replaces the configuration for later connections and listeners.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_protocol_load_config(protocol: Handle, config: Handle) -> c_int {
    guard_code(|| {
        get(protocol)?.load_config(config::copy(config)?);
        Ok(())
    })
}

/// Address and port of a call; `None` without an address, so that those of the configuration apply.
///
/// # Safety
/// `address` is null or a C string.
unsafe fn target(address: *const c_char, port: u16) -> Result<Option<(String, u16)>, Failure> {
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { text(address) }?.map(|address| (address, port)))
}

/// Accepts any server certificate, with a warning, unless the configuration says otherwise.
///
/// Starts a connection. The result is reported as an event.
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
    let default = DefaultTrust::AnyCertificate;
    // SAFETY: guaranteed by the caller.
    unsafe { start_connect(protocol, address, port, default, call, user, None) }
}

/// As [`bats_protocol_start_connect`], but trusts servers on first use, with the file of known servers
/// of the user, unless the configuration says otherwise. `release` is called with `user` when the
/// library no longer needs the callback.
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
    let default = DefaultTrust::KnownHosts;
    // SAFETY: guaranteed by the caller.
    unsafe { start_connect(protocol, address, port, default, call, user, release) }
}

/// # Safety
/// As [`bats_protocol_start_connect`].
unsafe fn start_connect(
    protocol: Handle,
    address: *const c_char,
    port: u16,
    default: DefaultTrust,
    call: Option<ConnectionFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = UserPointer::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        // SAFETY: guaranteed by the caller.
        let target = unsafe { target(address, port) }?;
        get(protocol)?.start_connect(target, default, Callback::new(call, user))
    })
}

/// Starts to listen. The result is reported as an event.
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
    // SAFETY: guaranteed by the caller.
    unsafe { openbats_protocol_start_listen(protocol, address, port, call, user, None) }
}

/// As [`bats_protocol_start_listen`]. `release` is called with `user` when the library no longer
/// needs the callback.
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
        let user = UserPointer::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        // SAFETY: guaranteed by the caller.
        let target = unsafe { target(address, port) }?;
        get(protocol)?.start_listen(target, Callback::new(call, user))
    })
}

/// Stops accepting connections. STOPPED follows.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_stop_listen(protocol: Handle) -> c_int {
    guard_code(|| get(protocol)?.stop_listen())
}

/// Closes a connection of this object. CLOSED follows. A null connection is ignored; a connection
/// of another object is an error and stays open.
#[unsafe(no_mangle)]
pub extern "C" fn bats_protocol_stop_connection(protocol: Handle, connection: Handle) -> c_int {
    guard_code(|| {
        let protocol = get(protocol)?;
        if connection.is_null() {
            return Ok(());
        }
        let result = connection::get(connection).and_then(|session| session.stop_by(&*protocol));
        // The method of the C++ interface has no result.
        if let Err(failure) = &result
            && failure.code == Code::InvalidParam
        {
            tracing::warn!(error = failure.text, "the connection is not stopped");
        }
        result
    })
}

/// The listening port; 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_protocol_listen_port(protocol: Handle) -> u16 {
    guard(0, || get(protocol).ok().and_then(|p| p.bound()).map_or(0, |bound| bound.port()))
}
