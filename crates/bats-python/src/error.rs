//! Python exceptions, and failures that are converted to them.

use openbats::file;
use openbats::{ChannelError as ChannelFailure, RecvError, SendError};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::{PyErr, create_exception};

create_exception!(openbats, OpenBatsError, PyException, "Base class of this package's exceptions.");
create_exception!(
    openbats,
    ConnectError,
    OpenBatsError,
    "A connection or listener could not be created."
);
create_exception!(openbats, ConnectionClosed, OpenBatsError, "The connection is closed.");
create_exception!(
    openbats,
    ChannelError,
    OpenBatsError,
    "A call on a channel failed. `code` is the code of the peer that stopped or reset it, else `None`."
);
create_exception!(openbats, FileError, OpenBatsError, "A file transfer failed.");
create_exception!(openbats, UnsupportedMode, OpenBatsError, "The mode is not supported.");

/// A failure to be raised in Python; created without the interpreter.
#[derive(Debug)]
pub(crate) enum Failure {
    Connect(String),
    Closed(String),
    Value(String),
    File(String),
    Unsupported(String),
    /// With the code of the peer's application, if it ended the channel.
    Channel(String, Option<u64>),
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connect(text) => ConnectError::new_err(text),
            Failure::Closed(text) => ConnectionClosed::new_err(text),
            Failure::Value(text) => PyValueError::new_err(text),
            Failure::File(text) => FileError::new_err(text),
            Failure::Unsupported(text) => UnsupportedMode::new_err(text),
            Failure::Channel(text, code) => Python::attach(|py| {
                let error = ChannelError::new_err(text);
                match error.value(py).setattr("code", code) {
                    Ok(()) => error,
                    Err(other) => other,
                }
            }),
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match error {
            SendError::TooLarge { .. } => Self::Value(error.to_string()),
            other => Self::Closed(other.to_string()),
        }
    }
}

impl From<RecvError> for Failure {
    fn from(error: RecvError) -> Self {
        Self::Closed(error.to_string())
    }
}

impl From<ChannelFailure> for Failure {
    fn from(error: ChannelFailure) -> Self {
        let text = error.to_string();
        match error {
            ChannelFailure::ConnectionClosed(_) => Self::Closed(text),
            ChannelFailure::Unsupported => Self::Unsupported(text),
            ChannelFailure::Stopped { code } | ChannelFailure::Reset { code } => {
                Self::Channel(text, Some(code))
            }
            _ => Self::Channel(text, None),
        }
    }
}

impl From<file::FileError> for Failure {
    fn from(error: file::FileError) -> Self {
        match error {
            file::FileError::Send(error) => error.into(),
            file::FileError::Receive(error) => error.into(),
            other => Self::File(other.to_string()),
        }
    }
}

impl From<openbats::ConnectError> for Failure {
    fn from(error: openbats::ConnectError) -> Self {
        Self::Connect(error.to_string())
    }
}
