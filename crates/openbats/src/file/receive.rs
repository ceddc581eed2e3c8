//! The receiving side of a file transfer.

use std::path::PathBuf;

use super::message::Message;
use super::storage::Incoming;
use super::{FileError, name};
use crate::connection::Connection;

/// A file that was received, verified and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// BLAKE3 hash of the content.
    pub hash: [u8; 32],
}

/// Where and which files are received.
#[derive(Clone, Debug)]
pub struct Receiver {
    directory: PathBuf,
    overwrite: bool,
    max_size: u64,
}

impl Receiver {
    /// Files go into `directory`, existing ones are not replaced, and the disk is the limit.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), overwrite: false, max_size: u64::MAX }
    }

    /// Whether a file replaces one of the same name.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Bytes of a file at most.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = bytes;
        self
    }

    /// Receives the next file, or `None` when the peer has finished. `progress` is told the name,
    /// bytes received and bytes in all.
    ///
    /// After an error that is this side's or the file's, the peer has been told; the connection is
    /// of no use for more files then and should be closed once
    /// [`flush`](Connection::flush) is done.
    ///
    /// # Errors
    /// The name is unusable, the disk full, the content not what was hashed, the peer gave up or
    /// broke the rules, or the connection broke. No file is left behind.
    pub async fn receive(
        &self,
        connection: &Connection,
        mut progress: impl FnMut(&str, u64, u64),
    ) -> Result<Option<ReceivedFile>, FileError> {
        let Some(first) = connection.recv().await? else { return Ok(None) };
        let result = self.receive_file(connection, first, &mut progress).await;
        let verdict = match &result {
            Ok(_) => Ok(()),
            // Nobody is there to be told, or knows already.
            Err(FileError::Send(_) | FileError::Receive(_) | FileError::Peer(_)) => {
                return result.map(Some);
            }
            Err(error) => Err(error.to_string()),
        };
        connection.send(Message::Verdict(verdict).encode()).await?;
        result.map(Some)
    }

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
        let mut file = Incoming::create(&self.directory, &name, size, self.overwrite)?;
        let mut hasher = blake3::Hasher::new();
        let mut received = 0;
        progress(&name, received, size);
        loop {
            let Some(message) = connection.recv().await? else {
                return Err(FileError::Protocol("finished within a file"));
            };
            match Message::decode(message)? {
                Message::Data(bytes) => {
                    received += bytes.len() as u64;
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
                    // Compared in constant time, though there is no secret in it.
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
