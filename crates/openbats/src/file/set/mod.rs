//! Many files over one or more connections: directories, empty files, large files in parts over
//! all connections, resumption, each file verified before it gets its name.
//!
//! A [`Sender`] and a [`Receiver`] are shared by all connections of a transfer; each end calls
//! `run` once for each connection, from a thread or task of its own.
//!
//! A file is cut into parts whose length is a power of two, so that each part is a subtree of the
//! file's BLAKE3 hash: parts are hashed where they are sent and received, in any order and over
//! any connection, and the file's hash follows from theirs. What an interrupted transfer left
//! behind is hashed part by part, and parts that have the right hash already are not sent again.

mod collect;
mod compress;
mod incoming;
mod message;
mod receiver;
mod sender;
mod side;
mod tree;

pub use collect::{Entry, FileSet, Skipped};
pub use compress::Compression;
pub use receiver::Receiver;
pub use sender::Sender;

/// What became of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// The name in the receiver's directory, with `/` between its components.
    pub name: String,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Bytes of it that were not there already and had to be sent, before compression.
    pub sent: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a file or directory ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was received, verified and stored.
    Stored {
        /// BLAKE3 hash of the content; `None` for a directory.
        hash: Option<[u8; 32]>,
    },
    /// It was received, verified and stored under another name, as its own was taken.
    Renamed {
        /// BLAKE3 hash of the content.
        hash: [u8; 32],
        /// The name that it got.
        to: String,
    },
    /// A file of this name and content was there already.
    Unchanged {
        /// BLAKE3 hash of the content.
        hash: [u8; 32],
    },
    /// It was not stored, for this reason.
    Failed(String),
}

impl Outcome {
    /// The content's hash, where there is one.
    #[must_use]
    pub fn hash(&self) -> Option<&[u8; 32]> {
        match self {
            Self::Stored { hash } => hash.as_ref(),
            Self::Renamed { hash, .. } | Self::Unchanged { hash } => Some(hash),
            Self::Failed(_) => None,
        }
    }
}

/// What happens while files are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A file begins.
    Begin {
        /// Its number in this transfer.
        id: u32,
        /// Its name.
        name: &'a str,
        /// Its bytes.
        size: u64,
    },
    /// So many more of its bytes were sent or received, or were found to be there already.
    Bytes {
        /// The file's number.
        id: u32,
        /// Bytes.
        bytes: u64,
    },
    /// So many more of its bytes were read to be compared with what is there, at this end or at
    /// the other. Nothing was sent, and the same bytes may be read more than once: a large file takes
    /// its time.
    Checking {
        /// The file's number.
        id: u32,
        /// Bytes.
        bytes: u64,
    },
    /// A file or directory is done, well or not.
    End {
        /// Its number.
        id: u32,
        /// What became of it.
        report: &'a FileReport,
    },
}

/// What happens to a received file whose name is taken by another content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// It is not taken.
    #[default]
    Refuse,
    /// It replaces the other.
    Overwrite,
    /// It gets a free name: `NAME.1` and so on.
    Rename,
}
