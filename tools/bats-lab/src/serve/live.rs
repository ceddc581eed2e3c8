//! Streams the events of a run as server-sent events.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::SeekFrom;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::runs::Runs;

/// Polling interval of the events file.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of bytes per read.
const READ_BYTES: usize = 256 << 10;

/// Longest line in bytes.
const MAX_LINE: usize = 1 << 20;

/// Reader state.
struct EventReader {
    runs: Arc<Runs>,
    name: String,
    path: PathBuf,
    offset: u64,
    lines: Lines,
    ended: bool,
}

/// The lines of a file that grows.
#[derive(Default)]
struct Lines {
    complete: VecDeque<String>,
    incomplete: Vec<u8>,
}

/// Streams all lines of the file as events until the run ends.
pub(super) fn stream(
    runs: Arc<Runs>,
    name: String,
    path: PathBuf,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let reader = EventReader { runs, name, path, offset: 0, lines: Lines::default(), ended: false };
    let events = unfold(reader, |mut reader| async move {
        loop {
            if let Some(line) = reader.lines.complete.pop_front() {
                return Some((Ok(Event::default().data(line)), reader));
            }
            if reader.ended {
                return None;
            }
            // Check this before reading, so that nothing written before the end is missed.
            let is_running = reader.runs.is_running(&reader.name);
            let read = reader.read().await.unwrap_or(0);
            if read == 0 {
                if !is_running {
                    reader.ended = true;
                    reader.lines.complete.push_back("{\"event\":\"over\"}".to_owned());
                    continue;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

impl EventReader {
    /// Reads new data; returns the number of bytes.
    async fn read(&mut self) -> std::io::Result<usize> {
        let mut file = File::open(&self.path).await?;
        file.seek(SeekFrom::Start(self.offset)).await?;
        let mut block = Vec::new();
        let count = file.take(READ_BYTES as u64).read_to_end(&mut block).await?;
        self.offset = self.offset.saturating_add(count as u64);
        self.lines.split(&block);
        Ok(count)
    }
}

impl Lines {
    /// Takes the lines of new data. What is longer than [`MAX_LINE`] is no event, and left out.
    fn split(&mut self, block: &[u8]) {
        for part in block.split_inclusive(|&byte| byte == b'\n') {
            if self.incomplete.len() <= MAX_LINE {
                self.incomplete.extend_from_slice(part);
            }
            if !part.ends_with(b"\n") {
                break;
            }
            let line = std::mem::take(&mut self.incomplete);
            if line.len() <= MAX_LINE {
                self.complete.push_back(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_over_reads_and_long_ones_left_out() {
        let long = [b'x'; MAX_LINE + 1];
        let mut lines = Lines::default();
        for block in [&b"one\ntw"[..], b"o\n\nthr", b"", b"ee", &long, &long, b"\nfour\r\nfi"] {
            lines.split(block);
        }
        assert_eq!(lines.complete, ["one", "two", "", "four"]);
        assert_eq!(lines.incomplete, b"fi");
        // Only newlines: time and memory follow their number.
        let mut lines = Lines::default();
        lines.split(&[b'\n'; READ_BYTES]);
        assert_eq!(lines.complete.len(), READ_BYTES);
    }
}
