//! The privileged process. It holds the TUN device, its addresses and routes, and the control socket,
//! starts the worker, and starts it again when it ends. It reads nothing from the network.

mod device;
mod first_use;
mod listeners;
mod loaded;
mod source;

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use openbats::{Fingerprint, Identity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::channel::{self, ToKeeper, ToWorker};
use crate::config::{Config, SERVICE_USER, find_user};
use crate::{ending, quick};
use device::Device;
use first_use::FirstUses;
use listeners::Listeners;
use loaded::{Loaded, load};
pub use source::Source;

/// Time before the worker is started again: nearly none at first, and more if it ends again and
/// again, so that a fault does not load the host. The longest leaves half of the two seconds in which traffic
/// shall flow again for links and sessions.
const DELAYS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
];
/// After a worker that ran for this long, the next one starts without delay.
const STABLE: Duration = Duration::from_secs(10);
/// Time for the worker to close its links.
const CLOSING: Duration = Duration::from_secs(2);

/// Events that wait for the keeper. A worker that sends more waits, and the kernel limits what its socket holds.
const MAX_EVENTS: usize = 16;

enum Event {
    Worker(u64, Option<ToKeeper>),
    Signal(i32),
    /// A neighbour has shown its certificate.
    FirstUse(String, Fingerprint),
}

/// Checks the configuration and the files that it names, as a start does.
///
/// # Errors
/// The errors of a start that can be detected without starting.
pub fn check(path: &Path) -> anyhow::Result<(Config, Identity)> {
    check_source(&Source::of(path))
}

/// As [`check`], for any source.
///
/// # Errors
/// As those of `check`.
pub fn check_source(source: &Source) -> anyhow::Result<(Config, Identity)> {
    let loaded = load(source)?;
    let identity = Identity::from_pem("identity", loaded.setup.identity.as_bytes())?;
    Ok((loaded.config, identity))
}

/// Asks the exit of a command line for its certificate until it answers, and records it.
///
/// # Errors
/// The certificate cannot be recorded, or is that of this node.
pub(crate) fn learn(entry: &quick::FirstUse<'_>) -> anyhow::Result<Fingerprint> {
    first_use::learn(entry, worker_user(None)?)
}

/// User and group of the worker.
fn worker_user(user: Option<&str>) -> anyhow::Result<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    match user {
        Some(name) => match find_user(name) {
            Some((0, _)) => {
                bail!("user = \"{name}\" is root: the worker needs an unprivileged user")
            }
            Some(user) => Ok(Some(user)),
            None => {
                bail!("user = \"{name}\" is not in /etc/passwd: `useradd --system {name}` makes it")
            }
        },
        None => {
            Ok(find_user(SERVICE_USER).or_else(|| find_user("nobody")).or(Some((65_534, 65_534))))
        }
    }
}

/// Listens at the control socket. A killed keeper leaves a socket file without a listener.
fn listen(path: &Path, user: Option<(u32, u32)>) -> anyhow::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| {
            format!("cannot make the folder {} of the control socket", folder.display())
        })?;
    }
    ending::retry(|| match UnixStream::connect(path) {
        Ok(_) => Err(std::io::Error::from(ErrorKind::AddrInUse).into()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            Ok(std::fs::remove_file(path)?)
        }
        Err(_) => Ok(()),
    })
    .map_err(|error| match ending::is_in_use(&error) {
        true => anyhow::anyhow!(
            "{} has a running batsd: stop it, or give this one another socket by control = \"PATH\"",
            path.display()
        ),
        false => error,
    })?;
    // 0660 from the start: between bind and chmod everyone could connect.
    let before = rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o117));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    let listener = listener
        .with_context(|| format!("cannot listen at the control socket {}", path.display()))?;
    if let Some((_, group)) = user {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    Ok(listener)
}

struct Worker {
    child: Child,
    channel: Arc<OwnedFd>,
    since: Instant,
    generation: u64,
    /// Whether its sandbox lets it resolve names.
    can_resolve: bool,
}

