//! Measures rate, delay and loss of a lab and compares them with its configuration.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::emulator::report::{DirectionReport, HopReport, Request};
use crate::emulator::{self};
use crate::lab;
use crate::probe::{CbrPlan, CbrResult, PingResult, ping, send_cbr};
use crate::settings::Direction;
use crate::state::{Home, Lab};
use crate::topology;
use crate::units::{megabits, rate_text};

/// Offered rate in bits per second on a link without rate limit.
const UNLIMITED_OFFER: u64 = 500_000_000;
/// Allowed relative deviation of a rate.
const RATE_TOLERANCE: f64 = 0.02;
/// Allowed deviation of a loss, in standard deviations.
const LOSS_TOLERANCE_DEVIATIONS: f64 = 4.5;

/// One line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Name of the quantity.
    pub(crate) what: String,
    /// The configured value.
    pub(crate) asked: String,
    /// The measured value.
    pub(crate) measured: String,
    /// The measured value as a number: bits per second, milliseconds, percent, cores.
    pub(crate) value: f64,
    /// Whether it is within tolerance; `None` if nothing is configured to compare with.
    pub(crate) good: Option<bool>,
    /// The path, if several were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) over: Option<String>,
}

/// Extent of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Number of small packets for round-trip times.
    pub(crate) pings: u64,
    /// Packets in sequence to the far end; a quarter as many are sent back.
    pub(crate) packets: u64,
    /// Time limit in seconds of each of the five parts.
    pub(crate) seconds: u64,
}

