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
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use openbats::{Fingerprint, KnownHosts};

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
const POLL: Duration = Duration::from_millis(10);

/// The file of known servers of a configuration.
///
/// # Errors
/// There is no folder for it.
pub(super) fn file_of(config: &Config) -> anyhow::Result<KnownHosts> {
    let path = config.known_hosts.as_ref().context(
        "a neighbour without a fingerprint needs a file for its certificate: name one by known_hosts = \"PATH\" in \
         [node]",
    )?;
    Ok(KnownHosts::new(path))
}

/// The recorded certificates of the neighbours without a fingerprint. Of several lines the last one counts.
///
/// # Errors
/// The file cannot be used.
pub(super) fn recorded(config: &Config) -> anyhow::Result<Known> {
    let mut known = Known::new();
    // Without a folder, a check of a file for another user goes on. A start does not.
    let Some(path) = config.known_hosts.as_ref().filter(|_| !config.first_use.is_empty()) else {
        return Ok(known);
    };
    // All at once: the file may have 1 MiB, and there may be more than a thousand entries.
    let names: Vec<String> = config.first_use.iter().map(FirstUse::name).collect();
    let file = KnownHosts::new(path);
    for (name, prints) in file.fingerprints_of(names.iter().map(String::as_str))? {
        if let Some(print) = prints.last() {
            known.insert(name.to_owned(), print.0);
        }
    }
    Ok(known)
}

/// The configuration with the recorded certificates that it can be used with. Others are left out, and returned with
/// the reason: so nothing that a neighbour shows keeps the node from starting.
pub(super) fn with_known(
    path: &Path,
    text: &str,
    own: Fingerprint,
    mut known: Known,
) -> anyhow::Result<(Config, Known, BTreeMap<String, String>)> {
    let mut refused = BTreeMap::new();
    known.retain(|name, print| {
        let is_own = *print == own.0;
        if is_own {
            refused.insert(name.clone(), "it has the certificate of this node".to_owned());
        }
        !is_own
    });
    let (config, used, conflicts) = Config::parse_with_usable(path, text, known)?;
    refused.extend(conflicts.into_iter().map(|(name, error)| (name, error.to_string())));
    Ok((config, used, refused))
}

/// Records a certificate, and reports it to the owner of the node.
///
/// # Errors
/// The file cannot be written, or has another certificate of this neighbour.
pub(super) fn record(file: &KnownHosts, name: &str, print: Fingerprint) -> anyhow::Result<()> {
    if file.check(name, print)? {
        eprintln!(
            "batsd: {name} is trusted from now on: its certificate sha256:{print} is recorded in {}. Compare it with \
             the one that batsd there prints",
            file.path().display()
        );
    }
    Ok(())
}

