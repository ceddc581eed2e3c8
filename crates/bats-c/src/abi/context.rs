//! `bats_context_*`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::{guard, guard_code, guard_quiet, text};
use crate::callback::{ReleaseFn, UserPointer};
use crate::context::{CONTEXTS, Context};
use crate::event::{Code, Failure};
use crate::handles::{Handle, to_handle};
use crate::signals::{self, SignalCallback, SignalFn, SignalWithUserFn};
use crate::{last_error, log};

pub(super) fn get(handle: Handle) -> Result<Arc<Context>, Failure> {
    CONTEXTS.get(handle).ok_or_else(|| Failure::invalid("no such context"))
}

fn create(is_polled: bool) -> Handle {
    guard(std::ptr::null_mut(), || match Context::create(is_polled) {
        Ok(context) => to_handle(context.id),
        Err(error) => {
            last_error::set(&format!("cannot create a context: {error}"));
            std::ptr::null_mut()
        }
    })
}

/// Creates a context whose callbacks run on a thread of its own. Returns null if the thread cannot
/// be created.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_create() -> Handle {
    create(false)
}

/// Creates a context whose callbacks run in [`openbats_context_poll`].
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_create_polled() -> Handle {
    create(true)
}

/// Destroys a context with all its objects. When this returns, none of its callbacks runs except
/// one that called this function.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_destroy(context: Handle) {
    guard_quiet(|| {
        let context = get(context)?;
        context.destroy();
        drop(CONTEXTS.remove(context.id));
        Ok(())
    });
}

/// Sets the minimum level that this process logs.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_set_log_level(context: Handle, level: c_int) {
    guard_quiet(|| {
        get(context)?;
        if log::set_level(level) {
            return Ok(());
        }
        Err(Failure::invalid(format!("there is no log level {level}")))
    });
}

/// Logs to a file, or to `openbats.log` in a directory, for this process.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openbats_context_set_log_path(
    context: Handle,
    path: *const c_char,
) -> c_int {
    guard_code(|| {
        get(context)?;
        // SAFETY: guaranteed by the caller.
        let path = unsafe { text(path) }?.ok_or_else(|| Failure::invalid("no path"))?;
        log::set_path(&path).map_err(|error| {
            tracing::error!(error, "cannot change the log file; the old one stays in use");
            Failure::invalid(error)
        })
    })
}

fn set_signal_callback(context: Handle, callback: SignalCallback) -> Result<(), Failure> {
    let context = get(context)?;
    signals::set_callback(context.id, context.gate.clone(), callback)
        .map_err(|error| Failure::invalid(format!("cannot handle signals: {error}")))
}

/// Sets the callback for SIGINT and SIGTERM. It runs on an ordinary thread. Null removes it.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_set_signal_callback(context: Handle, call: Option<SignalFn>) {
    guard_quiet(|| match call {
        Some(call) => set_signal_callback(context, SignalCallback::Plain(call)),
        None => {
            signals::remove_callback(get(context)?.id);
            Ok(())
        }
    });
}

/// As [`bats_context_set_signal_callback`], with a pointer that is passed to the callback.
/// `release` is called with it when the library no longer needs the callback.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_set_signal_callback(
    context: Handle,
    call: Option<SignalWithUserFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = UserPointer::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        set_signal_callback(context, SignalCallback::WithUser(call, user))
    })
}

/// Runs the queued callbacks of a polled context on this thread. Waits for the first one at most
/// `timeout_ms`, or without limit if it is negative. Returns the number of callbacks run, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_poll(context: Handle, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let ran = get(context).and_then(|context| match &context.queue {
            Some(queue) => queue.poll(timeout).map_err(Failure::invalid),
            None => {
                Err(Failure::invalid("not a polled context: it runs callbacks on its own thread"))
            }
        });
        match ran {
            Ok(ran) => c_int::try_from(ran).unwrap_or(c_int::MAX),
            Err(failure) => {
                last_error::set(&failure.text);
                -1
            }
        }
    })
}

/// A file descriptor of a polled context that is readable while callbacks are queued. -1 for
/// contexts that are not polled.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_fd(context: Handle) -> c_int {
    guard(-1, || {
        let fd =
            get(context).ok().and_then(|context| context.queue.as_ref().map(|queue| queue.fd()));
        fd.unwrap_or_else(|| {
            last_error::set("not a polled context");
            -(Code::InvalidParam as c_int)
        })
    })
}
