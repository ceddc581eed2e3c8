//! Asynchronous operations: awaited by a thread, or polled by an event loop.

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::Failure;

/// Interval at which a waiting thread checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// Makes an object of a native class.
type MakeObject = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// Result of an operation.
pub(crate) enum Value {
    Nothing,
    /// An object of a native class, which is made when Python takes the result.
    Object(MakeObject),
    Message(Bytes),
    /// Path, size and hash of a file.
    File(Option<String>, u64, [u8; 32]),
}

pub(crate) type Outcome = Result<Value, Failure>;
type Task = Pin<Box<dyn Future<Output = Outcome> + Send>>;

fn to_python(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Nothing => py.None(),
        Value::Object(make) => make(py)?,
        Value::Message(message) => PyBytes::new(py, &message).into_any().unbind(),
        Value::File(path, size, hash) => {
            (path, size, PyBytes::new(py, &hash)).into_pyobject(py)?.into_any().unbind()
        }
    })
}

/// A pending operation. Dropping or cancelling it aborts it.
#[pyclass(frozen)]
pub(crate) struct Operation {
    task: Mutex<Option<Task>>,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[expect(clippy::disallowed_methods, reason = "the user's timeout, on the user's thread")]
fn now() -> Instant {
    Instant::now()
}

impl Operation {
    pub(crate) fn new(task: impl Future<Output = Outcome> + Send + 'static) -> Self {
        Self { task: Mutex::new(Some(Box::pin(task))) }
    }

    /// Polls once; `None` while pending, `Some(None)` if the result was taken or cancelled before.
    fn poll_once(&self, waker: &Waker) -> Option<Option<Outcome>> {
        let mut guard = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(task) = guard.as_mut() else { return Some(None) };
        match task.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(outcome) => {
                *guard = None;
                Some(Some(outcome))
            }
            Poll::Pending => None,
        }
    }
}

fn finished(py: Python<'_>, outcome: Option<Outcome>) -> PyResult<Py<PyAny>> {
    match outcome {
        Some(outcome) => to_python(py, outcome?),
        None => Err(PyRuntimeError::new_err("the operation has ended already")),
    }
}

#[pymethods]
impl Operation {
    /// Waits for the result, at most `timeout` seconds, without blocking other threads or Ctrl-C.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let limit = match timeout {
            // A timeout beyond the range of `Duration` is no limit.
            Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).ok(),
            None => None,
        };
        let end = limit.and_then(|limit| now().checked_add(limit));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let outcome = py.detach(|| {
                let outcome = self.poll_once(&waker);
                if outcome.is_none() {
                    let left = end.map(|end| end.saturating_duration_since(now()));
                    thread::park_timeout(left.unwrap_or(SIGNAL_INTERVAL).min(SIGNAL_INTERVAL));
                }
                outcome
            });
            if let Some(outcome) = outcome {
                return finished(py, outcome);
            }
            py.check_signals()?;
            if end.is_some_and(|end| end <= now()) {
                // It may have completed while the thread woke up.
                if let Some(outcome) = self.poll_once(&waker) {
                    return finished(py, outcome);
                }
                self.cancel();
                return Err(PyTimeoutError::new_err("the operation timed out"));
            }
        }
    }

    /// The result in a tuple if it is complete; otherwise `None`, and the hub reports `token` when
    /// the operation should be polled again.
    fn poll(&self, py: Python<'_>, hub: &Hub, token: u64) -> PyResult<Option<(Py<PyAny>,)>> {
        let waker = Waker::from(Arc::new(HubWaker { hub: hub.inner.clone(), token }));
        match py.detach(|| self.poll_once(&waker)) {
            Some(outcome) => Ok(Some((finished(py, outcome)?,))),
            None => Ok(None),
        }
    }

    /// Aborts the operation.
    fn cancel(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(task);
    }
}

/// Signals an event loop which operations to poll again, without the interpreter lock: the I/O
/// thread must not wait for Python.
#[pyclass(frozen)]
pub(crate) struct Hub {
    inner: Arc<HubInner>,
}

struct HubInner {
    ready: Mutex<Vec<u64>>,
    alarm: OwnedFd,
}

struct HubWaker {
    hub: Arc<HubInner>,
    token: u64,
}

impl Wake for HubWaker {
    fn wake(self: Arc<Self>) {
        self.hub.ready.lock().unwrap_or_else(PoisonError::into_inner).push(self.token);
        // If the counter is full, the event loop is signalled already.
        let _ = rustix::io::write(&self.hub.alarm, &1u64.to_ne_bytes());
    }
}

#[pymethods]
impl Hub {
    #[new]
    fn new() -> PyResult<Self> {
        let alarm = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| PyErr::from(std::io::Error::from(error)))?;
        Ok(Self { inner: Arc::new(HubInner { ready: Mutex::default(), alarm }) })
    }

    fn fileno(&self) -> i32 {
        self.inner.alarm.as_raw_fd()
    }

    /// Takes the tokens of the operations to poll again.
    fn take(&self) -> Vec<u64> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.inner.alarm, &mut count);
        std::mem::take(&mut *self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