/// Measures the lab between two of its hosts; the rows name the first of them a.
///
/// # Errors
/// If traffic cannot be sent, the emulator does not answer, or the user interrupts.
pub(crate) fn measure(
    home: &Home,
    lab: &Lab,
    (near, far): (u32, u32),
    effort: Effort,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>> {
    let limit = Duration::from_secs(effort.seconds);
    let packets = effort.packets;
    let socket = home.control_socket(&lab.name);
    let start = emulator::control::report(&socket)?;
    let path = topology::path(&lab.shape.edges, near, far)
        .with_context(|| format!("there is no path from node {near} to node {far}"))?;
    let mut rows = Vec::new();
    progress("round-trip times of small packets");
    let crossed: Vec<HopReport> =
        path.iter().filter_map(|&(index, _)| start.get(index).cloned()).collect();
    rows.push(delay(home, lab, (near, far), effort.pings, &crossed)?);
    emulator::control::ask(&socket, &Request::ResetLateness)?;
    for forward in [true, false] {
        let name = if forward { "a to b" } else { "b to a" };
        let packets = if forward { packets } else { (packets / 4).max(1_000) };
        let directions: Vec<Direction> = path
            .iter()
            .filter_map(|&(index, onward)| {
                let link = &start.get(index)?.link;
                Some(if onward == forward { &link.forward } else { &link.backward }.clone())
            })
            .collect();
        let rate = directions.iter().map(|hop| hop.rate).filter(|&rate| rate > 0).min();
        let (here, there) = if forward { (near, far) } else { (far, near) };
        let (namespaces, from, to) = host_namespaces(home, lab, here, there);
        let address = lab.shape.address_of(there);
        let blast_plan = CbrPlan {
            namespaces: &namespaces,
            from,
            to,
            address,
            frame: lab.mtu as usize + 14,
            rate: rate.unwrap_or(UNLIMITED_OFFER) / 10 * 9,
            packets,
            time: limit,
            last_packet_timeout: last_packet_timeout(&start),
        };
        progress(&format!("{packets} packets {name} at 90 % of the rate"));
        let before = totals(&emulator::control::report(&socket)?, &path, forward);
        let began = (Instant::now(), processor_time(lab));
        let result = send_cbr(&blast_plan)?;
        let cores = (processor_time(lab).saturating_sub(began.1)).as_secs_f64()
            / result.sending.as_secs_f64().max(1e-9);
        debug_assert!(began.0.elapsed() >= result.sending);
        let after = emulator::control::report(&socket)?;
        let moved = totals(&after, &path, forward);
        rows.push(loss(name, &directions, &result, moved.queue_drops - before.queue_drops));
        rows.push(Row {
            what: format!("dropped by the emulator, {name}"),
            asked: "0".to_owned(),
            measured: (moved.emulator_drops - before.emulator_drops).to_string(),
            value: (moved.emulator_drops - before.emulator_drops) as f64,
            good: Some(moved.emulator_drops == before.emulator_drops),
            over: None,
        });
        rows.push(Row {
            what: format!("emulator CPU, {name}"),
            asked: "-".to_owned(),
            measured: format!("{cores:.2} at {} Mbit/s", megabits(offered(&blast_plan, &result))),
            value: cores,
            good: None,
            over: None,
        });
        rows.push(Row {
            what: format!("maximum lateness, {name}"),
            asked: "-".to_owned(),
            measured: format!("{:.2} ms late", moved.latest_us as f64 / 1e3),
            value: moved.latest_us as f64 / 1e3,
            good: None,
            over: None,
        });
        if let Some(rate) = rate {
            progress(&format!("rate {name}"));
            let flood = CbrPlan {
                rate: rate / 20 * 23,
                packets: (rate / 20 * 23 / 8 / blast_plan.frame as u64 * 3).max(100),
                time: limit.min(Duration::from_secs(4)),
                ..blast_plan.clone()
            };
            let flooded = send_cbr(&flood)?;
            let passed = flooded.received_rate / (1.0 - result.loss()).max(1e-9);
            let is_within = (passed / rate as f64 - 1.0).abs() <= RATE_TOLERANCE;
            rows.insert(
                rows.len() - 4,
                Row {
                    what: format!("rate {name}"),
                    asked: rate_text(rate),
                    measured: format!("{} Mbit/s", megabits(passed)),
                    value: passed,
                    good: Some(is_within),
                    over: None,
                },
            );
        }
    }
    Ok(rows)
}

type Hosts = (crate::namespace::Namespaces, String, String);

fn host_namespaces(home: &Home, lab: &Lab, from: u32, to: u32) -> Hosts {
    let namespace = |node: u32| {
        let host = lab.shape.hosts.get(node as usize);
        topology::namespace(&lab.name, host.map_or("", String::as_str))
    };
    (home.namespaces(&lab.name), namespace(from), namespace(to))
}

fn offered(plan: &CbrPlan<'_>, result: &CbrResult) -> f64 {
    result.sent as f64 * plan.frame as f64 * 8.0 / result.sending.as_secs_f64().max(1e-9)
}

fn processor_time(lab: &Lab) -> Duration {
    lab.emulator.map(|emulator| emulator.processor_time()).unwrap_or_default()
}

/// How long the last packet may take: delay, jitter and a full queue on every link.
fn last_packet_timeout(hops: &[HopReport]) -> Duration {
    let delay: Duration = hops
        .iter()
        .map(|hop| {
            let queue = [&hop.link.forward, &hop.link.backward].map(|direction| {
                let bits = hop.link.queue_bytes(direction) as f64 * 8.0;
                Duration::from_secs_f64((bits / direction.rate.max(1_000_000) as f64).min(10.0))
            });
            let jitter = hop.link.forward.jitter + hop.link.backward.jitter;
            hop.link.round_trip() + jitter + queue[0].max(queue[1])
        })
        .sum();
    delay + Duration::from_millis(200)
}

fn totals(hops: &[HopReport], path: &[(usize, bool)], forward: bool) -> DirectionReport {
    let mut totals = DirectionReport::default();
    for &(index, onward) in path {
        let Some(hop) = hops.get(index) else { continue };
        let direction = if onward == forward { &hop.forward } else { &hop.backward };
        totals.queue_drops += direction.queue_drops;
        totals.emulator_drops += direction.emulator_drops;
        totals.latest_us = totals.latest_us.max(direction.latest_us);
    }
    totals
}

fn delay(
    home: &Home,
    lab: &Lab,
    (near, far): (u32, u32),
    pings: u64,
    hops: &[HopReport],
) -> Result<Row> {
    let (namespaces, from, to) = host_namespaces(home, lab, near, far);
    let address = lab.shape.address_of(far);
    let result = ping(&namespaces, &from, &to, address, pings, last_packet_timeout(hops))?;
    let asked: Duration = hops.iter().map(|hop| hop.link.round_trip()).sum();
    let jitter: Duration =
        hops.iter().map(|hop| hop.link.forward.jitter + hop.link.backward.jitter).sum();
    // Small frames have a transmission time, and the hosts need processing time.
    let wire: f64 = hops
        .iter()
        .flat_map(|hop| [hop.link.forward.rate, hop.link.backward.rate])
        .filter(|&rate| rate > 0)
        .map(|rate| 64.0 * 8.0 / rate as f64)
        .sum();
    let min_s = asked.as_secs_f64();
    let max_s = min_s + jitter.as_secs_f64() + wire + 0.001 * hops.len() as f64;
    let good = result.received > 0
        && result.min.as_secs_f64() >= min_s - jitter.as_secs_f64() - 0.000_05
        && result.median.as_secs_f64() <= max_s;
    Ok(delay_row(asked, &result, good))
}

fn delay_row(asked: Duration, result: &PingResult, good: bool) -> Row {
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Row {
        what: "round trip".to_owned(),
        asked: format!("{:.2} ms", millis(asked)),
        measured: if result.received == 0 {
            format!("none of {} came back", result.sent)
        } else {
            format!(
                "{:.2} / {:.2} / {:.2} ms (min, median, max)",
                millis(result.min),
                millis(result.median),
                millis(result.max)
            )
        },
        value: millis(result.median),
        good: Some(good),
        over: None,
    }
}

fn loss(name: &str, directions: &[Direction], result: &CbrResult, queue_drops: u64) -> Row {
    // A corrupted packet fails its checksum, so the hosts see it as lost.
    let passes: f64 = directions
        .iter()
        .map(|hop| if hop.black_hole { 0.0 } else { (1.0 - hop.loss.mean()) * (1.0 - hop.corrupt) })
        .product();
    let asked = 1.0 - passes;
    let factor = directions.iter().map(|hop| hop.loss.burst_factor()).fold(1.0, f64::max);
    let measured = result.loss();
    let deviation = factor * (asked * (1.0 - asked) / result.sent.max(1) as f64).sqrt();
    // Allow 1e-5 more: the kernels of the hosts may drop a packet.
    let good = (measured - asked).abs() <= LOSS_TOLERANCE_DEVIATIONS * deviation + 1e-5
        && queue_drops == 0;
    let mut text = format!("{:.4} % of {}", measured * 100.0, result.sent);
    if queue_drops > 0 {
        text.push_str(&format!(", {queue_drops} dropped by the queue"));
    }
    if result.reordered > 0 {
        text.push_str(&format!(", {} reordered", result.reordered));
    }
    if result.duplicates > 0 {
        text.push_str(&format!(", {} duplicated", result.duplicates));
    }
    Row {
        what: format!("loss {name}"),
        asked: format!("{:.4} %", asked * 100.0),
        measured: text,
        value: measured * 100.0,
        good: Some(good),
        over: None,
    }
}

/// The rows as a text table.
pub(crate) fn table(rows: &[Row]) -> String {
    let cells: Vec<[&str; 4]> = rows
        .iter()
        .map(|row| {
            let verdict = match row.good {
                Some(true) => "ok",
                Some(false) => "OUT OF TOLERANCE",
                None => "",
            };
            [row.what.as_str(), row.asked.as_str(), row.measured.as_str(), verdict]
        })
        .collect();
    crate::text::table(&["", "configured", "measured", ""], &cells)
}

/// Whether all rows are within tolerance.
pub(crate) fn all_within_tolerance(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.good != Some(false))
}

