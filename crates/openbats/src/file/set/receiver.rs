//! The receiver of a transfer of many files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::budget::StorageBudget;
use super::compress;
use super::directories::Directories;
use super::incoming::{self, IncomingFile};
use super::message::{Message, Offer, OfferReply, Verdict};
use super::reads::{self, Comparison, ReadBudget};
use super::tree::{PartHash, PartHasher, PartLayout, PartSet, ReadProgress};
use super::{Existing, FileReport, Outcome, Progress, sha256sum};
use crate::connection::Connection;
use crate::file::space::{Reserve, StorageLimits};
use crate::file::storage::local;
use crate::file::{CHUNK, FileError};

/// Limit of files that are open or being compared at a time.
const MAX_OPEN: usize = 512;
/// Default limit of files and directories.
const MAX_ENTRIES: usize = 1_000_000;

/// Receives files and directories into a directory. All connections of a transfer share it.
///
/// For senders that are not trusted set [`budget`](Self::budget), [`read_budget`](Self::read_budget)
/// and [`reserve`](Self::reserve), with budgets that all transfers of a sender share.
#[derive(Debug)]
pub struct Receiver {
    directories: Directories,
    existing: Existing,
    max_size: u64,
    max_entries: usize,
    keeps_reports: bool,
    storage: StorageLimits,
    reads: Option<ReadBudget>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u32, FileState>,
    open: usize,
    reports: Vec<FileReport>,
}

impl State {
    /// Sets the state of a file and counts the files that hold resources.
    fn set_state(&mut self, id: u32, file_state: FileState) {
        self.open += usize::from(file_state.holds_resources());
        if self.files.insert(id, file_state).is_some_and(|before| before.holds_resources()) {
            self.open = self.open.saturating_sub(1);
        }
    }
}

impl FileState {
    /// Whether it holds an open file, or memory for one.
    fn holds_resources(&self) -> bool {
        !matches!(self, Self::Settled)
    }
}

/// The state of an offered file.
#[derive(Clone, Debug)]
enum FileState {
    Open(Arc<IncomingFile>, Arc<Mutex<u64>>),
    /// The sender was asked for the hashes of its parts.
    Asked(Arc<Asked>),
    /// Its outcome is known; further messages for it are ignored.
    Settled,
}

/// An offered file whose content may exist: as a file of its name and size, or as the data of an
/// interrupted transfer.
#[derive(Debug)]
struct Asked {
    offer: Offer,
    target: PathBuf,
    parts: PartSet,
    /// The data of an interrupted transfer.
    partial: Option<Arc<IncomingFile>>,
    /// The hashes have arrived. Each offer causes one comparison.
    is_answered: AtomicBool,
    /// Bytes that the sender has read for the hashes, as it says.
    checked: AtomicU64,
}

impl Asked {
    /// # Errors
    /// The hashes have arrived already, maybe over another connection.
    fn ensure_unanswered(&self) -> Result<(), FileError> {
        match self.is_answered.load(Ordering::Acquire) {
            true => Err(FileError::Protocol("a file is being compared already")),
            false => Ok(()),
        }
    }

    /// Counts bytes that the sender has read for the hashes.
    ///
    /// # Errors
    /// They are more than the file has.
    fn on_checking(&self, bytes: u64) -> Result<(), FileError> {
        let size = self.offer.size;
        let sum = |checked: u64| checked.checked_add(bytes).filter(|sum| *sum <= size);
        match self.checked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum) {
            Ok(_) => Ok(()),
            Err(_) => Err(FileError::Protocol("more of a file was read than it has")),
        }
    }
}

/// The part that a connection is receiving.
struct CurrentPart {
    id: u32,
    part: u32,
    at: u64,
    hasher: PartHasher,
    incoming: Arc<IncomingFile>,
    bytes: Arc<Mutex<u64>>,
}

