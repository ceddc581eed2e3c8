//! The publisher: finds its subscribers, sends samples, and measures the latency of echoes.

mod batch;
mod connect;
mod pace;
mod peers;
mod pings;
mod sender;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::channel::{KEEP_ALIVE, close_endpoint};
use crate::cli::PublisherOptions;
use crate::clock::Clock;
use crate::console::{self, print};
use crate::cpu::CpuMeter;
use crate::output::{LatencySummary, Printer};
use crate::wire::{Control, HEADER};
use batch::Payload;
use peers::Peers;
use pings::Recorder;

/// Pause before the first sample.
const PAUSE_BEFORE_DATA: Duration = Duration::from_secs(1);
/// Number and interval of end marks on transports that may lose them.
const END_MARKS: u32 = 50;
const END_MARK_INTERVAL: Duration = Duration::from_millis(100);
/// Largest file of `-loadDataFromFile`.
const MAX_PAYLOAD_FILE: u64 = 256 << 20;
/// Number of samples that are built and parsed to measure the serialization time.
const SERIALIZATION_SAMPLES: u32 = 1_000;

/// Runs a publisher.
///
/// # Errors
/// The test could not be completed.
pub(crate) fn run(options: &PublisherOptions) -> Result<()> {
    console::publisher(options);
    let payload = Payload::new(&load_payload(options)?, options.common.data_length - HEADER);
    let printer = Arc::new(Printer::new(&options.common)?);
    let recorder = Recorder::new(options, Arc::clone(&printer))?;
    let result = test(options, payload, recorder, &printer);
    let error = result.as_ref().err().map(|error| format!("{error:#}"));
    let written = printer.finish(error.as_deref());
    result.and(written)
}

fn load_payload(options: &PublisherOptions) -> Result<Vec<u8>> {
    let Some(path) = &options.payload_file else { return Ok(Vec::new()) };
    let name = path.display();
    let size = fs::metadata(path).with_context(|| format!("cannot read {name}"))?.len();
    ensure!(
        size <= MAX_PAYLOAD_FILE,
        "{name} has {size} bytes, at most {MAX_PAYLOAD_FILE} can be loaded"
    );
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    ensure!(!bytes.is_empty(), "{name} is empty");
    Ok(bytes)
}

fn test(
    options: &PublisherOptions,
    payload: Payload,
    recorder: Recorder,
    printer: &Printer,
) -> Result<()> {
    let count = options.common.peers_expected;
    print(&format!("Waiting to discover {count} subscribers ..."));
    let Some((peers, endpoint)) = connect::connect(options)? else {
        print("Interrupted before the test started.");
        return Ok(());
    };
    let peers = Arc::new(Peers::new(peers, recorder));
    let threads = start_threads(options, &peers);
    let outcome = threads.and_then(|()| run_phases(options, &peers, payload));
    // The threads end before the connections are closed, which would be an error to them.
    peers.is_over.store(true, Ordering::Release);
    let (cpu, sent) = match outcome {
        Ok(figures) => figures,
        Err(error) => {
            summarize(options, &peers, printer, &CpuMeter::start(), 0, Duration::ZERO);
            return Err(error);
        }
    };
    summarize(options, &peers, printer, &cpu, sent.samples, sent.time);
    peers.close();
    if let Some(endpoint) = endpoint {
        close_endpoint(&endpoint);
    }
    print(match sent.by_timer {
        true => "Finishing test due to timer...",
        false => "Finishing test...",
    });
    print("Test ended.");
    Ok(())
}

/// What the publisher has sent.
#[derive(Clone, Copy, Debug, Default)]
struct SentFigures {
    samples: u64,
    time: Duration,
    by_timer: bool,
}

