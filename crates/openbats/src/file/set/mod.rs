//! Transfer of many files over one or more connections: directories, empty files, large files in
//! parts over all connections, resumption. Each file is verified before it gets its final name.
//!
//! All connections of a transfer share a [`Sender`] at one end and a [`Receiver`] at the other.
//! Each end calls `run` once for each connection, from a thread or task of its own.
//!
//! A file is divided into parts whose length is a power of two, so that each part is a subtree of
//! the file's BLAKE3 hash: parts are hashed when they are sent and received, in any order and over
//! any connection, and their hashes give the hash of the file.
//!
//! If the receiver has a file of the offered name and size, or the data of an interrupted transfer, the
//! sender first sends the hashes of its parts. The receiver reads its own data, limited by a
//! [`ReadBudget`], and replies only which parts match: those are not sent again.

pub(super) mod budget;
mod collect;
mod compress;
pub(super) mod directories;
mod incoming;
pub(super) mod message;
mod open_files;
mod partial;
mod reads;
mod receiver;
mod sender;
mod sha256sum;
mod tree;

pub use budget::StorageBudget;
pub use collect::{Entry, FileSet, Skipped};
pub use compress::Compression;
pub use reads::ReadBudget;
pub use receiver::Receiver;
pub use sender::Sender;

pub use super::space::Reserve;

/// The result for a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Name in the receiver's directory, with `/` between the components.
    pub name: String,
    /// Size in bytes; 0 for a directory.
    pub size: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Bytes that were sent because the receiver did not have them, before compression.
    pub sent: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

/// The outcome of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was received, verified and stored.
    Stored {
        /// BLAKE3 hash of the content; `None` for a directory.
        hash: Option<[u8; 32]>,
    },
    /// It was received, verified and stored under another name, because its own exists.
    Renamed {
        /// BLAKE3 hash of the content.
        hash: [u8; 32],
        /// The new name.
        to: String,
    },
    /// A file of this name and content exists already.
    Unchanged {
        /// BLAKE3 hash of the content.
        hash: [u8; 32],
    },
    /// It was not stored, for this reason. Of a receiver, the text may go to its peer: it names no directory.
    Failed(String),
}

impl Outcome {
    /// Returns the hash of the content, if there is one.
    #[must_use]
    pub fn hash(&self) -> Option<&[u8; 32]> {
        match self {
            Self::Stored { hash } => hash.as_ref(),
            Self::Renamed { hash, .. } | Self::Unchanged { hash } => Some(hash),
            Self::Failed(_) => None,
        }
    }
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The transfer of a file begins.
    Begin {
        /// Number of the file in this transfer.
        id: u32,
        /// Its name.
        name: &'a str,
        /// Size in bytes.
        size: u64,
    },
    /// Further bytes were sent or received, or the receiver has them already.
    Bytes {
        /// The file's number.
        id: u32,
        /// Bytes.
        bytes: u64,
    },
    /// Further bytes were read at either end to compare them with existing data. Nothing was sent,
    /// and the same bytes may be read more than once: this reports that a long check makes
    /// progress.
    Checking {
        /// The file's number.
        id: u32,
        /// Bytes.
        bytes: u64,
    },
    /// The transfer of a file or directory has ended, successfully or not.
    End {
        /// Its number.
        id: u32,
        /// Its result.
        report: &'a FileReport,
    },
}

/// What the receiver does with a file if its name exists with other content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Refuses the received file.
    #[default]
    Refuse,
    /// Replaces the existing file.
    Overwrite,
    /// Stores the received file under a free name: `NAME.1` and so on.
    Rename,
}
