//! The sending end of a transfer of many files.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::compress::{self, Compression};
use super::message::{Answer, Message, Offer, Verdict, begin_data};
use super::tree::{Cut, PartHash, Pulse};
use super::{Entry, FileReport, FileSet, Outcome, Progress};
use crate::connection::Connection;
use crate::error::RecvError;
use crate::file::storage::local;
use crate::file::{CHUNK, FileError};

/// Files up to this size are sent without asking first whether they are there: the answer would
/// take longer.
const EAGER: u64 = CHUNK as u64;

/// Sends a set of files and directories. Shared by all connections of a transfer.
#[derive(Debug)]
pub struct Sender {
    set: FileSet,
    compression: Option<Compression>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Entries that were not offered yet.
    waiting: VecDeque<u32>,
    /// Parts of files that were.
    parts: VecDeque<(Arc<Outgoing>, u32)>,
    reports: Vec<Option<FileReport>>,
    unsettled: usize,
    /// Bytes of each entry that were sent.
    sent: Vec<u64>,
    /// Hashes of those that wait for their verdict or have it.
    hashes: Vec<Option<[u8; 32]>>,
    idle: Vec<Waker>,
}

/// A file that is being sent in parts.
#[derive(Debug)]
struct Outgoing {
    id: u32,
    cut: Cut,
    file: File,
    metadata: Metadata,
    /// What the receiver has.
    there: Vec<PartHash>,
    progress: Mutex<PartsDone>,
}

#[derive(Debug)]
struct PartsDone {
    hashes: Vec<PartHash>,
    left: u32,
    sent: u32,
}

/// What a connection does next.
enum Job {
    Part(Arc<Outgoing>, u32),
    Offer(u32),
    Wait,
    Done,
}

impl Sender {
    /// Will send these.
    #[must_use]
    pub fn new(set: FileSet) -> Self {
        let count = set.entries().len();
        let state = State {
            waiting: (0..u32::try_from(count).unwrap_or(u32::MAX)).collect(),
            parts: VecDeque::new(),
            reports: vec![None; count],
            unsettled: count,
            sent: vec![0; count],
            hashes: vec![None; count],
            idle: Vec::new(),
        };
        Self { set, compression: None, state: Mutex::new(state) }
    }

    /// Contents are compressed on their way.
    #[must_use]
    pub fn compression(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self
    }

    /// What is sent.
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

    /// What became of each entry of the set, in its order; `None` for what is not settled yet.
    #[must_use]
    pub fn reports(&self) -> Vec<Option<FileReport>> {
        self.lock().reports.clone()
    }

    /// Sends over one of the transfer's connections until everything is settled.
    ///
    /// What is wrong with a single file is reported, and the others go on.
    ///
    /// # Errors
    /// The receiver broke the rules, or the connection broke: then whatever is not settled has
    /// failed, on the other connections, too. A new transfer goes on where this one stopped.
    pub async fn run(
        &self,
        connection: &Connection,
        observe: impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let result = self.work(connection, &observe).await;
        if let Err(error) = &result {
            self.give_up(&format!("the transfer broke off: {error}"), &observe);
        }
        result
    }

