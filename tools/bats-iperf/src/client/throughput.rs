//! A throughput test: the run itself, then the baselines beside it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use openbats::Connection;
use serde_json::json;

use super::Client;
use super::baseline::{self, Baseline};
use super::session::receive_summary;
use crate::carrier::udp;
use crate::console::Output;
use crate::control::{
    self, Carrier, Direction, Message, Request, SUMMARY_PATIENCE, Summary, Throughput, Work,
};
use crate::report::json::{self, About};
use crate::report::{html, text};
use crate::sender::{self, Pace};
use crate::sending::Sending;
use crate::sentence;
use crate::signals;
use crate::test::{self, Outcome, Plan};

/// What streams send where times are measured and no rate was asked for.
const LATENCY_RATE: u64 = 1_000_000;

/// One finished run.
pub(super) struct Run {
    pub(super) about: About,
    pub(super) outcome: Outcome,
    pub(super) remote: Option<Summary>,
    /// Why there is no summary of the server, if there is none.
    pub(super) unheard: Option<String>,
    /// The server's report, if it was asked for and came.
    pub(super) output: Option<String>,
}

impl Run {
    /// The first thing that went wrong on either side; without one the run was good.
    pub(super) fn error(&self) -> Option<String> {
        let far = self.remote.as_ref().map(|remote| &remote.streams[..]).unwrap_or_default();
        let far = far.iter().find_map(|totals| totals.error.clone());
        self.outcome.error().map(str::to_owned).or(far).or_else(|| self.unheard.clone())
    }
}

