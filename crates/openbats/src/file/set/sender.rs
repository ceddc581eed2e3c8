//! The sender of a transfer of many files.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::compress::{self, Compression};
use super::message::{Message, Offer, OfferReply, Verdict, begin_data};
use super::tree::{PartHash, PartLayout, ReadProgress};
use super::{Entry, FileReport, FileSet, Outcome, Progress};
use crate::connection::Connection;
use crate::error::RecvError;
use crate::file::storage::local;
use crate::file::{CHUNK, FileError};

/// Files up to this size are sent with their offer: to wait for the receiver's reply would take
/// longer.
const MAX_IMMEDIATE: u64 = CHUNK as u64;
/// How often a receiver reads the content of a file at most: to compare what exists, to find the parts that it
/// has, for SHA-256, and to compare a file that has appeared meanwhile.
const READS: u64 = 4;

/// Sends a set of files and directories. All connections of a transfer share it.
#[derive(Debug)]
pub struct Sender {
    set: FileSet,
    compression: Option<Compression>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Entries that are not offered yet.
    waiting: VecDeque<u32>,
    /// Parts to send, of files that were offered.
    parts: VecDeque<(Arc<Outgoing>, u32)>,
    reports: Vec<Option<FileReport>>,
    /// Entries whose outcome is not known yet.
    unsettled: usize,
    /// Bytes sent of each entry.
    sent: Vec<u64>,
    /// Bytes of each entry that the receiver has read, as it says.
    checked: Vec<u64>,
    /// Hashes of the files that are finished or wait for their verdict.
    hashes: Vec<Option<[u8; 32]>>,
    /// Connections that wait for a job.
    idle: Vec<Waker>,
}

/// A file that is being sent in parts.
#[derive(Debug)]
struct Outgoing {
    id: u32,
    layout: PartLayout,
    file: File,
    metadata: Metadata,
    progress: Mutex<PartsDone>,
}

#[derive(Debug)]
struct PartsDone {
    hashes: Vec<PartHash>,
    left: u32,
    sent: u32,
}

/// The next task of a connection.
enum Job {
    Part(Arc<Outgoing>, u32),
    Offer(u32),
    Wait,
    Done,
}

impl Sender {
    /// Creates the sender of these files.
    #[must_use]
    pub fn new(set: FileSet) -> Self {
        let count = set.entries().len();
        let state = State {
            waiting: (0..u32::try_from(count).unwrap_or(u32::MAX)).collect(),
            parts: VecDeque::new(),
            reports: vec![None; count],
            unsettled: count,
            sent: vec![0; count],
            checked: vec![0; count],
            hashes: vec![None; count],
            idle: Vec::new(),
        };
        Self { set, compression: None, state: Mutex::new(state) }
    }

    /// Compresses the contents for the transfer.
    #[must_use]
    pub fn compression(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self
    }

    /// Returns the set of files to send.
    #[must_use]
    pub fn set(&self) -> &FileSet {
        &self.set
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: u32) -> Option<&Entry> {
        self.set.entries().get(id as usize)
    }

    /// Returns the result of each entry of the set, in its order; `None` while an entry is not
    /// settled.
    #[must_use]
    pub fn reports(&self) -> Vec<Option<FileReport>> {
        self.lock().reports.clone()
    }

    /// Sends over one connection of the transfer until all entries are settled: their outcomes are
    /// known.
    ///
    /// An error of a single file is reported, and the transfer of the others continues.
    ///
    /// # Errors
    /// The receiver violated the protocol, or the connection failed: then all entries that are not
    /// settled fail, on the other connections, too. A new transfer resumes where this one stopped.
    pub async fn run(
        &self,
        connection: &Connection,
        observe: impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let result = self.run_jobs(connection, &observe).await;
        if let Err(error) = &result {
            self.fail_unsettled(&format!("the transfer was interrupted: {error}"), &observe);
        }
        result
    }

    async fn run_jobs(
        &self,
        connection: &Connection,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        loop {
            while let Some(bytes) = connection.try_recv() {
                self.handle_message(bytes, observe)?;
            }
            match self.next_job() {
                Job::Part(file, part) => {
                    if self.is_settled(file.id) {
                        continue;
                    }
                    let done = self.send_part(connection, &file, part, observe).await;
                    self.settle_result(connection, file.id, done, observe).await?;
                }
                Job::Offer(id) => {
                    let done = self.offer(connection, id, observe).await;
                    self.settle_result(connection, id, done, observe).await?;
                }
                Job::Wait => {
                    if let Some(bytes) = self.wait(connection).await? {
                        self.handle_message(bytes, observe)?;
                    }
                }
                Job::Done => break,
            }
        }
        // Everything is settled, so that errors do not matter. Wait for the receiver to finish, so
        // that it does not wait for this end.
        let _ = connection.finish().await;
        while let Ok(Some(_)) = connection.recv().await {}
        Ok(())
    }

