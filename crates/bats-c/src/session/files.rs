//! `SendFile`: sends the bytes of a file as ordinary messages.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::connection::Connection;
use crate::event::{Code, Failure};
use crate::locks::lock;

/// Maximum number of queued files.
const MAX_FILES: usize = 1_024;

/// The files of a connection that are not sent yet, and the results of those that are.
#[derive(Default)]
pub(super) struct FileQueue {
    files: Mutex<Files>,
    added: Notify,
}

#[derive(Default)]
struct Files {
    /// The first one is being sent.
    waiting: VecDeque<PathBuf>,
    /// Results of completed files that are not reported to the program yet.
    results: VecDeque<Result<(), String>>,
}

impl FileQueue {
    /// Queues a file. Checks now whether it exists, so that a wrong name fails here.
    pub(super) fn push(&self, path: &Path) -> Result<(), Failure> {
        let failed = |text: String| Failure::new(Code::SendFailed, text);
        let metadata = std::fs::metadata(path)
            .map_err(|error| failed(format!("cannot send {}: {error}", path.display())))?;
        if !metadata.is_file() {
            return Err(failed(format!("{} is not a regular file", path.display())));
        }
        let mut files = lock(&self.files);
        if files.waiting.len() >= MAX_FILES {
            return Err(failed(format!("the queue is full: {MAX_FILES} files")));
        }
        files.waiting.push_back(path.to_owned());
        drop(files);
        self.added.notify_one();
        Ok(())
    }

    /// Whether all files are sent.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.files).waiting.is_empty()
    }

    /// The result of a completed file, once.
    pub(super) fn pop_result(&self) -> Option<Result<(), String>> {
        lock(&self.files).results.pop_front()
    }

    /// Waits for the next file, which stays in the queue until [`Self::complete`].
    pub(super) async fn next(&self) -> PathBuf {
        loop {
            let next = lock(&self.files).waiting.front().cloned();
            if let Some(path) = next {
                return path;
            }
            self.added.notified().await;
        }
    }

    /// The first file is sent, or has failed.
    pub(super) fn complete(&self, result: Result<(), String>) {
        let mut files = lock(&self.files);
        files.waiting.pop_front();
        files.results.push_back(result);
    }
}

/// Sends the bytes of a file as messages of `length()` bytes each; calls `on_sent` after each message.
pub(super) async fn send_file(
    connection: &Connection,
    path: PathBuf,
    length: impl Fn() -> u32,
    on_sent: impl Fn(),
) -> Result<(), String> {
    let cannot_read = |error| format!("cannot read {}: {error}", path.display());
    let opened = path.clone();
    let file = blocking(move || File::open(&opened)).await.map_err(cannot_read)?;
    let mut file = Some(file);
    while let Some(mut open) = file.take() {
        let length = u64::from(length());
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
        on_sent();
        file = Some(open);
    }
    Ok(())
}

/// Runs work that may block on a disk or the resolver on another thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
