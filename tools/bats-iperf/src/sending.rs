//! What controls the data that a side sends: each side's own options, as far as the mode has use for
//! them.

use openbats::CongestionAlgorithm;
use serde::{Deserialize, Serialize};

use crate::cli::{GoalName, Options, TransportMode};
use crate::control::{Carrier, Request, printable};

/// How one side's data is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sending {
    /// The congestion control in force: a name, `fixed:RATE`, or `kernel`.
    pub(crate) congestion: String,
    /// What the redundancy favours, where there is any.
    pub(crate) goal: Option<String>,
    /// Why what the side was told is not in force, if it is not.
    pub(crate) note: Option<String>,
}

impl Sending {
    /// What a side with these options does in a test.
    pub(crate) fn of(options: &Options, request: &Request) -> Self {
        let asked = options.congestion.map(|congestion| congestion.0);
        let asked_or_default = asked.unwrap_or_default();
        let mode = match request.carrier {
            Carrier::Bats => request.mode,
            // A baseline is what the kernel makes of it, and nobody has asked for anything else.
            Carrier::Tcp => return Self { congestion: "kernel".into(), ..Self::default() },
            Carrier::Udp if request.mode != TransportMode::Udp => {
                return Self { congestion: "none".into(), ..Self::default() };
            }
            Carrier::Udp => TransportMode::Udp,
        };
        let (congestion, has_goal) = match mode {
            TransportMode::Btp | TransportMode::Brtp | TransportMode::Brctp => {
                (asked_or_default.to_string(), true)
            }
            TransportMode::Transparent | TransportMode::Udp => ("none".to_owned(), false),
            TransportMode::Tcp => ("kernel".to_owned(), false),
            TransportMode::Quic => match asked_or_default {
                CongestionAlgorithm::Bbr => ("bbr".to_owned(), false),
                _ => ("cubic".to_owned(), false),
            },
        };
        let mut idle = Vec::new();
        if asked.is_some_and(|asked| asked.to_string() != congestion) {
            idle.push("--congestion");
        }
        if options.goal.is_some() && !has_goal {
            idle.push("--goal");
        }
        let why = match mode {
            TransportMode::Tcp => "the kernel has its own",
            TransportMode::Quic => "it has bbr and cubic, and no redundancy",
            _ => "it has neither congestion control nor redundancy",
        };
        let note = (!idle.is_empty())
            .then(|| format!("{} not in force in mode {}: {why}", idle.join(" and "), mode.name()));
        Self { congestion, goal: has_goal.then(|| goal(options).to_owned()), note }
    }

    /// As it came from the other side, fit to be printed.
    pub(crate) fn printable(&self) -> Self {
        Self {
            congestion: printable(&self.congestion),
            goal: self.goal.as_deref().map(printable),
            note: self.note.as_deref().map(printable),
        }
    }

    /// A line about it.
    pub(crate) fn line(&self, direction: &str) -> String {
        let goal = self.goal.as_ref().map(|goal| format!(", goal {goal}")).unwrap_or_default();
        format!("Sender {direction}: congestion control {}{goal}", self.congestion)
    }
}

fn goal(options: &Options) -> &'static str {
    match options.goal {
        Some(GoalName::Latency) => "latency",
        Some(GoalName::Throughput) => "throughput",
        Some(GoalName::Balanced) | None => "balanced",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::control::{self, Work};

    fn of(words: &str, mode: TransportMode, carrier: Carrier) -> Sending {
        let line = format!("bats_iperf -s {words}");
        let options = cli::parse(line.split_whitespace()).unwrap().0;
        let request = Request {
            version: control::VERSION,
            mode,
            streams: 1,
            carrier,
            work: Work::Files { count: 1, bytes: 1 },
            title: None,
            wants_output: false,
            wants_json: false,
        };
        Sending::of(&options, &request)
    }

    #[test]
    fn what_a_mode_has_no_use_for_is_said() {
        let told = "--congestion gcc --goal latency";
        for mode in [TransportMode::Btp, TransportMode::Brtp, TransportMode::Brctp] {
            let sending = of(told, mode, Carrier::Bats);
            assert_eq!((&*sending.congestion, sending.goal.as_deref()), ("gcc", Some("latency")));
            assert_eq!(sending.note, None);
        }
        for (mode, carrier, congestion, words) in [
            (TransportMode::Transparent, Carrier::Bats, "none", "neither"),
            (TransportMode::Udp, Carrier::Udp, "none", "neither"),
            (TransportMode::Tcp, Carrier::Bats, "kernel", "kernel"),
            (TransportMode::Quic, Carrier::Bats, "cubic", "bbr and cubic"),
        ] {
            let sending = of(told, mode, carrier);
            assert_eq!((&*sending.congestion, &sending.goal), (congestion, &None), "{mode:?}");
            let note = sending.note.unwrap();
            assert!(note.starts_with("--congestion and --goal not in force"), "{note}");
            assert!(note.contains(words), "{note}");
            assert_eq!(of("", mode, carrier).note, None, "{mode:?}");
        }
        let quic = |words: &str| of(words, TransportMode::Quic, Carrier::Bats);
        assert_eq!(quic("").congestion, "bbr");
        assert_eq!(
            quic("--congestion cubic"),
            Sending { congestion: "cubic".into(), ..Sending::default() }
        );
        assert!(quic("--congestion 5M").note.unwrap().starts_with("--congestion not in force"));
        // A baseline is the kernel's: nobody asks it for anything.
        assert_eq!(of(told, TransportMode::Brtp, Carrier::Tcp).note, None);
    }
}
