//! `SendFile`: a file's bytes as ordinary messages.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::{Session, lock};
use crate::event::{Code, Failure};
use crate::link::Link;

/// Files that wait for their turn.
const MOST_FILES: usize = 1_024;

impl Session {
    /// Queues a file. It is looked at now, so that a wrong name fails here.
    pub(crate) fn send_file(&self, path: &Path) -> Result<(), Failure> {
        let failed = |text: String| Failure::new(Code::SendFailed, text);
        let is_open = self.state.load(Ordering::SeqCst) == super::OPEN;
        let Some(link) = self.link().filter(|_| is_open) else {
            return Err(Failure::new(Code::ConnectionClosed, "the connection is not established"));
        };
        if !link.is_reliable() {
            return Err(failed("files need a reliable mode".into()));
        }
        let metadata = std::fs::metadata(path)
            .map_err(|error| failed(format!("cannot send {}: {error}", path.display())))?;
        if !metadata.is_file() {
            return Err(failed(format!("{} is not a regular file", path.display())));
        }
        let mut details = lock(&self.details);
        if details.files.len() >= MOST_FILES {
            return Err(failed(format!("{MOST_FILES} files are waiting already")));
        }
        details.files.push_back(path.to_owned());
        drop(details);
        self.files_wanted.notify_one();
        Ok(())
    }

    /// Sends one file after the other.
    pub(super) async fn run_files(self: Arc<Self>, link: Link) {
        loop {
            let next = lock(&self.details).files.front().cloned();
            let Some(path) = next else {
                self.files_wanted.notified().await;
                continue;
            };
            let result = self.send_one(&link, path).await;
            let is_sent = result.is_ok();
            let mut details = lock(&self.details);
            details.files.pop_front();
            details.file_results.push_back(result);
            drop(details);
            if is_sent {
                // Also a file without bytes is to be told of as acknowledged.
                self.dirty.store(true, Ordering::SeqCst);
            }
            self.wake.notify_one();
        }
    }

    async fn send_one(&self, link: &Link, path: PathBuf) -> Result<(), String> {
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
            link.send(Bytes::from(chunk)).await.map_err(|failure| failure.text)?;
            self.note_sent();
            file = Some(open);
        }
        Ok(())
    }
}

/// Runs what may wait for a disk or a resolver elsewhere.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}
