//! Figures of common programs that tests run as commands: `ping` and `curl --write-out '%{json}'`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use anyhow::Result;
use serde_json::Value;

use super::reading::{Reading, last_document, of_round_trips};
use crate::result::figures::{Figures, set};

/// The round-trip times that ping prints for each reply, of iputils and BusyBox.
///
/// # Errors
/// The text has a summary of ping, but no reply.
pub(crate) fn ping(text: &str, of: &str) -> Result<Option<Reading>> {
    let Some(sent) = text.lines().find_map(packets_sent) else { return Ok(None) };
    let replies = text.lines().filter_map(|line| {
        let word = |key: &str| {
            line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key))?.parse().ok()
        };
        let number: f64 = word("icmp_seq=").or_else(|| word("seq="))?;
        // A copy of a reply is not another reply.
        (!line.contains("DUP!")).then_some((number, word("time=")?))
    });
    of_round_trips(replies.collect(), &[], sent, false, of).map(Some)
}

/// N of a line "N packets transmitted, ...".
fn packets_sent(line: &str) -> Option<f64> {
    line.contains(" packets transmitted").then(|| line.split(' ').next()?.parse().ok()).flatten()
}

/// Sets the duration and mean throughput of a download by curl. Other output has no effect.
pub(crate) fn curl(figures: &mut Figures, text: &str) {
    let Some(document) =
        last_document(text).filter(|one| one.get("curl_version").is_some_and(Value::is_string))
    else {
        return;
    };
    let number = |key: &str| document.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN);
    set(figures, "file_seconds", number("time_total"));
    set(figures, "throughput_mbps", number("size_download") * 8.0 / number("time_total") / 1e6);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reply_of_ping_counts_once() {
        let text = "PING 10.66.0.2 (10.66.0.2) 56(84) bytes of data.\n\
            64 bytes from 10.66.0.2: icmp_seq=1 ttl=64 time=20.5 ms\n\
            64 bytes from 10.66.0.2: icmp_seq=1 ttl=64 time=99.0 ms (DUP!)\n\
            64 bytes from 10.66.0.2: icmp_seq=3 ttl=64 time=40.5 ms\n\
            \n--- 10.66.0.2 ping statistics ---\n\
            4 packets transmitted, 2 received, 50% packet loss, time 2003ms\n";
        let reading = ping(text, "x").unwrap().unwrap();
        assert_eq!(reading.figures["rtt_mean_ms"], 30.5);
        assert_eq!(reading.figures["unanswered_percent"], 50.0);
        assert_eq!(reading.series[0].points, [(1.0, 20.5), (3.0, 40.5)]);
        let busy_box = "64 bytes from 10.66.0.2: seq=0 ttl=64 time=7.25 ms\n\
            1 packets transmitted, 1 packets received, 0% packet loss\n";
        assert_eq!(ping(busy_box, "x").unwrap().unwrap().figures["rtt_max_ms"], 7.25);
        let none = "3 packets transmitted, 0 received, 100% packet loss, time 2003ms\n";
        assert!(ping(none, "x").unwrap_err().to_string().contains("no reply"));
        assert!(ping("3 packets", "x").unwrap().is_none());
    }

    #[test]
    fn throughput_of_curl_is_that_of_the_whole_download() {
        let mut figures = Figures::new();
        curl(&mut figures, r#"{"size_download":5000000,"time_total":2.0,"curl_version":"x"}"#);
        assert_eq!((figures["throughput_mbps"], figures["file_seconds"]), (20.0, 2.0));
        let mut figures = Figures::new();
        for text in ["", r#"{"size_download":5,"time_total":2.0}"#, r#"{"curl_version":"x"}"#] {
            curl(&mut figures, text);
        }
        assert!(figures.is_empty(), "{figures:?}");
    }
}