fn run_phases(
    options: &PublisherOptions,
    peers: &Arc<Peers>,
    payload: Payload,
) -> Result<(CpuMeter, SentFigures)> {
    let mut sender = sender::Sender::new(options, Arc::clone(peers), payload);
    print(&format!("Sending {} initialization pings ...", options.initial_pings));
    sender.send_pings()?;
    print("Sending data ...");
    pause(peers)?;
    let cpu = CpuMeter::start();
    let clock = Clock::start();
    let by_timer = sender.send_samples()?;
    let sent = SentFigures { samples: sender.samples(), time: clock.elapsed(), by_timer };
    end(options, peers, sender.samples())?;
    Ok((cpu, sent))
}

/// Waits before the first sample, so that the initialization pings do not disturb it.
fn pause(peers: &Peers) -> Result<()> {
    let clock = Clock::start();
    while clock.elapsed() < PAUSE_BEFORE_DATA && !crate::signals::requested() {
        peers.check()?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Receives in threads, except in a latency test, in which the sender itself waits for the echoes.
/// Over raw UDP another thread sends keep-alives and detects peers that stopped answering.
fn start_threads(options: &PublisherOptions, peers: &Arc<Peers>) -> Result<()> {
    if !options.latency_test {
        for channel in 0..peers.channels.len() {
            let peers = Arc::clone(peers);
            let receive = move || peers.receive_until_over(channel);
            thread::Builder::new().name("receive".into()).spawn(receive)?;
        }
    }
    if peers.channels.iter().any(|channel| channel.is_raw()) {
        let peers = Arc::clone(peers);
        let watch = move || {
            let message = Control::KeepAlive { subscriber: 0 }.encode().into();
            while !peers.is_over.load(Ordering::Acquire) {
                for channel in &peers.channels {
                    let _ = channel.send(&message);
                }
                peers.find_dead();
                thread::sleep(KEEP_ALIVE);
            }
        };
        thread::Builder::new().name("keep-alive".into()).spawn(watch)?;
    }
    Ok(())
}

/// Sends the end mark until every subscriber has confirmed it.
fn end(options: &PublisherOptions, peers: &Peers, samples: u64) -> Result<()> {
    let mark = Control::End { publisher: options.common.id, samples }.encode().into();
    let is_reliable = options.common.is_reliable();
    let mut marks = 0;
    let mut last_mark: Option<Clock> = None;
    loop {
        let is_due = match &last_mark {
            None => true,
            Some(last) => !is_reliable && last.elapsed() >= END_MARK_INTERVAL,
        };
        if is_due {
            marks += 1;
            ensure!(marks <= END_MARKS, "no goodbye of a subscriber after {END_MARKS} end marks");
            peers.send(&mark)?;
            last_mark = Some(Clock::start());
        }
        if options.latency_test {
            peers.receive_all(Duration::from_millis(5))?;
        } else {
            thread::sleep(Duration::from_millis(5));
        }
        if peers.all_left() {
            return Ok(());
        }
        peers.check_alive()?;
    }
}

fn summarize(
    options: &PublisherOptions,
    peers: &Peers,
    printer: &Printer,
    cpu: &CpuMeter,
    samples: u64,
    time: Duration,
) {
    let mut recorder = peers.recorder();
    recorder.report();
    // Only publisher 0 measures.
    if options.common.id != 0 {
        return;
    }
    let latencies = recorder.latencies();
    let mut figures = latencies.figures();
    if figures.count == 0 {
        print("No echo arrived: lower -latencyCount to measure the latency.");
    }
    if options.low_resolution_clock && samples > 0 {
        figures.ave = time.as_nanos() as f64 / samples as f64 / 2.0;
    }
    let serialization = options
        .serialization_time
        .then(|| batch::serialization_time(options.common.data_length, SERIALIZATION_SAMPLES));
    printer.latency_summary(&LatencySummary {
        length: options.common.data_length,
        figures,
        percentiles: latencies.percentiles(),
        p99_9: latencies.at(0.999),
        serialization,
        cpu: cpu.total_percent(),
        cpu_ns_per_sample: cpu.total().as_nanos() as f64 / samples.max(1) as f64,
        samples_per_message: options.batching.samples(),
    });
    if options.cache_stats {
        peers.print_cache_stats();
    }
}
