//! `bats_config_*`.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

use super::{copy_out, deadline, guard, guard_code, guard_quiet, text};
use crate::config::{Believed, Config, Congestion};
use crate::event::Failure;
use crate::handles::{Handle, Table, new_id, to_handle};
use crate::last_error;

static CONFIGS: Table<Mutex<Config>> = Table::new();

fn get(handle: Handle) -> Result<Arc<Mutex<Config>>, Failure> {
    CONFIGS.get(handle).ok_or_else(|| Failure::invalid("no such configuration"))
}

/// What the handle stands for; a null one for the defaults.
pub(super) fn copy(handle: Handle) -> Result<Config, Failure> {
    if handle.is_null() {
        return Ok(Config::default());
    }
    Ok(get(handle)?.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

fn change(handle: Handle, change: impl FnOnce(&mut Config) -> Result<(), Failure>) -> c_int {
    guard_code(|| change(&mut get(handle)?.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// # Safety
/// `value` is null or a C string.
unsafe fn change_text(
    handle: Handle,
    value: *const c_char,
    set: impl FnOnce(&mut Config, String) -> Result<(), Failure>,
) -> c_int {
    change(handle, |config| {
        // SAFETY: the caller says so.
        let value = unsafe { text(value) }?;
        set(config, value.unwrap_or_default())
    })
}

fn insert(config: Config) -> Handle {
    let id = new_id();
    CONFIGS.insert(id, Arc::new(Mutex::new(config)));
    to_handle(id)
}

/// A configuration with the defaults.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_create() -> Handle {
    guard(std::ptr::null_mut(), || {
        crate::log::start();
        insert(Config::default())
    })
}

/// A copy, null if there is no such configuration.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_clone(config: Handle) -> Handle {
    guard(std::ptr::null_mut(), || match copy(config) {
        Ok(config) => insert(config),
        Err(failure) => {
            last_error::set(&failure.text);
            std::ptr::null_mut()
        }
    })
}

/// Gives a configuration back. Objects made with it have copies.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_destroy(config: Handle) {
    guard_quiet(|| {
        get(config)?;
        drop(CONFIGS.remove(config.addr()));
        Ok(())
    });
}

/// Any number; one without a mode behind it is refused by the call that uses it.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_mode(config: Handle, mode: c_int) {
    change(config, |config| {
        config.mode = mode;
        Ok(())
    });
}

/// Milliseconds; less than 100 are seconds, nothing and less the default of 2000.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_timeout(config: Handle, timeout: c_int) {
    change(config, |config| {
        config.set_timeout(timeout);
        Ok(())
    });
}

/// # Safety
/// `address` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_config_set_local_addr(config: Handle, address: *const c_char) {
    let set = |config: &mut Config, value| {
        config.local_addr = value;
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, address, set) };
}

/// 0 to 65535; another number fails when it is used.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_local_port(config: Handle, port: c_int) {
    change(config, |config| {
        config.local_port = port;
        Ok(())
    });
}

/// # Safety
/// `address` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_config_set_remote_addr(config: Handle, address: *const c_char) {
    let set = |config: &mut Config, value| {
        config.remote_addr = value;
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, address, set) };
}

/// 1 to 65535; another number fails when it is used.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_remote_port(config: Handle, port: c_int) {
    change(config, |config| {
        config.remote_port = port;
        Ok(())
    });
}

/// Where the headers for C++ put numbers that they do not know: its numbers are others, and an
/// unknown one of the one must not become a known one of the other.
const CPP_NUMBERS: std::ops::Range<c_int> = 0x100..0x200;

/// The C interface's numbers, which are not those of C++. An unknown one is BBR, with a warning.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_cc(config: Handle, congestion: c_int) {
    change(config, |config| {
        config.congestion = Some(match congestion {
            0 => Congestion::None,
            1 => Congestion::Bbr,
            2 => Congestion::Bbrv2,
            3 => Congestion::Bbrv3,
            4 => Congestion::Gcc,
            other => {
                let base = if CPP_NUMBERS.contains(&other) { CPP_NUMBERS.start } else { 0 };
                let number = i64::from(other) - i64::from(base);
                tracing::warn!("there is no congestion control {number}: using BBR");
                Congestion::Bbr
            }
        });
        Ok(())
    });
}

