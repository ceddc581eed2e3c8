//! One session: the tests of one client.

use std::time::Duration;

use anyhow::{Result, bail};
use openbats::{Connection, Wait};

use super::{CLOSE_TIMEOUT, HELLO_TIMEOUT, Server, check};
use crate::client::{params, receive_summary};
use crate::clock::{Clock, stamp_ns};
use crate::clock_offset::ClockOffset;
use crate::console::Output;
use crate::control::{self, ConnectTimeout, Message, Request, SUMMARY_TIMEOUT, Throughput, Work};
use crate::files;
use crate::printable::printable;
use crate::report::json::{self, TestInfo};
use crate::report::text;
use crate::stream::{DataStream, Local, tcp, udp, with_port};
use crate::test::{self, TestConfig};
use crate::transport_mode::Transport;

/// How long a client may take to send its next request.
const NEXT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the client's summary after streams of this side have failed.
const FAILED_SUMMARY_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of clock readings that a client may request before a test.
const MAX_PINGS: usize = 64;

/// Accepts the streams of a test.
enum StreamListener {
    Bats,
    Tcp(tcp::Listener),
    Udp(udp::Listener),
}

impl Server {
    /// Runs one test after another until the client leaves; returns whether all succeeded.
    ///
    /// # Errors
    /// The client disconnects or violates the protocol.
    pub(super) fn tests(&self, control: &Connection, session: usize) -> Result<bool> {
        let mut request = match control::receive(control, HELLO_TIMEOUT)? {
            Message::Request(request) => request,
            _ => bail!("{} did not start with a request", control.remote_addr()),
        };
        let mut succeeded = true;
        loop {
            let (client, mode) = (control.remote_addr(), request.mode.name());
            tracing::info!(%client, mode, streams = request.streams, "test started");
            let (test_succeeded, data_streams) = self.test(control, &request, session)?;
            tracing::info!(%client, test_succeeded, "test ended");
            succeeded &= test_succeeded;
            // Keep the streams until the client leaves or sends the next request: it may still need
            // acknowledgements.
            let next = control::receive(control, NEXT_REQUEST_TIMEOUT);
            drop(data_streams);
            request = match next {
                Ok(Message::Request(request)) => request,
                Ok(_) => bail!("unexpected message from {}", control.remote_addr()),
                Err(_) => return Ok(succeeded),
            };
        }
    }

    /// Runs one test from request to summary; returns whether it succeeded, and its streams.
    fn test(
        &self,
        control: &Connection,
        request: &Request,
        session: usize,
    ) -> Result<(bool, Vec<DataStream>)> {
        if let Err(reason) = check::check(request, &self.options) {
            return self.deny(control, reason);
        }
        let streams = request.all_streams();
        let Some(slot) = self.registry.reserve(streams)? else {
            return self.deny(control, "too many tests".into());
        };
        // The client sent a valid request, and there is a slot for it.
        control.trust_peer();
        // The local address that the client connected to.
        let address = match with_port(self.local, 0) {
            any if any.ip().is_unspecified() && control.remote_addr().is_ipv4() => {
                ([0, 0, 0, 0], 0).into()
            }
            address => address,
        };
        let options = &self.options;
        let (device, dscp) = (options.socket.bind_dev.clone(), options.socket.code_point());
        let local = Local { address: Some(address), device, dscp };
        let (stream_listener, ports) = match request.transport {
            Transport::Bats => (StreamListener::Bats, Vec::new()),
            Transport::Tcp => {
                let listener = tcp::Listener::bind(address, &local)?;
                let port = listener.port()?;
                (StreamListener::Tcp(listener), vec![port])
            }
            Transport::Udp => {
                let listener = udp::Listener::bind(address, streams, &local)?;
                let ports = listener.ports()?;
                (StreamListener::Udp(listener), ports)
            }
        };
        control::send(control, &Message::Accept { test: slot.test, ports })?;
        let data_streams: Vec<DataStream> = match stream_listener {
            StreamListener::Bats => slot
                .accept_all(streams, request.reply_timeout())?
                .into_iter()
                .map(DataStream::bats)
                .collect(),
            StreamListener::Tcp(listener) => {
                listener.accept_all(slot.test, streams)?.into_iter().map(DataStream::Tcp).collect()
            }
            StreamListener::Udp(listener) => {
                let client = control.remote_addr().ip();
                listener.accept_all(slot.test, client)?.into_iter().map(DataStream::Udp).collect()
            }
        };
        let mode = request.mode.to_library();
        if data_streams.iter().filter_map(DataStream::mode).any(|other| other != mode) {
            bail!("{} connected in another mode than it requested", control.remote_addr());
        }
        control::send(control, &Message::Joined)?;
        let (clock, hellos) = ready(control, request.reply_timeout())?;
        if !self.claim_one_off(session) {
            return self
                .deny(control, "this server handles one test, which has started already".into());
        }
        let mut output =
            Output::new(self.console.clone()).title(request.title.as_deref().map(printable));
        if request.wants_output {
            output = output.copy(request.wants_json);
        }
        let test_info = TestInfo {
            connected: data_streams.iter().map(DataStream::addresses).collect(),
            connecting_to: None,
            accepted: Some(control.remote_addr()),
            test: slot.test,
            request: request.clone(),
            has_iperf3_protocol: self.options.output.iperf3_json,
            emulate: None,
        };
        output.line(&format!("Accepted connection from {}", control.remote_addr()));
        output.event("start", || json::start(&test_info));
        control::send(control, &Message::Start)?;
        match &request.work {
            Work::Throughput(work) => {
                let context = TestContext { control, output: &output, test_info: &test_info };
                let succeeded = self.throughput(context, &data_streams, work, (clock, hellos))?;
                Ok((succeeded, data_streams))
            }
            Work::Files { count, .. } => {
                let Some(budgets) = self.intake.of(control.remote_addr().ip()) else {
                    bail!("too many clients have sent files");
                };
                let clock = Clock::start();
                let received =
                    files::receive(&output, &data_streams, &self.options, &test_info, budgets);
                let seconds = clock.elapsed().as_secs_f64();
                let succeeded = received.succeeded(*count);
                files::print_summary(
                    &output,
                    &test_info,
                    &received,
                    "verified and stored",
                    seconds,
                    None,
                );
                if request.wants_output {
                    control::send_output(control, &output.copied())?;
                }
                Ok((succeeded, data_streams))
            }
        }
    }