    async fn work(
        &self,
        connection: &Connection,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        loop {
            while let Some(bytes) = connection.try_recv() {
                self.take(bytes, observe)?;
            }
            match self.next_job() {
                Job::Part(file, part) => {
                    if self.is_settled(file.id) {
                        continue;
                    }
                    let done = self.send_part(connection, &file, part, observe).await;
                    self.settle_local(connection, file.id, done, observe).await?;
                }
                Job::Offer(id) => {
                    let done = self.offer(connection, id, observe).await;
                    self.settle_local(connection, id, done, observe).await?;
                }
                Job::Wait => {
                    if let Some(bytes) = self.wait(connection).await? {
                        self.take(bytes, observe)?;
                    }
                }
                Job::Done => break,
            }
        }
        // Everything is settled: how the connection ends changes nothing. The receiver's end is
        // awaited, so that it does not wait for ours.
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

    /// A message of the receiver, or nothing when there may be something else to do.
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
            Some(Ok(None)) => Err(FileError::Protocol("the receiver left before the end")),
            Some(Ok(Some(bytes))) => Ok(Some(bytes)),
            Some(Err(error)) => Err(error.into()),
            None => Ok(None),
        }
    }

    fn wake(state: &mut State) -> Vec<Waker> {
        std::mem::take(&mut state.idle)
    }

    /// Takes a verdict. An answer is returned.
    fn take(
        &self,
        bytes: bytes::Bytes,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<(u32, Answer)>, FileError> {
        let (id, message) = Message::decode(bytes)?;
        let outcome = match message {
            Message::Answer(answer) => return Ok(Some((id, answer))),
            Message::Verdict(verdict) => verdict,
            Message::Checking(bytes) => {
                if !self.is_settled(id) {
                    observe(Progress::Checking { id, bytes });
                }
                return Ok(None);
            }
            _ => return Err(FileError::Protocol("a request of the side that answers")),
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
        self.settle(id, outcome, observe);
        Ok(None)
    }

    fn settle(&self, id: u32, outcome: Outcome, observe: &impl Fn(Progress<'_>)) {
        let Some(entry) = self.entry(id) else { return };
        let mut state = self.lock();
        let sent = state.sent.get(id as usize).copied().unwrap_or(0);
        let report = FileReport { name: entry.name.clone(), size: entry.size, sent, outcome };
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

    /// Settles everything that is not.
    fn give_up(&self, why: &str, observe: &impl Fn(Progress<'_>)) {
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

    /// What went wrong on this side with one file is told; the connection's end is passed on.
    async fn settle_local(
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
                    let give_up = Message::GiveUp(error.to_string());
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
            is_eager: false,
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
                // The receiver has not heard of it: nothing must be taken back.
                let error = local("open", &entry.source, error);
                self.settle(id, Outcome::Failed(error.to_string()), observe);
                return Ok(());
            }
        };
        offer.size = metadata.len();
        offer.is_eager = offer.size <= EAGER;
        let cut = Cut::new(offer.size);
        let is_eager = offer.is_eager;
        connection.send(Message::Offer(offer).encode(id)).await?;
        let mut file = Outgoing {
            id,
            cut,
            file,
            metadata,
            there: Vec::new(),
            progress: Mutex::new(PartsDone {
                hashes: vec![[0; 32]; cut.parts as usize],
                left: cut.parts,
                sent: 0,
            }),
        };
        if is_eager {
            return match cut.parts {
                0 => self.finish(connection, &file).await,
                _ => self.send_part(connection, &file, 0, observe).await,
            };
        }
        let mut answer = self.answer(connection, id, observe).await?;
        if let Some(Answer::Existing(hashes)) = &answer {
            if self.is_there(connection, &file, hashes, observe)? {
                return self.finish(connection, &file).await;
            }
            connection.send(Message::Restart.encode(id)).await?;
            answer = self.answer(connection, id, observe).await?;
        }
        match answer {
            // It was refused.
            None => return Ok(()),
            Some(Answer::Nothing) => {}
            Some(Answer::Partial(hashes)) if hashes.len() == cut.parts as usize => {
                file.there = hashes;
            }
            Some(_) => return Err(FileError::Protocol("an answer that does not fit the file")),
        }
        let file = Arc::new(file);
        let mut state = self.lock();
        state.parts.extend((0..cut.parts).map(|part| (file.clone(), part)));
        let wakers = Self::wake(&mut state);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The answer to an offer; `None` if the file was refused.
    async fn answer(
        &self,
        connection: &Connection,
        id: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<Answer>, FileError> {
        loop {
            let received = connection.recv().await;
            let Some(bytes) = Self::received(Some(received))? else { continue };
            match self.take(bytes, observe)? {
                Some((answered, answer)) if answered == id => return Ok(Some(answer)),
                Some(_) => return Err(FileError::Protocol("an answer that nobody asked for")),
                None if self.is_settled(id) => return Ok(None),
                None => {}
            }
        }
    }

    /// Whether the receiver's file is the same; then nothing is left to be sent.
    fn is_there(
        &self,
        connection: &Connection,
        file: &Outgoing,
        hashes: &[PartHash],
        observe: &impl Fn(Progress<'_>),
    ) -> Result<bool, FileError> {
        if hashes.len() != file.cut.parts as usize {
            return Err(FileError::Protocol("an answer that does not fit the file"));
        }
        for (part, hash) in (0..file.cut.parts).zip(hashes) {
            if self.hash_part(connection, file, part, observe)? != *hash {
                return Ok(false);
            }
        }
        let mut progress = file.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.hashes = hashes.to_vec();
        progress.left = 0;
        observe(Progress::Bytes { id: file.id, bytes: file.cut.size });
        Ok(true)
    }

    /// The hash of a part; both ends are told that it goes on.
    fn hash_part(
        &self,
        connection: &Connection,
        file: &Outgoing,
        part: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<PartHash, FileError> {
        let id = file.id;
        let tell = |bytes| {
            // Where there is no room for it, something else moves.
            let _ = connection.try_send(Message::Checking(bytes).encode(id));
            observe(Progress::Checking { id, bytes });
        };
        let hash = file.cut.hash_part(&file.file, part, &mut Pulse::new(&tell));
        hash.map_err(|error| self.read_error(file, error))
    }

    fn read_error(&self, file: &Outgoing, error: io::Error) -> FileError {
        let path = self.entry(file.id).map(|entry| entry.source.clone()).unwrap_or_default();
        match error.kind() {
            io::ErrorKind::UnexpectedEof => FileError::Changed(path),
            _ => local("read", &path, error),
        }
    }

    /// Sends a part unless the receiver has it; the last one finishes the file.
    async fn send_part(
        &self,
        connection: &Connection,
        file: &Outgoing,
        part: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let id = file.id;
        let there = file.there.get(part as usize);
        let is_there = match there {
            Some(there) => self.hash_part(connection, file, part, observe)? == *there,
            None => false,
        };
        let hash = match (is_there, there) {
            (true, Some(there)) => {
                observe(Progress::Bytes { id, bytes: file.cut.len(part) });
                *there
            }
            _ => self.send_content(connection, file, part, observe).await?,
        };
        if self.is_settled(id) {
            return Ok(());
        }
        if !is_there {
            connection.send(Message::Part { part, hash }.encode(id)).await?;
        }
        let is_last = {
            let mut progress = file.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = progress.hashes.get_mut(part as usize) {
                *place = hash;
            }
            progress.left -= 1;
            progress.sent += u32::from(!is_there);
            progress.left == 0
        };
        match is_last {
            true => self.finish(connection, file).await,
            false => Ok(()),
        }
    }

    /// Sends the bytes of a part; their hash.
    async fn send_content(
        &self,
        connection: &Connection,
        file: &Outgoing,
        part: u32,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<PartHash, FileError> {
        let id = file.id;
        let mut hasher = file.cut.hasher(part);
        let (offset, length) = (file.cut.offset(part), file.cut.len(part));
        let mut at = 0;
        let mut buffer = vec![0; CHUNK];
        while at < length {
            let want = usize::try_from(length - at).unwrap_or(CHUNK).min(CHUNK);
            let piece = &mut buffer[..want];
            file.file
                .read_exact_at(piece, offset + at)
                .map_err(|error| self.read_error(file, error))?;
            hasher.update(piece);
            let (encoding, packed) = compress::encode(self.compression, piece);
            let content = packed.as_deref().unwrap_or(piece);
            let mut message = begin_data(id, part, encoding, content.len());
            message.extend_from_slice(content);
            connection.send(message.freeze()).await?;
            at += want as u64;
            if let Some(sent) = self.lock().sent.get_mut(id as usize) {
                *sent += want as u64;
            }
            observe(Progress::Bytes { id, bytes: want as u64 });
            // The receiver need not take all of it before it says no.
            while let Some(bytes) = connection.try_recv() {
                self.take(bytes, observe)?;
            }
            if self.is_settled(id) {
                break;
            }
        }
        Ok(hasher.finish())
    }

    async fn finish(&self, connection: &Connection, file: &Outgoing) -> Result<(), FileError> {
        let now = file.file.metadata().map_err(|error| self.read_error(file, error))?;
        let is_same = now.len() == file.metadata.len()
            && now.modified().ok() == file.metadata.modified().ok();
        if !is_same {
            return Err(self.read_error(file, io::ErrorKind::UnexpectedEof.into()));
        }
        let (sent, hash) = {
            let progress = file.progress.lock().unwrap_or_else(PoisonError::into_inner);
            (progress.sent, file.cut.root(&progress.hashes))
        };
        if let Some(place) = self.lock().hashes.get_mut(file.id as usize) {
            *place = Some(hash);
        }
        connection.send(Message::Finish { sent, hash }.encode(file.id)).await?;
        Ok(())
    }
}
