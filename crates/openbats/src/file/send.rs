//! The sending side of a file transfer.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;

use super::message::{self, Message};
use super::storage::local;
use super::{CHUNK, FileError, name};
use crate::connection::Connection;
use crate::error::SendError;

/// A file that has arrived at the peer and was verified there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFile {
    /// Bytes.
    pub size: u64,
    /// BLAKE3 hash of the content.
    pub hash: [u8; 32],
}

/// Sends a file; done when the peer has verified and stored it. `progress` is told bytes handed
/// to the connection and bytes in all.
///
/// # Errors
/// The file cannot be read or changes meanwhile, the peer refuses it, or the connection breaks.
pub async fn send(
    connection: &Connection,
    path: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<SentFile, FileError> {
    let not_a_file = || FileError::NotAFile(path.to_owned());
    let mut file = File::open(path).map_err(|error| local("open", path, error))?;
    let metadata = file.metadata().map_err(|error| local("look at", path, error))?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    let (size, name) = (metadata.len(), name::of(path).ok_or_else(not_a_file)?);
    hand_over(connection, Message::Begin { size, name }.encode()).await?;

    let mut hasher = blake3::Hasher::new();
    let mut sent = 0;
    progress(sent, size);
    while sent < size {
        let want = CHUNK.min(usize::try_from(size - sent).unwrap_or(CHUNK));
        let mut data = message::begin_data(want);
        data.resize(1 + want, 0);
        let read = file.read_exact(&mut data[1..]);
        if let Err(error) = read {
            let error = match error.kind() {
                std::io::ErrorKind::UnexpectedEof => FileError::Changed(path.to_owned()),
                _ => local("read", path, error),
            };
            hand_over(connection, Message::Abort(error.to_string()).encode()).await?;
            return Err(error);
        }
        hasher.update(&data[1..]);
        hand_over(connection, data.freeze()).await?;
        sent += want as u64;
        progress(sent, size);
        // The peer need not take all of it before it says no.
        if let Some(early) = connection.try_recv() {
            return Err(early_answer(early));
        }
    }
    let hash = *hasher.finalize().as_bytes();
    hand_over(connection, Message::End { hash }.encode()).await?;
    match connection.recv().await? {
        Some(answer) => match Message::decode(answer)? {
            Message::Verdict(Ok(())) => Ok(SentFile { size, hash }),
            Message::Verdict(Err(why)) => Err(FileError::Peer(why)),
            _ => Err(FileError::Protocol("an answer that is no verdict")),
        },
        None => Err(FileError::Protocol("no verdict")),
    }
}

/// Sends a message. Where the connection is over, why the peer refused the file says more than that.
async fn hand_over(connection: &Connection, message: Bytes) -> Result<(), FileError> {
    connection.send(message).await.map_err(|error| match (&error, connection.try_recv()) {
        (SendError::Closed(_), Some(answer)) => early_answer(answer),
        _ => error.into(),
    })
}

/// What an answer before the end of the file means.
fn early_answer(answer: Bytes) -> FileError {
    match Message::decode(answer) {
        Ok(Message::Verdict(Err(why))) => FileError::Peer(why),
        Ok(_) => FileError::Protocol("an answer before the end"),
        Err(error) => error,
    }
}
