//! Signal callbacks. They run on an ordinary thread, outside the signal handler.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::callback::UserPointer;
use crate::gate::Gate;

/// `sig_callback_t`.
pub type SignalFn = unsafe extern "C" fn(c_int);
/// As [`SignalFn`], with a pointer of the user.
pub type SignalWithUserFn = unsafe extern "C" fn(c_int, *mut c_void);

/// A signal callback.
pub(crate) enum SignalCallback {
    Plain(SignalFn),
    WithUser(SignalWithUserFn, UserPointer),
}

impl SignalCallback {
    fn call(&self, signal: c_int) {
        match self {
            // SAFETY: the user provided the function with the signature that the header declares.
            // It is called on an ordinary thread while its context lives.
            Self::Plain(call) => unsafe { call(signal) },
            // SAFETY: as above. The pointer is the one that the user provided with the function.
            Self::WithUser(call, user) => unsafe { call(signal, user.pointer) },
        }
    }
}

const SIGNALS: [c_int; 2] = [SIGINT, SIGTERM];

#[derive(Default)]
struct State {
    /// Callbacks and gates by context.
    callbacks: BTreeMap<usize, (Arc<Gate>, Arc<SignalCallback>)>,
    /// Stops the signal thread.
    signal_thread: Option<Handle>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Flag of signal-hook: while it is set, signals have their default action. It is set while there
/// is no callback.
fn default_action_flag() -> io::Result<&'static Arc<AtomicBool>> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(flag);
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        signal_hook::flag::register_conditional_default(signal, flag.clone())?;
    }
    Ok(FLAG.get_or_init(|| flag))
}

/// Sets the signal callback of a context and replaces the previous one.
pub(crate) fn set_callback(
    context: usize,
    gate: Arc<Gate>,
    callback: SignalCallback,
) -> io::Result<()> {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    if state.signal_thread.is_none() {
        let use_default_action = default_action_flag()?;
        let signals = Signals::new(SIGNALS)?;
        let handle = signals.handle();
        // Without the thread the default action must stay, or the signals would be lost.
        thread::Builder::new()
            .name("openbats-signal".into())
            .spawn(move || run_callbacks(signals))?;
        state.signal_thread = Some(handle);
        use_default_action.store(false, Ordering::SeqCst);
    }
    let old = state.callbacks.insert(context, (gate, Arc::new(callback)));
    drop(guard);
    drop(old);
    Ok(())
}

/// Removes the signal callback of a context, whose gate is already closed.
pub(crate) fn remove_callback(context: usize) {
    let mut guard = lock();
    let Some(state) = &mut *guard else { return };
    let old = state.callbacks.remove(&context);
    if state.callbacks.is_empty()
        && let Some(handle) = state.signal_thread.take()
    {
        if let Ok(use_default_action) = default_action_flag() {
            use_default_action.store(true, Ordering::SeqCst);
        }
        handle.close();
    }
    drop(guard);
    drop(old);
}

fn run_callbacks(mut signals: Signals) {
    for signal in signals.forever() {
        let callbacks: Vec<_> = match &*lock() {
            Some(state) => state.callbacks.values().cloned().collect(),
            None => Vec::new(),
        };
        for (gate, callback) in callbacks {
            let Some(_running) = gate.enter() else { continue };
            callback.call(signal);
        }
    }
}