    fn next_job(&self) -> Job {
        let mut state = self.lock();
        if let Some((file, part)) = state.parts.pop_front() {
            return Job::Part(file, part);
        }
        match state.waiting.pop_front() {
            Some(id) => Job::Offer(id),
            None if state.unsettled == 0 => Job::Done,
            None => Job::Wait,
        }
    }

    fn is_settled(&self, id: u32) -> bool {
        self.lock().reports.get(id as usize).is_none_or(Option::is_some)
    }

    /// Returns a message of the receiver, or `None` when another job may be ready.
    async fn wait(&self, connection: &Connection) -> Result<Option<bytes::Bytes>, FileError> {
        let mut receiving = pin!(connection.recv());
        let received = poll_fn(|context| {
            if let Poll::Ready(received) = receiving.as_mut().poll(context) {
                return Poll::Ready(Some(received));
            }
            let mut state = self.lock();
            if !state.parts.is_empty() || !state.waiting.is_empty() || state.unsettled == 0 {
                return Poll::Ready(None);
            }
            if !state.idle.iter().any(|waker| waker.will_wake(context.waker())) {
                state.idle.push(context.waker().clone());
            }
            Poll::Pending
        });
        Self::received(received.await)
    }

    fn received(
        received: Option<Result<Option<bytes::Bytes>, RecvError>>,
    ) -> Result<Option<bytes::Bytes>, FileError> {
        match received {
            Some(Ok(None)) => {
                Err(FileError::Protocol("the receiver finished before the end of the transfer"))
            }
            Some(Ok(Some(bytes))) => Ok(Some(bytes)),
            Some(Err(error)) => Err(error.into()),
            None => Ok(None),
        }
    }

    fn wake(state: &mut State) -> Vec<Waker> {
        std::mem::take(&mut state.idle)
    }

    /// Processes a message of the receiver; returns replies to offers.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle_message(
        &self,
        bytes: bytes::Bytes,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<(u32, OfferReply)>, FileError> {
        let (id, message) = Message::decode(bytes)?;
        let outcome = match message {
            Message::OfferReply(reply) => return Ok(Some((id, reply))),
            Message::Verdict(verdict) => verdict,
            Message::Checking(bytes) => {
                if !self.is_settled(id) && self.count_read(id, bytes) {
                    observe(Progress::Checking { id, bytes });
                }
                return Ok(None);
            }
            _ => return Err(FileError::Protocol("the receiver sent a message of the sender")),
        };
        let hash = self.lock().hashes.get(id as usize).copied().flatten();
        let outcome = match (outcome, hash) {
            (Verdict::Failed(why), _) => Outcome::Failed(why),
            (Verdict::Stored, hash)
                if hash.is_some() || self.entry(id).is_some_and(|entry| entry.is_directory) =>
            {
                Outcome::Stored { hash }
            }
            (Verdict::Unchanged, Some(hash)) => Outcome::Unchanged { hash },
            (Verdict::Renamed(to), Some(hash)) => Outcome::Renamed { hash, to },
            _ => return Err(FileError::Protocol("a verdict on a file that was not finished")),
        };
        let is_unsent = self.lock().sent.get(id as usize) == Some(&0);
        if matches!(outcome, Outcome::Unchanged { .. }) && is_unsent {
            // The hashes were enough: no part of it was counted.
            let bytes = self.entry(id).map_or(0, |entry| entry.size);
            observe(Progress::Bytes { id, bytes });
        }
        self.settle(id, outcome, observe);
        Ok(None)
    }

    /// Counts bytes of a file that the receiver has read; returns whether it can have read as many: more
    /// would be progress without end.
    fn count_read(&self, id: u32, bytes: u64) -> bool {
        let most = self.entry(id).map_or(0, |entry| entry.size.saturating_mul(READS));
        let mut state = self.lock();
        let Some(checked) = state.checked.get_mut(id as usize) else { return false };
        let sum = checked.saturating_add(bytes);
        let is_possible = sum <= most;
        if is_possible {
            *checked = sum;
        }
        is_possible
    }

