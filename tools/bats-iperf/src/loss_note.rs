//! Explains why a test lost more messages than it delivered.

use crate::control::{Summary, Throughput, Totals};
use crate::outcome::Outcome;
use crate::report::{Side, distinct_sides, indices};

/// One note for each direction that lost more than it delivered.
pub(crate) fn notes(outcome: &Outcome, remote: Option<&Summary>, work: &Throughput) -> Vec<String> {
    let own = &outcome.summary.streams[..];
    let theirs = remote.map_or(&[][..], |remote| &remote.streams);
    let of_side = |side| {
        let (senders, receivers) = match side {
            Side::Sender => (own, theirs),
            Side::Receiver => (theirs, own),
        };
        let places = indices(&outcome.sides, side);
        let pick = |all: &[Totals]| -> Vec<Totals> {
            places.iter().filter_map(|&place| all.get(place).cloned()).collect()
        };
        let forward = (side == Side::Sender) == outcome.is_client;
        let direction = if forward { "to the server" } else { "from the server" };
        note(direction, &pick(senders), &pick(receivers), work)
    };
    distinct_sides(&outcome.sides).into_iter().filter_map(of_side).collect()
}

fn note(
    direction: &str,
    senders: &[Totals],
    receivers: &[Totals],
    work: &Throughput,
) -> Option<String> {
    let sum = |all: &[Totals], field: fn(&Totals) -> u64| {
        all.iter().fold(0_u64, |sum, totals| sum.saturating_add(field(totals)))
    };
    let (lost, arrived) = (sum(receivers, |x| x.lost), sum(receivers, |x| x.messages));
    if lost <= arrived {
        return None;
    }
    let total = lost.saturating_add(arrived);
    let stats = || senders.iter().filter_map(|totals| totals.transport_stats.as_ref());
    let expired = stats().fold(0_u64, |sum, x| sum.saturating_add(x.messages.expired)).min(lost);
    let worst_loss = stats().map(|x| x.path.loss_percent).fold(0.0, f64::max);
    let delivered =
        stats().fold(0_u64, |sum, x| sum.saturating_add(x.congestion.delivery_bits_per_second));
    let mut text = format!("note: {lost} of {total} messages {direction} were lost");
    if expired > 0 {
        let deadline = work.deadline_ms.map_or_else(
            || "their deadline".to_owned(),
            |deadline| format!("their deadline of {deadline} ms"),
        );
        text.push_str(&format!(
            "; {expired} waited longer than {deadline} and were not sent: the path delivered about \
             {}. Use a lower rate (-b), shorter messages (--length), a longer --deadline, or a \
             reliable mode (-m brtp)",
            crate::units::rate(delivered as f64)
        ));
    }
    let on_path = lost - expired;
    if on_path > 0 {
        text.push_str(&format!("; {on_path} were lost on the path"));
        match stats().next() {
            Some(_) if worst_loss > 0.0 => text.push_str(&format!(
                ", which loses {worst_loss:.0} % of the packets: a message of several packets is \
                 lost with any of them. Use shorter messages (--length), --goal latency, or a \
                 reliable mode (-m brtp)"
            )),
            Some(_) => text.push_str(
                ", although it lost no packets: they were incomplete when their deadline had \
                 passed. Use a lower rate (-b), or a longer --deadline",
            ),
            None => text.push_str(
                ": without congestion control more was sent than it carries. Use a lower rate (-b)",
            ),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Direction;
    use crate::transport_stats::TransportStats;

    fn work() -> Throughput {
        Throughput {
            direction: Direction::Forward,
            seconds: 1.0,
            omit: 0.0,
            bytes: 0,
            messages: 0,
            interval: 1.0,
            bandwidth: 0,
            length: 1_000,
            is_fitted: false,
            latency: false,
            deadline_ms: Some(200),
        }
    }

    fn totals(messages: u64, lost: u64, expired: u64, loss_percent: f64) -> Totals {
        let mut stats = TransportStats::default();
        stats.messages.expired = expired;
        stats.path.loss_percent = loss_percent;
        stats.congestion.delivery_bits_per_second = 2_000_000;
        Totals { messages, lost, transport_stats: Some(stats), ..Totals::default() }
    }

    #[test]
    fn only_a_direction_that_loses_most_messages_gets_a_note() {
        for (arrived, lost, has_note) in [(0, 0, false), (10, 10, false), (10, 11, true)] {
            let all = [totals(arrived, lost, 0, 1.0)];
            assert_eq!(note("x", &all, &all, &work()).is_some(), has_note, "{arrived} {lost}");
        }
    }

    #[test]
    fn a_note_names_the_cause() {
        let expired = [totals(10, 90, 90, 0.0)];
        let text = note("x", &expired, &expired, &work()).unwrap();
        for words in ["90 of 100", "90 waited longer than their deadline of 200 ms", "2.00 Mbits"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("on the path"), "{text}");
        let lossy = [totals(10, 90, 0, 60.0)];
        let text = note("x", &lossy, &lossy, &work()).unwrap();
        assert!(text.contains("90 were lost on the path, which loses 60 %"), "{text}");
        let late = [totals(10, 90, 0, 0.0)];
        let text = note("x", &late, &late, &work()).unwrap();
        assert!(text.contains("incomplete when their deadline"), "{text}");
        let bare = [Totals { lost: 5, ..Totals::default() }];
        assert!(note("x", &bare, &bare, &work()).unwrap().contains("lower rate (-b)"));
        let wild = [totals(0, u64::MAX, u64::MAX, f64::NAN); 1];
        assert!(note("x", &wild, &wild, &work()).is_some());
    }
}