/// Measures a running lab.
pub(crate) fn measure_named(
    home: &Home,
    name: &str,
    effort: Effort,
    progress: &dyn Fn(&str),
) -> Result<Vec<Row>> {
    let lab = home.load_alive(name)?;
    home.join(&lab)?;
    lab::report(home, &lab)?;
    let last = lab.shape.hosts.len() as u32 - 1;
    measure(home, &lab, (0, last), effort, progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Loss;

    #[test]
    fn loss_tolerance_scales_with_the_standard_deviation() {
        let path = [Direction { loss: Loss::Independent(0.1), ..Direction::default() }];
        let result = |received| CbrResult { sent: 1_000_000, received, ..CbrResult::default() };
        assert_eq!(loss("x", &path, &result(900_500), 0).good, Some(true));
        assert_eq!(loss("x", &path, &result(898_000), 0).good, Some(false));
        assert_eq!(loss("x", &path, &result(900_500), 3).good, Some(false));
    }

    #[test]
    fn pass_probabilities_of_a_chain_multiply() {
        let hop = Direction { loss: Loss::Independent(0.5), ..Direction::default() };
        let result = CbrResult { sent: 100_000, received: 25_000, ..CbrResult::default() };
        let row = loss("x", &[hop.clone(), hop], &result, 0);
        assert_eq!((row.asked.as_str(), row.good), ("75.0000 %", Some(true)));
    }
}
