//! Events and error codes, with the numbers of the original SDK.

use std::ffi::c_int;

/// Events of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum ListenEvent {
    NewConnection = 1,
    Failed = 2,
    Success = 3,
    AcceptedError = 4,
    AlreadyInListen = 5,
    Stopped = 6,
}

/// Events of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Event {
    Failed = 1,
    Established = 2,
    Timeout = 3,
    ShutdownByPeer = 4,
    Writable = 5,
    DataReceived = 6,
    SendComplete = 7,
    SendDataError = 8,
    BufferFull = 9,
    Closed = 10,
    Error = 11,
    IdealBufferLength = 13,
    AllDataAcked = 14,
}

/// Events of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum ChannelEvent {
    Opened = 1,
    Data = 2,
    End = 3,
    Reset = 4,
    Stopped = 5,
    Writable = 6,
}

/// `bats_error_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    None = 0,
    InvalidParam = 1,
    ListenFailed = 2,
    ConnectFailed = 3,
    ConnectionClosed = 7,
    SendFailed = 8,
}

/// Failure of a call: its code and a text for the user.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidParam, text)
    }
}

/// The code of a result for C. A failure is stored as the last error.
pub(crate) fn to_code(result: Result<(), Failure>) -> c_int {
    match result {
        Ok(()) => Code::None as c_int,
        Err(failure) => {
            crate::last_error::set(&failure.text);
            tracing::debug!(error = failure.text, "an interface call failed");
            failure.code as c_int
        }
    }
}
