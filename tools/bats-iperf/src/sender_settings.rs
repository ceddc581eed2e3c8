//! Sender settings in effect: each side's own options, as far as the mode supports them.

use openbats::{CongestionAlgorithm, Goal};
use serde::{Deserialize, Serialize};

use crate::printable::printable;
use crate::transport_mode::{Transport, TransportMode};

/// Sender settings of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SenderSettings {
    /// The congestion control in effect: a name, `fixed:RATE`, or `kernel`.
    pub(crate) congestion: String,
    /// The goal of the redundancy, if the mode has redundancy.
    pub(crate) goal: Option<String>,
    /// Which options of this side are not in effect, and why.
    pub(crate) note: Option<String>,
}

impl SenderSettings {
    /// The settings of a side in a test of this mode over this transport; `asked` and `goal` are
    /// the congestion control and the goal of the side's options.
    pub(crate) fn of(
        asked: Option<CongestionAlgorithm>,
        goal: Option<Goal>,
        mode: TransportMode,
        transport: Transport,
    ) -> Self {
        let asked_or_default = asked.unwrap_or_default();
        let mode = match transport {
            Transport::Bats => mode,
            // The kernel controls a baseline; the options do not apply to it.
            Transport::Tcp => return Self { congestion: "kernel".into(), ..Self::default() },
            Transport::Udp if mode != TransportMode::Udp => {
                return Self { congestion: "none".into(), ..Self::default() };
            }
            Transport::Udp => TransportMode::Udp,
        };
        let (congestion, has_goal) = match mode {
            TransportMode::Btp | TransportMode::Brtp | TransportMode::Brctp => {
                (asked_or_default.to_string(), true)
            }
            TransportMode::Transparent | TransportMode::Udp => ("none".to_owned(), false),
            TransportMode::Tcp => ("kernel".to_owned(), false),
            TransportMode::Quic => match asked_or_default {
                CongestionAlgorithm::Ltcc | CongestionAlgorithm::Bbr3 => ("bbr".to_owned(), false),
                _ => ("cubic".to_owned(), false),
            },
        };
        let mut unsupported = Vec::new();
        // BBR of QUIC is another controller than this project's, by the same name.
        let is_in_effect = |asked: CongestionAlgorithm| match asked {
            CongestionAlgorithm::Ltcc | CongestionAlgorithm::Bbr3 if congestion == "bbr" => true,
            other => other.to_string() == congestion,
        };
        if asked.is_some_and(|asked| !is_in_effect(asked)) {
            unsupported.push("--congestion");
        }
        if goal.is_some() && !has_goal {
            unsupported.push("--goal");
        }
        let why = match mode {
            TransportMode::Tcp => "the kernel has its own congestion control",
            TransportMode::Quic => "it supports bbr and cubic, and no redundancy",
            _ => "it has neither congestion control nor redundancy",
        };
        let note = (!unsupported.is_empty()).then(|| {
            format!("{} not in effect in mode {}: {why}", unsupported.join(" and "), mode.name())
        });
        Self {
            congestion,
            goal: has_goal.then(|| name(goal.unwrap_or(Goal::Balanced)).to_owned()),
            note,
        }
    }

    /// The settings of the peer, made safe to print.
    pub(crate) fn printable(&self) -> Self {
        Self {
            congestion: printable(&self.congestion),
            goal: self.goal.as_deref().map(printable),
            note: self.note.as_deref().map(printable),
        }
    }

    /// The report line of these settings.
    pub(crate) fn line(&self, direction: &str) -> String {
        let goal = self.goal.as_ref().map(|goal| format!(", goal {goal}")).unwrap_or_default();
        format!("Sender {direction}: congestion control {}{goal}", self.congestion)
    }
}

fn name(goal: Goal) -> &'static str {
    match goal {
        Goal::Latency => "latency",
        Goal::Throughput => "throughput",
        _ => "balanced",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn of(options_text: &str, mode: TransportMode, transport: Transport) -> SenderSettings {
        let line = format!("bats_iperf -s {options_text}");
        let options = cli::parse(line.split_whitespace()).unwrap().0;
        options.sender_settings(mode, transport)
    }

    #[test]
    fn options_that_a_mode_does_not_support_are_noted() {
        let arguments = "--congestion gcc --goal latency";
        for mode in [TransportMode::Btp, TransportMode::Brtp, TransportMode::Brctp] {
            let sending = of(arguments, mode, Transport::Bats);
            assert_eq!((&*sending.congestion, sending.goal.as_deref()), ("gcc", Some("latency")));
            assert_eq!(sending.note, None);
        }
        for (mode, transport, congestion, options_text) in [
            (TransportMode::Transparent, Transport::Bats, "none", "neither"),
            (TransportMode::Udp, Transport::Udp, "none", "neither"),
            (TransportMode::Tcp, Transport::Bats, "kernel", "kernel"),
            (TransportMode::Quic, Transport::Bats, "cubic", "bbr and cubic"),
        ] {
            let sending = of(arguments, mode, transport);
            assert_eq!((&*sending.congestion, &sending.goal), (congestion, &None), "{mode:?}");
            let note = sending.note.unwrap();
            assert!(note.starts_with("--congestion and --goal not in effect"), "{note}");
            assert!(note.contains(options_text), "{note}");
            assert_eq!(of("", mode, transport).note, None, "{mode:?}");
        }
        let quic = |options_text: &str| of(options_text, TransportMode::Quic, Transport::Bats);
        assert_eq!(quic("").congestion, "bbr");
        assert_eq!(
            quic("--congestion cubic"),
            SenderSettings { congestion: "cubic".into(), ..SenderSettings::default() }
        );
        assert!(quic("--congestion 5M").note.unwrap().starts_with("--congestion not in effect"));
        // A baseline is controlled by the kernel, so the options are not noted.
        assert_eq!(of(arguments, TransportMode::Brtp, Transport::Tcp).note, None);
    }
}
