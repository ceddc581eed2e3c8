//! `bats_config_*`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::{copy_out, deadline, guard, guard_code, guard_quiet, text};
use crate::config::{self, ClientTrust, Config, Congestion, TrustPolicy};
use crate::event::Failure;
use crate::handles::{Handle, Table, new_id, to_handle};
use crate::last_error;

/// Maximum number of channels that a peer may have open.
const MAX_CHANNELS: u32 = 1 << 20;

static CONFIGS: Table<Mutex<Config>> = Table::new();

fn get(handle: Handle) -> Result<Arc<Mutex<Config>>, Failure> {
    CONFIGS.get(handle).ok_or_else(|| Failure::invalid("no such configuration"))
}

/// A copy of the configuration with this handle; the defaults for a null handle.
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
        // SAFETY: guaranteed by the caller.
        let value = unsafe { text(value) }?;
        set(config, value.unwrap_or_default())
    })
}

/// A path; `None` for null.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn file(path: *const c_char) -> Result<Option<PathBuf>, Failure> {
    // SAFETY: guaranteed by the caller.
    match unsafe { text(path) }? {
        Some(path) if path.is_empty() => Err(Failure::invalid("an empty path names no file")),
        path => Ok(path.map(PathBuf::from)),
    }
}

fn insert(config: Config) -> Handle {
    let id = new_id();
    CONFIGS.insert(id, Arc::new(Mutex::new(config)));
    to_handle(id)
}

/// Creates a configuration with the default values.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_create() -> Handle {
    guard(std::ptr::null_mut(), || {
        crate::log::start();
        insert(Config::default())
    })
}

/// Copies a configuration. Returns null if the handle is invalid.
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

/// Destroys a configuration. Objects created with it have copies.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_destroy(config: Handle) {
    guard_quiet(|| {
        get(config)?;
        drop(CONFIGS.remove(config.addr()));
        Ok(())
    });
}

/// Sets the mode. An unknown number is accepted here and rejected by the call that uses it.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_mode(config: Handle, mode: c_int) {
    change(config, |config| {
        config.mode = mode;
        Ok(())
    });
}

/// Sets the time-out in milliseconds. Values from 1 to 99 count as seconds, values of 0 and below
/// as the default of 2000 ms.
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
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, address, set) };
}

/// Sets the local port, 0 to 65535. Other numbers are rejected by the call that uses them.
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
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, address, set) };
}

/// Sets the remote port, 1 to 65535. Other numbers are rejected by the call that uses them.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_remote_port(config: Handle, port: c_int) {
    change(config, |config| {
        config.remote_port = port;
        Ok(())
    });
}

/// Range to which the C++ headers map unknown numbers. The numbers of the C++ interface differ from
/// those of C, and an unknown C++ number must not become a known C number.
const UNKNOWN_CPP_NUMBERS: std::ops::Range<c_int> = 0x100..0x200;

/// Sets the congestion control by the number of the C interface, which differs from that of C++. An
/// unknown number selects the default (`ltcc`) and logs a warning.
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
                let base = if UNKNOWN_CPP_NUMBERS.contains(&other) {
                    UNKNOWN_CPP_NUMBERS.start
                } else {
                    0
                };
                let number = i64::from(other).saturating_sub(i64::from(base));
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
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, path, set) };
}

/// Enables compression of each message with Zstandard, if both ends enable it. Otherwise messages
/// are not compressed, and a warning is logged.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_enable_compression(config: Handle, enable: c_int) {
    change(config, |config| {
        config.compression = enable != 0;
        Ok(())
    });
}

/// Requests encryption. All modes encrypt except mode 11, which never does; a request that the mode
/// does not follow is logged as a warning.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_enable_encryption(config: Handle, enable: c_int) {
    change(config, |config| {
        config.encryption = enable != 0;
        config.encryption_requested = enable != 0;
        Ok(())
    });
}

/// Mode 12: sends messages as QUIC datagrams (RFC 9221), unreliably. Both ends must enable it.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_enable_quic_datagrams(config: Handle, enable: c_int) -> c_int {
    change(config, |config| {
        config.quic_datagrams = enable != 0;
        Ok(())
    })
}

/// Modes 0, 3 and datagrams of mode 12: sets the deadline of messages that have none of their own,
/// in milliseconds from 1 to 3600000. The default is 200 ms.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_set_deadline(config: Handle, milliseconds: c_int) -> c_int {
    change(config, |config| {
        config.deadline = Some(deadline(milliseconds)?);
        Ok(())
    })
}

/// The least budget: one message of the size that every mode accepts.
const MIN_BUDGET: u64 = 64 << 10;

fn budget(bytes: u64) -> Result<u64, Failure> {
    if bytes < MIN_BUDGET {
        return Err(Failure::invalid(format!(
            "a budget of {bytes} bytes is too small: the least is {MIN_BUDGET}"
        )));
    }
    Ok(bytes)
}

/// Sets the memory in bytes for data of a connection that the peer has not acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_set_send_budget(config: Handle, bytes: u64) -> c_int {
    change(config, |config| {
        config.send_budget = Some(usize::try_from(budget(bytes)?).unwrap_or(usize::MAX));
        Ok(())
    })
}

/// Sets the memory in bytes for data of a connection that the program has not received yet.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_set_receive_budget(config: Handle, bytes: u64) -> c_int {
    change(config, |config| {
        config.receive_budget = Some(usize::try_from(budget(bytes)?).unwrap_or(usize::MAX));
        Ok(())
    })
}

