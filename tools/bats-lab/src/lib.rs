//! `batslab`: Linux hosts in network namespaces, joined by emulated lossy, long-delay links in real
//! time.
//!
//! The link model is `bats-netem`, which the simulator runs in virtual time. Here it forwards real
//! frames between real kernels. See the README of this crate for the commands.
#![allow(
    clippy::disallowed_methods,
    reason = "the lab drives real kernels: it reads clocks and opens sockets"
)]

/// Writes to standard output and propagates errors, unlike `print!`.
macro_rules! out {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        write!(std::io::stdout(), $($arguments)*)?
    }};
}

/// Like `out!`, with a newline.
macro_rules! outln {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        writeln!(std::io::stdout(), $($arguments)*)?
    }};
}

mod arena;
mod backend;
mod cli;
mod compare;
mod config;
mod demo;
mod doctor;
mod emulator;
#[doc(hidden)]
pub mod fuzzing;
mod interrupt;
mod lab;
mod lab_network;
mod namespace;
mod netlink;
mod plan;
mod probe;
mod process;
mod processors;
mod protocol;
mod report;
mod result;
mod run;
mod serve;
mod settings;
mod shortage;
mod state;
mod text;
mod tool;
mod topology;
mod units;
mod verify;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser};
use serde_json::json;

use cli::{Cli, Command, LinkOptions, SetOptions, StatusOptions, UpOptions, VerifyOptions};
use emulator::report::{DirectionReport, HopReport, Request};
use lab::{LabConfig, ScopedLab};
use settings::Link;
use state::{Home, Lab};
use verify::Effort;