impl Client<'_> {
    /// Runs the test, then the baselines; the outcome is that of all.
    pub(super) fn throughput(&self, output: &Output) -> Result<ExitCode> {
        let control = self.call()?;
        let carrier = self.options.mode.carrier();
        let run = self.run(output, &control, carrier, self.bandwidth(carrier, None))?;
        let mut document = json::document(&run.about, &run.outcome, run.remote.as_ref());
        let mut baselines = Vec::new();
        for &carrier in &self.options.baseline {
            let quiet = Output::new(self.console.clone()).without_events();
            output.line("");
            output
                .line(&format!("Baseline: the same over the kernel's {}", baseline::name(carrier)));
            let bandwidth = self.bandwidth(carrier, Some(&run));
            let outcome = self.run(&quiet, &control, carrier, bandwidth).map_err(|error| {
                let error = match signals::requested() {
                    true => "interrupted".to_owned(),
                    false => sentence::of(&error),
                };
                output.note(&format!("bats_iperf: error - {error}"));
                error
            });
            let has_failed = outcome.is_err();
            baselines.push(Baseline { carrier, outcome });
            if has_failed {
                // Nobody knows where the signalling stands. What there is goes into the report.
                break;
            }
        }
        if !baselines.is_empty() {
            baseline::table(&run, &baselines).iter().for_each(|line| output.line(line));
            let others = baselines.iter().map(Baseline::document);
            document["baselines"] = others.collect::<Vec<_>>().into();
        }
        let error = run.error().or_else(|| baselines.iter().find_map(Baseline::error));
        if let Some(error) = &error {
            document["error"] = error.as_str().into();
        }
        if let Some(text) = &run.output {
            output.server_output(&mut document, text);
        }
        output.event("end", || {
            let mut end = document["end"].clone();
            if let Some(baselines) = document.get("baselines") {
                end["baselines"] = baselines.clone();
            }
            end
        });
        if let Some(error) = &error {
            output.event("error", || json!(error));
        }
        output.document(&mut document);
        if let Some(path) = &self.options.report {
            std::fs::write(path, html::page(&document)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
            output.note(&format!("report written to {}", path.display()));
        }
        control.close(0, "done");
        Ok(if error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Bits a second of each stream.
    fn bandwidth(&self, carrier: Carrier, run: Option<&Run>) -> u64 {
        match (self.options.bandwidth, carrier, run) {
            // UDP knows no rate of its own; what it is compared with gives it.
            (0, Carrier::Udp, Some(run)) => baseline::rate_of_a_stream(run),
            (0, ..) if self.options.latency => LATENCY_RATE,
            (bandwidth, ..) => bandwidth,
        }
    }

    fn request(&self, carrier: Carrier, bandwidth: u64) -> (Request, Throughput) {
        let options = self.options;
        let direction = match (options.reverse, options.bidir) {
            (true, _) => Direction::Reverse,
            (_, true) => Direction::Both,
            _ => Direction::Forward,
        };
        let is_main = carrier == options.mode.carrier();
        let length = match options.length {
            // Of mode 11 they were checked.
            Some(length) if is_main => length,
            length => {
                let usual = || sender::default_length(bandwidth, options.latency);
                let most = if carrier == Carrier::Udp { udp::MAX_MESSAGE } else { u32::MAX };
                length.unwrap_or_else(usual).min(most)
            }
        };
        let work = Throughput {
            direction,
            seconds: options.time.as_secs_f64(),
            omit: options.omit.as_secs_f64(),
            bytes: options.bytes.unwrap_or(0),
            messages: options.blockcount.unwrap_or(0),
            interval: options.interval.as_secs_f64(),
            bandwidth,
            length,
            latency: options.latency,
            deadline_ms: options.deadline.filter(|_| carrier == Carrier::Bats),
        };
        let request = Request {
            version: control::VERSION,
            mode: options.mode,
            streams: options.parallel,
            carrier,
            work: Work::Throughput(work.clone()),
            title: options.title.clone(),
            wants_output: options.get_server_output && is_main,
            wants_json: options.is_json(),
        };
        (request, work)
    }

    /// One test from request to summary.
    fn run(
        &self,
        output: &Output,
        control: &Connection,
        carrier: Carrier,
        bandwidth: u64,
    ) -> Result<Run> {
        let (request, work) = self.request(carrier, bandwidth);
        let begun = self.begin(control, &request)?;
        let about = About {
            connected: begun.pipes.iter().map(|pipe| pipe.addresses()).collect(),
            connecting_to: Some((self.host.to_owned(), self.options.port)),
            accepted: None,
            test: begun.test,
            request,
            emulate: self.options.emulate.as_ref().map(|emulation| emulation.text.clone()),
        };
        output.event("start", || json::start(&about));
        let plan = Plan {
            sides: test::sides(work.direction, about.request.streams, true),
            is_client: true,
            pace: pace(&work, self.options.snd_timeout),
            bytes: work.bytes,
            messages: work.messages,
            interval: self.options.interval,
            clock: begun.clock,
            receive_timeout: self.options.rcv_timeout,
            greetings: 0,
            sending: Sending::of(self.options, &about.request),
            limit: None,
        };
        let outcome = test::run(output, control, &begun.pipes, &plan);
        let summary = Message::Summary(Box::new(outcome.summary.clone()));
        let remote = control::send(control, &summary)
            .and_then(|()| receive_summary(control, SUMMARY_PATIENCE));
        let (remote, unheard) = match remote {
            Ok(summary) => (Some(summary), None),
            Err(error) => {
                (None, Some(format!("no summary from the server: {}", sentence::of(&error))))
            }
        };
        let far_output = match about.request.wants_output && remote.is_some() {
            true => control::receive_output(control)
                .map_err(|error| {
                    output.note(&format!("no report from the server: {}", sentence::of(&error)))
                })
                .ok(),
            false => None,
        };
        output.line(&text::rule());
        output.line(&text::header(&plan.sides, output.is_verbose()));
        for line in text::summary(&outcome, remote.as_ref(), output.is_verbose()) {
            output.line(&line);
        }
        drop(begun.pipes);
        for stats in begun.way.end() {
            for (name, stats) in ["forward", "reverse"].into_iter().zip(stats) {
                output.line(&format!(
                    "Emulated link {name}: {} packets offered, {} delivered, {} lost, \
                     {} queue full, {} too long",
                    stats.offered,
                    stats.delivered,
                    stats.dropped_loss,
                    stats.dropped_queue,
                    stats.dropped_mtu
                ));
            }
        }
        let run = Run { about, outcome, remote, unheard, output: far_output };
        if let Some(error) = run.error() {
            output.note(&format!("bats_iperf: error - {error}"));
        }
        Ok(run)
    }
}

/// How streams of a test send.
pub(crate) fn pace(work: &Throughput, timeout: Duration) -> Pace {
    let is_timed = work.bytes == 0 && work.messages == 0;
    Pace {
        time: is_timed.then(|| Duration::from_secs_f64(work.seconds)),
        omit: Duration::from_secs_f64(work.omit),
        bandwidth: work.bandwidth,
        length: work.length,
        latency: work.latency,
        timeout,
        deadline: work.deadline_ms.map(Duration::from_millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::TransportMode;
    use crate::control::Totals;
    use crate::report::Side;

    fn run(near: Option<&str>, far: Option<Option<&str>>) -> Run {
        let summary = |error: Option<&str>| Summary {
            streams: vec![
                Totals::default(),
                Totals { error: error.map(str::to_owned), ..Totals::default() },
            ],
            ..Summary::default()
        };
        Run {
            about: About {
                connected: Vec::new(),
                connecting_to: None,
                accepted: None,
                test: 1,
                request: Request {
                    version: control::VERSION,
                    mode: TransportMode::Brtp,
                    streams: 2,
                    carrier: Carrier::Tcp,
                    work: Work::Files { count: 0, bytes: 0 },
                    title: None,
                    wants_output: false,
                    wants_json: false,
                },
                emulate: None,
            },
            outcome: Outcome {
                sides: vec![Side::Sender; 2],
                is_client: true,
                intervals: Vec::new(),
                left_out: 0,
                summary: summary(near),
            },
            remote: far.map(summary),
            unheard: far.is_none().then(|| "no summary".to_owned()),
            output: None,
        }
    }

    #[test]
    fn whatever_went_wrong_on_either_side_is_the_error() {
        let error = |near, far| run(near, far).error();
        assert_eq!(error(None, Some(None)), None);
        assert_eq!(error(None, Some(Some("far"))).unwrap(), "far");
        assert_eq!(error(None, None).unwrap(), "no summary");
        assert_eq!(error(Some("near"), None).unwrap(), "near");
        assert_eq!(error(Some("near"), Some(Some("far"))).unwrap(), "near");
    }

    #[test]
    fn a_baseline_that_failed_names_itself() {
        let baseline = |outcome| Baseline { carrier: Carrier::Tcp, outcome };
        let good = baseline(Ok(run(None, Some(None))));
        assert_eq!(good.error(), None);
        assert!(good.document()["error"].is_null());
        let far = baseline(Ok(run(None, Some(Some("far")))));
        assert_eq!(far.error().unwrap(), "baseline TCP: far");
        assert_eq!(far.document()["error"], "far");
        assert!(far.document()["end"].is_object());
        let failed = baseline(Err("refused".to_owned()));
        assert_eq!(failed.error().unwrap(), "baseline TCP: refused");
        assert_eq!(failed.document(), json!({ "protocol": "TCP", "error": "refused" }));
    }
}
