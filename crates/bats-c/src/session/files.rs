//! `SendFile`: sends the bytes of a file as ordinary messages.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Session, lock};
use crate::connection::Connection;
use crate::event::{Code, Failure};

/// Maximum number of queued files.
const MAX_FILES: usize = 1_024;

impl Session {
    /// Queues a file. Checks now whether it exists, so that a wrong name fails here.
    pub(crate) fn send_file(&self, path: &Path) -> Result<(), Failure> {
        let failed = |text: String| Failure::new(Code::SendFailed, text);
        let is_open = self.state.load(Ordering::SeqCst) == super::OPEN;
        let Some(connection) = self.connection().filter(|_| is_open) else {
            return Err(Failure::new(Code::ConnectionClosed, "the connection is not established"));
        };
        if !connection.is_reliable() {
            return Err(failed("files can be sent in reliable modes only".into()));
        }
        let metadata = std::fs::metadata(path)
            .map_err(|error| failed(format!("cannot send {}: {error}", path.display())))?;
        if !metadata.is_file() {
            return Err(failed(format!("{} is not a regular file", path.display())));
        }
        let mut details = lock(&self.details);
        if details.files.len() >= MAX_FILES {
            return Err(failed(format!("the queue is full: {MAX_FILES} files")));
        }
        details.files.push_back(path.to_owned());
        drop(details);
        self.files_added.notify_one();
        Ok(())
    }

    /// Sends the queued files one after the other.
    pub(super) async fn run_files(self: Arc<Self>, connection: Connection) {
        loop {
            let next = lock(&self.details).files.front().cloned();
            let Some(path) = next else {
                self.files_added.notified().await;
                continue;
            };
            let result = self.send_one(&connection, path).await;
            let is_sent = result.is_ok();
            let mut details = lock(&self.details);
            details.files.pop_front();
            details.file_results.push_back(result);
            drop(details);
            if is_sent {
                // An empty file must be reported as acknowledged too.
                self.has_new_data.store(true, Ordering::SeqCst);
            }
            self.wake.notify_one();
        }
    }

    async fn send_one(&self, connection: &Connection, path: PathBuf) -> Result<(), String> {
        let cannot_read = |error| format!("cannot read {}: {error}", path.display());
        let opened = path.clone();
        let file = blocking(move || File::open(&opened)).await.map_err(cannot_read)?;
        let mut file = Some(file);
        while let Some(mut open) = file.take() {
            let length = u64::from(self.ideal_length());
            let (open, chunk) = blocking(move || {
                let mut chunk = Vec::with_capacity(length as usize);
                (&mut open).take(length).read_to_end(&mut chunk)?;
                Ok((open, chunk))
            })
            .await
            .map_err(cannot_read)?;
            if chunk.is_empty() {
                break;
            }
            connection.send(Bytes::from(chunk)).await.map_err(|failure| failure.text)?;
            self.note_sent();
            file = Some(open);
        }
        Ok(())
    }
}

/// Runs work that may block on a disk or the resolver on another thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