/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_config_cert_file(config: Handle, path: *const c_char) {
    let set = |config: &mut Config, value| {
        config.cert_file = value;
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, path, set) };
}

/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bats_config_key_file(config: Handle, path: *const c_char) {
    let set = |config: &mut Config, value| {
        config.key_file = value;
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, path, set) };
}

/// Zstandard for each message, if both ends want it; else they go as they are, with a warning.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_enable_compression(config: Handle, enable: c_int) {
    change(config, |config| {
        config.compression = enable != 0;
        Ok(())
    });
}

/// Always on but in mode 11, which has none; asking for what the mode does not do is warned of.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_enable_encryption(config: Handle, enable: c_int) {
    change(config, |config| {
        config.encryption = enable != 0;
        config.encryption_wanted = enable != 0;
        Ok(())
    });
}

/// Mode 12: messages as datagrams (RFC 9221), each once or not at all. Both ends must want it.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_enable_quic_datagrams(config: Handle, enable: c_int) -> c_int {
    change(config, |config| {
        config.quic_datagrams = enable != 0;
        Ok(())
    })
}

/// Modes 0, 3 and datagrams of mode 12: for how many milliseconds, 1 to an hour, a message is worth
/// something that was sent without a deadline of its own; 200 if nothing is said.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_set_deadline(config: Handle, milliseconds: c_int) -> c_int {
    change(config, |config| {
        config.deadline = Some(deadline(milliseconds)?);
        Ok(())
    })
}

/// Kept for programs of the original: the mode alone decides what stands on the wire. An unknown
/// type is warned of.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_frame_type(config: Handle, frame_type: c_int) {
    change(config, |config| {
        config.frame_type = frame_type;
        if (0..=3).contains(&frame_type) {
            return Ok(());
        }
        let text = format!("there is no frame type {frame_type}");
        tracing::warn!("{text}; the mode alone decides what stands on the wire");
        Err(Failure::invalid(text))
    });
}

/// A client believes only the server whose certificate has this SHA-256 (64 hexadecimal digits).
///
/// # Safety
/// `fingerprint` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_trusted_fingerprint(
    config: Handle,
    fingerprint: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        let fingerprint = value.parse().map_err(|error| Failure::invalid(format!("{error}")))?;
        config.believed = Believed::Fingerprint(fingerprint);
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, fingerprint, set) }
}

/// A client believes servers that an authority of this PEM file vouches for.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_trusted_authorities(
    config: Handle,
    path: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        openbats::Trust::authorities(&value)
            .map_err(|error| Failure::invalid(error.to_string()))?;
        config.believed = Believed::Authorities(value);
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, path, set) }
}

/// Closed mode, modes 0 to 3: both ends need this key (64 hexadecimal digits), and whoever has it not
/// hears nothing.
///
/// # Safety
/// `key` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_closed_key(
    config: Handle,
    key: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        let key = value.parse().map_err(|error| Failure::invalid(format!("{error}")))?;
        config.closed = Some(key);
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, key, set) }
}

/// As [`openbats_config_set_closed_key`], with a file that holds the digits.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_closed_key_file(
    config: Handle,
    path: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        let key = openbats::read_closed_key(value)
            .map_err(|error| Failure::invalid(error.to_string()))?;
        config.closed = Some(key);
        Ok(())
    };
    // SAFETY: the caller says so.
    unsafe { change_text(config, path, set) }
}

/// The fingerprint that a server with this configuration shows; its length, 0 on an error.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_fingerprint(
    config: Handle,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    guard(0, || match copy(config).and_then(|config| config.identity()) {
        // SAFETY: the caller says so.
        Ok(identity) => unsafe { copy_out(&identity.fingerprint().to_string(), buffer, size) },
        Err(failure) => {
            last_error::set(&failure.text);
            0
        }
    })
}

/// The configuration in words; the length of the whole text.
///
/// # Safety
/// `buffer` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_describe(
    config: Handle,
    buffer: *mut c_char,
    size: usize,
) -> usize {
    guard(0, || match copy(config) {
        // SAFETY: the caller says so.
        Ok(config) => unsafe { copy_out(&config.to_string(), buffer, size) },
        Err(failure) => {
            last_error::set(&failure.text);
            0
        }
    })
}
