//! The publisher: finds its subscribers, sends samples, and measures the latency of echoes.

mod batch;
mod connect;
mod ends;
mod pace;
mod peers;
mod pings;
mod sender;

use std::fs::{self, File};
use std::io::Read;
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
use ends::{Ended, Ends};
use peers::Peers;
use pings::Recorder;

/// Pause before the first sample.
const PAUSE_BEFORE_DATA: Duration = Duration::from_secs(1);
/// Number and interval of end marks on transports that may lose them.
const END_MARKS: u32 = 50;
const END_MARK_INTERVAL: Duration = Duration::from_millis(100);
/// Largest file of `-loadDataFromFile`.
const MAX_PAYLOAD_FILE: u64 = 256 << 20;

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
    let context = || format!("cannot read {name}");
    // Before it is opened: that of a pipe would wait for its other end.
    ensure!(fs::metadata(path).with_context(context)?.is_file(), "{name} is no regular file");
    let mut bytes = Vec::new();
    // One byte more than allowed: a file can grow meanwhile.
    let file = File::open(path).with_context(context)?;
    file.take(MAX_PAYLOAD_FILE + 1).read_to_end(&mut bytes).with_context(context)?;
    ensure!(
        bytes.len() as u64 <= MAX_PAYLOAD_FILE,
        "{name} is too large: at most {MAX_PAYLOAD_FILE} bytes can be loaded"
    );
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
    let peers = Arc::new(Peers::new(peers, recorder, options));
    let mut sent = SentFigures::new();
    let outcome =
        start_threads(&peers).and_then(|()| run_phases(options, &peers, payload, &mut sent));
    // The threads end before the connections are closed, which would be an error to them.
    peers.is_over.store(true, Ordering::Release);
    // What was measured counts also after an error.
    let summarized = summarize(options, &peers, printer, &sent);
    outcome.and(summarized)?;
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
#[derive(Clone, Debug)]
struct SentFigures {
    samples: u64,
    time: Duration,
    by_timer: bool,
    cpu: CpuMeter,
}

impl SentFigures {
    fn new() -> Self {
        Self { samples: 0, time: Duration::ZERO, by_timer: false, cpu: CpuMeter::start() }
    }
}

fn run_phases(
    options: &PublisherOptions,
    peers: &Arc<Peers>,
    payload: Payload,
    sent: &mut SentFigures,
) -> Result<()> {
    let mut sender = sender::Sender::new(options, Arc::clone(peers), payload);
    print(&format!("Sending {} initialization pings ...", options.initial_pings));
    sender.send_pings()?;
    print("Sending data ...");
    // The initialization pings must not disturb the first samples.
    if sender.pause(PAUSE_BEFORE_DATA)? {
        sent.cpu = CpuMeter::start();
        let clock = Clock::start();
        let outcome = sender.send_samples();
        (sent.samples, sent.time) = (sender.samples(), clock.elapsed());
        outcome?;
        sent.by_timer = sender.ends().ended() == Some(Ended::Timer);
    }
    end(options, peers, sender.samples(), sender.ends())
}

/// Starts the threads that receive, if there are any. Over raw UDP another thread sends keep-alives and
/// detects peers that stopped answering.
fn start_threads(peers: &Arc<Peers>) -> Result<()> {
    if peers.has_threads {
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
                    let _ = channel.send(&message, || ());
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
fn end(options: &PublisherOptions, peers: &Peers, samples: u64, ends: &mut Ends) -> Result<()> {
    let mark = Control::End { publisher: options.common.id, samples }.encode().into();
    let is_reliable = options.common.is_reliable();
    peers.is_ending.store(true, Ordering::Release);
    let mut marks = 0;
    let mut last_mark: Option<Clock> = None;
    loop {
        let is_due = match &last_mark {
            None => true,
            Some(last) => !is_reliable && last.elapsed() >= END_MARK_INTERVAL,
        };
        if is_due {
            marks += 1;
            ensure!(
                marks <= END_MARKS,
                "no goodbye of {} after {END_MARKS} end marks",
                peers.missing()
            );
            ends.send(peers, &mark, None)?;
            last_mark = Some(Clock::start());
        }
        ends.wait(peers, Duration::from_millis(5))?;
        if peers.all_left() {
            return Ok(());
        }
    }
}

fn summarize(
    options: &PublisherOptions,
    peers: &Peers,
    printer: &Printer,
    sent: &SentFigures,
) -> Result<()> {
    let SentFigures { samples, time, ref cpu, .. } = *sent;
    let mut recorder = peers.recorder();
    let reported = recorder.report();
    if options.cache_stats {
        peers.print_cache_stats();
    }
    // Only publisher 0 measures.
    if options.common.id != 0 {
        return reported;
    }
    let latencies = recorder.latencies();
    let mut figures = latencies.figures();
    if figures.count == 0 {
        print("No echo arrived: lower -latencyCount to measure the latency.");
    }
    if options.low_resolution_clock && samples > 0 {
        figures.ave = time.as_nanos() as f64 / samples as f64 / 2.0;
    }
    let serialization =
        options.serialization_time.then(|| batch::serialization_time(options.common.data_length));
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
    reported
}