impl Receiver {
    /// Stores files in `directory`. By default existing files with other content are not replaced,
    /// nothing is written to subdirectories that exist, and the size is not limited.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directories: Directories::new(directory.into(), MAX_ENTRIES),
            existing: Existing::Refuse,
            max_size: u64::MAX,
            max_entries: MAX_ENTRIES,
            keeps_reports: true,
            storage: StorageLimits::default(),
            reads: None,
            state: Mutex::default(),
        }
    }

    /// What to do with a file whose name exists with other content.
    #[must_use]
    pub fn existing(mut self, existing: Existing) -> Self {
        self.existing = existing;
        self
    }

    /// Largest size of a file in bytes; by default there is no limit.
    #[must_use]
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = bytes;
        self
    }

    /// Largest number of files and directories; by default a million.
    #[must_use]
    pub fn max_entries(mut self, entries: usize) -> Self {
        (self.max_entries, self.directories.limit) = (entries, entries);
        self
    }

    /// Also writes to subdirectories that exist before the transfer, for instance to resume the
    /// interrupted transfer of a directory. A sender can then place files into any of them that belongs to
    /// the user of this process or to root.
    #[must_use]
    pub fn merge(mut self, enable: bool) -> Self {
        self.directories.merges = enable;
        self
    }

    /// Stores no more than this budget allows.
    #[must_use]
    pub fn budget(mut self, budget: StorageBudget) -> Self {
        self.storage.budget = Some(budget);
        self
    }

    /// Reads existing files and the data of interrupted transfers as far as this budget allows; by
    /// default without a limit.
    #[must_use]
    pub fn read_budget(mut self, reads: ReadBudget) -> Self {
        self.reads = Some(reads);
        self
    }

    /// Free space to leave on the file system; by default none. Other files that any receivers of this
    /// process have open count with what they still need, and the free space is looked at again while a
    /// file is written: it fails if other programs have taken what it needs.
    #[must_use]
    pub fn reserve(mut self, reserve: Reserve) -> Self {
        self.storage.reserve = reserve;
        self
    }

    /// Does not keep the reports of settled files: [`run`](Self::run) passes them to its observer
    /// as [`Progress::End`], and [`reports`](Self::reports) returns only the others.
    #[must_use]
    pub fn without_reports(mut self) -> Self {
        self.keeps_reports = false;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives over one connection of the transfer until the sender has finished it.
    ///
    /// An error of a single file is reported here and to the sender, and the transfer of the others
    /// continues.
    ///
    /// # Errors
    /// The sender violated the protocol, or the connection failed. The connection must not be used
    /// any more; the received data of large files is kept for a later transfer.
    pub async fn run(
        &self,
        connection: &Connection,
        observe: impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let mut current: Option<CurrentPart> = None;
        while let Some(bytes) = connection.recv().await? {
            let (id, message) = Message::decode(bytes)?;
            // Report to both ends that a long check makes progress. If the send buffer is full,
            // other data shows it.
            let report = |bytes| {
                let _ = connection.try_send(Message::Checking(bytes).encode(id));
                observe(Progress::Checking { id, bytes });
            };
            let reply = self.handle_message(
                id,
                message,
                &mut current,
                &observe,
                &mut ReadProgress::new(&report),
            )?;
            if let Some(reply) = reply {
                connection.send(reply.encode(id)).await?;
            }
        }
        // The sender has every verdict and may close the connection without finishing it.
        let _ = connection.finish().await;
        Ok(())
    }

    /// Returns the results of all offered files, as far as they are kept. To be called when all
    /// connections are done.
    #[must_use]
    pub fn reports(&self) -> Vec<FileReport> {
        let state = self.lock();
        let mut reports = state.reports.clone();
        for file_state in state.files.values() {
            let (name, size, sent) = match file_state {
                FileState::Open(incoming, bytes) => {
                    let sent = *bytes.lock().unwrap_or_else(PoisonError::into_inner);
                    (incoming.name.clone(), incoming.layout.size, sent)
                }
                FileState::Asked(asked) => (asked.offer.name.clone(), asked.offer.size, 0),
                FileState::Settled => continue,
            };
            let outcome = Outcome::Failed("the transfer was interrupted".into());
            reports.push(FileReport { name, size, is_directory: false, sent, outcome });
        }
        reports
    }

    /// Processes a message; returns the reply.
    fn handle_message(
        &self,
        id: u32,
        message: Message,
        current: &mut Option<CurrentPart>,
        observe: &impl Fn(Progress<'_>),
        progress: &mut ReadProgress<'_>,
    ) -> Result<Option<Message>, FileError> {
        match message {
            Message::Offer(offer) => self.on_offer(id, offer, observe),
            Message::Data { part, encoding, bytes } => {
                let result = self.on_data(id, part, encoding, &bytes, current, observe);
                self.settle_failure(id, result.map(|()| None), observe)
            }
            Message::Part { part, hash } => {
                let result = self.on_part(id, part, hash, current);
                let result = result
                    .and_then(|is_complete| self.complete(id, is_complete, observe, progress));
                self.settle_failure(id, result, observe)
            }
            Message::Finish { sent, hash } => match self.file_state(id)? {
                FileState::Open(incoming, _) => {
                    let result = incoming
                        .on_finish(sent, hash)
                        .and_then(|is_complete| self.complete(id, is_complete, observe, progress));
                    self.settle_failure(id, result, observe)
                }
                FileState::Asked(_) => Err(FileError::Protocol("a file was finished too early")),
                FileState::Settled => Ok(None),
            },
            Message::GiveUp(why) => {
                if let FileState::Asked(asked) = self.file_state(id)? {
                    asked.ensure_unanswered()?;
                }
                // The sender has reported its own failure; only the local report is missing.
                self.settle_failure(id, Err(FileError::Peer(why)), observe).map(|_| None)
            }
            Message::Hashes(hashes) => match self.file_state(id)? {
                FileState::Asked(asked) => {
                    if asked.is_answered.swap(true, Ordering::AcqRel) {
                        return Err(FileError::Protocol("the hashes of a file were sent twice"));
                    }
                    let result = self.on_hashes(id, &asked, &hashes, observe, progress);
                    self.settle_failure(id, result.map(Some), observe)
                }
                FileState::Settled => Ok(None),
                FileState::Open(..) => Err(FileError::Protocol("hashes that were not requested")),
            },
            Message::Checking(bytes) => {
                // The sender reads a file for the hashes only, once.
                if let FileState::Asked(asked) = self.file_state(id)? {
                    asked.on_checking(bytes)?;
                    observe(Progress::Checking { id, bytes });
                }
                Ok(None)
            }
            Message::OfferReply(_) | Message::Verdict(_) => {
                Err(FileError::Protocol("the sender sent a message of the receiver"))
            }
        }
    }

    fn file_state(&self, id: u32) -> Result<FileState, FileError> {
        let unknown = FileError::Protocol("a file that was not offered");
        self.lock().files.get(&id).cloned().ok_or(unknown)
    }

    fn on_offer(
        &self,
        id: u32,
        offer: Offer,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<Message>, FileError> {
        {
            let mut state = self.lock();
            if state.files.len() >= self.max_entries {
                return Err(FileError::Protocol("more files than announced"));
            }
            if state.open >= MAX_OPEN {
                return Err(FileError::Protocol("too many files at a time"));
            }
            if state.files.contains_key(&id) {
                return Err(FileError::Protocol("a file was offered twice"));
            }
            state.files.insert(id, FileState::Settled);
        }
        observe(Progress::Begin { id, name: &offer.name, size: offer.size });
        let (name, size, is_directory) = (offer.name.clone(), offer.size, offer.is_directory);
        match self.prepare(id, offer) {
            Ok(OfferHandling::OfferReply(reply)) => Ok(reply),
            Ok(OfferHandling::Directory) => {
                let outcome = Outcome::Stored { hash: None };
                self.report(id, FileReport { name, size, is_directory, sent: 0, outcome }, observe);
                Ok(Some(Message::Verdict(Verdict::Stored)))
            }
            Err(error @ FileError::Protocol(_)) => Err(error),
            Err(error) => {
                let outcome = Outcome::Failed(error.for_peer());
                self.report(id, FileReport { name, size, is_directory, sent: 0, outcome }, observe);
                Ok(Some(Message::Verdict(Verdict::Failed(error.for_peer()))))
            }
        }
    }

    fn prepare(&self, id: u32, offer: Offer) -> Result<OfferHandling, FileError> {
        let target = self.directories.place(&offer.name, &self.storage)?;
        if offer.is_directory {
            self.directories.make(&target, &self.storage)?;
            return Ok(OfferHandling::Directory);
        }
        if offer.size > self.max_size {
            return Err(FileError::TooLarge { size: offer.size, limit: self.max_size });
        }
        let is_immediate = offer.is_immediate;
        let ask = |offer, target, parts: PartSet, partial| {
            let reply = Message::OfferReply(OfferReply::Hashes(parts.clone()));
            let (is_answered, checked) = (AtomicBool::new(false), AtomicU64::new(0));
            let asked = Asked { offer, target, parts, partial, is_answered, checked };
            self.lock().set_state(id, FileState::Asked(Arc::new(asked)));
            Ok(OfferHandling::OfferReply(Some(reply)))
        };
        if !is_immediate {
            if reads::existing(&target, offer.size)?.is_some() {
                let parts = PartSet::all(PartLayout::new(offer.size).parts);
                return ask(offer, target, parts, None);
            }
            if target.symlink_metadata().is_ok() && self.existing == Existing::Refuse {
                return Err(FileError::Exists(target));
            }
        }
        let incoming = self.open(&offer, &target)?;
        if !is_immediate && incoming.is_left_over {
            return ask(offer, target, incoming.parts_with_data(), Some(incoming));
        }
        self.lock().set_state(id, FileState::Open(incoming, Arc::default()));
        let reply = (!is_immediate).then_some(Message::OfferReply(OfferReply::All));
        Ok(OfferHandling::OfferReply(reply))
    }

    fn open(&self, offer: &Offer, target: &Path) -> Result<Arc<IncomingFile>, FileError> {
        let (target, name) = (target.to_owned(), offer.name.clone());
        let layout = PartLayout::new(offer.size);
        IncomingFile::open(target, name, layout, offer.sha256, &self.storage).map(Arc::new)
    }

    /// Compares the existing content with the hashes of the offered file's parts.
    fn on_hashes(
        &self,
        id: u32,
        asked: &Asked,
        hashes: &[PartHash],
        observe: &impl Fn(Progress<'_>),
        progress: &mut ReadProgress<'_>,
    ) -> Result<Message, FileError> {
        let Asked { offer, target, parts, partial, .. } = asked;
        let layout = PartLayout::new(offer.size);
        if hashes.len() != parts.iter(layout.parts).count() {
            return Err(FileError::Protocol("the hashes do not match the file"));
        }
        let reads = self.reads.as_ref();
        let incoming = match partial {
            Some(partial) => partial.clone(),
            None => match reads::compare(target, layout, hashes, reads, progress)? {
                Comparison::Same => {
                    self.confirm(offer, target, progress)?;
                    return Ok(self.unchanged(id, offer, layout.root(hashes), observe));
                }
                other if self.existing == Existing::Refuse => {
                    return Err(other.refusal(target.clone()));
                }
                Comparison::Differs | Comparison::NotCompared => self.open(offer, target)?,
            },
        };
        let reply = match incoming.is_left_over {
            true => OfferReply::AllBut(incoming.compare_parts(parts, hashes, reads, progress)?),
            false => OfferReply::All,
        };
        self.lock().set_state(id, FileState::Open(incoming, Arc::default()));
        Ok(Message::OfferReply(reply))
    }

    fn on_data(
        &self,
        id: u32,
        part: u32,
        encoding: u8,
        bytes: &[u8],
        current: &mut Option<CurrentPart>,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<(), FileError> {
        let file_state = self.file_state(id)?;
        if matches!(file_state, FileState::Settled) {
            // It has failed, maybe over another connection: its space is free when no one has it open.
            current.take_if(|current| current.id == id);
            return Ok(());
        }
        let is_new =
            current.as_ref().is_none_or(|current| (current.id, current.part) != (id, part));
        if is_new {
            *current = match file_state {
                FileState::Open(incoming, bytes) => {
                    incoming.begin_part(part)?;
                    let hasher = incoming.layout.hasher(part);
                    Some(CurrentPart { id, part, at: 0, hasher, incoming, bytes })
                }
                FileState::Settled => return Ok(()),
                FileState::Asked(_) => {
                    return Err(FileError::Protocol("a part that was not requested"));
                }
            };
        }
        let Some(current) = current else { return Ok(()) };
        let decoded = compress::decode(encoding, bytes)?;
        let decoded = decoded.as_deref().unwrap_or(bytes);
        let count = decoded.len() as u64;
        if count == 0 {
            // It would look like progress, without end.
            return Err(FileError::Protocol("data without content"));
        }
        if decoded.len() > CHUNK || current.at + count > current.incoming.layout.len(part) {
            return Err(FileError::Protocol("more data than announced"));
        }
        current.hasher.update(decoded);
        current.incoming.write(part, current.at, decoded)?;
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
        current: &mut Option<CurrentPart>,
    ) -> Result<bool, FileError> {
        if matches!(self.file_state(id)?, FileState::Settled) {
            *current = None;
            return Ok(false);
        }
        match current.take() {
            Some(current) if (current.id, current.part) == (id, part) => {
                if current.at != current.incoming.layout.len(part) {
                    return Err(FileError::Protocol("less data than announced"));
                }
                if current.hasher.finish() != hash {
                    return Err(FileError::Corrupt(current.incoming.name.clone()));
                }
                current.incoming.on_part(part, hash)
            }
            _ => Err(FileError::Protocol("the end of a part that has no data")),
        }
    }

    fn complete(
        &self,
        id: u32,
        is_complete: bool,
        observe: &impl Fn(Progress<'_>),
        progress: &mut ReadProgress<'_>,
    ) -> Result<Option<Message>, FileError> {
        if !is_complete {
            return Ok(None);
        }
        let FileState::Open(incoming, bytes) = self.file_state(id)? else { return Ok(None) };
        let (verdict, hash) = incoming.store(self.existing, self.reads.as_ref(), progress)?;
        let outcome = match &verdict {
            Verdict::Unchanged => Outcome::Unchanged { hash },
            Verdict::Renamed(to) => Outcome::Renamed { hash, to: to.clone() },
            Verdict::Stored | Verdict::Failed(_) => Outcome::Stored { hash: Some(hash) },
        };
        let sent = *bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, size) = (incoming.name.clone(), incoming.layout.size);
        self.report(id, FileReport { name, size, is_directory: false, sent, outcome }, observe);
        Ok(Some(Message::Verdict(verdict)))
    }

    /// Checks an existing file of the same content against its SHA-256 hash, if it was offered with
    /// one.
    fn confirm(
        &self,
        offer: &Offer,
        target: &Path,
        progress: &mut ReadProgress<'_>,
    ) -> Result<(), FileError> {
        let Some(wanted) = &offer.sha256 else { return Ok(()) };
        if self.reads.as_ref().is_some_and(|reads| !reads.take(offer.size)) {
            return Err(FileError::NotCompared(target.to_owned()));
        }
        let Some(file) = reads::existing(target, offer.size)? else {
            return Err(FileError::Changed(target.to_owned()));
        };
        let found =
            sha256sum::hash(&file, progress).map_err(|error| local("read", target, error))?;
        if found != *wanted {
            return Err(FileError::Checksum(offer.name.clone()));
        }
        incoming::ensure_hash_file(target, Some(wanted), self.existing)
    }

    fn unchanged(
        &self,
        id: u32,
        offer: &Offer,
        hash: [u8; 32],
        observe: &impl Fn(Progress<'_>),
    ) -> Message {
        observe(Progress::Bytes { id, bytes: offer.size });
        let outcome = Outcome::Unchanged { hash };
        let (name, size) = (offer.name.clone(), offer.size);
        self.report(id, FileReport { name, size, is_directory: false, sent: 0, outcome }, observe);
        Message::Verdict(Verdict::Unchanged)
    }

    /// An error of a single file settles the file; a protocol violation closes the connection.
    fn settle_failure(
        &self,
        id: u32,
        result: Result<Option<Message>, FileError>,
        observe: &impl Fn(Progress<'_>),
    ) -> Result<Option<Message>, FileError> {
        let error = match result {
            Err(error @ FileError::Protocol(_)) => return Err(error),
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let (name, size, sent) = match self.file_state(id)? {
            FileState::Open(incoming, bytes) => {
                let sent = *bytes.lock().unwrap_or_else(PoisonError::into_inner);
                (incoming.name.clone(), incoming.layout.size, sent)
            }
            FileState::Asked(asked) => (asked.offer.name.clone(), asked.offer.size, 0),
            FileState::Settled => return Ok(None),
        };
        let outcome = Outcome::Failed(error.for_peer());
        self.report(id, FileReport { name, size, is_directory: false, sent, outcome }, observe);
        Ok(Some(Message::Verdict(Verdict::Failed(error.for_peer()))))
    }

    fn report(&self, id: u32, report: FileReport, observe: &impl Fn(Progress<'_>)) {
        observe(Progress::End { id, report: &report });
        let mut state = self.lock();
        state.set_state(id, FileState::Settled);
        if self.keeps_reports {
            state.reports.push(report);
        }
    }
}

/// How an offer is handled.
enum OfferHandling {
    Directory,
    OfferReply(Option<Message>),
}
