//! The native connection class.

use std::path::PathBuf;

use bytes::Bytes;
use openbats::file::set::Reserve;
use openbats::file::{self, Receiver};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use crate::channel::Channel;
use crate::error::Failure;
use crate::operation::{Operation, Value};
use crate::options::seconds;

/// Message size in bytes from which sharing the Python object costs less than a copy.
const SHARED: usize = 16 << 10;

/// `openbats._native.Connection`; methods that may wait return an operation.
#[pyclass(frozen)]
pub(crate) struct Connection {
    inner: openbats::Connection,
}

impl Connection {
    /// The connection as the result of an operation.
    pub(crate) fn value(inner: openbats::Connection) -> Value {
        let connection = Self { inner };
        Value::Object(Box::new(|py| Ok(Py::new(py, connection)?.into_any())))
    }
}

#[pymethods]
impl Connection {
    #[pyo3(signature = (data, deadline=None))]
    fn send(&self, data: PyBackedBytes, deadline: Option<f64>) -> PyResult<Operation> {
        let connection = self.inner.clone();
        let deadline = deadline.map(|value| seconds("deadline", value)).transpose()?;
        // A large message is not copied: the connection keeps the immutable Python object.
        let message = match data.len() {
            0..SHARED => Bytes::copy_from_slice(&data),
            _ => Bytes::from_owner(data),
        };
        Ok(Operation::new(async move {
            match deadline {
                Some(deadline) => connection.send_within(message, deadline).await?,
                None => connection.send(message).await?,
            }
            Ok(Value::Nothing)
        }))
    }

    /// The next message, or `None` after the peer's last message.
    fn recv(&self) -> Operation {
        let connection = self.inner.clone();
        Operation::new(async move {
            Ok(match connection.recv().await? {
                Some(message) => Value::Message(message),
                None => Value::Nothing,
            })
        })
    }

    fn flush(&self) -> Operation {
        let connection = self.inner.clone();
        Operation::new(async move {
            connection.flush().await?;
            Ok(Value::Nothing)
        })
    }

    fn finish(&self) -> Operation {
        let connection = self.inner.clone();
        Operation::new(async move {
            connection.finish().await?;
            Ok(Value::Nothing)
        })
    }

    fn open_channel(&self) -> Operation {
        let connection = self.inner.clone();
        Operation::new(async move { Ok(Channel::value(connection.open_channel().await?)) })
    }

    fn accept_channel(&self) -> Operation {
        let connection = self.inner.clone();
        Operation::new(async move { Ok(Channel::value(connection.accept_channel().await?)) })
    }

    fn close(&self, py: Python<'_>, code: u64, reason: &str) {
        py.detach(|| self.inner.close(code, reason));
    }

    /// Reads the file synchronously: wait for the operation on a thread, do not poll it in an event
    /// loop.
    fn send_file(&self, path: PathBuf) -> Operation {
        let connection = self.inner.clone();
        Operation::new(async move {
            let sent = file::send(&connection, &path, |_, _| {}).await?;
            Ok(Value::File(None, sent.size, sent.hash))
        })
    }

    /// Writes the file synchronously, as [`send_file`](Self::send_file) reads it.
    fn receive_file(
        &self,
        directory: PathBuf,
        overwrite: bool,
        max_size: Option<u64>,
        reserve: u64,
    ) -> Operation {
        let connection = self.inner.clone();
        let mut receiver = Receiver::new(directory).overwrite(overwrite);
        receiver = receiver.reserve(Reserve::Bytes(reserve));
        if let Some(max_size) = max_size {
            receiver = receiver.max_size(max_size);
        }
        Operation::new(async move {
            match receiver.receive(&connection, |_, _, _| {}).await {
                Ok(Some(file)) => {
                    let path = file.path.to_string_lossy().into_owned();
                    Ok(Value::File(Some(path), file.size, file.hash))
                }
                Ok(None) => Ok(Value::Nothing),
                Err(error) => Err(Failure::from(error)),
            }
        })
    }

    fn is_reliable(&self) -> bool {
        self.inner.is_reliable()
    }

    fn is_compressed(&self) -> bool {
        self.inner.is_compressed()
    }

    fn longest_message(&self) -> Option<usize> {
        self.inner.longest_message()
    }

    /// The number of the connection's mode.
    fn mode(&self) -> u8 {
        self.inner.mode() as u8
    }

    /// Why the connection was closed, if it is.
    fn close_reason(&self) -> Option<String> {
        self.inner.close_reason().map(|reason| reason.to_string())
    }

    fn remote_address(&self) -> (String, u16) {
        let address = self.inner.remote_addr();
        (address.ip().to_string(), address.port())
    }

    fn peer_fingerprint(&self) -> Option<String> {
        self.inner.peer_fingerprint().map(|fingerprint| fingerprint.to_string())
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.inner.stats());
        stats_dict(py, &stats)
    }
}

/// The statistics as a dictionary; times in seconds.
pub(crate) fn stats_dict<'py>(
    py: Python<'py>,
    stats: &openbats::ConnectionStats,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("controller_state", stats.congestion.controller_state)?;
    for (name, value) in [
        ("smoothed_rtt", stats.path.smoothed_rtt.as_secs_f64()),
        ("min_rtt", stats.path.min_rtt.as_secs_f64()),
        ("queue_delay", stats.path.queue_delay.as_secs_f64()),
        ("repair_delay", stats.coding.repair_delay.as_secs_f64()),
        ("longest_repair_delay", stats.coding.longest_repair_delay.as_secs_f64()),
        ("loss_estimate", stats.path.loss_estimate),
        ("burst_factor", stats.path.burst_factor),
        ("code_rate", stats.coding.code_rate),
    ] {
        dict.set_item(name, value)?;
    }
    for (name, value) in [
        ("cwnd_bytes", stats.congestion.cwnd_bytes),
        ("in_flight_bytes", stats.congestion.in_flight_bytes),
        ("pacing_bps", stats.congestion.pacing_bps),
        ("delivery_bps", stats.congestion.delivery_bps),
        ("path_mtu", stats.path.mtu.into()),
        ("bytes_sent", stats.packets.bytes_sent),
        ("packets_sent", stats.packets.sent),
        ("bytes_received", stats.packets.bytes_received),
        ("packets_received", stats.packets.received),
        ("packets_lost", stats.packets.lost),
        ("source_packets_sent", stats.coding.source_packets_sent),
        ("proactive_packets_sent", stats.coding.proactive_packets_sent),
        ("top_up_packets_sent", stats.coding.top_up_packets_sent),
        ("coded_packets_received", stats.coding.coded_packets_received),
        ("wasted_packets_received", stats.coding.wasted_packets_received),
        ("symbols_decoded", stats.coding.symbols_decoded),
        ("messages_sent", stats.messages.sent),
        ("message_bytes_sent", stats.messages.bytes_sent),
        ("messages_received", stats.messages.received),
        ("message_bytes_received", stats.messages.bytes_received),
        ("messages_expired", stats.messages.expired),
        ("messages_lost", stats.messages.lost),
        ("symbols_lost", stats.coding.symbols_lost),
        ("symbols_repaired", stats.coding.symbols_repaired),
        ("send_buffer_bytes", stats.buffers.send_bytes),
        ("receive_buffer_bytes", stats.buffers.receive_bytes),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
