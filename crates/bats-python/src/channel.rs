//! The native channel class.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::error::Failure;
use crate::operation::{Operation, Value};

/// Most bytes of one read.
const MAX_READ: usize = 1 << 20;

/// `openbats._native.Channel`; methods that may wait return an operation.
#[pyclass(frozen)]
pub(crate) struct Channel {
    inner: Arc<openbats::Channel>,
}

impl Channel {
    /// The channel as the result of an operation.
    pub(crate) fn value(inner: openbats::Channel) -> Value {
        let channel = Self { inner: Arc::new(inner) };
        Value::Object(Box::new(|py| Ok(Py::new(py, channel)?.into_any())))
    }
}

#[pymethods]
impl Channel {
    fn id(&self) -> u64 {
        self.inner.id()
    }

    /// At most `limit` bytes that have arrived, empty at the end.
    fn read(&self, limit: usize) -> Operation {
        let channel = self.inner.clone();
        Operation::new(async move {
            let mut buffer = vec![0; limit.min(MAX_READ)];
            let read = channel.read(&mut buffer).await?;
            buffer.truncate(read);
            Ok(Value::Message(Bytes::from(buffer)))
        })
    }

    /// Queues all bytes.
    fn write(&self, data: PyBackedBytes) -> Operation {
        let channel = self.inner.clone();
        Operation::new(async move {
            channel.write_all(&data).await?;
            Ok(Value::Nothing)
        })
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.finish()).map_err(|error| Failure::from(error).into())
    }

    fn reset(&self, py: Python<'_>, code: u64) {
        py.detach(|| self.inner.reset(code));
    }

    fn stop(&self, py: Python<'_>, code: u64) {
        py.detach(|| self.inner.stop(code));
    }

    fn set_weight(&self, py: Python<'_>, weight: u8) -> PyResult<()> {
        py.detach(|| self.inner.set_weight(weight)).map_err(|error| Failure::from(error).into())
    }
}
