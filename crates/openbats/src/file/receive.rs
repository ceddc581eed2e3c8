//! The receiver of a file transfer.

use std::path::PathBuf;

use super::message::Message;
use super::set::{Reserve, StorageBudget};
use super::space::StorageLimits;
use super::storage::TemporaryFile;
use super::{FileError, name};
use crate::connection::Connection;

/// A file that was received, verified and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedFile {
    /// Path of the stored file.
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// BLAKE3 hash of the content.
    pub hash: [u8; 32],
}

/// Options of the receiver of single files.
///
/// For senders that are not trusted set [`max_size`](Self::max_size), [`budget`](Self::budget) and
/// [`reserve`](Self::reserve), with a budget that all receivers of a sender share.
#[derive(Clone, Debug)]
pub struct Receiver {
    directory: PathBuf,
    overwrite: bool,
    max_size: u64,
    storage: StorageLimits,
}

impl Receiver {
    /// Stores files in `directory`. By default existing files are not replaced, and the size is not
    /// limited.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            overwrite: false,
            max_size: u64::MAX,
            storage: StorageLimits::default(),
        }
    }

    /// Whether a received file replaces one of the same name; by default it does not.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Largest size of a file in bytes; by default there is no limit.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = bytes;
        self
    }

    /// Stores no more than this budget allows, which other receivers may share.
    #[must_use]
    pub fn budget(mut self, budget: StorageBudget) -> Self {
        self.storage.budget = Some(budget);
        self
    }

    /// Free space to leave on the file system; by default none. Other files that any receivers of this
    /// process have open count with what they still need, and the free space is looked at again while a
    /// file is written: it fails if other programs have taken what it needs.
    #[must_use]
    pub fn reserve(mut self, reserve: Reserve) -> Self {
        self.storage.reserve = reserve;
        self
    }

    /// Receives the next file, or returns `None` when the peer has finished. Calls `progress` with
    /// the name, the bytes received and the total size.
    ///
    /// After an error of the local system or of the file, the peer has been notified; close the
    /// connection once [`flush`](Connection::flush) completes, because it cannot transfer more
    /// files.
    ///
    /// # Errors
    /// The name is refused, the disk is full, the file would use up the reserve or the budget, the hash
    /// does not match, the peer gave up or violated the protocol, or the connection failed. No temporary
    /// file is left.
    pub async fn receive(
        &self,
        connection: &Connection,
        mut progress: impl FnMut(&str, u64, u64),
    ) -> Result<Option<ReceivedFile>, FileError> {
        let Some(first) = connection.recv().await? else { return Ok(None) };
        let result = self.receive_file(connection, first, &mut progress).await;
        let verdict = match &result {
            Ok(_) => Ok(()),
            // The peer cannot be notified, or knows of the error.
            Err(FileError::Send(_) | FileError::Receive(_) | FileError::Peer(_)) => {
                return result.map(Some);
            }
            Err(error) => Err(error.for_peer()),
        };
        connection.send(Message::Verdict(verdict).encode()).await?;
        result.map(Some)
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    async fn receive_file(
        &self,
        connection: &Connection,
        first: bytes::Bytes,
        progress: &mut impl FnMut(&str, u64, u64),
    ) -> Result<ReceivedFile, FileError> {
        let Message::Begin { size, name } = Message::decode(first)? else {
            return Err(FileError::Protocol("no BEGIN"));
        };
        name::check(&name)?;
        if size > self.max_size {
            return Err(FileError::TooLarge { size, limit: self.max_size });
        }
        let mut file =
            TemporaryFile::create(&self.directory, &name, size, self.overwrite, &self.storage)?;
        let mut hasher = blake3::Hasher::new();
        let mut received = 0;
        progress(&name, received, size);
        loop {
            let Some(message) = connection.recv().await? else {
                return Err(FileError::Protocol("finished within a file"));
            };
            match Message::decode(message)? {
                Message::Data(bytes) => {
                    received = received.saturating_add(bytes.len() as u64);
                    if received > size {
                        return Err(FileError::Protocol("more data than announced"));
                    }
                    hasher.update(&bytes);
                    file.write(&bytes)?;
                    progress(&name, received, size);
                }
                Message::End { hash } => {
                    if received != size {
                        return Err(FileError::Protocol("less data than announced"));
                    }
                    // `blake3::Hash` compares in constant time, although the hash is not secret.
                    if hasher.finalize() != blake3::Hash::from(hash) {
                        return Err(FileError::Corrupt(name));
                    }
                    let path = file.commit(self.overwrite)?;
                    return Ok(ReceivedFile { path, size, hash });
                }
                Message::Abort(why) => return Err(FileError::Peer(why)),
                _ => return Err(FileError::Protocol("unexpected message within a file")),
            }
        }
    }
}
