//! Trust on first use: certificates of neighbours that have no fingerprint in the configuration. A process without
//! privileges asks for them ([`crate::worker::first_use`]), and this one records them.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use openbats::{Fingerprint, KnownHosts};

use super::loaded::read_identity;
use super::{Event, worker_user};
use crate::channel::{Answer, Question, Setup};
use crate::config::{Config, FirstUse, Known};
use crate::quick;
use crate::worker::first_use::LONGEST;

/// Questions at a time: each is a process.
const PARALLEL: usize = 8;
/// Time between two questions to a neighbour: the first after a failure, doubled up to the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// As the latter, where a user waits.
const LONGEST_OF_COMMAND: Duration = Duration::from_secs(2);
/// Longest answer.
const MAX_ANSWER: u64 = 4 << 10;
const POLL: Duration = Duration::from_millis(10);

/// The recorded certificates of the neighbours without a fingerprint. Of several lines the last one counts.
pub(super) fn known(config: &Config) -> anyhow::Result<Known> {
    let mut known = Known::new();
    if config.first_use.is_empty() {
        return Ok(known);
    }
    let file = file_of(config)?;
    for entry in &config.first_use {
        if let Some(print) = file.fingerprints(&entry.name())?.last() {
            known.insert(entry.name(), print.0);
        }
    }
    Ok(known)
}

fn file_of(config: &Config) -> anyhow::Result<KnownHosts> {
    let path = config.known_hosts.as_ref().context(
        "a neighbour without a fingerprint needs a file for its certificate: name one by known_hosts = \"PATH\" in \
         [node]",
    )?;
    Ok(KnownHosts::new(path))
}

/// Records a certificate, and reports it to the owner of the node.
///
/// # Errors
/// The file cannot be written, or has another certificate of this neighbour.
fn record(path: &Path, name: &str, print: Fingerprint) -> anyhow::Result<()> {
    if KnownHosts::new(path).check(name, print)? {
        eprintln!(
            "batsd: {name} is trusted from now on: its certificate sha256:{print} is recorded in {}. Compare it with \
             the one that batsd there prints",
            path.display()
        );
    }
    Ok(())
}

/// As [`record`], for the file of a configuration.
pub(super) fn record_for(config: &Config, name: &str, print: Fingerprint) -> anyhow::Result<()> {
    record(file_of(config)?.path(), name, print)
}

/// Asks the exit of a command line for its certificate until it answers, and records it.
///
/// # Errors
/// The identity cannot be read, or the certificate cannot be recorded.
pub(crate) fn learn(entry: &quick::FirstUse<'_>) -> anyhow::Result<Fingerprint> {
    let name = entry.remote.to_string();
    let question = Question {
        remote: name.clone(),
        local: None,
        interface: None,
        node: quick::id_of(entry.fingerprint).to_bits(),
        identity: read_identity(entry.identity)?,
        preshared_key: None,
    };
    let user = worker_user(None)?;
    let (mut delay, mut last) = (RETRY.0, None);
    loop {
        let error = match ask(&question, user) {
            Ok(print) => {
                record(entry.known_hosts, &name, print)?;
                return Ok(print);
            }
            Err(error) => format!("{error:#}"),
        };
        if last.as_ref() != Some(&error) {
            eprintln!("batsd: {name} is asked for its certificate until it answers: {error}");
            last = Some(error);
        }
        std::thread::sleep(delay);
        delay = delay.saturating_mul(2).min(LONGEST_OF_COMMAND);
    }
}

/// Starts the process that asks, and waits for its answer.
///
/// # Errors
/// The neighbour does not answer, or the process cannot be started; in words.
fn ask(question: &Question, user: Option<(u32, u32)>) -> anyhow::Result<Fingerprint> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("batsd: first use").arg("first-use").current_dir("/");
    command.stdin(Stdio::from(question.to_file()?)).stdout(Stdio::piped());
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().context("cannot start the process that asks")?;
    let output = child.stdout.take();
    let ended = end_of(&mut child);
    let mut answer = Vec::new();
    if let Some(output) = output.filter(|_| ended.is_ok()) {
        output.take(MAX_ANSWER).read_to_end(&mut answer)?;
    }
    ended?;
    match serde_json::from_slice(&answer).context("the process that asks gave no answer")? {
        Answer::Fingerprint(print) => Ok(Fingerprint(print)),
        Answer::Failed(text) => bail!("{}", text.escape_debug()),
    }
}

/// Waits until the process has ended. One that takes too long is killed.
fn end_of(child: &mut Child) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        if start.elapsed() > LONGEST {
            let _ = child.kill();
            child.wait()?;
            bail!("no answer in {} s", LONGEST.as_secs());
        }
        std::thread::sleep(POLL);
    }
}

/// A neighbour to ask.
#[derive(Clone, PartialEq)]
struct Asked {
    question: Question,
    due: Option<Instant>,
    delay: Duration,
    error: Option<String>,
}

/// The neighbours to ask, by name.
#[derive(Default)]
struct Wanted {
    neighbours: BTreeMap<String, Asked>,
}

impl Wanted {
    /// The neighbours whose time has come, and when the next one is due.
    fn due(&self, now: Instant) -> (Vec<(String, Question)>, Option<Instant>) {
        let is_due = |asked: &Asked| asked.due.is_none_or(|due| due <= now);
        let due = self.neighbours.iter().filter(|(_, asked)| is_due(asked));
        let due = due.map(|(name, asked)| (name.clone(), asked.question.clone()));
        let next = self.neighbours.values().filter_map(|asked| asked.due).min();
        (due.take(PARALLEL).collect(), next)
    }