/// Runs the program `batslab` with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            let io = error.downcast_ref::<std::io::Error>();
            // A closed pipe (`batslab ... | head`) is not an error worth reporting.
            if io.is_none_or(|io| io.kind() != std::io::ErrorKind::BrokenPipe) {
                eprintln!("batslab: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let home = Home::of_user();
    match command {
        Command::Up(options) => up(&home, &options)?,
        Command::Exec(options) => {
            lab::exec(&home, &options.name, &options.host, &options.command)?;
        }
        Command::Status(options) => status(&home, &options)?,
        Command::Set(options) => set(&home, &options)?,
        Command::Down(options) => {
            if options.all {
                for name in home.names()? {
                    lab::down(&home, &name)?;
                }
            } else {
                lab::down(&home, &options.name)?;
            }
        }
        Command::Verify(options) => return verify(&home, &options),
        Command::Run(options) => return run::run(&home, &options),
        Command::Arena(options) => return arena::run(&options),
        Command::Check(options) => check(&options)?,
        Command::Cases(options) => cases(&options)?,
        Command::Compare(options) => compare::run(&options)?,
        Command::Plot(options) => plot(&options)?,
        Command::Serve(options) => serve::run(&options)?,
        Command::Demo(options) => return demo::run(&home, &options),
        Command::CrossValidate(options) => return demo::cross_validation::run(&home, &options),
        Command::Doctor(options) => return doctor::run(&home, options.json),
        Command::Generate(options) => options.run(&Cli::command())?,
        Command::Emulate(options) => {
            let home = Home::at(options.home, options.unprivileged);
            interrupt::watch()?;
            emulator::main(&home, &options.name, options.parent)?;
        }
        Command::TcpSink(options) => demo::load::sink(options.port, options.interval)?,
        Command::TcpSource(options) => {
            demo::load::source(options.to, options.seconds, &options.congestion)?;
        }
        Command::UdpSink(options) => protocol::udp_load::sink(options.port, options.interval)?,
        Command::UdpSource(options) => {
            protocol::udp_load::source(options.to, options.seconds, options.mbps)?;
        }
        Command::QuicSink(options) => protocol::quic::sink(options.port, options.interval)?,
        Command::QuicSource(options) => {
            protocol::quic::source(options.to, options.seconds, &options.congestion)?;
        }
        Command::Echo(options) => protocol::echo::serve(options.transport, options.port)?,
        Command::Rtt(options) => protocol::echo::measure(&protocol::echo::RttRequest {
            transport: options.transport,
            to: options.to,
            schedule: protocol::echo::Schedule {
                count: options.count,
                size: options.size,
                interval: options.interval,
            },
            first: options.first,
            congestion: options.congestion,
        })?,
    }
    Ok(ExitCode::SUCCESS)
}

fn plot(options: &cli::PlotOptions) -> Result<()> {
    let names: Vec<String> = options.runs.iter().map(|run| run.display().to_string()).collect();
    report::batch::check_names(&names)?;
    let runs = names
        .into_iter()
        .zip(&options.runs)
        .map(|(name, run)| Ok((name, result::folder::load(run)?)))
        .collect::<Result<Vec<_>>>()?;
    let directory = result::folder::create(Some(&options.out), "", "")?;
    let written = report::batch::write(&directory, &runs);
    if written.is_err() {
        // Only if nothing was written.
        let _ = std::fs::remove_dir(&directory);
    }
    written?;
    outln!("{}", directory.join("comparison.html").display());
    Ok(())
}

fn check(options: &cli::CheckOptions) -> Result<()> {
    if let Some(schema) = options.schema {
        let schema = match schema {
            cli::Schema::TestFile => config::schema::of_test_files(),
            cli::Schema::Result => result::schema(),
        };
        outln!("{}", serde_json::to_string_pretty(&schema)?);
    }
    if let Some(file) = &options.file {
        let suite = config::load::suite(file, None)?;
        out!("{}", plan::describe(&suite, None, false));
        outln!("{file}: valid");
    }
    Ok(())
}

fn cases(options: &cli::CasesOptions) -> Result<()> {
    if let Some(name) = &options.show {
        out!("{}", config::shipped::case(name)?.text());
        return Ok(());
    }
    for name in config::shipped::cases() {
        let suite = config::load::suite(&format!("case:{name}"), None)?;
        let seconds = plan::time(suite.seconds());
        outln!("case:{name} (about {seconds})");
        for case in &suite.cases {
            outln!("    {}: {}", case.name, case.description.trim());
        }
    }
    Ok(())
}

/// The default link with the options applied.
fn link(options: &LinkOptions) -> Link {
    let mut link = Link::default();
    options.changes().apply(&mut link);
    link
}

/// The link of a lab for programs of the user: without loss unless it is asked for.
fn lab_link(options: &LinkOptions) -> Link {
    let mut link = Link::default();
    for direction in [&mut link.forward, &mut link.backward] {
        direction.loss = settings::Loss::Independent(0.0);
    }
    options.changes().apply(&mut link);
    link
}

fn up(home: &Home, options: &UpOptions) -> Result<()> {
    lab::obtain_privileges(home)?;
    interrupt::watch()?;
    let config = LabConfig {
        mtu: options.mtu,
        seed: options.seed,
        ..LabConfig::chain(options.name.clone(), options.hops, lab_link(&options.link))
    };
    let lab = lab::up(home, &config)?;
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&lab_json(home, &lab)?)?);
    } else {
        out!("{}", summary(&lab));
        outln!("Try: batslab exec --name {} a -- ping -c 3 b", lab.name);
    }
    Ok(())
}

/// One line for each host and each link setting.
fn summary(lab: &Lab) -> String {
    let hosts = &lab.shape.hosts;
    let mut text = format!("lab {}: {}\n", lab.name, hosts.join(" - "));
    for (index, host) in hosts.iter().enumerate() {
        let address = lab.shape.address_of(index as u32);
        text.push_str(&format!(
            "  {host}: {address}, namespace {}\n",
            topology::namespace(&lab.name, host),
        ));
    }
    if let Some(link) = lab.links.first() {
        if link.forward == link.backward {
            text.push_str(&format!("  each link, both directions: {}\n", link.forward));
        } else {
            text.push_str(&format!("  each link, towards b: {}\n", link.forward));
            text.push_str(&format!("  each link, towards a: {}\n", link.backward));
        }
    }
    text
}

fn lab_json(home: &Home, lab: &Lab) -> Result<serde_json::Value> {
    let hosts: Vec<_> = lab
        .shape
        .hosts
        .iter()
        .enumerate()
        .map(|(index, host)| {
            json!({
                "name": host,
                "namespace": topology::namespace(&lab.name, host),
                "address": lab.shape.address_of(index as u32),
            })
        })
        .collect();
    Ok(json!({
        "name": lab.name,
        "hosts": hosts,
        "mtu": lab.mtu,
        "seed": lab.seed,
        "links": lab::report(home, lab)?,
        "emulator": lab.emulator.map(|emulator| json!({
            "pid": emulator.pid,
            "processor_seconds": emulator.processor_time().as_secs_f64(),
        })),
    }))
}

