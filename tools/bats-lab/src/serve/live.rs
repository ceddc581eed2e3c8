//! What a run tells while it goes on, as server-sent events.

use std::convert::Infallible;
use std::io::SeekFrom;
use std::path::PathBuf;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, unfold};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::Shared;

/// How often the file is looked at.
const GLANCE: Duration = Duration::from_millis(200);
/// Bytes that are read at once.
const BLOCK: usize = 256 << 10;

/// Where the reading is.
struct Place {
    server: Shared,
    name: String,
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
    lines: std::collections::VecDeque<String>,
    ended: bool,
}

/// The lines of the file as events, from the first one on, until the run is over.
pub(super) fn stream(
    server: Shared,
    name: String,
    path: PathBuf,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let place = Place {
        server,
        name,
        path,
        offset: 0,
        rest: Vec::new(),
        lines: std::collections::VecDeque::new(),
        ended: false,
    };
    let events = unfold(place, |mut place| async move {
        loop {
            if let Some(line) = place.lines.pop_front() {
                return Some((Ok(Event::default().data(line)), place));
            }
            if place.ended {
                return None;
            }
            // Asked before reading: what is written until the end is read then.
            let goes_on = place.server.runs.is_running(&place.name);
            let read = place.read().await.unwrap_or(0);
            if read == 0 {
                if !goes_on {
                    place.ended = true;
                    place.lines.push_back("{\"event\":\"over\"}".to_owned());
                    continue;
                }
                tokio::time::sleep(GLANCE).await;
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

impl Place {
    /// Reads what has been written since; returns the bytes.
    async fn read(&mut self) -> std::io::Result<usize> {
        let mut file = File::open(&self.path).await?;
        file.seek(SeekFrom::Start(self.offset)).await?;
        let mut block = Vec::new();
        let count = file.take(BLOCK as u64).read_to_end(&mut block).await?;
        self.offset += count as u64;
        self.rest.extend_from_slice(&block);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            self.lines.push_back(line);
        }
        Ok(count)
    }
}