    fn settle(&self, id: u32, outcome: Outcome, observe: &impl Fn(Progress<'_>)) {
        let Some(entry) = self.entry(id) else { return };
        let mut state = self.lock();
        let sent = state.sent.get(id as usize).copied().unwrap_or(0);
        let report = FileReport {
            name: entry.name.clone(),
            size: entry.size,
            is_directory: entry.is_directory,
            sent,
            outcome,
        };
        match state.reports.get_mut(id as usize) {
            Some(place) if place.is_none() => *place = Some(report.clone()),
            _ => return,
        }
        state.unsettled -= 1;
        let wakers = if state.unsettled == 0 { Self::wake(&mut state) } else { Vec::new() };
        drop(state);
        observe(Progress::End { id, report: &report });
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Settles all remaining entries as failed.
    fn fail_unsettled(&self, why: &str, observe: &impl Fn(Progress<'_>)) {
        let open: Vec<u32> = {
            let mut state = self.lock();
            state.waiting.clear();
            state.parts.clear();
            let open = state.reports.iter().zip(0..).filter(|(report, _)| report.is_none());
            open.map(|(_, id)| id).collect()
        };
        for id in open {
            self.settle(id, Outcome::Failed(why.to_owned()), observe);
        }
    }

    /// Reports a local error of one file to the peer; passes connection errors on.
    async fn settle_result(
        &self,
        connection: &Connection,
        id: u32,
        result: Result<(), FileError>,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        match result {
            Ok(()) => Ok(()),
            Err(error @ (FileError::Send(_) | FileError::Receive(_) | FileError::Protocol(_))) => {
                Err(error)
            }
            Err(error) => {
                if !self.is_settled(id) {
                    let give_up = Message::GiveUp(error.for_peer());
                    connection.send(give_up.encode(id)).await?;
                    self.settle(id, Outcome::Failed(error.to_string()), observe);
                }
                Ok(())
            }
        }
    }

    async fn offer(
        &self,
        connection: &Connection,
        id: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let Some(entry) = self.entry(id) else { return Ok(()) };
        observe(Progress::Begin { id, name: &entry.name, size: entry.size });
        let mut offer = Offer {
            size: entry.size,
            name: entry.name.clone(),
            is_directory: entry.is_directory,
            is_immediate: false,
            sha256: entry.sha256,
        };
        if entry.is_directory {
            connection.send(Message::Offer(offer).encode(id)).await?;
            return Ok(());
        }
        let opened = File::open(&entry.source).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The file has not been offered: the receiver need not be notified.
                let error = local("open", &entry.source, error);
                self.settle(id, Outcome::Failed(error.to_string()), observe);
                return Ok(());
            }
        };
        offer.size = metadata.len();
        offer.is_immediate = offer.size <= MAX_IMMEDIATE;
        let layout = PartLayout::new(offer.size);
        let is_immediate = offer.is_immediate;
        connection.send(Message::Offer(offer).encode(id)).await?;
        let file = Outgoing {
            id,
            layout,
            file,
            metadata,
            progress: Mutex::new(PartsDone {
                hashes: vec![[0; 32]; layout.parts as usize],
                left: layout.parts,
                sent: 0,
            }),
        };
        if is_immediate {
            return match layout.parts {
                0 => self.finish(connection, &file).await,
                _ => self.send_part(connection, &file, 0, observe).await,
            };
        }
        let mut reply = self.receive_reply(connection, id, observe).await?;
        if let Some(OfferReply::Hashes(asked)) = &reply {
            let asked: Vec<u32> = asked.iter(layout.parts).collect();
            let hashes = self.hash_parts(connection, &file, &asked, observe)?;
            for (part, hash) in asked.iter().zip(&hashes) {
                if let Some(place) = file.lock().hashes.get_mut(*part as usize) {
                    *place = *hash;
                }
            }
            // The verdict may follow.
            if asked.len() == layout.parts as usize {
                self.announce_hash(&file, &hashes)?;
            }
            connection.send(Message::Hashes(hashes).encode(id)).await?;
            reply = self.receive_reply(connection, id, observe).await?;
        }
        let mut to_send: Vec<u32> = (0..layout.parts).collect();
        match reply {
            // It was refused, or the receiver has the same file.
            None => return Ok(()),
            Some(OfferReply::All) => {}
            Some(OfferReply::AllBut(parts)) => {
                to_send.retain(|part| !parts.contains(*part));
                let bytes: u64 = to_send.iter().map(|part| layout.len(*part)).sum();
                observe(Progress::Bytes { id, bytes: layout.size - bytes });
            }
            Some(OfferReply::Hashes(_)) => {
                return Err(FileError::Protocol("the hashes were requested twice"));
            }
        }
        file.lock().left = u32::try_from(to_send.len()).unwrap_or(u32::MAX);
        if to_send.is_empty() {
            return self.finish(connection, &file).await;
        }
        let file = Arc::new(file);
        let mut state = self.lock();
        state.parts.extend(to_send.into_iter().map(|part| (file.clone(), part)));
        let wakers = Self::wake(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Waits for the reply to an offer; `None` if the file was refused.
    async fn receive_reply(
        &self,
        connection: &Connection,
        id: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<OfferReply>, FileError> {
        loop {
            let received = connection.recv().await;
            let Some(bytes) = Self::received(Some(received))? else { continue };
            match self.handle_message(bytes, observe)? {
                Some((replied, reply)) if replied == id => return Ok(Some(reply)),
                Some(_) => {
                    return Err(FileError::Protocol("a reply to a file that was not offered"));
                }
                None if self.is_settled(id) => return Ok(None),
                None => {}
            }
        }
    }

    /// Hashes parts and reports the progress to both ends.
    fn hash_parts(
        &self,
        connection: &Connection,
        file: &Outgoing,
        parts: &[u32],
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Vec<PartHash>, FileError> {
        let id = file.id;
        let report = |bytes| {
            // If the send buffer is full, other data shows that the transfer makes progress.
            let _ = connection.try_send(Message::Checking(bytes).encode(id));
            observe(Progress::Checking { id, bytes });
        };
        let hashes = file.layout.hash_parts(&file.file, parts, &mut ReadProgress::new(&report));
        hashes.map_err(|error| self.read_error(file, error))
    }

    fn read_error(&self, file: &Outgoing, error: io::Error) -> FileError {
        let path = self.entry(file.id).map(|entry| entry.source.clone()).unwrap_or_default();
        match error.kind() {
            io::ErrorKind::UnexpectedEof => FileError::Changed(path),
            _ => local("read", &path, error),
        }
    }

    /// Sends a part; the last one finishes the file.
    async fn send_part(
        &self,
        connection: &Connection,
        file: &Outgoing,
        part: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let id = file.id;
        let hash = self.send_content(connection, file, part, observe).await?;
        if self.is_settled(id) {
            return Ok(());
        }
        connection.send(Message::Part { part, hash }.encode(id)).await?;
        let is_last = {
            let mut progress = file.lock();
            if let Some(place) = progress.hashes.get_mut(part as usize) {
                *place = hash;
            }
            progress.left -= 1;
            progress.sent += 1;
            progress.left == 0
        };
        match is_last {
            true => self.finish(connection, file).await,
            false => Ok(()),
        }
    }

    /// Sends the bytes of a part and returns their hash.
    async fn send_content(
        &self,
        connection: &Connection,
        file: &Outgoing,
        part: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<PartHash, FileError> {
        let id = file.id;
        let mut hasher = file.layout.hasher(part);
        let (offset, length) = (file.layout.offset(part), file.layout.len(part));
        let mut at = 0;
        let mut buffer = vec![0; CHUNK];
        while at < length {
            let want = usize::try_from(length - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut buffer[..want];
            file.file
                .read_exact_at(chunk, offset + at)
                .map_err(|error| self.read_error(file, error))?;
            hasher.update(chunk);
            let (encoding, compressed) = compress::encode(self.compression, chunk);
            let content = compressed.as_deref().unwrap_or(chunk);
            let mut message = begin_data(id, part, encoding, content.len());
            message.extend_from_slice(content);
            connection.send(message.freeze()).await?;
            at += want as u64;
            if let Some(sent) = self.lock().sent.get_mut(id as usize) {
                *sent += want as u64;
            }
            observe(Progress::Bytes { id, bytes: want as u64 });
            // The receiver may refuse the file before it has received all of it.
            while let Some(bytes) = connection.try_recv() {
                self.handle_message(bytes, observe)?;
            }
            if self.is_settled(id) {
                break;
            }
        }
        Ok(hasher.finish())
    }

    async fn finish(&self, connection: &Connection, file: &Outgoing) -> Result<(), FileError> {
        let (sent, hashes) = {
            let progress = file.lock();
            (progress.sent, progress.hashes.clone())
        };
        let hash = self.announce_hash(file, &hashes)?;
        connection.send(Message::Finish { sent, hash }.encode(file.id)).await?;
        Ok(())
    }

    /// Records the hash of a file, whose verdict may follow.
    ///
    /// # Errors
    /// The file was modified.
    fn announce_hash(&self, file: &Outgoing, parts: &[PartHash]) -> Result<[u8; 32], FileError> {
        let now = file.file.metadata().map_err(|error| self.read_error(file, error))?;
        let is_same = now.len() == file.metadata.len()
            && now.modified().ok() == file.metadata.modified().ok();
        if !is_same {
            return Err(self.read_error(file, io::ErrorKind::UnexpectedEof.into()));
        }
        let hash = file.layout.root(parts);
        if let Some(place) = self.lock().hashes.get_mut(file.id as usize) {
            *place = Some(hash);
        }
        Ok(hash)
    }
}

impl Outgoing {
    fn lock(&self) -> MutexGuard<'_, PartsDone> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
