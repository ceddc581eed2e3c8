//! The receiving end of a transfer of many files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::compress;
use super::incoming::{self, Incoming, Reserved};
use super::message::{Answer, Message, Offer, Verdict};
use super::tree::{Cut, PartHash, PartHasher, Pulse};
use super::{Existing, FileReport, Outcome, Progress, side};
use crate::connection::Connection;
use crate::file::storage::local;
use crate::file::{CHUNK, FileError};

/// Files at a time that are open or whose hashes are kept.
const MAX_OPEN: usize = 512;

/// Receives files and directories into a directory. Shared by all connections of a transfer.
#[derive(Debug)]
pub struct Receiver {
    directory: PathBuf,
    existing: Existing,
    max_size: u64,
    max_entries: usize,
    keeps_reports: bool,
    reserved: Reserved,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<u32, Slot>,
    open: usize,
    reports: Vec<FileReport>,
}

impl State {
    /// What is known of a file from now on; those of which much is known are counted.
    fn keep(&mut self, id: u32, slot: Slot) {
        self.open += usize::from(slot.is_costly());
        if self.slots.insert(id, slot).is_some_and(|before| before.is_costly()) {
            self.open = self.open.saturating_sub(1);
        }
    }
}

impl Slot {
    /// It holds an open file or the hashes of one.
    fn is_costly(&self) -> bool {
        !matches!(self, Self::Settled)
    }
}

/// What is known of a file that was offered.
#[derive(Clone, Debug)]
enum Slot {
    Open(Arc<Incoming>, Arc<Mutex<u64>>),
    /// A file of this name and size is there; its parts have these hashes.
    Existing(Arc<(Offer, PathBuf, Vec<PartHash>)>),
    /// It is settled; what still comes for it is ignored.
    Settled,
}

/// The part that a connection is in.
struct Current {
    id: u32,
    part: u32,
    at: u64,
    hasher: PartHasher,
    incoming: Arc<Incoming>,
    bytes: Arc<Mutex<u64>>,
}

