//! File transfer over a connection: verified end to end with BLAKE3, in constant memory.
//!
//! A file is sent as a `BEGIN` message with its name and size, `DATA` messages, and an `END`
//! message with the hash; the receiver replies with a verdict. Several files may follow each other.
//! The receiver writes to a temporary file in the same directory and renames it once the hash is
//! verified, so that an incomplete file never appears under the final name.
//!
//! The futures of this module read and write files synchronously, so that they block the executor's
//! thread while the disk processes a chunk. Where that matters, run them with [`Wait`](crate::Wait)
//! on a thread of their own.

#[doc(hidden)]
pub mod fuzzing;
mod message;
mod name;
mod receive;
mod send;
pub mod set;
mod space;
mod storage;

use std::io;
use std::path::PathBuf;

pub use receive::{ReceivedFile, Receiver};
pub use send::{SentFile, send};

use crate::error::{RecvError, SendError};

/// Payload of one `DATA` message in bytes.
const CHUNK: usize = 256 << 10;

/// Why a file was not transferred.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// An operation of the local file system failed.
    #[error("cannot {action} {path}: {source}")]
    Local {
        /// The operation.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path is not a regular file.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// The file was modified during the transfer.
    #[error("{0} changed while it was sent")]
    Changed(PathBuf),
    /// The receiver refuses the name that the sender gave.
    #[error("refused the file name '{name}': {problem}")]
    Name {
        /// The received name, escaped.
        name: String,
        /// The problem with it.
        problem: &'static str,
    },
    /// A file of this name exists already.
    #[error("{0} exists")]
    Exists(PathBuf),
    /// A file of this name exists, and the receiver's [`ReadBudget`](set::ReadBudget) does not allow to
    /// compare it with the offered one.
    #[error(
        "{0} exists, and was not compared with the offered file: the receiver has compared as many \
         files of this sender as it does in a day. Try again later, or choose another name"
    )]
    NotCompared(PathBuf),
    /// A directory of this name exists, and the receiver does not write to directories that it has
    /// not created.
    #[error(
        "the directory {0} exists already: choose another name, or let the receiver merge into \
         existing directories"
    )]
    DirectoryExists(PathBuf),
    /// A directory of this name exists, and the receiver merges only into directories of its own user and
    /// of root: others could replace what is in it by links.
    #[error(
        "the directory {0} belongs to another user: choose another name, run the receiver as that \
         user, or give the directory to the receiver's user (chown)"
    )]
    ForeignDirectory(PathBuf),
    /// The receiver's storage budget does not allow the file.
    #[error("the receiver accepts {left} more bytes, and this file or directory needs {size}")]
    OverBudget {
        /// Bytes of the file or directory.
        size: u64,
        /// Bytes that the budget allows.
        left: u64,
    },
    /// Two files of a transfer would get the same name.
    #[error("{first} and {second} have the same name and would replace each other")]
    SameName {
        /// One of them.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// Another transfer is writing this file.
    #[error("{0} is being received by another transfer")]
    Busy(PathBuf),
    /// The content does not match the SHA-256 hash in the file `NAME.sha256sum`.
    #[error("content of '{0}' does not match the hash in its .sha256sum")]
    Checksum(String),
    /// The receiver's process has as many received files open as it may: a quarter of its limit of
    /// descriptors.
    #[error(
        "the receiver cannot have more than {limit} received files open: raise its limit of \
         descriptors (ulimit -n), or send fewer files at a time"
    )]
    TooManyOpen {
        /// Open files.
        limit: usize,
    },
    /// The file exceeds the limit of the receiver.
    #[error("a file of {size} bytes is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The announced size.
        size: u64,
        /// The limit of the receiver.
        limit: u64,
    },
    /// The disk has too little free space, in addition to the reserve of the receiver.
    #[error("{free} bytes free in {directory}, {size} needed")]
    NoSpace {
        /// The directory of the file.
        directory: PathBuf,
        /// Bytes that the file needs.
        size: u64,
        /// Free bytes.
        free: u64,
    },
    /// The content does not match the hash that the sender computed.
    #[error("content of '{0}' does not match its BLAKE3 hash")]
    Corrupt(String),
    /// The peer refused or gave up the file, with its reason.
    #[error("refused by the peer: {0}")]
    Peer(String),
    /// The peer violated the protocol of this module.
    #[error("peer violated the file protocol: {0}")]
    Protocol(&'static str),
    /// The connection failed while sending.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The connection failed while receiving.
    #[error(transparent)]
    Receive(#[from] RecvError),
}

impl FileError {
    /// The text for the peer, which learns no path of this host: of each only its last component.
    pub(crate) fn for_peer(&self) -> String {
        let last = |path: &PathBuf| PathBuf::from(path.file_name().unwrap_or_default());
        let stripped = match self {
            Self::Local { action, path, source } => {
                return format!("cannot {action} {}: {source}", last(path).display());
            }
            Self::NoSpace { size, free, .. } => {
                return format!("{free} bytes free, {size} needed");
            }
            Self::NotAFile(path) => Self::NotAFile(last(path)),
            Self::Changed(path) => Self::Changed(last(path)),
            Self::Exists(path) => Self::Exists(last(path)),
            Self::NotCompared(path) => Self::NotCompared(last(path)),
            Self::DirectoryExists(path) => Self::DirectoryExists(last(path)),
            Self::ForeignDirectory(path) => Self::ForeignDirectory(last(path)),
            Self::Busy(path) => Self::Busy(last(path)),
            Self::SameName { first, second } => {
                Self::SameName { first: last(first), second: last(second) }
            }
            Self::Name { .. }
            | Self::OverBudget { .. }
            | Self::Checksum(_)
            | Self::TooManyOpen { .. }
            | Self::TooLarge { .. }
            | Self::Corrupt(_)
            | Self::Peer(_)
            | Self::Protocol(_)
            | Self::Send(_)
            | Self::Receive(_) => return self.to_string(),
        };
        stripped.to_string()
    }
}
