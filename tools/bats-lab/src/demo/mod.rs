//! The demonstration: BRTP compared with TCP over one lossy, long-delay link, with figures and a
//! plot.

mod brtp;
pub(crate) mod cross_validation;
mod figures;
pub(crate) mod load;
mod pair;
mod report;
mod simulator;
mod tcp;

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::{DemoOptions, Protocol};
use crate::interrupt;
use crate::lab::{self, LabConfig, ScopedLab};
use crate::protocol::programs::executable;
use crate::settings::Link;
use crate::state::Home;
use crate::units::megabits;
use figures::{Figures, FileRun};

/// Path of `bats_iperf`; builds it in a cargo workspace.
///
/// # Errors
/// If it is missing and cannot be built.
fn bats_iperf() -> Result<PathBuf> {
    executable("bats_iperf", "bats-iperf")
}

/// State shared by the runs of a demo.
struct DemoContext {
    lab_guard: ScopedLab,
    seconds: u64,
    quiet: bool,
}

/// Runs the demonstration.
///
/// # Errors
/// If a run fails or the user interrupts; the lab is removed then too.
pub(crate) fn run(home: &Home, options: &DemoOptions) -> Result<ExitCode> {
    let mut link = Link::default();
    options.link.changes().apply(&mut link);
    check_writable(&options.out)?;
    if let Some(path) = &options.picture {
        check_writable(path)?;
    }
    let rights = if options.simulate { Ok(()) } else { lab::obtain_privileges(home) };
    interrupt::watch()?;
    let figures = match rights {
        Ok(()) if !options.simulate => in_lab(home, options, link)?,
        refused => {
            if let Err(reason) = refused {
                eprintln!("{reason:#}");
            }
            if !options.protocols.contains(&Protocol::Brtp) {
                bail!("the simulator has BRTP only: kernel TCP needs the lab (see batslab doctor)");
            }
            eprintln!("running in the simulator: BRTP in virtual time; kernel TCP needs the lab");
            let figures = simulator::run(&link, options.seconds, options.runs, options.file_mib)?;
            if let Some(file) = figures.file.filter(|_| !options.json) {
                outln!(
                    "a file of {} MiB was received and verified after {:.2} s: {} Mbit/s",
                    file.bytes >> 20,
                    file.seconds,
                    megabits(file.bits_per_second())
                );
            }
            figures
        }
    };
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&figures.json())?);
    } else {
        out!("\n{}", figures.table());
    }
    fs::write(&options.out, report::html(&figures)?)
        .with_context(|| format!("cannot write {}", options.out.display()))?;
    eprintln!("report: {}", options.out.display());
    if let Some(path) = &options.picture {
        fs::write(path, report::svg(&figures))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails before the runs, not after them, if the report cannot be written.
fn check_writable(path: &Path) -> Result<()> {
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .map(drop)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn in_lab(home: &Home, options: &DemoOptions, link: Link) -> Result<Figures> {
    let wants_brtp = options.protocols.contains(&Protocol::Brtp) || options.file_mib > 0;
    let iperf = if wants_brtp { Some(bats_iperf()?) } else { None };
    let config = LabConfig::chain(format!("demo-{}", std::process::id()), 1, link.clone());
    let demo = DemoContext {
        lab_guard: ScopedLab::build(home, &config)?,
        seconds: options.seconds,
        quiet: options.json,
    };
    demo.print(&format!("two hosts, one link, both directions: {}", link.forward));
    let mut figures = Figures::new(link, options.seconds, false);
    if let Some(iperf) = iperf.as_ref().filter(|_| options.file_mib > 0) {
        figures.file = Some(send_file(&demo, iperf, options.file_mib)?);
    }
    // In turn, so that a change of the machine's load affects all protocols.
    for round in 1..=options.runs {
        if options.runs > 1 {
            demo.print(&format!("run {round} of {}", options.runs));
        }
        for protocol in &options.protocols {
            interrupt::check()?;
            let run = match (protocol, &iperf) {
                (Protocol::Brtp, Some(iperf)) => brtp::run(&demo, iperf)?,
                (Protocol::Brtp, None) => bail!("bats_iperf is missing"),
                (Protocol::Bbr, _) => tcp::run(&demo, "TCP BBR", "bbr")?,
                (Protocol::Cubic, _) => tcp::run(&demo, "TCP CUBIC", "cubic")?,
            };
            demo.print(&format!("{}: {} Mbit/s on average", run.name, megabits(run.average())));
            figures.runs.push(run);
        }
    }
    figures.versions = versions(iperf.as_deref());
    Ok(figures)
}

impl DemoContext {
    fn print(&self, text: &str) {
        if !self.quiet {
            // A closed pipe must not prevent the report.
            let _ = writeln!(std::io::stdout(), "{text}");
        }
    }

    /// A file for the output of a process.
    fn scratch(&self, name: &str) -> PathBuf {
        self.lab_guard.home.directory(&self.lab_guard.lab.name).join(name)
    }

    /// Polls `ended` until it returns true and shows the rate at the receiver meanwhile.
    ///
    /// # Errors
    /// If `ended` fails, the emulator dies, the user interrupts, or the timeout expires.
    fn watch(
        &self,
        what: &str,
        timeout: Duration,
        mut ended: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let live = !self.quiet && std::io::stderr().is_terminal();
        let target = if live { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        let start = Instant::now();
        let mut last = (Instant::now(), self.bytes_delivered()?);
        while !ended()? {
            interrupt::check()?;
            if start.elapsed() > timeout {
                bail!("{what} did not end within {} s", timeout.as_secs());
            }
            if last.0.elapsed() >= Duration::from_secs(1) {
                let bytes_delivered = self.bytes_delivered()?;
                let rate = (bytes_delivered - last.1) as f64 * 8.0 / last.0.elapsed().as_secs_f64();
                last = (Instant::now(), bytes_delivered);
                let text = format!("{:>6} Mbit/s received", megabits(rate));
                if live {
                    bar.set_message(text);
                } else if !self.quiet {
                    outln!("  {:>3} s  {text}", start.elapsed().as_secs());
                }
            }
            bar.tick();
            std::thread::sleep(Duration::from_millis(20));
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Bytes that the link has delivered to `b`.
    fn bytes_delivered(&self) -> Result<u64> {
        let hops = lab::report(&self.lab_guard.home, &self.lab_guard.lab)
            .context("the emulator of the demo has died")?;
        Ok(hops.first().map_or(0, |hop| hop.forward.bytes_out))
    }
}

fn send_file(demo: &DemoContext, iperf: &Path, mib: u64) -> Result<FileRun> {
    demo.print(&format!("a file of {mib} MiB of random bytes over BRTP, verified by the receiver"));
    let path = demo.scratch("file");
    write_random(&path, mib << 20)
        .with_context(|| format!("cannot write a file of {mib} MiB at {}", path.display()))?;
    let run = brtp::send_file(demo, iperf, &path, mib << 20)?;
    let _ = fs::remove_file(&path);
    demo.print(&format!(
        "verified after {:.2} s: {} Mbit/s",
        run.seconds,
        megabits(run.bits_per_second())
    ));
    Ok(run)
}

fn write_random(path: &Path, mut bytes: u64) -> std::io::Result<()> {
    let mut random = File::open("/dev/urandom")?;
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut block = vec![0; 1 << 20];
    while bytes > 0 {
        interrupt::check().map_err(std::io::Error::other)?;
        let count = bytes.min(block.len() as u64) as usize;
        std::io::Read::read_exact(&mut random, &mut block[..count])?;
        file.write_all(&block[..count])?;
        bytes -= count as u64;
    }
    file.flush()
}

/// Versions of all programs that take part.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub(crate) fn versions(iperf: Option<&Path>) -> Vec<(String, String)> {
    let first_line = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
    let mut versions = vec![("batslab".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    if let Some(text) = iperf.and_then(|path| pair::output(path, "--version")) {
        versions.push(("bats_iperf".to_owned(), first_line(text)));
    }
    if let Some(text) = pair::output(Path::new("iperf3"), "--version") {
        versions.push(("iperf3".to_owned(), first_line(text)));
    }
    if let Ok(kernel) = fs::read_to_string("/proc/sys/kernel/osrelease") {
        versions.push(("kernel".to_owned(), kernel.trim().to_owned()));
    }
    let model = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let model = model.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    versions.push(("processors".to_owned(), format!("{count} x {model}")));
    versions
}
