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

use std::convert::Infallible;
use std::io::SeekFrom;
use std::path::PathBuf;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::Shared;

/// Polling interval of the events file.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of bytes per read.
const READ_BYTES: usize = 256 << 10;

/// Reader state.
struct EventReader {
    server: Shared,
    name: String,
    path: PathBuf,
    offset: u64,
    incomplete_line: Vec<u8>,
    lines: std::collections::VecDeque<String>,
    ended: bool,
}

/// Streams all lines of the file as events until the run ends.
pub(super) fn stream(
    server: Shared,
    name: String,
    path: PathBuf,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let reader = EventReader {
        server,
        name,
        path,
        offset: 0,
        incomplete_line: Vec::new(),
        lines: std::collections::VecDeque::new(),
        ended: false,
    };
    let events = unfold(reader, |mut reader| async move {
        loop {
            if let Some(line) = reader.lines.pop_front() {
                return Some((Ok(Event::default().data(line)), reader));
            }
            if reader.ended {
                return None;
            }
            // Check this before reading, so that nothing written before the end is missed.
            let is_running = reader.server.runs.is_running(&reader.name);
            let read = reader.read().await.unwrap_or(0);
            if read == 0 {
                if !is_running {
                    reader.ended = true;
                    reader.lines.push_back("{\"event\":\"over\"}".to_owned());
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
        self.incomplete_line.extend_from_slice(&block);
        while let Some(end) = self.incomplete_line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.incomplete_line.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.lines.push_back(line);
        }
        Ok(count)
    }
}
