//! Files over a connection, verified end to end with BLAKE3, without holding them in memory.
//!
//! A file goes as a `BEGIN` message with its name and size, `DATA` messages, and an `END` message
//! with the hash; the receiver answers with a verdict. Several files may follow each other. The
//! receiver writes to a temporary file beside the target and renames it when the hash is right,
//! so that nobody ever sees half a file under its name.
//!
//! The futures of this module read and write files in place, so they block the executor's thread
//! for as long as the disk takes for one chunk. Run them with [`Wait`](crate::Wait) on a thread of
//! their own where that matters.

mod message;
mod name;
mod receive;
mod send;
pub mod set;
mod storage;

use std::io;
use std::path::PathBuf;

pub use receive::{ReceivedFile, Receiver};
pub use send::{SentFile, send};

use crate::error::{RecvError, SendError};

/// Bytes of one `DATA` message.
const CHUNK: usize = 256 << 10;

/// Why a file did not arrive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The local file system refused something.
    #[error("cannot {action} {path}: {source}")]
    Local {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is no regular file.
    #[error("{0} is not a regular file")]
    NotAFile(PathBuf),
    /// The file's size was not what it had been at the beginning.
    #[error("{0} changed while it was sent")]
    Changed(PathBuf),
    /// The name that the sender gave cannot be used here.
    #[error("refused the file name '{name}': {problem}")]
    Name {
        /// The name as it came, escaped.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// There is a file of this name already.
    #[error("{0} exists")]
    Exists(PathBuf),
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
    /// The content is not what the SHA-256 hash beside the file says.
    #[error("content of '{0}' does not match the hash in its .sha256sum")]
    Checksum(String),
    /// More than this receiver takes.
    #[error("a file of {size} bytes is larger than the limit of {limit} bytes")]
    TooLarge {
        /// Size announced.
        size: u64,
        /// Limit of the receiver.
        limit: u64,
    },
    /// Not enough room.
    #[error("{free} bytes free in {directory}, {size} needed")]
    NoSpace {
        /// Where the file was to be written.
        directory: PathBuf,
        /// Bytes that the file needs.
        size: u64,
        /// Bytes that there are.
        free: u64,
    },
    /// The content is not what the sender had hashed.
    #[error("content of '{0}' does not match its BLAKE3 hash")]
    Corrupt(String),
    /// The other side gave up, and says why.
    #[error("refused by the peer: {0}")]
    Peer(String),
    /// The peer does not speak this protocol.
    #[error("peer violated the file protocol: {0}")]
    Protocol(&'static str),
    /// The connection broke while sending.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The connection broke while receiving.
    #[error(transparent)]
    Receive(#[from] RecvError),
}