/// Passes the messages of a worker on until it ends. An invalid message also ends the worker.
fn forward(channel: &OwnedFd, events: &SyncSender<Event>, generation: u64) {
    while let Ok(Some((message, _))) = channel::receive::<ToKeeper>(channel) {
        if events.send(Event::Worker(generation, Some(message))).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Worker(generation, None));
}

/// Sends a configuration to a worker that runs.
fn send(
    worker: &Worker,
    message: &ToWorker,
    loaded: &Loaded,
    listeners: &Listeners,
) -> anyhow::Result<()> {
    let setup = loaded.setup.to_file()?;
    let mut descriptors = vec![setup.as_fd()];
    descriptors.extend(listeners.in_order(&loaded.config));
    channel::send_now(worker.channel.as_fd(), message, &descriptors)
        .context("the worker does not take the configuration")
}

/// The time before a worker is started after so many that have ended at once.
fn delay_after(failures: usize) -> Duration {
    DELAYS[DELAYS.len().min(failures.max(1)) - 1]
}

struct Keeper {
    source: Source,
    loaded: Loaded,
    device: Option<Device>,
    listeners: Listeners,
    control: UnixListener,
    user: Option<(u32, u32)>,
    events: (SyncSender<Event>, Receiver<Event>),
    generation: u64,
    first_uses: FirstUses,
    /// No new connections: the node ends when those of programs have ended.
    is_draining: bool,
}

/// Runs until a signal ends it.
///
/// # Errors
/// The configuration is wrong, or a resource that it needs is not available.
pub fn run(source: Source) -> anyhow::Result<()> {
    let loaded = load(&source)?;
    if let Some(warning) = source.warning() {
        eprintln!("batsd: {warning}");
    }
    if matches!(source, Source::File(_)) {
        // For those who compare it with what they have recorded at the first use.
        eprintln!("batsd: the certificate of this node is sha256:{}", loaded.own());
    }
    if !loaded.config.first_use.is_empty() {
        first_use::file_of(&loaded.config)?;
    }
    loaded.report_refused();
    let user = worker_user(loaded.config.user.as_deref())?;
    let control = listen(&loaded.config.control, user)?;
    let device = match &loaded.config.tun {
        Some(tun) => Some(Device::open(tun, &loaded.config.plan)?),
        None => None,
    };
    let listeners = ending::retry(|| Listeners::default().opened_for(&loaded.config))?;
    let events = sync_channel(MAX_EVENTS);
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let sender: SyncSender<Event> = events.0.clone();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    let sender = events.0.clone();
    let answered = move |name, print| drop(sender.send(Event::FirstUse(name, print)));
    let first_uses = FirstUses::start(answered, user)?;
    first_uses.set(&loaded.config, &loaded.setup, &loaded.refused);
    let control_path = loaded.config.control.clone();
    let mut keeper = Keeper {
        source,
        loaded,
        device,
        listeners,
        control,
        user,
        events,
        generation: 0,
        first_uses,
        is_draining: false,
    };
    let result = keeper.serve();
    let _ = std::fs::remove_file(control_path);
    result
}

