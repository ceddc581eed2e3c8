//! Text tables of the commands `matrix` and `run`.

use bats_sim::matrix::Figures;
use bats_sim::transfer::Outcome;

/// Column titles of [`line`].
pub(crate) const HEADER: &str = "loss %  delay ms   10 s Mbit/s  5-15 s Mbit/s   E 10 s   E 5-15  \
    waste %  queue loss %  (1st s)  queue BDP  RTTs to 90 %  \
    message ms p50      p95      p99  network ms p50      p95      p99";

/// Explanation of the columns.
pub(crate) const LEGEND: &str = "\
Goodput counts message bytes that became deliverable in order, over the first 10 s after the \
connection is established and over seconds 5 to 15 (the second half of shorter runs). E is goodput \
divided by the UDP payload that full frames carry at that loss. Waste is the fraction of received \
coded packets that were not innovative.

Delays are of seconds 5 to 15. 'message': from the send() that accepted a message to the recv() \
that returned it. The sender is never application-limited: its send budget is full, and the time \
to drain it dominates. A sender below the link rate sees less delay. 'network': from entering the \
link to arrival of a datagram (queueing, transmission, propagation).";

/// One line of the table.
pub(crate) fn line(figures: &Figures) -> String {
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
    format!(
        "{:6.1} {:9.0} {:13.1} {:14.1} {:8.3} {:8.3} {:8.2} {:13.2} {:8.2} {:10.3} {:>13} \
         {:>15} {:>8} {:>8} {:>15} {:>8} {:>8}",
        figures.loss_percent,
        figures.delay_ms,
        figures.goodput_mbps_10s,
        figures.goodput_mbps_steady,
        figures.e_10s,
        figures.e_steady,
        figures.waste_percent,
        figures.queue_loss_percent,
        figures.queue_loss_first_second_percent,
        figures.queue_bdp,
        or_dash(figures.rounds_to_rate),
        or_dash(figures.delay_p50_ms),
        or_dash(figures.delay_p95_ms),
        or_dash(figures.delay_p99_ms),
        or_dash(figures.network_delay_p50_ms),
        or_dash(figures.network_delay_p95_ms),
        or_dash(figures.network_delay_p99_ms),
    )
}

/// The sender's state over time: one line for every fifth sample.
pub(crate) fn samples(outcome: &Outcome) -> Vec<String> {
    let mut lines = vec![String::from(
        "time s  state           goodput  pacing  delivery  cwnd kB  flight kB  queue kB  queue ms  \
         loss   own  drops  limited by",
    )];
    let mut last = (0.0, 0);
    for sample in outcome.samples.iter().step_by(5) {
        let time = sample.time.as_secs_f64();
        let elapsed = (time - last.0).max(1e-9);
        lines.push(format!(
            "{:6.2}  {:15} {:7.1} {:7.1} {:9.1} {:8} {:10} {:9} {:9.2} {:5.3} {:5.3} {:6}  {}",
            time,
            sample.sender.congestion.controller_state,
            (sample.delivered - last.1) as f64 * 8e-6 / elapsed,
            sample.sender.congestion.pacing_bps as f64 / 1e6,
            sample.sender.congestion.delivery_bps as f64 / 1e6,
            sample.sender.congestion.cwnd_bytes / 1000,
            sample.sender.congestion.in_flight_bytes / 1000,
            sample.queue_bytes / 1000,
            sample.sender.path.queue_delay.as_secs_f64() * 1e3,
            sample.sender.path.loss_estimate,
            sample.sender.congestion.own_loss,
            sample.link.dropped_queue,
            sample.sender.congestion.limited_by,
        ));
        last = (time, sample.delivered);
    }
    lines
}