    /// Notes a question: the next one follows later. The neighbour is removed once it is recorded.
    fn asked(&mut self, name: &str, now: Instant, error: Option<String>) -> bool {
        let Some(asked) = self.neighbours.get_mut(name) else { return false };
        asked.due = now.checked_add(asked.delay);
        asked.delay = asked.delay.saturating_mul(2).min(RETRY.1);
        let is_new = error.is_some() && error != asked.error;
        asked.error = error;
        is_new
    }
}

/// Asks the neighbours of the configuration until all are known.
pub(super) struct FirstUses {
    shared: Arc<(Mutex<Wanted>, Condvar)>,
}

impl FirstUses {
    /// Starts the thread that asks. What it learns is an event, with the name of the neighbour.
    pub(super) fn start(
        events: SyncSender<Event>,
        user: Option<(u32, u32)>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new((Mutex::default(), Condvar::new()));
        let asks = Arc::clone(&shared);
        std::thread::Builder::new().name("first use".into()).spawn(move || {
            ask_all(&asks, user, &events);
        })?;
        Ok(Self { shared })
    }

    /// Asks those that the configuration does not know, and no others.
    pub(super) fn set(&self, config: &Config, setup: &Setup) {
        let unknown = config.first_use.iter().filter(|entry| !entry.is_known);
        let mut wanted = lock(&self.shared.0);
        let mut neighbours = BTreeMap::new();
        for entry in unknown {
            let question = question(config, setup, entry);
            let known = wanted.neighbours.remove(&entry.name());
            let known = known.filter(|asked| asked.question == question);
            let new = Asked { question, due: None, delay: RETRY.0, error: None };
            // Several links may lead to a neighbour.
            neighbours.entry(entry.name()).or_insert(known.unwrap_or(new));
        }
        wanted.neighbours = neighbours;
        self.shared.1.notify_one();
    }
}

fn question(config: &Config, setup: &Setup, entry: &FirstUse) -> Question {
    Question {
        remote: entry.name(),
        local: entry.local,
        interface: entry.interface.clone(),
        node: config.plan.id.0.to_bits(),
        identity: setup.identity.clone(),
        preshared_key: setup.preshared_key.clone(),
    }
}

fn lock(wanted: &Mutex<Wanted>) -> MutexGuard<'_, Wanted> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask_all(
    (wanted, changed): &(Mutex<Wanted>, Condvar),
    user: Option<(u32, u32)>,
    events: &SyncSender<Event>,
) {
    loop {
        let due = {
            let mut wanted = lock(wanted);
            loop {
                let now = Instant::now();
                let (due, next) = wanted.due(now);
                if !due.is_empty() {
                    break due;
                }
                let wait = next.map_or(RETRY.1, |next| next.saturating_duration_since(now));
                let waited = changed.wait_timeout(wanted, wait);
                wanted = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        };
        std::thread::scope(|scope| {
            for (name, question) in &due {
                scope.spawn(move || {
                    let answer = ask(question, user);
                    let error = answer.as_ref().err().map(|error| format!("{error:#}"));
                    if lock(wanted).asked(name, Instant::now(), error.clone())
                        && let Some(error) = error
                    {
                        eprintln!(
                            "batsd: {name} has no fingerprint, and cannot be asked for it: {error}"
                        );
                    }
                    if let Ok(print) = answer {
                        let _ = events.send(Event::FirstUse(name.clone(), print));
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        let question = Question {
            remote: "192.0.2.7:4900".to_owned(),
            local: None,
            interface: None,
            node: 1,
            identity: String::new(),
            preshared_key: None,
        };
        Asked { question, due: None, delay: RETRY.0, error: None }
    }

    #[test]
    fn last_line_of_a_neighbour_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known_hosts");
        let text = format!(
            "[node]\nid = \"10.255.0.1\"\nknown_hosts = \"{}\"\n[[peer]]\nid = \"10.255.0.2\"\n\
             remote = \"[2001:db8::7]:4900\"\n",
            path.display()
        );
        let config = Config::parse(Path::new("x"), &text).unwrap();
        assert_eq!(known(&config).unwrap(), Known::new());
        let name = "[2001:db8::7]:4900";
        record_for(&config, name, Fingerprint([1; 32])).unwrap();
        let error = record_for(&config, name, Fingerprint([2; 32])).unwrap_err();
        assert!(error.to_string().contains("has changed"), "{error}");
        let lines = format!("{name} sha256:{}\n", Fingerprint([2; 32]));
        let text = std::fs::read_to_string(&path).unwrap() + &lines;
        std::fs::write(&path, text).unwrap();
        assert_eq!(known(&config).unwrap(), Known::from([(name.to_owned(), [2; 32])]));
    }

    #[test]
    fn neighbours_are_asked_again_later_and_later_and_few_at_a_time() {
        let mut wanted = Wanted::default();
        for number in 0..PARALLEL + 1 {
            wanted.neighbours.insert(number.to_string(), asked());
        }
        let now = Instant::now();
        let (due, _) = wanted.due(now);
        assert_eq!(due.len(), PARALLEL);
        for (name, _) in &due {
            assert!(wanted.asked(name, now, Some("no answer".to_owned())), "a new error");
        }
        let (due, next) = wanted.due(now);
        assert_eq!((due.len(), next), (1, Some(now + RETRY.0)));
        let mut delays = Vec::new();
        for _ in 0..7 {
            assert!(!wanted.asked("0", now, Some("no answer".to_owned())), "the same error");
            delays.push((wanted.neighbours["0"].due.unwrap() - now).as_millis());
        }
        assert_eq!(delays, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        // It may not be wanted any more.
        assert!(!wanted.asked("none", now, Some("no answer".to_owned())));
    }
}
