//! The sender of a file transfer.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;

use super::message::{self, Message};
use super::storage::local;
use super::{CHUNK, FileError, name};
use crate::connection::Connection;
use crate::error::SendError;

/// A file that the peer has received, verified and stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFile {
    /// Size in bytes.
    pub size: u64,
    /// BLAKE3 hash of the content.
    pub hash: [u8; 32],
}

/// Sends a file; completes when the peer has verified and stored it. Calls `progress` with the
/// bytes queued for sending and the total size.
///
/// # Errors
/// The file cannot be read or is modified during the transfer, the peer refuses it, or the
/// connection fails.
pub async fn send(
    connection: &Connection,
    path: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<SentFile, FileError> {
    let not_a_file = || FileError::NotAFile(path.to_owned());
    let mut file = File::open(path).map_err(|error| local("open", path, error))?;
    let metadata = file.metadata().map_err(|error| local("inspect", path, error))?;
    if !metadata.is_file() {
        return Err(not_a_file());
    }
    let (size, name) = (metadata.len(), name::from_path(path).ok_or_else(not_a_file)?);
    send_message(connection, Message::Begin { size, name }.encode()).await?;

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
            send_message(connection, Message::Abort(error.for_peer()).encode()).await?;
            return Err(error);
        }
        hasher.update(&data[1..]);
        send_message(connection, data.freeze()).await?;
        sent += want as u64;
        progress(sent, size);
        // The peer may refuse the file before it has received all of it.
        if let Some(reply) = connection.try_recv() {
            return Err(early_reply_error(reply));
        }
    }
    let hash = *hasher.finalize().as_bytes();
    send_message(connection, Message::End { hash }.encode()).await?;
    match connection.recv().await? {
        Some(reply) => match Message::decode(reply)? {
            Message::Verdict(Ok(())) => Ok(SentFile { size, hash }),
            Message::Verdict(Err(why)) => Err(FileError::Peer(why)),
            _ => Err(FileError::Protocol("the reply is not a verdict")),
        },
        None => Err(FileError::Protocol("no verdict")),
    }
}

/// Sends a message. If the connection is closed, prefers the peer's reason for refusing the file to
/// that error.
async fn send_message(connection: &Connection, message: Bytes) -> Result<(), FileError> {
    connection.send(message).await.map_err(|error| match (&error, connection.try_recv()) {
        (SendError::Closed(_), Some(reply)) => early_reply_error(reply),
        _ => error.into(),
    })
}

/// The error for a reply before the end of the file.
fn early_reply_error(reply: Bytes) -> FileError {
    match Message::decode(reply) {
        Ok(Message::Verdict(Err(why))) => FileError::Peer(why),
        Ok(_) => FileError::Protocol("a reply before the end of the file"),
        Err(error) => error,
    }
}
