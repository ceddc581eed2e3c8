//! A throughput test and its baselines.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use openbats::Connection;
use serde_json::json;

use super::Client;
use super::baseline::{self, Baseline};
use super::run::Run;
use super::session::receive_summary;
use crate::console::Output;
use crate::control::{self, Direction, Message, Request, SUMMARY_TIMEOUT, Throughput, Work};
use crate::report::json::{self, TestInfo};
use crate::report::{html, text};
use crate::sender::SenderParams;
use crate::stream::udp;
use crate::test::{self, TestConfig};
use crate::transport_mode::Transport;
use crate::{error_text, interrupt, loss_note, message_length};

/// Default rate of streams in bits per second when latency is measured.
const LATENCY_RATE: u64 = 1_000_000;

impl Client<'_> {
    /// Runs the test, then the baselines; returns the exit code of all.
    pub(super) fn throughput(&self, output: &Output) -> Result<ExitCode> {
        let control = self.connect_control()?;
        let transport = self.options.mode.transport();
        let run = self.run(output, &control, transport, self.bandwidth(transport, None))?;
        let mut document = json::document(&run.test_info, &run.outcome, run.remote.as_ref());
        if !run.notes.is_empty() {
            document["end"]["notes"] = json!(run.notes);
        }
        let mut baselines = Vec::new();
        for &transport in &self.options.test.baseline {
            let quiet = Output::new(self.console.clone()).without_events();
            output.line("");
            output.line(&format!(
                "Baseline: the same test over the kernel's {}",
                baseline::name(transport)
            ));
            let bandwidth = self.bandwidth(transport, Some(&run));
            let outcome = self.run(&quiet, &control, transport, bandwidth).map_err(|error| {
                let error = match interrupt::requested() {
                    true => "interrupted".to_owned(),
                    false => error_text::join_causes(&error),
                };
                output.failure(&error);
                error
            });
            let has_failed = outcome.is_err();
            baselines.push(Baseline { transport, outcome });
            if has_failed {
                // The state of the signalling is unknown. Report the results so far.
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
        if let Some(path) = &self.options.test.report {
            std::fs::write(path, html::page(&document)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
            output.note(&format!("report written to {}", path.display()));
        }
        control.close(0, "done");
        Ok(if error.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Bits per second of each stream.
    fn bandwidth(&self, transport: Transport, run: Option<&Run>) -> u64 {
        match (self.options.test.bandwidth, transport, run) {
            // UDP has no congestion control: use the rate that OpenBATS reached.
            (0, Transport::Udp, Some(run)) => baseline::rate_per_stream(run),
            (0, ..) if self.options.test.latency => LATENCY_RATE,
            (bandwidth, ..) => bandwidth,
        }
    }

    fn request(&self, transport: Transport, bandwidth: u64) -> (Request, Throughput) {
        let options = self.options;
        let direction = match (options.test.reverse, options.test.bidir) {
            (true, _) => Direction::Reverse,
            (_, true) => Direction::Both,
            _ => Direction::Forward,
        };
        let is_main = transport == options.mode.transport();
        let length = match options.test.length {
            // Mode 11 lengths were checked with the options.
            Some(length) if is_main => length,
            length => {
                let usual = || message_length::default_length(bandwidth, options.test.latency);
                let most = if transport == Transport::Udp { udp::MAX_MESSAGE } else { u32::MAX };
                length.unwrap_or_else(usual).min(most)
            }
        };
        // The kernel's transports and the rates of -b and --latency fix the length.
        let is_fitted = options.test.length.is_none()
            && bandwidth == 0
            && transport == Transport::Bats
            && options.mode.fits_messages();
        let work = Throughput {
            direction,
            seconds: options.test.time.as_secs_f64(),
            omit: options.test.omit.as_secs_f64(),
            bytes: options.test.bytes.unwrap_or(0),
            messages: options.test.blockcount.unwrap_or(0),
            interval: options.interval.as_secs_f64(),
            bandwidth,
            length,
            is_fitted,
            latency: options.test.latency,
            deadline_ms: options.test.deadline.filter(|_| transport == Transport::Bats),
        };
        let request = Request {
            version: control::VERSION,
            mode: options.mode,
            streams: options.test.parallel,
            transport,
            work: Work::Throughput(work.clone()),
            title: options.output.title.clone(),
            connect_timeout: options.test.connect_timeout.as_secs_f64().min(3_600.0),
            wants_output: options.test.get_server_output && is_main,
            wants_json: options.output.is_json(),
        };
        (request, work)
    }

    /// Runs one test from request to summary.
    fn run(
        &self,
        output: &Output,
        control: &Connection,
        transport: Transport,
        bandwidth: u64,
    ) -> Result<Run> {
        let (request, work) = self.request(transport, bandwidth);
        let started = self.start_test(control, &request)?;
        let test_info = TestInfo {
            connected: started
                .data_streams
                .iter()
                .map(|data_stream| data_stream.addresses())
                .collect(),
            connecting_to: Some((self.host.to_owned(), self.options.port)),
            accepted: None,
            test: started.test,
            request,
            has_iperf3_protocol: self.options.output.iperf3_json,
            emulate: self.options.test.emulate.as_ref().map(|emulation| emulation.text.clone()),
        };
        output.event("start", || json::start(&test_info));
        let config = TestConfig {
            sides: test::sides(work.direction, test_info.request.streams, true),
            is_client: true,
            params: params(&work, self.options.timeouts.snd_timeout),
            bytes: work.bytes,
            messages: work.messages,
            interval: self.options.interval,
            clock: started.clock,
            receive_timeout: self.options.timeouts.rcv_timeout,
            hellos: 0,
            sending: self.options.sender_settings(test_info.request.mode, transport),
            limit: None,
            port_probe: self.port_probe(),
        };
        let outcome = test::run(output, control, &started.data_streams, &config);
        let summary = Message::Summary(Box::new(outcome.summary.clone()));
        let remote = control::send(control, &summary)
            .and_then(|()| receive_summary(control, SUMMARY_TIMEOUT));
        let (remote, summary_error) = match remote {
            Ok(summary) => (Some(summary), None),
            Err(error) => (
                None,
                Some(format!("no summary from the server: {}", error_text::join_causes(&error))),
            ),
        };
        let far_output = match test_info.request.wants_output && remote.is_some() {
            true => control::receive_output(control)
                .map_err(|error| {
                    output.note(&format!(
                        "no report from the server: {}",
                        error_text::join_causes(&error)
                    ))
                })
                .ok(),
            false => None,
        };
        output.line(&text::rule());
        output.line(&text::header(&config.sides, output.is_verbose()));
        for line in text::summary(&outcome, remote.as_ref(), output.is_verbose()) {
            output.line(&line);
        }
        let notes = loss_note::notes(&outcome, remote.as_ref(), &work);
        notes.iter().for_each(|note| output.note(note));
        drop(started.data_streams);
        for stats in started.path.close() {
            for (name, stats) in ["forward", "reverse"].into_iter().zip(stats) {
                output.line(&format!(
                    "Emulated link {name}: {} packets offered, {} delivered, {} lost, \
                     {} dropped by a full queue, {} exceeding the MTU",
                    stats.offered,
                    stats.delivered,
                    stats.dropped_loss,
                    stats.dropped_queue,
                    stats.dropped_mtu
                ));
            }
        }
        let run = Run { test_info, outcome, remote, summary_error, notes, output: far_output };
        if let Some(error) = run.error() {
            output.failure(&error);
        }
        Ok(run)
    }
}

/// The sender parameters of a test.
pub(crate) fn params(work: &Throughput, timeout: Duration) -> SenderParams {
    let is_timed = work.bytes == 0 && work.messages == 0;
    SenderParams {
        time: is_timed.then(|| Duration::from_secs_f64(work.seconds)),
        omit: Duration::from_secs_f64(work.omit),
        bandwidth: work.bandwidth,
        length: work.length,
        is_fitted: work.is_fitted,
        latency: work.latency,
        timeout,
        deadline: work.deadline_ms.map(Duration::from_millis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Summary, Totals};
    use crate::outcome::Outcome;
    use crate::report::Side;
    use crate::transport_mode::TransportMode;

    fn run(near: Option<&str>, far: Option<Option<&str>>) -> Run {
        let summary = |error: Option<&str>| Summary {
            streams: vec![
                Totals::default(),
                Totals { error: error.map(str::to_owned), ..Totals::default() },
            ],
            ..Summary::default()
        };
        Run {
            test_info: TestInfo {
                connected: Vec::new(),
                connecting_to: None,
                accepted: None,
                test: 1,
                request: Request {
                    version: control::VERSION,
                    mode: TransportMode::Brtp,
                    streams: 2,
                    transport: Transport::Tcp,
                    work: Work::Files { count: 0, bytes: 0 },
                    title: None,
                    connect_timeout: 10.0,
                    wants_output: false,
                    wants_json: false,
                },
                has_iperf3_protocol: false,
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
            summary_error: far.is_none().then(|| "no summary".to_owned()),
            notes: Vec::new(),
            output: None,
        }
    }

    #[test]
    fn the_first_error_of_either_side_is_reported() {
        let error = |near, far| run(near, far).error();
        assert_eq!(error(None, Some(None)), None);
        assert_eq!(error(None, Some(Some("far"))).unwrap(), "far");
        assert_eq!(error(None, None).unwrap(), "no summary");
        assert_eq!(error(Some("near"), None).unwrap(), "near");
        assert_eq!(error(Some("near"), Some(Some("far"))).unwrap(), "near");
    }

    #[test]
    fn errors_of_baselines_name_the_baseline() {
        let baseline = |outcome| Baseline { transport: Transport::Tcp, outcome };
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
