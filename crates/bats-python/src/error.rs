//! Python exceptions, and failures that are converted to them.

use openbats::file;
use openbats::{RecvError, SendError};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::{PyErr, create_exception};

create_exception!(openbats, OpenBatsError, PyException, "Base class of this package's exceptions.");
create_exception!(
    openbats,
    ConnectError,
    OpenBatsError,
    "A connection or listener could not be created."
);
create_exception!(openbats, ConnectionClosed, OpenBatsError, "The connection is closed.");
create_exception!(openbats, FileError, OpenBatsError, "A file transfer failed.");
create_exception!(openbats, UnsupportedMode, OpenBatsError, "The mode is not supported.");

/// A failure to be raised in Python; created without the interpreter.
#[derive(Debug)]
pub(crate) enum Failure {
    Connect(String),
    Closed(String),
    Value(String),
    File(String),
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Connect(text) => ConnectError::new_err(text),
            Failure::Closed(text) => ConnectionClosed::new_err(text),
            Failure::Value(text) => PyValueError::new_err(text),
            Failure::File(text) => FileError::new_err(text),
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