fn status(home: &Home, options: &StatusOptions) -> Result<()> {
    for name in home.sweep() {
        if options.name.as_ref() == Some(&name) {
            bail!("the emulator of the lab `{name}` has died; its remains were removed");
        }
        eprintln!("the lab `{name}` had died; its remains were removed");
    }
    let names = options.name.clone().map_or_else(|| home.names(), |name| Ok(vec![name]))?;
    let labs = names.iter().map(|name| home.load(name)).collect::<Result<Vec<_>>>()?;
    if options.json {
        let labs = labs.iter().map(|lab| lab_json(home, lab)).collect::<Result<Vec<_>>>()?;
        outln!("{}", serde_json::to_string_pretty(&labs)?);
        return Ok(());
    }
    if labs.is_empty() {
        outln!("no lab is running");
    }
    for lab in labs {
        out!("{}", summary(&lab));
        let hops = lab::report(home, &lab)?;
        out!("{}", counters(&hops));
    }
    Ok(())
}

fn counters(hops: &[HopReport]) -> String {
    let rows: Vec<[String; 8]> = hops
        .iter()
        .enumerate()
        .flat_map(|(index, hop)| {
            let row = |towards: &str, report: &DirectionReport| {
                [
                    format!("  {} to {towards}", index + 1),
                    report.frames_in.to_string(),
                    report.frames_out.to_string(),
                    report.lost.to_string(),
                    report.queue_drops.to_string(),
                    report.emulator_drops.to_string(),
                    report.queued.to_string(),
                    format!("{:.2} ms", report.latest_us as f64 / 1e3),
                ]
            };
            [row("b", &hop.forward), row("a", &hop.backward)]
        })
        .collect();
    let cells: Vec<[&str; 8]> =
        rows.iter().map(|row| std::array::from_fn(|column| row[column].as_str())).collect();
    let head = ["  link", "in", "out", "lost", "queue full", "emulator", "queued", "max late"];
    text::table(&head, &cells)
}

fn set(home: &Home, options: &SetOptions) -> Result<()> {
    let lab = home.load_alive(&options.name)?;
    let changes = options.link.changes();
    if changes == settings::Changes::default() {
        bail!("nothing to change: give an option, for example --loss 5%");
    }
    let hops = lab::report(home, &lab)?;
    let selected = options.hop.map_or(1..=lab.shape.hops(), |hop| hop..=hop);
    for hop in selected {
        let Some(report) = hops.get(hop as usize - 1) else {
            bail!("the lab `{}` has no link {hop}; it has {}", lab.name, lab.shape.hops());
        };
        let mut link = report.link.clone();
        changes.apply(&mut link);
        let request = Request::Set { hop, link: Box::new(link) };
        emulator::control::ask(&home.control_socket(&lab.name), &request)?;
    }
    Ok(())
}

fn verify(home: &Home, options: &VerifyOptions) -> Result<ExitCode> {
    let report_step = |what: &str| {
        if std::io::stderr().is_terminal() || !options.json {
            eprintln!("measuring {what}");
        }
    };
    let effort = Effort { pings: 400, packets: options.packets, seconds: options.seconds };
    let rows = if let Some(name) = &options.name {
        if options.link.changes() != settings::Changes::default() {
            bail!("--name measures a running lab unchanged; change its links with batslab set");
        }
        verify::measure_named(home, name, effort, &report_step)?
    } else {
        lab::obtain_privileges(home)?;
        interrupt::watch()?;
        let name = format!("verify-{}", std::process::id());
        let config = LabConfig::chain(name, options.hops, link(&options.link));
        let scoped = ScopedLab::build(home, &config)?;
        if !options.json {
            out!("{}", summary(&scoped.lab));
        }
        verify::measure(&scoped.home, &scoped.lab, (0, options.hops), effort, &report_step)?
    };
    if options.json {
        outln!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        out!("{}", verify::table(&rows));
    }
    if !verify::all_within_tolerance(&rows) {
        eprintln!("batslab: the measured rate, delay or loss of the lab is out of tolerance");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
