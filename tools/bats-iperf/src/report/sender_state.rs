//! The line of `-V` that shows what the congestion controller of a sending stream does.

use super::{Side, indices};
use crate::outcome::Interval;
use crate::transport_stats::TransportStats;
use crate::units;

/// A line for each sending stream of an interval whose transport has a congestion controller.
pub(crate) fn lines(interval: &Interval, sides: &[Side]) -> Vec<String> {
    indices(sides, Side::Sender)
        .into_iter()
        .filter_map(|place| {
            let (_, now) = interval.transport_stats.get(place)?.as_ref()?;
            (!now.congestion.limited_by.is_empty()).then(|| line(place, now))
        })
        .collect()
}

fn line(stream: usize, stats: &TransportStats) -> String {
    let pacing = stats
        .congestion
        .pacing_bits_per_second
        .map_or_else(|| "none".to_owned(), |rate| units::rate(rate as f64));
    format!(
        "[{:>3}]  {} limited by {}: bandwidth {}, pacing {pacing}, in flight {}, queue {:.3} ms, \
         own loss {:.2}%",
        stream + 1,
        stats.congestion.controller_state,
        stats.congestion.limited_by,
        units::rate(stats.congestion.delivery_bits_per_second as f64),
        units::bytes(stats.congestion.bytes_in_flight),
        stats.path.queue_delay_us as f64 / 1e3,
        stats.congestion.own_loss_percent,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Reading;
    use crate::transport_stats::CongestionSample;

    #[test]
    fn senders_show_their_state_and_what_limits_them() {
        let mut stats = TransportStats::default();
        stats.path.queue_delay_us = 1_250;
        stats.congestion = CongestionSample {
            controller_state: "probe_bw_cruise".into(),
            limited_by: "bw_shortterm".into(),
            delivery_bits_per_second: 20_000_000,
            pacing_bits_per_second: Some(18_000_000),
            bytes_in_flight: 75_000,
            own_loss_percent: 2.5,
            ..CongestionSample::default()
        };
        let mut without = stats.clone();
        without.congestion.limited_by.clear();
        let pair = |stats: &TransportStats| Some((TransportStats::default(), stats.clone()));
        let interval = Interval {
            start: 0.0,
            end: 1.0,
            is_omitted: false,
            streams: vec![Reading::default(); 4],
            transport_stats: vec![pair(&stats), pair(&stats), pair(&without), None],
        };
        let sides = [Side::Receiver, Side::Sender, Side::Sender, Side::Sender];
        assert_eq!(
            lines(&interval, &sides),
            ["[  2]  probe_bw_cruise limited by bw_shortterm: bandwidth 20.00 Mbits/sec, pacing \
              18.00 Mbits/sec, in flight 75.00 KBytes, queue 1.250 ms, own loss 2.50%"]
        );
    }
}
