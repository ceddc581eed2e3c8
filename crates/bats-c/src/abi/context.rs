//! `bats_context_*`.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::{guard, guard_code, guard_quiet, text};
use crate::callback::{Owned, ReleaseFn};
use crate::context::{CONTEXTS, Context};
use crate::event::{Code, Failure};
use crate::handles::{Handle, to_handle};
use crate::signals::{self, Listener, SignalFn, SignalWithUserFn};
use crate::{last_error, log};

pub(super) fn get(handle: Handle) -> Result<Arc<Context>, Failure> {
    CONTEXTS.get(handle).ok_or_else(|| Failure::invalid("no such context"))
}

fn create(is_polled: bool) -> Handle {
    guard(std::ptr::null_mut(), || match Context::create(is_polled) {
        Ok(context) => to_handle(context.id),
        Err(error) => {
            last_error::set(&format!("cannot make a context: {error}"));
            std::ptr::null_mut()
        }
    })
}

/// A context whose callbacks run on a thread of its own. Null if the system refuses one.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_create() -> Handle {
    create(false)
}

/// A context whose callbacks run in [`openbats_context_poll`].
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_create_polled() -> Handle {
    create(true)
}

/// Ends everything of a context. No callback of it runs after this, other than one that calls it.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_destroy(context: Handle) {
    guard_quiet(|| {
        let context = get(context)?;
        context.destroy();
        drop(CONTEXTS.remove(context.id));
        Ok(())
    });
}

/// The least level that is logged by this process.
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
        // SAFETY: the caller says so.
        let path = unsafe { text(path) }?.ok_or_else(|| Failure::invalid("no path"))?;
        log::set_path(&path).map_err(|error| {
            tracing::error!(error, "the log stays where it is");
            Failure::invalid(error)
        })
    })
}

fn listen(context: Handle, listener: Listener) -> Result<(), Failure> {
    let context = get(context)?;
    signals::listen(context.id, context.gate.clone(), listener)
        .map_err(|error| Failure::invalid(format!("cannot watch signals: {error}")))
}

/// Tells of SIGINT and SIGTERM, on an ordinary thread. Null ends that.
#[unsafe(no_mangle)]
pub extern "C" fn bats_context_set_signal_callback(context: Handle, call: Option<SignalFn>) {
    guard_quiet(|| match call {
        Some(call) => listen(context, Listener::Plain(call)),
        None => {
            signals::forget(get(context)?.id);
            Ok(())
        }
    });
}

/// The same with a pointer of the caller's; `release` gives it back.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_set_signal_callback(
    context: Handle,
    call: Option<SignalWithUserFn>,
    user: *mut c_void,
    release: Option<ReleaseFn>,
) -> c_int {
    guard_code(|| {
        let user = Owned::new(user, release);
        let call = call.ok_or_else(|| Failure::invalid("no callback"))?;
        listen(context, Listener::WithUser(call, user))
    })
}

/// Runs callbacks of a polled context on this thread; waits for the first at most `timeout_ms`
/// (negative: as long as it takes). How many ran, or -1 on an error.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_poll(context: Handle, timeout_ms: c_int) -> c_int {
    guard(-1, || {
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        let ran = get(context).and_then(|context| match &context.mailbox {
            Some(mailbox) => mailbox.poll(timeout).map_err(Failure::invalid),
            None => Err(Failure::invalid("the context has a thread of its own for callbacks")),
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

/// A file of a polled context that is readable while callbacks wait; -1 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn openbats_context_fd(context: Handle) -> c_int {
    guard(-1, || {
        let fd = get(context).ok().and_then(|context| context.mailbox.as_ref().map(|m| m.fd()));
        fd.unwrap_or_else(|| {
            last_error::set("not a polled context");
            -(Code::InvalidParam as c_int)
        })
    })
}
