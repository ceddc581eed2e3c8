//! A transfer of files.

use std::process::ExitCode;

use anyhow::Result;

use super::Client;
use crate::clock::Clock;
use crate::console::Output;
use crate::control::{self, Carrier, Request, Work};
use crate::files::{self, Outgoing};
use crate::report::json::{self, About};
use crate::sentence;

impl Client<'_> {
    pub(super) fn transfer(&self, output: &Output, set: Outgoing) -> Result<ExitCode> {
        let control = self.call()?;
        let request = Request {
            version: control::VERSION,
            mode: self.options.mode,
            streams: self.options.parallel,
            carrier: Carrier::Bats,
            work: Work::Files { count: set.count(), bytes: set.bytes() },
            title: self.options.title.clone(),
            wants_output: self.options.get_server_output,
            wants_json: self.options.is_json(),
        };
        let begun = self.begin(&control, &request)?;
        let about = About {
            connected: begun.pipes.iter().map(|pipe| pipe.addresses()).collect(),
            connecting_to: Some((self.host.to_owned(), self.options.port)),
            accepted: None,
            test: begun.test,
            request,
            emulate: self.options.emulate.as_ref().map(|emulation| emulation.text.clone()),
        };
        output.event("start", || json::start(&about));
        let clock = Clock::start();
        let sent = files::send(output, &begun.pipes, &set, self.options);
        let seconds = clock.elapsed().as_secs_f64();
        let server_output = match about.request.wants_output {
            true => control::receive_output(&control)
                .map_err(|error| {
                    output.note(&format!("no report from the server: {}", sentence::of(&error)))
                })
                .ok(),
            false => None,
        };
        drop(begun.pipes);
        begun.way.end();
        control.close(0, "done");
        Ok(files::conclude(output, &about, &sent, "verified", seconds, server_output.as_deref()))
    }
}
