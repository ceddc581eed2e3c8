//! Checks whether the server accepts a request.

use crate::cli::Options;
use crate::control::{self, Request, Work};
use crate::message::{MAX_LENGTH, MIN_LENGTH};
use crate::stream::udp;
use crate::transport_mode::{Transport, TransportMode};

/// Maximum number of streams in one direction of a test.
const MAX_STREAMS: u16 = 128;
/// Maximum number of files in one transfer.
const MAX_FILES: u64 = 1_000_000;

/// # Errors
/// The reason for the client.
pub(crate) fn check(request: &Request, options: &Options) -> Result<(), String> {
    if request.version != control::VERSION {
        let own = control::VERSION;
        return Err(format!("this server uses protocol version {own}, not {}", request.version));
    }
    if let Some(mode) = options.service.only_mode
        && request.mode != mode
    {
        return Err(format!("this server accepts mode {} only", mode.name()));
    }
    if options.credentials.closed_key.is_some()
        && (request.transport != Transport::Bats || !request.mode.to_library().is_own())
    {
        return Err(
            "this server uses a pre-shared key: it accepts modes 0 to 3 and no baselines".into()
        );
    }
    if !(0.0..=3_600.0).contains(&request.connect_timeout) {
        return Err("the connect timeout is out of range".into());
    }
    if !(1..=MAX_STREAMS).contains(&request.streams) {
        return Err(format!("the number of streams must be 1 to {MAX_STREAMS}"));
    }
    if request.mode == TransportMode::Udp && request.transport == Transport::Bats {
        return Err("mode UDP uses the kernel's UDP".into());
    }
    let work = match &request.work {
        Work::Throughput(work) => work,
        Work::Files { count, .. } => {
            if options.service.incoming.directory.is_none() {
                return Err("this server does not accept files: start it with --directory".into());
            }
            if request.transport != Transport::Bats {
                return Err("files can be sent over OpenBATS only".into());
            }
            if !request.mode.is_reliable() {
                return Err("files can be sent in modes BRTP, BRCTP, TCP+TLS and QUIC only".into());
            }
            if !(1..=MAX_FILES).contains(count) {
                return Err(format!("the number of files must be 1 to {MAX_FILES}"));
            }
            return Ok(());
        }
    };
    let within = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
    if !within(work.seconds, 0.1, 86_400.0) || !within(work.omit, 0.0, 600.0) {
        return Err("the duration of the test is out of range".into());
    }
    if work.interval != 0.0 && !within(work.interval, 0.1, 3_600.0) {
        return Err("the interval is out of range".into());
    }
    if !(MIN_LENGTH..=MAX_LENGTH).contains(&work.length) || work.bandwidth > 10_000_000_000_000 {
        return Err("the message length or the bitrate is out of range".into());
    }
    if request.transport == Transport::Udp
        && (work.length > udp::MAX_DATAGRAM || work.bandwidth == 0)
    {
        return Err("UDP needs a bitrate, and messages that fit into a datagram".into());
    }
    if work.deadline_ms.is_some_and(|deadline| !(1..=3_600_000).contains(&deadline)) {
        return Err("the deadline is out of range".into());
    }
    if let Some(limit) = options.service.server_max_duration {
        let seconds = limit.as_secs_f64();
        if work.bytes > 0 || work.messages > 0 || work.seconds > seconds {
            return Err(format!(
                "this server accepts tests of {seconds} s at most; set the time with -t"
            ));
        }
    }
    if let Some(limit) = options.service.server_bitrate_limit {
        let longest = options.transport_config().receive_budget / 2;
        if work.length as usize > longest {
            return Err(format!("this server accepts messages of at most {longest} bytes"));
        }
        let asked = work.bandwidth.saturating_mul(request.all_streams().into());
        if asked == 0 || asked > limit {
            return Err(format!(
                "this server allows {limit} bits per second; set a lower rate with -b"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::control::{Direction, Throughput};

    fn options(arguments: &str) -> Options {
        cli::parse(format!("bats_iperf -s {arguments}").split_whitespace()).unwrap().0
    }

    fn request(change: impl FnOnce(&mut Request, &mut Throughput)) -> Request {
        let mut work = Throughput {
            direction: Direction::Forward,
            seconds: 10.0,
            omit: 0.0,
            bytes: 0,
            messages: 0,
            interval: 1.0,
            bandwidth: 0,
            length: 1_000,
            is_fitted: false,
            latency: false,
            deadline_ms: None,
        };
        let mut request = Request {
            version: control::VERSION,
            mode: TransportMode::Brtp,
            streams: 1,
            transport: Transport::Bats,
            work: Work::Files { count: 1, bytes: 1 },
            title: None,
            connect_timeout: 10.0,
            wants_output: false,
            wants_json: false,
        };
        change(&mut request, &mut work);
        request.work = Work::Throughput(work);
        request
    }

    #[test]
    fn out_of_range_requests_are_denied() {
        let options = options("");
        assert_eq!(check(&request(|_, _| {}), &options), Ok(()));
        for good in [
            request(|_, work| work.interval = 0.0),
            request(|request, _| request.streams = MAX_STREAMS),
            request(|_, work| work.length = MAX_LENGTH),
            request(|_, work| work.length = MIN_LENGTH),
            request(|_, work| work.seconds = 86_400.0),
        ] {
            assert_eq!(check(&good, &options), Ok(()), "{good:?}");
        }
        for wrong in [
            request(|_, work| work.interval = 0.04),
            request(|_, work| work.interval = -1.0),
            request(|_, work| work.interval = f64::NAN),
            request(|_, work| work.seconds = f64::INFINITY),
            request(|_, work| work.seconds = -1.0),
            request(|_, work| work.omit = f64::NAN),
            request(|_, work| work.omit = -1.0),
            request(|_, work| work.length = 1),
            request(|_, work| work.length = MIN_LENGTH - 1),
            request(|_, work| work.length = MAX_LENGTH + 1),
            request(|_, work| work.seconds = 86_400.1),
            request(|_, work| work.length = u32::MAX),
            request(|_, work| work.bandwidth = u64::MAX),
            request(|_, work| work.deadline_ms = Some(0)),
            request(|_, work| work.deadline_ms = Some(u64::MAX)),
            request(|request, _| request.connect_timeout = f64::NAN),
            request(|request, _| request.connect_timeout = -1.0),
            request(|request, _| request.streams = 0),
            request(|request, _| request.streams = 129),
            request(|request, _| request.version = 1),
            request(|request, _| request.transport = Transport::Udp),
            request(|request, _| request.mode = TransportMode::Udp),
        ] {
            assert!(check(&wrong, &options).is_err(), "{wrong:?}");
        }
        let without_directory = &options;
        let options = &self::options("--directory /");
        let files = |count, transport| Request {
            work: Work::Files { count, bytes: u64::MAX },
            transport,
            ..request(|_, _| {})
        };
        let denied = check(&files(1, Transport::Bats), without_directory).unwrap_err();
        assert!(denied.contains("--directory"), "{denied}");
        assert_eq!(check(&files(1, Transport::Bats), options), Ok(()));
        assert_eq!(check(&files(MAX_FILES, Transport::Bats), options), Ok(()));
        assert!(check(&files(MAX_FILES + 1, Transport::Bats), options).is_err());
        assert!(check(&files(0, Transport::Bats), options).is_err());
        assert!(check(&files(u64::MAX, Transport::Bats), options).is_err());
        assert!(check(&files(1, Transport::Tcp), options).is_err());
        let lossy = Request { mode: TransportMode::Btp, ..files(1, Transport::Bats) };
        assert!(check(&lossy, options).is_err());
        for mode in [TransportMode::Brctp, TransportMode::Tcp, TransportMode::Quic] {
            assert_eq!(check(&Request { mode, ..files(1, Transport::Bats) }, options), Ok(()));
        }
    }

    #[test]
    fn modes_other_than_the_only_mode_are_denied() {
        let brctp = request(|request, _| request.mode = TransportMode::Brctp);
        assert_eq!(check(&brctp, &options("-m 1")), Ok(()));
        assert_eq!(check(&brctp, &options("--only-mode 2")), Ok(()));
        assert!(check(&brctp, &options("--only-mode 1")).unwrap_err().contains("BRTP only"));
    }

    #[test]
    fn a_psk_server_accepts_only_modes_that_support_the_key() {
        let options = options("--closed-key k");
        for mode in TransportMode::PSK_CAPABLE {
            assert_eq!(check(&request(|request, _| request.mode = *mode), &options), Ok(()));
        }
        for wrong in [
            request(|request, _| request.mode = TransportMode::Tcp),
            request(|request, _| request.mode = TransportMode::Quic),
            request(|request, work| {
                (request.transport, request.mode) = (Transport::Udp, TransportMode::Udp);
                (work.length, work.bandwidth) = (1_000, 1_000_000);
            }),
            request(|request, _| request.transport = Transport::Tcp),
        ] {
            assert!(check(&wrong, &options).unwrap_err().contains("pre-shared key"), "{wrong:?}");
        }
    }

    #[test]
    fn tests_longer_than_the_maximum_duration_are_denied() {
        let options = options("--server-max-duration 10");
        assert_eq!(check(&request(|_, _| {}), &options), Ok(()));
        for wrong in [
            request(|_, work| work.seconds = 10.1),
            request(|_, work| work.bytes = 1),
            request(|_, work| work.messages = 1),
        ] {
            assert!(check(&wrong, &options).unwrap_err().contains("10 s at most"));
        }
    }

    #[test]
    fn tests_above_the_bitrate_limit_are_denied() {
        let options = options("--server-bitrate-limit 10M");
        let asking = |bandwidth, streams| {
            request(|request, work| (work.bandwidth, request.streams) = (bandwidth, streams))
        };
        assert_eq!(check(&asking(5_000_000, 2), &options), Ok(()));
        assert!(check(&asking(5_000_000, 3), &options).is_err());
        assert!(check(&asking(0, 1), &options).is_err());
        assert!(check(&asking(u64::MAX / 2, 3), &options).is_err());
        let long = request(|_, work| (work.bandwidth, work.length) = (5_000_000, MAX_LENGTH));
        assert!(check(&long, &options).unwrap_err().contains("messages of at most"));
    }
}
