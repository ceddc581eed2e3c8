//! Samples the queues of the emulator and the TCP sockets of the kernel while a tool runs.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::progress::Progress;
use crate::lab;
use crate::netlink::diag::{TcpState, TcpStates};
use crate::result::figures::{Figures, set};
use crate::result::series::Series;
use crate::state::{Home, Lab};
use crate::topology;

/// Sockets with fewer acknowledged bytes than this are control connections.
const MIN_DATA_BYTES: u64 = 64 << 10;

/// Sets the queue figures from the queue length in kB over time and the rate of the link.
pub(crate) fn queue_figures(figures: &mut Figures, points: &[(f64, f64)], rate: u64) {
    if rate == 0 || points.is_empty() {
        return;
    }
    let ms = |kilobytes: f64| kilobytes * 8e6 / rate as f64;
    let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
    set(figures, "queue_mean_ms", ms(mean));
    set(figures, "queue_max_ms", ms(points.iter().map(|point| point.1).fold(0.0, f64::max)));
}

/// Configuration of the sampling.
pub(crate) struct Sampler<'a> {
    pub(crate) home: &'a Home,
    pub(crate) lab: &'a Lab,
    /// The links on the path of the data: index, and whether it is taken forward.
    pub(crate) path: Vec<(usize, bool)>,
    /// For each flow: node of the sender, port, label.
    pub(crate) flows: Vec<(u32, u16, String)>,
    pub(crate) interval: Duration,
    pub(crate) start: Instant,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) progress: &'a Progress,
    /// Label of the measurement for the progress.
    pub(crate) what: &'a str,
}

/// The samples.
#[derive(Default)]
pub(crate) struct Samples {
    pub(crate) series: Vec<Series>,
    /// Queue of the slowest link on the path, in kB.
    pub(crate) queue: Vec<(f64, f64)>,
    pub(crate) slowest: u64,
}

