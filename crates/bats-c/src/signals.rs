//! Signals, told on an ordinary thread.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::callback::Owned;
use crate::gate::Gate;

/// `sig_callback_t`.
pub type SignalFn = unsafe extern "C" fn(c_int);
/// The same with a pointer of the user's.
pub type SignalWithUserFn = unsafe extern "C" fn(c_int, *mut c_void);

/// What is told of signals.
pub(crate) enum Listener {
    Plain(SignalFn),
    WithUser(SignalWithUserFn, Owned),
}

impl Listener {
    fn call(&self, signal: c_int) {
        match self {
            // SAFETY: the user's function with the signature that the header declares, called on
            // an ordinary thread while its context lives.
            Self::Plain(call) => unsafe { call(signal) },
            // SAFETY: as above; the pointer is the one given with the function.
            Self::WithUser(call, user) => unsafe { call(signal, user.pointer) },
        }
    }
}

const WATCHED: [c_int; 2] = [SIGINT, SIGTERM];

#[derive(Default)]
struct State {
    /// By context, with the gate of that context.
    listeners: BTreeMap<usize, (Arc<Gate>, Arc<Listener>)>,
    /// Ends the thread.
    watching: Option<Handle>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While nobody listens, signals do what they would do without this library.
fn nobody_listens() -> io::Result<&'static Arc<AtomicBool>> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(flag);
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in WATCHED {
        signal_hook::flag::register_conditional_default(signal, flag.clone())?;
    }
    Ok(FLAG.get_or_init(|| flag))
}

/// Sets the listener of a context in place of the one that it had.
pub(crate) fn listen(context: usize, gate: Arc<Gate>, listener: Listener) -> io::Result<()> {
    let mut guard = lock();
    let state = guard.get_or_insert_default();
    if state.watching.is_none() {
        let quiet = nobody_listens()?;
        let signals = Signals::new(WATCHED)?;
        state.watching = Some(signals.handle());
        quiet.store(false, Ordering::SeqCst);
        thread::Builder::new().name("openbats-signal".into()).spawn(move || watch(signals))?;
    }
    let old = state.listeners.insert(context, (gate, Arc::new(listener)));
    drop(guard);
    drop(old);
    Ok(())
}

/// A context is gone; its gate is closed already.
pub(crate) fn forget(context: usize) {
    let mut guard = lock();
    let Some(state) = &mut *guard else { return };
    let old = state.listeners.remove(&context);
    if state.listeners.is_empty()
        && let Some(handle) = state.watching.take()
    {
        if let Ok(quiet) = nobody_listens() {
            quiet.store(true, Ordering::SeqCst);
        }
        handle.close();
    }
    drop(guard);
    drop(old);
}

fn watch(mut signals: Signals) {
    for signal in signals.forever() {
        let listeners: Vec<_> = match &*lock() {
            Some(state) => state.listeners.values().cloned().collect(),
            None => Vec::new(),
        };
        for (gate, listener) in listeners {
            let Some(_running) = gate.enter() else { continue };
            listener.call(signal);
        }
    }
}