/// Asks the exit of a command line for its certificate until it answers, and records it.
///
/// # Errors
/// The certificate cannot be recorded, or is that of this node.
pub(super) fn learn(
    entry: &quick::FirstUse<'_>,
    user: Option<(u32, u32)>,
) -> anyhow::Result<Fingerprint> {
    let name = entry.remote.to_string();
    let mut question = Question {
        remote: name.clone(),
        local: None,
        interface: None,
        attempt: 0,
        preshared_key: None,
    };
    let (mut delay, mut last) = (RETRY.0, None);
    loop {
        let error = match ask(&question, user) {
            Ok(print) if print == entry.fingerprint => {
                bail!("{name} has the certificate of this node: it is no exit")
            }
            Ok(print) => {
                record(&KnownHosts::new(entry.known_hosts), &name, print)?;
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
        question.attempt = question.attempt.wrapping_add(1);
    }
}

/// Starts the process that asks, and waits for its answer.
///
/// # Errors
/// The neighbour does not answer, or the process cannot be started; in words.
fn ask(question: &Question, user: Option<(u32, u32)>) -> anyhow::Result<Fingerprint> {
    let mut answer = Answer::file()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("batsd: first use").arg("first-use").current_dir("/");
    command.stdin(Stdio::from(question.to_file()?)).stdout(Stdio::from(answer.try_clone()?));
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().context("cannot start the process that asks")?;
    end_of(&mut child)?;
    match Answer::read(&mut answer).context("the process that asks gave no answer")? {
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
struct Asked {
    /// One for each link to it: another interface may reach it.
    questions: Vec<Question>,
    /// Number of questions that were asked.
    attempts: usize,
    due: Option<Instant>,
    delay: Duration,
    error: Option<String>,
}

impl Asked {
    fn new(questions: Vec<Question>) -> Self {
        Self { questions, attempts: 0, due: None, delay: RETRY.0, error: None }
    }

    fn next(&self) -> Option<Question> {
        let at = self.attempts.checked_rem(self.questions.len())?;
        let question = self.questions.get(at)?.clone();
        Some(Question { attempt: self.attempts.checked_div(self.questions.len())?, ..question })
    }
}

/// The neighbours to ask, by name.
#[derive(Default)]
struct Wanted {
    neighbours: BTreeMap<String, Asked>,
}

impl Wanted {
    /// The neighbours whose time has come, those that have waited longest, and when the next one is due.
    fn due(&self, now: Instant) -> (Vec<(String, Question)>, Option<Instant>) {
        let is_due = |asked: &Asked| asked.due.is_none_or(|due| due <= now);
        let mut due: Vec<_> = self.neighbours.iter().filter(|(_, asked)| is_due(asked)).collect();
        due.sort_by_key(|(_, asked)| asked.due);
        let due = due.into_iter().take(PARALLEL);
        let due = due.filter_map(|(name, asked)| Some((name.clone(), asked.next()?))).collect();
        (due, self.neighbours.values().filter_map(|asked| asked.due).min())
    }

    /// Notes a question: the next one follows later. Returns whether its error is a new one.
    fn asked(&mut self, name: &str, now: Instant, error: Option<String>) -> bool {
        let Some(asked) = self.neighbours.get_mut(name) else { return false };
        asked.attempts = asked.attempts.wrapping_add(1);
        asked.due = now.checked_add(asked.delay);
        asked.delay = asked.delay.saturating_mul(2).min(RETRY.1);
        // The keeper may not trust a neighbour that has answered: that error stays.
        let is_new = error.is_some() && error != asked.error;
        asked.error = error.or(asked.error.take());
        is_new
    }
}

/// Asks the neighbours of the configuration until all are known.
pub(super) struct FirstUses {
    shared: Arc<(Mutex<Wanted>, Condvar)>,
}

impl FirstUses {
    /// Starts the thread that asks. `answered` gets the names of neighbours and their certificates.
    pub(super) fn start(
        answered: impl Fn(String, Fingerprint) + Send + Sync + 'static,
        user: Option<(u32, u32)>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new((Mutex::default(), Condvar::new()));
        let asks = Arc::clone(&shared);
        std::thread::Builder::new().name("first use".into()).spawn(move || {
            ask_all(&asks, user, &answered);
        })?;
        Ok(Self { shared })
    }

    /// Asks those that the configuration does not know, and no others: not those that are `refused`, whose recorded
    /// certificates it cannot have.
    pub(super) fn set(&self, config: &Config, setup: &Setup, refused: &BTreeMap<String, String>) {
        let mut new = BTreeMap::<String, Vec<Question>>::new();
        for entry in config.first_use.iter().filter(|entry| !entry.is_known) {
            let name = entry.name();
            if !refused.contains_key(&name) {
                new.entry(name).or_default().push(question(setup, entry));
            }
        }
        let mut wanted = lock(&self.shared.0);
        let mut old = std::mem::take(&mut wanted.neighbours);
        for (name, questions) in new {
            let known = old.remove(&name).filter(|asked| asked.questions == questions);
            wanted.neighbours.insert(name, known.unwrap_or_else(|| Asked::new(questions)));
        }
        self.shared.1.notify_one();
    }

    /// Reports why a neighbour that has answered is not trusted, once.
    pub(super) fn report(&self, name: &str, error: &anyhow::Error) {
        let error = format!("{error:#}");
        let mut wanted = lock(&self.shared.0);
        let Some(asked) = wanted.neighbours.get_mut(name) else { return };
        if asked.error.as_ref() != Some(&error) {
            eprintln!("batsd: {name} is not trusted: {error}");
            asked.error = Some(error);
        }
    }

    /// Asks no one any more.
    pub(super) fn end(&self) {
        lock(&self.shared.0).neighbours.clear();
    }
}

fn question(setup: &Setup, entry: &FirstUse) -> Question {
    Question {
        remote: entry.name(),
        local: entry.local,
        interface: entry.interface.clone(),
        attempt: 0,
        preshared_key: setup.preshared_key.clone(),
    }
}

fn lock(wanted: &Mutex<Wanted>) -> MutexGuard<'_, Wanted> {
    wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask_all(
    (wanted, changed): &(Mutex<Wanted>, Condvar),
    user: Option<(u32, u32)>,
    answered: &(impl Fn(String, Fingerprint) + Sync),
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
                        answered(name.clone(), print);
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::inotify;

    use super::*;
    use crate::config::passes;

    fn asked() -> Asked {
        let question = |interface: &str| Question {
            remote: "192.0.2.7:4900".to_owned(),
            local: None,
            interface: Some(interface.to_owned()),
            attempt: 0,
            preshared_key: None,
        };
        Asked::new(vec![question("eth1"), question("wwan0")])
    }

    #[test]
    fn all_of_many_neighbours_that_do_not_answer_are_asked() {
        let mut wanted = Wanted::default();
        for number in 0..1_000 {
            wanted.neighbours.insert(number.to_string(), asked());
        }
        // Each round takes as long as a handshake that times out.
        let start = Instant::now();
        for round in 0..125 {
            let now = start + Duration::from_millis(3_300) * round;
            let (due, _) = wanted.due(now);
            assert_eq!(due.len(), PARALLEL);
            for (name, _) in due {
                wanted.asked(&name, now, None);
            }
        }
        assert!(wanted.neighbours.values().all(|asked| asked.attempts == 1));
    }

    #[test]
    fn certificates_that_the_configuration_cannot_have_are_left_out() {
        let text = "[node]\nid = \"10.255.0.1\"\n[[peer]]\nid = \"10.255.0.2\"\nremote = \"192.0.2.7:4900\"\n\
                    [[peer]]\nid = \"10.255.0.3\"\nremote = \"192.0.2.8:4900\"\n\
                    [[peer]]\nid = \"10.255.0.4\"\nremote = \"192.0.2.9:4900\"\n";
        let name = |last: u8| format!("192.0.2.{last}:4900");
        // The second one shows the certificate of the first one, and the third one that of this node.
        let known = Known::from([(name(7), [1; 32]), (name(8), [1; 32]), (name(9), [9; 32])]);
        let own = Fingerprint([9; 32]);
        let (config, used, refused) = with_known(Path::new("x"), text, own, known).unwrap();
        assert_eq!(used, Known::from([(name(7), [1; 32])]));
        assert_eq!(config.plan.peers.len(), 1);
        assert_eq!(refused.keys().cloned().collect::<Vec<_>>(), [name(8), name(9)]);
        assert!(refused[&name(8)].contains("the same fingerprint"), "{refused:?}");
    }

    /// Certificates one by one, in the order of the names, each if the configuration can have it with those before:
    /// what [`with_known`] has to find without going through the configuration for each.
    fn one_by_one(text: &str, known: &Known) -> (Known, Vec<String>) {
        let (mut used, mut refused) = (Known::new(), Vec::new());
        for (name, print) in known {
            let mut with = used.clone();
            with.insert(name.clone(), *print);
            match Config::parse_with(Path::new("x"), text, &with) {
                Ok(_) => used = with,
                Err(_) => refused.push(name.clone()),
            }
        }
        (used, refused)
    }

    #[test]
    fn refused_certificates_are_those_that_conflict_with_others_before_them() {
        let digits = |byte: u8| format!("{byte:02x}").repeat(32);
        let text = format!(
            "[node]\nid = \"10.255.0.1\"\nrelay = true\n\
             [[link]]\nname = \"a\"\nremote = \"192.0.2.1:1\"\ntransit = true\n\
             [[link]]\nname = \"b\"\nremote = \"192.0.2.2:1\"\n\
             [[link]]\nname = \"c\"\nfingerprint = \"{}\"\ntransit = true\nrate = \"1 Mbit/s\"\n\
             [[link]]\nname = \"d\"\nremote = \"192.0.2.3:1\"\ntransit = true\n\
             [[peer]]\nid = \"10.255.0.3\"\nremote = \"192.0.2.3:1\"\n\
             [[peer]]\nid = \"10.255.0.4\"\nremote = \"192.0.2.4:1\"\n\
             [[peer]]\nid = \"10.255.0.5\"\nfingerprint = \"{}\"\n\
             [[routes.static]]\nto = \"10.255.0.5\"\nvia = [\"a\", \"b\"]\n",
            digits(1),
            digits(2),
        );
        let mut conflicts = 0;
        for number in 0..256_u32 {
            let prints = (0..4).map(|name| (number >> (2 * name)) as u8 & 3);
            let names = (1..5).map(|name| format!("192.0.2.{name}:1"));
            let all = names.zip(prints).filter(|(_, print)| *print != 0);
            let known: Known = all.map(|(name, print)| (name, [print; 32])).collect();
            let own = Fingerprint([9; 32]);
            let (config, used, refused) =
                with_known(Path::new("x"), &text, own, known.clone()).unwrap();
            let expected = one_by_one(&text, &known);
            assert_eq!((used.clone(), refused.keys().cloned().collect()), expected, "{known:?}");
            let is_known = |entry: &FirstUse| used.contains_key(&entry.name()) == entry.is_known;
            assert!(config.first_use.iter().all(is_known), "{known:?}");
            for reason in refused.values() {
                let is_about_names = ["same fingerprint", "disagree about transit or rate"]
                    .iter()
                    .any(|words| reason.contains(words));
                assert!(reason.starts_with("x:") && is_about_names, "{reason}");
            }
            conflicts += refused.len();
        }
        assert!(conflicts > 256, "{conflicts}");
    }

    /// The keeper does this in its main thread at each start and reload.
    #[test]
    fn a_conflict_among_1024_recorded_certificates_takes_few_passes_through_the_file() {
        let mut text = "[node]\nid = \"10.255.0.1\"\n".to_owned();
        let mut known = Known::new();
        for number in 0..1_024_u32 {
            let (high, low) = (number / 256, number % 256);
            let name = format!("192.0.{high}.{low}:4900");
            text += &format!("[[peer]]\nid = \"10.1.{high}.{low}\"\nremote = \"{name}\"\n");
            let mut print = [1; 32];
            // The last one shows the certificate of the first one.
            print[..4].copy_from_slice(&(number % 1_023).to_be_bytes());
            known.insert(name, print);
        }
        let before = passes::count();
        let own = Fingerprint([9; 32]);
        let (config, used, refused) = with_known(Path::new("x"), &text, own, known).unwrap();
        let passes = passes::count() - before;
        assert_eq!((config.plan.peers.len(), used.len(), refused.len()), (1_023, 1_023, 1));
        // A parse, a check with stand-ins for the certificates, a search for conflicts, and a check with the rest.
        assert!(passes <= 4, "{passes} passes");
    }

    /// Of a file with as many neighbours.
    #[test]
    fn recorded_certificates_are_read_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known_hosts");
        let mut text =
            format!("[node]\nid = \"10.255.0.1\"\nknown_hosts = \"{}\"\n", path.display());
        let mut lines = String::new();
        for number in 0..1_024_u32 {
            let (high, low) = (number / 256, number % 256);
            let name = format!("192.0.{high}.{low}:4900");
            text += &format!("[[peer]]\nid = \"10.1.{high}.{low}\"\nremote = \"{name}\"\n");
            lines += &format!("{name} sha256:{}\n", Fingerprint([low as u8; 32]));
        }
        std::fs::write(&path, lines).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let config = Config::parse(Path::new("x"), &text).unwrap();
        let events = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        // An event that equals the one before is not queued: so the ends of reads separate the beginnings.
        let wanted = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE;
        inotify::add_watch(&events, &path, wanted).unwrap();
        assert_eq!(recorded(&config).unwrap().len(), 1_024);
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4_096];
        let mut reader = inotify::Reader::new(&events, &mut buffer);
        let mut opened = 0;
        while let Ok(event) = reader.next() {
            opened += usize::from(event.events().contains(inotify::ReadFlags::OPEN));
        }
        assert_eq!(opened, 1, "the file is opened once");
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
        assert_eq!(recorded(&config).unwrap(), Known::new());
        let name = "[2001:db8::7]:4900";
        record(&file_of(&config).unwrap(), name, Fingerprint([1; 32])).unwrap();
        let error = record(&file_of(&config).unwrap(), name, Fingerprint([2; 32])).unwrap_err();
        assert!(error.to_string().contains("has changed"), "{error}");
        let lines = format!("{name} sha256:{}\n", Fingerprint([2; 32]));
        let text = std::fs::read_to_string(&path).unwrap() + &lines;
        std::fs::write(&path, text).unwrap();
        assert_eq!(recorded(&config).unwrap(), Known::from([(name.to_owned(), [2; 32])]));
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
        // Its links take turns, and so do the addresses of its host.
        let attempts: Vec<_> = (0..4)
            .map(|attempts| {
                let next = Asked { attempts, ..asked() }.next().unwrap();
                (next.interface.unwrap(), next.attempt)
            })
            .collect();
        let expected = [("eth1", 0), ("wwan0", 0), ("eth1", 1), ("wwan0", 1)];
        assert_eq!(attempts, expected.map(|(name, attempt)| (name.to_owned(), attempt)));
        // It may not be wanted any more.
        assert!(!wanted.asked("none", now, Some("no answer".to_owned())));
    }
}