impl Keeper {
    fn start_worker(&mut self) -> anyhow::Result<Worker> {
        let (ours, theirs) = channel::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("batsd: worker").arg("worker").stdin(Stdio::from(theirs)).current_dir("/");
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        let child = command.spawn().context("cannot start the worker")?;
        drop(command);
        self.generation += 1;
        let channel = Arc::new(ours);
        let setup = self.loaded.setup.to_file()?;
        let mut descriptors = vec![setup.as_fd(), self.control.as_fd()];
        descriptors.extend(self.device.as_ref().map(|device| device.tun.as_fd()));
        descriptors.extend(self.listeners.in_order(&self.loaded.config));
        // A worker that ended at once is detected below.
        let _ = channel::send_now(channel.as_fd(), &ToWorker::Setup, &descriptors);
        let (reader, sender, generation) =
            (Arc::clone(&channel), self.events.0.clone(), self.generation);
        std::thread::Builder::new().name("worker".into()).spawn(move || {
            forward(&reader, &sender, generation);
        })?;
        let can_resolve = self.loaded.config.has_names();
        Ok(Worker { child, channel, since: Instant::now(), generation, can_resolve })
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        let mut failures = 0;
        let mut was_ready = false;
        loop {
            let mut worker = match self.start_worker() {
                Ok(worker) => worker,
                // The host may lack processes, descriptors or memory for a while.
                Err(error) if was_ready => {
                    failures += 1;
                    let delay = delay_after(failures);
                    eprintln!("batsd: the worker is not started: {error:#}; again in {delay:?}");
                    if self.is_ended_within(delay) {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            loop {
                match self.events.1.recv()? {
                    Event::Signal(SIGHUP) => {
                        if let Err(error) = self.reload(Some(&worker)) {
                            eprintln!("batsd: not reloaded: {error:#}");
                        }
                    }
                    Event::Signal(_) => {
                        self.stop(worker);
                        return Ok(());
                    }
                    Event::FirstUse(name, print) => {
                        if let Err(error) = self.trust(&name, print, &worker) {
                            self.first_uses.report(&name, &error);
                        }
                    }
                    Event::Worker(generation, _) if generation != worker.generation => {}
                    Event::Worker(_, Some(ToKeeper::Ready)) => {
                        println!("state: started");
                        was_ready = true;
                    }
                    Event::Worker(_, Some(ToKeeper::Reload)) => {
                        if let Err(error) = self.reload(Some(&worker)) {
                            // Fits a message of the channel with all characters escaped.
                            let text = format!("{error:#}").chars().take(1_000).collect();
                            let refused = ToWorker::Refused(text);
                            let _ = channel::send_now(worker.channel.as_fd(), &refused, &[]);
                        }
                    }
                    Event::Worker(_, Some(ToKeeper::Drain)) => {
                        self.is_draining = true;
                        self.first_uses.end();
                        self.listeners = Listeners::default();
                    }
                    Event::Worker(_, Some(ToKeeper::Stop)) => {
                        self.stop(worker);
                        return Ok(());
                    }
                    Event::Worker(_, None) => break,
                }
            }
            let _ = worker.child.kill();
            let status = worker.child.wait()?;
            if self.is_draining {
                return Ok(());
            }
            if !was_ready {
                bail!("the worker ended before it was ready ({status}); its error is above");
            }
            failures = if worker.since.elapsed() >= STABLE { 0 } else { failures + 1 };
            let delay = delay_after(failures);
            eprintln!("batsd: the worker ended ({status}); starting it again in {delay:?}");
            if self.is_ended_within(delay) {
                return Ok(());
            }
        }
    }

    /// Records the certificate of a neighbour that has none in the configuration, and takes the neighbour into use.
    fn trust(&mut self, name: &str, print: Fingerprint, worker: &Worker) -> anyhow::Result<()> {
        let mut entries = self.loaded.config.first_use.iter();
        // A reload may have removed it.
        if self.is_draining || !entries.any(|entry| !entry.is_known && entry.name() == name) {
            return Ok(());
        }
        // Not the file as it is now: only a reload takes that over.
        let new = self.loaded.with(name, print)?;
        first_use::record(&first_use::file_of(&self.loaded.config)?, name, print)?;
        let listeners = self.listeners.opened_for(&new.config)?;
        if let (Some(device), Some(tun)) = (&mut self.device, &new.config.tun) {
            device.apply(tun, &new.config.plan)?;
        }
        // If the worker does not take it, the neighbour is asked again.
        send(worker, &ToWorker::FirstUse, &new, &listeners)?;
        (self.loaded, self.listeners) = (new, listeners);
        self.ask_unknown();
        Ok(())
    }

    /// Asks the neighbours that the configuration does not know.
    fn ask_unknown(&self) {
        let Loaded { config, setup, refused, .. } = &self.loaded;
        self.first_uses.set(config, setup, refused);
    }

    /// Waits. Returns whether a signal ends the program meanwhile.
    fn is_ended_within(&mut self, delay: Duration) -> bool {
        let end = Instant::now() + delay;
        loop {
            match self.events.1.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(Event::Signal(SIGHUP)) => {
                    if let Err(error) = self.reload(None) {
                        eprintln!("batsd: not reloaded: {error:#}");
                    }
                }
                Ok(Event::Signal(_)) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Reads the configuration again and applies the differences, or nothing if it is wrong.
    fn reload(&mut self, worker: Option<&Worker>) -> anyhow::Result<()> {
        if self.is_draining {
            bail!("the node drains, and ends then");
        }
        let new = load(&self.source)?;
        let old = &self.loaded;
        let link_local = |loaded: &Loaded| loaded.config.tun.as_ref().map(|tun| tun.link_local);
        let needs_restart = |key: &str| bail!("{key} can change only by a restart of batsd");
        match () {
            () if new.config.plan.id != old.config.plan.id => return needs_restart("id"),
            () if new.setup.identity != old.setup.identity => return needs_restart("identity"),
            () if new.setup.preshared_key != old.setup.preshared_key => {
                return needs_restart("preshared_key");
            }
            () if new.config.listen != old.config.listen => return needs_restart("listen"),
            () if new.config.relay != old.config.relay => return needs_restart("relay"),
            () if new.config.control != old.config.control => return needs_restart("control"),
            () if new.config.user != old.config.user => return needs_restart("user"),
            () if new.config.tun.is_some() != old.config.tun.is_some() => {
                return needs_restart("[tun]");
            }
            // The kernel may have made an address of its own.
            () if link_local(&new) != link_local(old) => return needs_restart("tun.link_local"),
            // The sandbox of the worker and the channels of its sessions depend on it.
            () if new.config.exit.is_some() != old.config.exit.is_some() => {
                return needs_restart("[exit]");
            }
            () if new.config.has_names() && worker.is_some_and(|worker| !worker.can_resolve) => {
                bail!(
                    "the first host name in a `remote` needs a restart of batsd: the worker may not read the \
                     files of the resolver"
                );
            }
            () => {}
        }
        let listeners = self.listeners.opened_for(&new.config)?;
        if let (Some(device), Some(tun)) = (&mut self.device, &new.config.tun)
            && let Err(error) = device.apply(tun, &new.config.plan)
        {
            if let Some(tun) = &old.config.tun {
                device.apply(tun, &old.config.plan)?;
            }
            return Err(error);
        }
        self.loaded = new;
        self.listeners = listeners;
        self.loaded.report_refused();
        self.ask_unknown();
        worker
            .map_or(Ok(()), |worker| send(worker, &ToWorker::Setup, &self.loaded, &self.listeners))
    }

    /// Lets the worker close its links, and ends it.
    fn stop(&self, mut worker: Worker) {
        let _ = rustix::net::shutdown(&*worker.channel, rustix::net::Shutdown::Write);
        let end = Instant::now() + CLOSING;
        while Instant::now() < end {
            if matches!(worker.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = worker.child.kill();
        let _ = worker.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_that_all_users_may_read_are_refused_and_links_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let allow = |name: &str, mode| {
            std::fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["node".to_owned()]).unwrap();
        let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
        std::fs::write(path("node.pem"), pem).unwrap();
        std::fs::write(path("psk"), "0f".repeat(32)).unwrap();
        std::os::unix::fs::symlink(path("node.pem"), path("link.pem")).unwrap();
        let text = format!(
            "[node]\nid = \"10.255.0.1\"\nidentity = \"{0}/link.pem\"\npreshared_key = \"{0}/psk\"\n",
            folder.path().display()
        );
        let file = path("batsd.toml");
        std::fs::write(&file, text).unwrap();
        for mode in [0o600, 0o640] {
            allow("node.pem", mode);
            allow("psk", mode);
            check(&file).unwrap();
        }
        for (name, key) in [("node.pem", "the identity"), ("psk", "the pre-shared key")] {
            allow(name, 0o644);
            let error = check(&file).map(drop).unwrap_err().to_string();
            assert!(error.contains("has the mode 0644: all users may use"), "{error}");
            assert!(error.contains(key) && error.contains("chmod o="), "{error}");
            allow(name, 0o640);
        }
        std::fs::write(path("psk"), "0f").unwrap();
        let error = check(&file).map(drop).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }
}