/// Sets the limit in bytes of the sum of the receive budgets of all connections that share a
/// socket: those of a listener, or the client connections of a protocol object.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_set_memory_budget(config: Handle, bytes: u64) -> c_int {
    change(config, |config| {
        config.memory_budget = Some(budget(bytes)?);
        Ok(())
    })
}

/// Sets the number of channels, 0 to 2^20, that the peer of a connection in mode 1 or 2 may have open
/// at once. Both ends must set it before either can open channels.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_set_channels(config: Handle, channels: u32) -> c_int {
    change(config, |config| {
        if channels > MAX_CHANNELS {
            return Err(Failure::invalid(format!(
                "{channels} channels are more than {MAX_CHANNELS}"
            )));
        }
        config.channels = Some(channels);
        Ok(())
    })
}

/// Has no effect, which the first call logs as a warning; kept for programs of the original SDK. The
/// mode alone determines the wire format. Every unknown type is logged.
#[unsafe(no_mangle)]
pub extern "C" fn bats_config_set_frame_type(config: Handle, frame_type: c_int) {
    change(config, |config| {
        config.frame_type = frame_type;
        if (0..=3).contains(&frame_type) {
            static ONCE: std::sync::Once = std::sync::Once::new();
            ONCE.call_once(|| {
                tracing::warn!(
                    "frame types have no effect: the mode alone determines the wire format"
                );
            });
            return Ok(());
        }
        let text = format!("there is no frame type {frame_type}");
        tracing::warn!("{text}; the mode alone determines the wire format");
        Err(Failure::invalid(text))
    });
}

/// Makes a client trust servers on first use: it records the certificate of a new server in this file
/// (null: that of the user, as `bats_iperf` does), and refuses a server whose certificate has changed.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_known_hosts(
    config: Handle,
    path: *const c_char,
) -> c_int {
    change(config, |config| {
        // SAFETY: guaranteed by the caller.
        let path = unsafe { file(path) }?;
        config.trust = Some(TrustPolicy::KnownHosts(config::known_hosts(path)?));
        Ok(())
    })
}

/// Makes a client trust any server certificate. Each connection logs a warning.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_config_dangerous_trust_any(config: Handle) -> c_int {
    change(config, |config| {
        config.trust = Some(TrustPolicy::AnyCertificate);
        Ok(())
    })
}

/// Makes a server keep its certificate and key in this PEM file (null: that of the user, as `bats_iperf`
/// does), which is generated if it does not exist, so that clients can recognize the server after a
/// restart. Replaces the files of `bats_config_cert_file` and `bats_config_key_file`.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_identity_file(
    config: Handle,
    path: *const c_char,
) -> c_int {
    change(config, |config| {
        // SAFETY: guaranteed by the caller.
        let path = unsafe { file(path) }?.or_else(openbats::Identity::file_of_user);
        config.identity_file = Some(path.ok_or_else(|| {
            Failure::invalid("there is no home directory for the certificate: name a file")
        })?);
        Ok(())
    })
}

/// Makes a client trust only the server certificate with this SHA-256 (64 hexadecimal digits).
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
        config.trust = Some(TrustPolicy::Fingerprint(fingerprint));
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, fingerprint, set) }
}

/// Makes a client trust server certificates of the authorities in this PEM file.
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
        config.trust = Some(TrustPolicy::Authorities(value));
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, path, set) }
}

/// Makes a server accept clients whose certificate has this SHA-256 (64 hexadecimal digits), in addition
/// to those of earlier calls, and no others.
///
/// # Safety
/// `fingerprint` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_add_client_fingerprint(
    config: Handle,
    fingerprint: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        let fingerprint = value.parse().map_err(|error| Failure::invalid(format!("{error}")))?;
        match &mut config.client_trust {
            ClientTrust::Fingerprints(accepted) => accepted.push(fingerprint),
            other => *other = ClientTrust::Fingerprints(vec![fingerprint]),
        }
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, fingerprint, set) }
}

/// Makes a server accept only clients with certificates of the authorities in this PEM file.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_client_authorities(
    config: Handle,
    path: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        openbats::Trust::authorities(&value)
            .map_err(|error| Failure::invalid(error.to_string()))?;
        config.client_trust = ClientTrust::Authorities(value);
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, path, set) }
}

/// PSK mode, for modes 0 to 3: sets the pre-shared key (64 hexadecimal digits) that both ends need.
/// Peers without the key get no answer.
///
/// # Safety
/// `key` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_preshared_key(
    config: Handle,
    key: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        let key = value.parse().map_err(|error| Failure::invalid(format!("{error}")))?;
        config.psk = Some(key);
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, key, set) }
}

/// As [`openbats_config_set_preshared_key`], with a file that contains the digits.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_config_set_preshared_key_file(
    config: Handle,
    path: *const c_char,
) -> c_int {
    let set = |config: &mut Config, value: String| {
        let key = openbats::read_preshared_key(value)
            .map_err(|error| Failure::invalid(error.to_string()))?;
        config.psk = Some(key);
        Ok(())
    };
    // SAFETY: guaranteed by the caller.
    unsafe { change_text(config, path, set) }
}

/// Copies the fingerprint of the certificate that a server with this configuration presents.
/// Returns its length, 0 on an error.
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
        // SAFETY: guaranteed by the caller.
        Ok(identity) => unsafe { copy_out(&identity.fingerprint().to_string(), buffer, size) },
        Err(failure) => {
            last_error::set(&failure.text);
            0
        }
    })
}

/// Copies a description of the configuration. Returns the length of the whole text.
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
        // SAFETY: guaranteed by the caller.
        Ok(config) => unsafe { copy_out(&config.to_string(), buffer, size) },
        Err(failure) => {
            last_error::set(&failure.text);
            0
        }
    })
}
