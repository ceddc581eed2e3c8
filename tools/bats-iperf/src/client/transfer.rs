//! A file transfer.

use std::process::ExitCode;

use anyhow::Result;

use super::Client;
use crate::clock::Clock;
use crate::console::Output;
use crate::control::{self, Request, Work};
use crate::error_text;
use crate::files::{self, OutgoingFiles};
use crate::report::json::{self, TestInfo};
use crate::transport_mode::Transport;

impl Client<'_> {
    pub(super) fn transfer(&self, output: &Output, set: OutgoingFiles) -> Result<ExitCode> {
        let control = self.connect_control()?;
        let request = Request {
            version: control::VERSION,
            mode: self.options.mode,
            streams: self.options.test.parallel,
            transport: Transport::Bats,
            work: Work::Files { count: set.count(), bytes: set.bytes() },
            title: self.options.output.title.clone(),
            connect_timeout: self.options.test.connect_timeout.as_secs_f64().min(3_600.0),
            wants_output: self.options.test.get_server_output,
            wants_json: self.options.output.is_json(),
        };
        let started = self.start_test(&control, &request)?;
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
            has_iperf3_protocol: false,
            emulate: self.options.test.emulate.as_ref().map(|emulation| emulation.text.clone()),
        };
        output.event("start", || json::start(&test_info));
        let clock = Clock::start();
        let sent = files::send(
            output,
            &started.data_streams,
            &set,
            self.options,
            self.port_probe().as_deref(),
        );
        let seconds = clock.elapsed().as_secs_f64();
        let server_output = match test_info.request.wants_output {
            true => control::receive_output(&control)
                .map_err(|error| {
                    output.note(&format!(
                        "no report from the server: {}",
                        error_text::join_causes(&error)
                    ))
                })
                .ok(),
            false => None,
        };
        drop(started.data_streams);
        started.path.close();
        control.close(0, "done");
        Ok(files::print_summary(
            output,
            &test_info,
            &sent,
            "verified",
            seconds,
            server_output.as_deref(),
        ))
    }
}