impl Sampler<'_> {
    /// Samples until it is stopped.
    pub(crate) fn run(&self) -> Samples {
        let sockets: Mutex<Vec<Series>> = Mutex::new(Vec::new());
        let mut nodes: Vec<u32> = self.flows.iter().map(|flow| flow.0).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut samples = Samples::default();
        std::thread::scope(|scope| {
            for node in nodes {
                let sockets = &sockets;
                scope.spawn(move || {
                    let series = self.sockets_of(node);
                    sockets.lock().unwrap_or_else(PoisonError::into_inner).extend(series);
                });
            }
            if self.lab.is_emulated {
                samples = self.emulator();
            }
        });
        samples.series.extend(sockets.into_inner().unwrap_or_else(PoisonError::into_inner));
        samples
    }

    fn every_interval(&self, mut sample: impl FnMut(f64)) {
        let mut next = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            sample(self.start.elapsed().as_secs_f64());
            next += self.interval;
            // Sleep in short steps, so that a long interval does not delay the end.
            while Instant::now() < next && !self.stop.load(Ordering::Relaxed) {
                let remaining = next.saturating_duration_since(Instant::now());
                std::thread::sleep(remaining.min(Duration::from_millis(50)));
            }
        }
    }

    fn emulator(&self) -> Samples {
        let path = self.path.iter().filter_map(|&(index, forward)| {
            let link = self.lab.links.get(index)?;
            let rate = if forward { &link.forward } else { &link.backward }.mean_rate();
            // A link without rate limit is no bottleneck.
            Some((if rate == 0 { u64::MAX } else { rate }, index, forward))
        });
        let path: Vec<(u64, usize, bool)> = path.collect();
        let Some(rate) = path.iter().map(|link| link.0).min() else { return Samples::default() };
        // If several links are equally slow, the queue forms in front of one of them.
        let slowest: Vec<(usize, bool)> = path
            .iter()
            .filter(|link| link.0 == rate)
            .map(|&(_, index, forward)| (index, forward))
            .collect();
        let rate = if rate == u64::MAX { 0 } else { rate };
        let last = self.path.last().copied();
        let (mut queue, mut drops) = (Vec::new(), Vec::new());
        let (mut last_bytes, mut last_report) = (None::<u64>, Instant::now());
        self.every_interval(|at| {
            let Ok(hops) = lab::report(self.home, self.lab) else { return };
            let of = |index: usize, forward: bool| {
                hops.get(index).map(|hop| if forward { &hop.forward } else { &hop.backward })
            };
            let all = || slowest.iter().filter_map(|&(index, forward)| of(index, forward));
            let queued = all().map(|direction| direction.queued).max().unwrap_or(0) as f64 / 1e3;
            queue.push((at, queued));
            drops.push((at, all().map(|direction| direction.queue_drops).sum::<u64>() as f64));
            if let Some(out) = last.and_then(|(index, forward)| of(index, forward)) {
                let elapsed = last_report.elapsed();
                if elapsed >= Duration::from_millis(500) {
                    if let Some(before) = last_bytes {
                        let rate = out.bytes_out.saturating_sub(before) as f64 * 8e-6
                            / elapsed.as_secs_f64();
                        self.progress.sample(self.what, at, rate, queued, None);
                    }
                    (last_bytes, last_report) = (Some(out.bytes_out), Instant::now());
                } else if last_bytes.is_none() {
                    (last_bytes, last_report) = (Some(out.bytes_out), Instant::now());
                }
            }
        });
        let base = drops.first().map_or(0.0, |drop| drop.1);
        let drops = drops.into_iter().map(|(at, count)| (at, count - base)).collect();
        let series = |name: &str, unit: &str, points| Series {
            name: name.to_owned(),
            of: "slowest link".to_owned(),
            unit: unit.to_owned(),
            points,
        };
        let list =
            vec![series("queue", "kB", queue.clone()), series("queue drops", "frames", drops)];
        Samples { series: list, queue, slowest: rate }
    }

    /// Socket statistics of the flows that send from a node.
    fn sockets_of(&self, node: u32) -> Vec<Series> {
        let Some(host) = self.lab.shape.hosts.get(node as usize) else { return Vec::new() };
        let namespace = topology::namespace(&self.lab.name, host);
        // This thread ends with the measurement, so it need not leave the namespace.
        if self.home.namespaces(&self.lab.name).enter(&namespace).is_err() {
            return Vec::new();
        }
        let Ok(mut states) = TcpStates::open() else { return Vec::new() };
        let flows: Vec<(u16, &String)> =
            self.flows.iter().filter(|flow| flow.0 == node).map(|flow| (flow.1, &flow.2)).collect();
        let mut values: BTreeMap<usize, Vec<(f64, [f64; 5])>> = BTreeMap::new();
        self.every_interval(|at| {
            let Ok(all) = states.all() else { return };
            for (index, (port, _)) in flows.iter().enumerate() {
                let mine: Vec<&TcpState> = all
                    .iter()
                    .filter(|state| {
                        state.remote_port == *port && state.acknowledged > MIN_DATA_BYTES
                    })
                    .collect();
                if !mine.is_empty() {
                    values.entry(index).or_default().push((at, aggregate(&mine)));
                }
            }
        });
        const NAMES: [(&str, &str); 5] = [
            ("cwnd", "kB"),
            ("smoothed RTT", "ms"),
            ("delivery rate", "Mbit/s"),
            ("pacing rate", "Mbit/s"),
            ("retransmissions", "segments"),
        ];
        let mut list = Vec::new();
        for (flow, samples) in values {
            for (column, (name, unit)) in NAMES.iter().enumerate() {
                let points = samples.iter().map(|(at, values)| (*at, values[column])).collect();
                list.push(Series {
                    name: (*name).to_owned(),
                    of: flows[flow].1.clone(),
                    unit: (*unit).to_owned(),
                    points,
                });
            }
        }
        list
    }
}

/// Aggregates the sockets of one flow: sums, and the mean of the RTTs.
fn aggregate(states: &[&TcpState]) -> [f64; 5] {
    let sum = |value: fn(&TcpState) -> f64| states.iter().map(|state| value(state)).sum::<f64>();
    // Before the first measurement the kernel reports an unlimited pacing rate.
    let pacing = |state: &TcpState| match state.pacing_rate {
        u64::MAX => 0.0,
        rate => rate as f64,
    };
    [
        sum(|state| state.cwnd as f64) / 1e3,
        sum(|state| f64::from(state.rtt_us)) / 1e3 / states.len().max(1) as f64,
        sum(|state| state.delivery_rate as f64) * 8e-6,
        states.iter().map(|state| pacing(state)).sum::<f64>() * 8e-6,
        sum(|state| f64::from(state.retransmissions)),
    ]
}
