//! The emulator process: all links of a lab, one thread each, and a control socket.

mod clock;
pub(crate) mod control;
mod headers;
pub(crate) mod hop;
mod port;
pub(crate) mod report;
pub(crate) mod wire;

use std::fs::{File, OpenOptions};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getppid, setsid};

use crate::process::{ChildGuard, Process};
use crate::state::{Home, Lab};
use crate::topology::{self, End};
use crate::{interrupt, processors};
use hop::Shared;
use port::Port;
use report::{Answer, Request};

/// Starts the emulator of `lab` and waits until it answers.
///
/// With `tied_to_parent` it ends with this process and removes the lab.
///
/// # Errors
/// If it does not start; the reason is the last line of its log.
pub(crate) fn start(home: &Home, lab: &Lab, tied_to_parent: bool) -> Result<ChildGuard> {
    let log = home.log(&lab.name);
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("cannot find batslab itself")?);
    command.arg("__emulate").arg(&lab.name).arg("--home").arg(home.root());
    if home.is_unprivileged() {
        command.arg("--unprivileged");
    }
    if tied_to_parent {
        command.arg("--parent").arg(std::process::id().to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let mut child = ChildGuard::new(command.spawn().context("cannot start the emulator")?);
    let deadline = Instant::now() + Duration::from_secs(10);
    let socket = home.control_socket(&lab.name);
    loop {
        if control::report(&socket).is_ok() {
            return Ok(child);
        }
        if child.try_wait()?.is_some() || Instant::now() > deadline {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let reason = log.lines().last().unwrap_or("it does not answer").to_owned();
            bail!("the emulator did not start: {reason}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Main function of the process `batslab __emulate`.
pub(crate) fn main(home: &Home, name: &str, parent: Option<u32>) -> Result<()> {
    let lab = home.load(name)?;
    if let Some(parent) = parent {
        prctl::set_pdeathsig(Signal::SIGTERM)?;
        if u32::try_from(getppid().as_raw()) != Ok(parent) {
            bail!("the process that started the emulator has ended");
        }
    }
    // Ignore the terminal's signals: the process that built the lab ends the emulator.
    let _ = setsid();
    // Precise sleep. Without permission for it, deliveries are up to 50 us later.
    let _ = prctl::set_timerslack(1);
    raise_priority(name);
    let done = run_links(home, &lab);
    if parent.is_some() {
        home.remove(name);
    }
    done
}

/// Gives the emulator priority over the hosts' processes, if permitted.
fn raise_priority(name: &str) {
    let _ = OpenOptions::new()
        .write(true)
        .open("/proc/self/oom_score_adj")
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"-500"));
    if let Err(error) = rustix::process::setpriority_process(None, -20) {
        eprintln!("the emulator of {name} runs at ordinary priority: {error}");
    }
}

fn run_links(home: &Home, lab: &Lab) -> Result<()> {
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    home.namespaces(&lab.name).enter(&topology::emulator_namespace(&lab.name))?;
    let mut hops = Vec::new();
    for number in 1..=lab.shape.hops() {
        let left = Port::socket(&topology::emulator_interface(number, End::Left))?;
        let right = Port::socket(&topology::emulator_interface(number, End::Right))?;
        let link = lab.links.get(number as usize - 1).cloned().unwrap_or_default();
        let shared = Arc::new(Shared::new(link.clone()));
        hops.push((number, left, right, link, shared));
    }
    let shared: Vec<_> = hops.iter().map(|(.., shared)| Arc::clone(shared)).collect();
    let path = home.control_socket(&lab.name);
    thread::scope(|scope| -> Result<()> {
        for (number, left, right, link, shared) in hops {
            let (stop, failure) = (&stop, &failure);
            scope.spawn(move || {
                processors::pin(number);
                let seed = lab.seed.wrapping_add(u64::from(number) << 32);
                let (left, right) = (Port::new(left), Port::new(right));
                let done = hop::run(left, right, link, lab.mtu, seed, &shared, stop);
                if let Err(error) = done {
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(error.context(format!("link {number} failed")));
                    stop.store(true, Ordering::Relaxed);
                }
            });
        }
        let listener =
            UnixListener::bind(&path).with_context(|| format!("cannot create {}", path.display()));
        let served = listener.and_then(|listener| {
            let stopped =
                || stop.load(Ordering::Relaxed) || interrupt::requested() || !path.exists();
            control::serve(&listener, stopped, |request| answer(&shared, request))
        });
        stop.store(true, Ordering::Relaxed);
        served
    })?;
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

fn answer(hops: &[Arc<Shared>], request: Request) -> Answer {
    match request {
        Request::Report => Answer::Report(hops.iter().map(|hop| hop.report()).collect()),
        Request::Set { hop, link } => {
            match (hop as usize).checked_sub(1).and_then(|index| hops.get(index)) {
                Some(hop) => {
                    hop.change(*link);
                    Answer::Done
                }
                None => Answer::Error(format!("the lab has no link {hop}")),
            }
        }
        Request::ResetLateness => {
            hops.iter().for_each(|hop| hop.reset_lateness());
            Answer::Done
        }
        Request::StartSchedules => {
            hops.iter().for_each(|hop| hop.start_schedules());
            Answer::Done
        }
    }
}

/// The running emulator as a process.
pub(crate) fn process(child: &mut ChildGuard) -> Result<Process> {
    Process::find(child.child_mut().id()).ok_or_else(|| anyhow!("the emulator has ended"))
}