    fn deny<T>(&self, control: &Connection, reason: String) -> Result<T> {
        control::send(control, &Message::Deny { reason: reason.clone() })?;
        let _ = control.finish().wait_for(CLOSE_TIMEOUT);
        bail!("denied the test of {}: {reason}", control.remote_addr())
    }

    fn throughput(
        &self,
        TestContext { control, output, test_info }: TestContext<'_>,
        data_streams: &[DataStream],
        work: &Throughput,
        (clock, hellos): (ClockOffset, u64),
    ) -> Result<bool> {
        let interval = match self.options.has_interval {
            true => self.options.interval,
            false => Duration::from_secs_f64(work.interval),
        };
        let config = TestConfig {
            sides: test::sides(work.direction, test_info.request.streams, false),
            is_client: false,
            params: params(work, self.options.timeouts.snd_timeout),
            bytes: work.bytes,
            messages: work.messages,
            interval,
            clock,
            receive_timeout: self.options.timeouts.rcv_timeout,
            hellos,
            sending: self
                .options
                .sender_settings(test_info.request.mode, test_info.request.transport),
            limit: self.options.service.server_bitrate_limit,
            port_probe: None,
        };
        let outcome = test::run(output, control, data_streams, &config);
        // The client may still be waiting until the data that it sent has arrived.
        let timeout =
            if outcome.error().is_some() { FAILED_SUMMARY_TIMEOUT } else { SUMMARY_TIMEOUT };
        let remote = receive_summary(control, timeout);
        let own = Message::Summary(Box::new(outcome.summary.clone()));
        let sent = control::send(control, &own);
        let far = remote.as_ref().ok();
        output.line(&text::rule());
        output.line(&text::header(&config.sides, output.is_verbose()));
        for line in text::summary(&outcome, far, output.is_verbose()) {
            output.line(&line);
        }
        let mut document = json::document(test_info, &outcome, far);
        output.event("end", || document["end"].clone());
        output.document(&mut document);
        if let Some(error) = outcome.error() {
            output.event("error", || error.into());
            output.failure(error);
        }
        sent?;
        if test_info.request.wants_output {
            control::send_output(control, &output.copied())?;
        }
        remote.map(|_| outcome.error().is_none())
    }
}

/// Context of a test other than its streams.
struct TestContext<'a> {
    control: &'a Connection,
    output: &'a Output,
    test_info: &'a TestInfo,
}

/// Answers clock requests until the client is ready.
fn ready(control: &Connection, each: Duration) -> Result<(ClockOffset, u64)> {
    // The client holds a slot meanwhile: its requests together have a limit, too.
    let mut timeout = ConnectTimeout::start(each);
    for _ in 0..=MAX_PINGS {
        let message = control::receive(control, timeout.left())?;
        timeout.progress();
        match message {
            Message::Ping => control::send(control, &Message::Pong { at_ns: stamp_ns() })?,
            Message::Ready { clock, hellos } => return Ok((clock, hellos)),
            _ => break,
        }
    }
    bail!("unexpected message from {}", control.remote_addr())
}