impl Receiver {
    /// Files go into `directory`, other contents are not replaced, and the disk is the limit.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            existing: Existing::Refuse,
            max_size: u64::MAX,
            max_entries: 1_000_000,
            keeps_reports: true,
            reserved: Reserved::default(),
            state: Mutex::default(),
        }
    }

    /// What happens to a file whose name is taken by another content.
    #[must_use]
    pub fn existing(mut self, existing: Existing) -> Self {
        self.existing = existing;
        self
    }

    /// Bytes of a file at most.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = bytes;
        self
    }

    /// Files and directories at most, a million by default.
    #[must_use]
    pub fn max_entries(mut self, entries: usize) -> Self {
        self.max_entries = entries;
        self
    }

    /// Keeps nothing of what is settled: [`run`](Self::run) has told of it by
    /// [`Progress::End`], and [`reports`](Self::reports) has only the rest.
    #[must_use]
    pub fn without_reports(mut self) -> Self {
        self.keeps_reports = false;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives over one of the transfer's connections until the sender has finished it.
    ///
    /// What is wrong with a single file is told to the sender and reported, and the others go on.
    ///
    /// # Errors
    /// The sender broke the rules, or the connection broke. The connection is of no use then;
    /// what was received of large files is kept for another time.
    pub async fn run(
        &self,
        connection: &Connection,
        observe: impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let mut current: Option<Current> = None;
        while let Some(bytes) = connection.recv().await? {
            let (id, message) = Message::decode(bytes)?;
            // Both ends are told that a long look at a file goes on. Where there is no room for that,
            // something else moves.
            let tell = |bytes| {
                let _ = connection.try_send(Message::Checking(bytes).encode(id));
                observe(Progress::Checking { id, bytes });
            };
            let answer = self.take(id, message, &mut current, &observe, &mut Pulse::new(&tell))?;
            if let Some(answer) = answer {
                connection.send(answer.encode(id)).await?;
            }
        }
        // The sender has every verdict and may leave without a word more.
        let _ = connection.finish().await;
        Ok(())
    }

    /// What became of everything that was offered, as far as it is kept. Call it when all connections
    /// are done.
    #[must_use]
    pub fn reports(&self) -> Vec<FileReport> {
        let state = self.lock();
        let mut reports = state.reports.clone();
        for slot in state.slots.values() {
            let (name, size, sent) = match slot {
                Slot::Open(incoming, bytes) => {
                    let sent = *bytes.lock().unwrap_or_else(PoisonError::into_inner);
                    (incoming.name.clone(), incoming.cut.size, sent)
                }
                Slot::Existing(existing) => (existing.0.name.clone(), existing.0.size, 0),
                Slot::Settled => continue,
            };
            let outcome = Outcome::Failed("the transfer broke off".into());
            reports.push(FileReport { name, size, sent, outcome });
        }
        reports
    }

    /// Takes a message; what is to be answered.
    fn take(
        &self,
        id: u32,
        message: Message,
        current: &mut Option<Current>,
        observe: &impl Fn(Progress<'_>),
        pulse: &mut Pulse<'_>,
    ) -> Result<Option<Message>, FileError> {
        match message {
            Message::Offer(offer) => self.on_offer(id, offer, observe, pulse),
            Message::Data { part, encoding, bytes } => {
                let result = self.on_data(id, part, encoding, &bytes, current, observe);
                self.settle_failure(id, result.map(|()| None), observe)
            }
            Message::Part { part, hash } => {
                let result = self.on_part(id, part, hash, current);
                let result =
                    result.and_then(|is_complete| self.complete(id, is_complete, observe, pulse));
                self.settle_failure(id, result, observe)
            }
            Message::Finish { sent, hash } => match self.slot(id)? {
                Slot::Open(incoming, _) => {
                    let result = incoming
                        .on_finish(sent, hash)
                        .and_then(|is_complete| self.complete(id, is_complete, observe, pulse));
                    self.settle_failure(id, result, observe)
                }
                Slot::Existing(existing) => {
                    let result = self.confirm(&existing, hash, pulse);
                    let result =
                        result.map(|()| Some(self.unchanged(id, &existing, hash, observe)));
                    self.settle_failure(id, result, observe)
                }
                Slot::Settled => Ok(None),
            },
            Message::GiveUp(why) => {
                // The sender knows; only this side's report is missing.
                self.settle_failure(id, Err(FileError::Peer(why)), observe).map(|_| None)
            }
            Message::Restart => match self.slot(id)? {
                Slot::Existing(existing) => {
                    let (offer, target, _) = &*existing;
                    let result = match self.existing {
                        Existing::Refuse => Err(FileError::Exists(target.clone())),
                        _ => self.open(id, offer.clone(), target.clone(), pulse).map(Some),
                    };
                    self.settle_failure(id, result, observe)
                }
                Slot::Settled => Ok(None),
                Slot::Open(..) => Err(FileError::Protocol("a file that has begun was begun again")),
            },
            Message::Checking(bytes) => {
                if matches!(self.slot(id)?, Slot::Open(..) | Slot::Existing(_)) {
                    observe(Progress::Checking { id, bytes });
                }
                Ok(None)
            }
            Message::Answer(_) | Message::Verdict(_) => {
                Err(FileError::Protocol("an answer of the side that asks"))
            }
        }
    }

    fn slot(&self, id: u32) -> Result<Slot, FileError> {
        let unknown = FileError::Protocol("a file that was not offered");
        self.lock().slots.get(&id).cloned().ok_or(unknown)
    }

    fn on_offer(
        &self,
        id: u32,
        offer: Offer,
        observe: &impl Fn(Progress<'_>),
        pulse: &mut Pulse<'_>,
    ) -> Result<Option<Message>, FileError> {
        {
            let mut state = self.lock();
            if state.slots.len() >= self.max_entries {
                return Err(FileError::Protocol("more files than announced"));
            }
            if state.open >= MAX_OPEN {
                return Err(FileError::Protocol("too many files at a time"));
            }
            if state.slots.insert(id, Slot::Settled).is_some() {
                return Err(FileError::Protocol("a file was offered twice"));
            }
        }
        observe(Progress::Begin { id, name: &offer.name, size: offer.size });
        let (name, size) = (offer.name.clone(), offer.size);
        match self.prepare(id, offer, pulse) {
            Ok(Prepared::Answer(answer)) => Ok(answer),
            Ok(Prepared::Directory) => {
                let outcome = Outcome::Stored { hash: None };
                self.report(id, FileReport { name, size, sent: 0, outcome }, observe);
                Ok(Some(Message::Verdict(Verdict::Stored)))
            }
            Err(error @ FileError::Protocol(_)) => Err(error),
            Err(error) => {
                let outcome = Outcome::Failed(error.to_string());
                self.report(id, FileReport { name, size, sent: 0, outcome }, observe);
                Ok(Some(Message::Verdict(Verdict::Failed(error.to_string()))))
            }
        }
    }

    fn prepare(&self, id: u32, offer: Offer, pulse: &mut Pulse<'_>) -> Result<Prepared, FileError> {
        let target = incoming::place(&self.directory, &offer.name)?;
        if offer.is_directory {
            incoming::make_directory(&target)?;
            return Ok(Prepared::Directory);
        }
        if offer.size > self.max_size {
            return Err(FileError::TooLarge { size: offer.size, limit: self.max_size });
        }
        let is_eager = offer.is_eager;
        if !is_eager {
            if let Some(file) = incoming::existing(&target, offer.size)? {
                let cut = Cut::new(offer.size);
                let hashes =
                    cut.hash_parts(&file, pulse).map_err(|error| local("read", &target, error))?;
                let slot = Slot::Existing(Arc::new((offer, target, hashes.clone())));
                self.lock().keep(id, slot);
                return Ok(Prepared::Answer(Some(Message::Answer(Answer::Existing(hashes)))));
            }
            if target.symlink_metadata().is_ok() && self.existing == Existing::Refuse {
                return Err(FileError::Exists(target));
            }
        }
        let answer = self.open(id, offer, target, pulse)?;
        Ok(Prepared::Answer((!is_eager).then_some(answer)))
    }

    fn open(
        &self,
        id: u32,
        offer: Offer,
        target: PathBuf,
        pulse: &mut Pulse<'_>,
    ) -> Result<Message, FileError> {
        let cut = Cut::new(offer.size);
        let (incoming, hashes) =
            Incoming::open(target, offer.name, cut, offer.sha256, &self.reserved, pulse)?;
        self.lock().keep(id, Slot::Open(Arc::new(incoming), Arc::default()));
        Ok(Message::Answer(match hashes.is_empty() {
            true => Answer::Nothing,
            false => Answer::Partial(hashes),
        }))
    }

    fn on_data(
        &self,
        id: u32,
        part: u32,
        encoding: u8,
        bytes: &[u8],
        current: &mut Option<Current>,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let is_new =
            current.as_ref().is_none_or(|current| (current.id, current.part) != (id, part));
        if is_new {
            *current = match self.slot(id)? {
                Slot::Open(incoming, bytes) if incoming.has_part(part) => {
                    let hasher = incoming.cut.hasher(part);
                    Some(Current { id, part, at: 0, hasher, incoming, bytes })
                }
                Slot::Settled => return Ok(()),
                _ => return Err(FileError::Protocol("a part that was not asked for")),
            };
        }
        let Some(current) = current else { return Ok(()) };
        let plain = compress::decode(encoding, bytes)?;
        let plain = plain.as_deref().unwrap_or(bytes);
        let count = plain.len() as u64;
        if plain.len() > CHUNK || current.at + count > current.incoming.cut.len(part) {
            return Err(FileError::Protocol("more data than announced"));
        }
        current.hasher.update(plain);
        current.incoming.write(part, current.at, plain)?;
        current.at += count;
        *current.bytes.lock().unwrap_or_else(PoisonError::into_inner) += count;
        observe(Progress::Bytes { id, bytes: count });
        Ok(())
    }

    fn on_part(
        &self,
        id: u32,
        part: u32,
        hash: PartHash,
        current: &mut Option<Current>,
    ) -> Result<bool, FileError> {
        if matches!(self.slot(id)?, Slot::Settled) {
            *current = None;
            return Ok(false);
        }
        match current.take() {
            Some(current) if (current.id, current.part) == (id, part) => {
                if current.at != current.incoming.cut.len(part) {
                    return Err(FileError::Protocol("less data than announced"));
                }
                if current.hasher.finish() != hash {
                    return Err(FileError::Corrupt(current.incoming.name.clone()));
                }
                current.incoming.on_part(part, hash)
            }
            _ => Err(FileError::Protocol("the end of a part that was not begun")),
        }
    }

    fn complete(
        &self,
        id: u32,
        is_complete: bool,
        observe: &impl Fn(Progress<'_>),
        pulse: &mut Pulse<'_>,
    ) -> Result<Option<Message>, FileError> {
        if !is_complete {
            return Ok(None);
        }
        let Slot::Open(incoming, bytes) = self.slot(id)? else { return Ok(None) };
        let (verdict, hash) = incoming.store(self.existing, pulse)?;
        let outcome = match &verdict {
            Verdict::Unchanged => Outcome::Unchanged { hash },
            Verdict::Renamed(to) => Outcome::Renamed { hash, to: to.clone() },
            Verdict::Stored | Verdict::Failed(_) => Outcome::Stored { hash: Some(hash) },
        };
        let sent = *bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, size) = (incoming.name.clone(), incoming.cut.size);
        self.report(id, FileReport { name, size, sent, outcome }, observe);
        Ok(Some(Message::Verdict(verdict)))
    }

    /// Whether what exists is what the sender has.
    fn confirm(
        &self,
        (offer, target, hashes): &(Offer, PathBuf, Vec<PartHash>),
        hash: [u8; 32],
        pulse: &mut Pulse<'_>,
    ) -> Result<(), FileError> {
        if Cut::new(offer.size).root(hashes) != hash {
            return Err(FileError::Corrupt(offer.name.clone()));
        }
        let Some(wanted) = &offer.sha256 else { return Ok(()) };
        let Some(file) = incoming::existing(target, offer.size)? else {
            return Err(FileError::Changed(target.clone()));
        };
        let found = side::hash(&file, pulse).map_err(|error| local("read", target, error))?;
        if found != *wanted {
            return Err(FileError::Checksum(offer.name.clone()));
        }
        incoming::confirm_side(target, Some(wanted), self.existing)
    }

    fn unchanged(
        &self,
        id: u32,
        (offer, _, _): &(Offer, PathBuf, Vec<PartHash>),
        hash: [u8; 32],
        observe: &impl Fn(Progress<'_>),
    ) -> Message {
        observe(Progress::Bytes { id, bytes: offer.size });
        let outcome = Outcome::Unchanged { hash };
        let (name, size) = (offer.name.clone(), offer.size);
        self.report(id, FileReport { name, size, sent: 0, outcome }, observe);
        Message::Verdict(Verdict::Unchanged)
    }

    /// A file's own failure settles the file; a broken rule ends the connection.
    fn settle_failure(
        &self,
        id: u32,
        result: Result<Option<Message>, FileError>,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<Message>, FileError> {
        let error = match result {
            Err(error @ FileError::Protocol(_)) => return Err(error),
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let (name, size, sent) = match self.slot(id)? {
            Slot::Open(incoming, bytes) => {
                let sent = *bytes.lock().unwrap_or_else(PoisonError::into_inner);
                (incoming.name.clone(), incoming.cut.size, sent)
            }
            Slot::Existing(existing) => (existing.0.name.clone(), existing.0.size, 0),
            Slot::Settled => return Ok(None),
        };
        let outcome = Outcome::Failed(error.to_string());
        self.report(id, FileReport { name, size, sent, outcome }, observe);
        Ok(Some(Message::Verdict(Verdict::Failed(error.to_string()))))
    }

    fn report(&self, id: u32, report: FileReport, observe: &impl Fn(Progress<'_>)) {
        observe(Progress::End { id, report: &report });
        let mut state = self.lock();
        state.keep(id, Slot::Settled);
        if self.keeps_reports {
            state.reports.push(report);
        }
    }
}

/// What an offer leads to.
enum Prepared {
    Directory,
    Answer(Option<Message>),
}
