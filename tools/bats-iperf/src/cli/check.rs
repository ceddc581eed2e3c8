//! Checks combinations of options.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use openbats::CongestionAlgorithm;

use super::{Existing, Options};
use crate::stream::udp;
use crate::transport_mode::{Transport, TransportMode};

/// Default rate of streams in modes without congestion control, in bits per second. It is iperf3's
/// default for UDP: an unlimited rate would only fill queues.
const UNCONTROLLED_RATE: u64 = 1_000_000;

/// Which side this process is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    Server,
    Client(String),
    Generate(super::Generated),
}

/// Options that a server rejects.
const CLIENT_ONLY: [&str; 20] = [
    "bytes",
    "blockcount",
    "omit",
    "bidir",
    "bandwidth",
    "length",
    "latency",
    "deadline",
    "emulate",
    "baseline",
    "report",
    "get_server_output",
    "cport",
    "connect_timeout",
    "fingerprint",
    "authorities",
    "known_hosts",
    "require_known_host",
    "no_known_hosts",
    "identify",
];
/// Options that a server ignores, as the original does: existing scripts may pass them.
const IGNORED_BY_SERVER: [&str; 7] =
    ["mode", "udp", "time", "parallel", "reverse", "files", "compress"];
/// Options that a client rejects.
const SERVER_ONLY: [&str; 15] = [
    "only_mode",
    "directory",
    "merge",
    "quota",
    "client_quota",
    "reserve",
    "existing",
    "overwrite",
    "one_off",
    "daemon",
    "idle_timeout",
    "server_bitrate_limit",
    "server_max_duration",
    "client_fingerprint",
    "client_authorities",
];
/// Options that a file transfer rejects.
const EXCLUDED_WITH_FILES: [&str; 4] = ["bytes", "blockcount", "omit", "length"];
/// iperf3 options whose effect is always on here.
const IMPLIED: [(&str, &str); 4] = [
    ("udp_counters_64bit", "all counters have 64 bits"),
    ("repeating_payload", "the payload is always one repeated byte"),
    ("no_delay", "messages are always sent without delay"),
    ("zerocopy", "datagrams are always sent in batches"),
];
/// Options that a file transfer ignores, as the original does.
const IGNORED_WITH_FILES: [&str; 2] = ["time", "bandwidth"];

/// Parses the options and the role of this process.
///
/// # Errors
/// An option is unknown, has a missing or invalid value, or conflicts with another; a request for
/// help is reported as an error, too.
pub(crate) fn parse<I: IntoIterator<Item = T>, T: Into<OsString> + Clone>(
    arguments: I,
) -> Result<(Options, Role), clap::Error> {
    let matches = Options::command().try_get_matches_from(arguments)?;
    let mut options = Options::from_arg_matches(&matches)?;
    let role = check(&options, &matches)?;
    let given = |id: &str| {
        matches.try_contains_id(id).is_ok()
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    options.has_interval = given("interval");
    // 0 means no limit, as in iperf3.
    options.service.server_bitrate_limit =
        options.service.server_bitrate_limit.filter(|limit| *limit > 0);
    options.output.json |= options.output.iperf3_json;
    if options.udp {
        options.mode = TransportMode::Udp;
    }
    options.notes = ignored_option_notes(&options, &role, given);
    if role == Role::Server {
        options.clear_client_options();
    } else if !options.outgoing.files.is_empty() && !given("mode") && !options.udp {
        options.mode = TransportMode::Brtp;
    }
    if role != Role::Server && options.mode == TransportMode::Udp {
        check_udp(&options, given("bandwidth"))?;
    }
    if options.mode.is_uncontrolled() && !given("bandwidth") {
        options.test.bandwidth = UNCONTROLLED_RATE;
    }
    check_mode(&options)?;
    if options.service.detached {
        options.make_absolute().map_err(|error| {
            Options::command().error(ErrorKind::Io, format!("no current directory: {error}"))
        })?;
    }
    if options.service.incoming.overwrite {
        options.service.incoming.existing = Existing::Overwrite;
    }
    Ok((options, role))
}

fn conflict(text: &str) -> clap::Error {
    Options::command().error(ErrorKind::ArgumentConflict, text)
}

/// The long name of an option.
fn long_name(id: &str) -> String {
    let command = Options::command();
    let argument = command.get_arguments().find(|argument| argument.get_id() == id);
    let long = argument.and_then(|argument| argument.get_long()).unwrap_or(id);
    format!("--{long}")
}

/// Notes about options that have no effect.
fn ignored_option_notes(
    options: &Options,
    role: &Role,
    given: impl Fn(&str) -> bool,
) -> Vec<String> {
    let has_files = !options.outgoing.files.is_empty();
    let (ignored_ids, why): (&[&str], &str) = match role {
        Role::Server => (&IGNORED_BY_SERVER, "the client sets it"),
        Role::Client(_) if has_files => {
            (&IGNORED_WITH_FILES, "files are sent completely and at full rate")
        }
        Role::Client(_) => (&["compress"], "there are no files (-f)"),
        Role::Generate(_) => (&[], ""),
    };
    let letter = |id: &str| {
        let command = Options::command();
        let argument = command.get_arguments().find(|argument| argument.get_id() == id);
        let short = argument.and_then(|argument| argument.get_short());
        short.map_or_else(|| long_name(id), |letter| format!("-{letter}"))
    };
    let note = |id: &&str| {
        let more = match (*id, role) {
            ("mode", Role::Server) => "; --only-mode restricts it",
            _ => "",
        };
        format!("note: {} is ignored: {why}{more}", letter(id))
    };
    let always = IMPLIED.iter().filter(|(id, _)| given(id));
    let always = always.map(|(id, why)| format!("note: {} is ignored: {why}", letter(id)));
    ignored_ids.iter().filter(|id| given(id)).map(note).chain(always).collect()
}

fn check(options: &Options, matches: &ArgMatches) -> Result<Role, clap::Error> {
    let given = |id: &&&str| {
        matches.try_contains_id(id).is_ok()
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    if let Some(what) = options.generate {
        return Ok(Role::Generate(what));
    }
    match (&options.client, options.server) {
        (Some(host), _) => {
            if let Some(id) = SERVER_ONLY.iter().find(given) {
                return Err(conflict(&format!("{} is a server option (-s)", long_name(id))));
            }
            if !options.outgoing.files.is_empty()
                && let Some(id) = EXCLUDED_WITH_FILES.iter().find(given)
            {
                return Err(conflict(&format!("{} cannot be used with -f", long_name(id))));
            }
            if !options.outgoing.files.is_empty() && options.test.reverse {
                return Err(conflict("-r cannot be used with -f: files are sent to the server"));
            }
            check_client(options)?;
            Ok(Role::Client(host.clone()))
        }
        (None, true) => match CLIENT_ONLY.iter().find(given) {
            Some(id) => Err(conflict(&format!("{} is a client option (-c)", long_name(id)))),
            None if options.service.daemon
                && options.output.debug
                && options.output.protocol_log.is_none() =>
            {
                Err(conflict(
                    "-d writes to standard error, which a daemon (-D) does not have: add -L FILE",
                ))
            }
            None => Ok(Role::Server),
        },
        (None, false) => Err(Options::command().error(
            ErrorKind::MissingRequiredArgument,
            "use -s for a server or -c HOST for a client",
        )),
    }
}

fn check_mode(options: &Options) -> Result<(), clap::Error> {
    if !options.outgoing.files.is_empty() && !options.mode.is_reliable() {
        return Err(conflict(
            "-f needs a reliable mode: 1 (brtp), 2 (brctp), 10 (tcp) or 12 (quic)",
        ));
    }
    let is_timely = matches!(options.mode, TransportMode::Btp | TransportMode::Transparent);
    if options.test.deadline.is_some() && !is_timely {
        return Err(conflict("--deadline needs mode 0 (btp) or 3 (transparent)"));
    }
    if options.credentials.closed_key.is_some() {
        if !options.mode.to_library().is_own() {
            return Err(conflict(
                "--closed-key works with modes 0 (btp), 1 (brtp), 2 (brctp) and 3 (transparent)",
            ));
        }
        if !options.test.baseline.is_empty() {
            return Err(conflict(
                "--baseline cannot be used with --closed-key: the kernel's TCP and UDP have no key",
            ));
        }
    }
    let congestion = options.sender.congestion.map(|congestion| congestion.0);
    if options.mode == TransportMode::Quic {
        if options.sender.goal.is_some() {
            return Err(conflict("--goal cannot be used with mode 12 (quic), which has no coding"));
        }
        if !matches!(
            congestion,
            None | Some(
                CongestionAlgorithm::Ltcc | CongestionAlgorithm::Bbr3 | CongestionAlgorithm::Cubic
            )
        ) {
            return Err(conflict("mode 12 (quic) supports --congestion bbr and cubic only"));
        }
    }
    if options.mode == TransportMode::Tcp {
        if options.sender.goal.is_some() || congestion.is_some() {
            return Err(conflict(
                "--goal and --congestion cannot be used with mode 10 (tcp): the kernel controls it",
            ));
        }
        if options.test.emulate.is_some() {
            return Err(conflict(
                "--emulate cannot be used with mode 10 (tcp): it emulates UDP only",
            ));
        }
    }
    if options.mode == TransportMode::Udp && (options.sender.goal.is_some() || congestion.is_some())
    {
        return Err(conflict(
            "--goal and --congestion cannot be used with mode 11 (udp), which has neither \
             redundancy nor congestion control",
        ));
    }
    // A server without --only-mode may get clients of other modes.
    let is_settled = options.client.is_some() || options.service.only_mode.is_some();
    if is_settled
        && options.mode == TransportMode::Transparent
        && (options.sender.goal.is_some() || options.sender.congestion.is_some())
    {
        return Err(conflict(
            "--goal and --congestion cannot be used with mode 3 (transparent), which has neither \
             redundancy nor congestion control",
        ));
    }
    Ok(())
}

/// Checks a client in mode 11. Without a rate its datagrams would only fill queues.
fn check_udp(options: &Options, has_rate: bool) -> Result<(), clap::Error> {
    if has_rate && options.test.bandwidth == 0 {
        return Err(conflict("mode 11 (udp) has no congestion control: set a rate with -b"));
    }
    if options.test.length.is_some_and(|length| length > udp::MAX_DATAGRAM) {
        let longest = udp::MAX_DATAGRAM;
        return Err(conflict(&format!(
            "--length must be at most {longest} in mode 11 (udp), the maximum of a datagram"
        )));
    }
    if options.test.cport.is_some() {
        return Err(conflict(
            "--cport cannot be used with mode 11 (udp): each stream has its own port",
        ));
    }
    if options.test.baseline.contains(&Transport::Udp) {
        return Err(conflict(
            "--baseline udp cannot be used with mode 11 (udp): it is the same transport",
        ));
    }
    Ok(())
}

fn check_client(options: &Options) -> Result<(), clap::Error> {
    if options.test.reverse
        && (options.sender.goal.is_some() || options.sender.congestion.is_some())
    {
        return Err(conflict(
            "with -r the server sends: pass --goal and --congestion to the server",
        ));
    }
    if options.test.emulate.is_some() && options.test.baseline.contains(&Transport::Tcp) {
        return Err(conflict("--baseline tcp cannot be used with --emulate: it emulates UDP only"));
    }
    if options.test.omit >= options.test.time
        && options.test.bytes.is_none()
        && options.test.blockcount.is_none()
    {
        return Err(conflict("-O must be less than -t"));
    }
    if !options.test.omit.is_zero()
        && (options.test.bytes.is_some() || options.test.blockcount.is_some())
    {
        return Err(conflict("-O needs -t, not -n or -k"));
    }
    if options.test.latency && (options.test.bytes.is_some() || options.test.blockcount.is_some()) {
        return Err(conflict("--latency needs -t, not -n or -k"));
    }
    if options.output.extra_data.is_some() && !options.output.is_json() {
        return Err(conflict("--extra-data needs -J or --json-stream"));
    }
    Ok(())
}

impl Options {
    /// Replaces options that the client decides: a server uses those of each request.
    fn clear_client_options(&mut self) {
        self.mode = self.service.only_mode.unwrap_or(TransportMode::Btp);
        self.outgoing.files.clear();
        self.outgoing.compress = None;
        self.test.reverse = false;
    }

    /// Makes paths absolute: a daemon changes its working directory.
    fn make_absolute(&mut self) -> std::io::Result<()> {
        for path in [
            &mut self.service.incoming.directory,
            &mut self.output.logfile,
            &mut self.output.protocol_log,
            &mut self.pidfile,
            &mut self.credentials.certificate,
            &mut self.service.client_authorities,
            &mut self.credentials.key,
            &mut self.credentials.closed_key,
        ]
        .into_iter()
        .flatten()
        {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_without_congestion_control_have_a_default_rate() {
        let bandwidth = |arguments: &str| {
            let line = format!("bats_iperf -c host {arguments}");
            parse(line.split_whitespace()).unwrap().0.test.bandwidth
        };
        for (arguments, rate) in [
            ("-m 3", 1_000_000),
            ("-m 11", 1_000_000),
            ("-u -P 4 -r", 1_000_000),
            ("-m 3 -b 0", 0),
            ("-m 3 -b 5", 5_000_000),
            ("-m 0", 0),
            ("-m 1 --latency", 0),
        ] {
            assert_eq!(bandwidth(arguments), rate, "{arguments}");
        }
    }

    #[test]
    fn a_zero_bitrate_limit_means_no_limit() {
        let limit = |rate: &str| {
            let line = format!("bats_iperf -s --server-bitrate-limit {rate}");
            parse(line.split_whitespace()).unwrap().0.service.server_bitrate_limit
        };
        assert_eq!((limit("0"), limit("0M"), limit("1k")), (None, None, Some(1_000)));
    }

    fn role(line: &str) -> Result<Role, clap::Error> {
        parse(line.split_whitespace()).map(|(_, role)| role)
    }

    #[test]
    fn option_tables_name_existing_options() {
        Options::command().debug_assert();
        let command = Options::command();
        let known: Vec<&str> =
            command.get_arguments().map(|argument| argument.get_id().as_str()).collect();
        for id in CLIENT_ONLY
            .iter()
            .chain(&IGNORED_BY_SERVER)
            .chain(&SERVER_ONLY)
            .chain(&EXCLUDED_WITH_FILES)
            .chain(&IGNORED_WITH_FILES)
            .chain(IMPLIED.iter().map(|(id, _)| id))
        {
            assert!(known.contains(id), "{id}");
        }
    }

    #[test]
    fn valid_command_lines_parse() {
        assert_eq!(role("bats_iperf -s -I lo -p 6000 -1 -J -i 1").unwrap(), Role::Server);
        let client = "bats_iperf -c 10.0.0.1 -m 1 -p 5201 -P 4 -i 0.5 -t 3 -b 100 -r -T -l log";
        assert_eq!(role(client).unwrap(), Role::Client("10.0.0.1".into()));
        // Command lines of Oasis.
        role("bats_iperf -s -p 4000 -I eth0 -l /tmp/log -L /tmp/dir").unwrap();
        role("bats_iperf -c 10.0.0.2 -m 1 -p 4000 -P 2 -i 1 -t 10 -L /tmp/dir").unwrap();
        let (options, _) = parse("bats_iperf -c host -f a b c -P 2 -f d".split(' ')).unwrap();
        assert_eq!(options.outgoing.files.len(), 4);
        let all = "bats_iperf -c ::1 -6 -V -R -n 10M -k 5";
        assert!(role(all).is_err(), "bytes and blocks");
        for line in [
            "-c ::1 -6 -V -R -n 10M --cport 7000 --title x",
            "-c h -k 100 --length 8k --json-stream --extra-data x",
            "-c h -O 2 -t 5 --latency --goal latency --congestion 100M",
            "-c h --emulate loss=5%,delay=50ms,rate=1000M --baseline udp --report x.html",
            "-c h --baseline tcp,udp --get-server-output --connect-timeout 500",
            "-c h -f a --compress=lz4",
            "-s -D -d -L log --pidfile pid",
            "-s --congestion bbr --goal latency",
            "-c h -f a -C",
            "-c h -f a -m brtp",
            "-c h --deadline 50",
            "-c h -m 3 --deadline 50 -r",
            "-c h -m transparent -b 5",
            "-c h -m 11",
            "-c h -u -b 10M --length 65507 -r",
            "-c h -u --baseline tcp",
            "-c h --bind-dev eth0 --forceflush",
            "-s --bind-dev eth0",
            "-c h --dscp af21 -A 0 --format m",
            "-s -S 0xb8 --server-max-duration 60 -A 1023 --format K",
            "-s --only-mode udp",
            "-c h --timestamps=%H:%M:%S",
            "-s --directory /tmp --merge --quota 1G --client-quota 10M --reserve 0",
            "-s --directory /tmp --overwrite --reserve 10%",
            "-c h --known-hosts f --require-known-host",
            "-c h --no-known-hosts",
            "-s --existing rename --directory /tmp --idle-timeout 60 --server-bitrate-limit 1G",
            "-c h --closed-key k -m 3",
            "-s --closed-key k --only-mode 2",
            "-s --closed-key k -m 10",
            "--generate man",
        ] {
            let line = format!("bats_iperf {line}");
            role(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn invalid_command_lines_exit_with_2() {
        for line in [
            "",
            "-s -c host",
            "-s -b 5",
            "-s --latency",
            "-s --bidir",
            "-s -f a -n 5",
            "-c host --only-mode 1",
            "-s --only-mode 7",
            "-s -m 7",
            "-c host -f a --length 100",
            "-c host -f a -O 1",
            "-c host -f a -n 5",
            "-c host -p 0",
            "-c host -p 70000",
            "-c host -m 7",
            "-c host -m udp -b 0",
            "-c host -u -m 11",
            "-c host -u --cport 7000",
            "-c host --dscp 64",
            "-s -S 185",
            "-c host --dscp ef -S 184",
            "-c host --server-max-duration 5",
            "-c host -A 1024",
            "-c host -A 0,1",
            "-c host --format x",
            "-c host -u --length 65508",
            "-c host -u --baseline udp",
            "-c host -u --congestion bbr",
            "-c host -u --goal latency",
            "-c host -u --deadline 5",
            "-c host -u -f a",
            "-s --only-mode udp --congestion bbr",
            "-c host -f a -m 0",
            "-c host -f a -m transparent",
            "-c host -f a --deadline 5",
            "-c host -t",
            "-c host -t x",
            "-c host -i 0.04",
            "-c host -P 0",
            "-c host -P 129",
            "-c host -1",
            "-c host -f",
            "-c host -f a -r",
            "-c host -f a --bidir",
            "-c host -f a --compress=density",
            "-c host -D",
            "-s -D -d",
            "-s --detached",
            "-c host -m 3 --goal latency",
            "-c host -m 3 --congestion bbr",
            "-s --only-mode 3 --congestion bbr",
            "-s --only-mode tcp --congestion bbr",
            "-s --only-mode quic --goal latency",
            "-s --certificate c",
            "-s --identify",
            "-s --client-fingerprint 00",
            "-c host --client-authorities f",
            "--unknown",
            "-c host -r --bidir",
            "-c host -n 0",
            "-c host -n 5 -t 5",
            "-c host -O 10",
            "-c host -m 1 --deadline 5",
            "-c host --deadline 0",
            "-c host --deadline 3600001",
            "-s --deadline 5",
            "-c host --goal fast",
            "-c host -r --goal latency",
            "-c host --congestion reno",
            "-c host -J --json-stream",
            "-c host --emulate x",
            "-c host --emulate loss=1% --baseline tcp",
            "-c host --emulate loss=1% -m 10",
            "-c host -m tcp --congestion cubic",
            "-c host -m tcp --goal latency",
            "-c host -m quic --goal latency",
            "-c host -m quic --congestion gcc",
            "-c host --baseline quic",
            "-c host --extra-data x",
            "-c host -4 -6",
            "-c host --timestamps=%!",
            "-c host --length 10",
            "-c host --closed-key",
            "-c host --closed-key k -m tcp",
            "-c host --closed-key k -m quic",
            "-c host --closed-key k -u",
            "-c host --closed-key k --baseline tcp",
            "-s --closed-key k --only-mode 10",
            "-s --closed-key k --only-mode udp",
            "-c host --existing rename",
            "-s --overwrite --existing rename --directory /tmp",
            "-s --overwrite",
            "-s --existing rename",
            "-s --merge",
            "-s --quota 1G",
            "-s --directory /tmp --reserve 101%",
            "-c host --directory /tmp",
            "-c host --known-hosts f --no-known-hosts",
            "-c host --known-hosts f --fingerprint 00",
            "-c host --authorities f --require-known-host",
            "-s --no-known-hosts",
            "-c host --generate man",
        ] {
            let line = format!("bats_iperf {line}");
            assert_eq!(role(&line).map_err(|error| error.exit_code()), Err(2), "{line}");
        }
    }

    #[test]
    fn the_default_mode_is_btp_and_brtp_for_files() {
        let mode = |arguments: &str| {
            let line = format!("bats_iperf {arguments}");
            parse(line.split_whitespace()).unwrap().0.mode
        };
        assert_eq!(mode("-c host"), TransportMode::Btp);
        assert_eq!(mode("-c host -f a"), TransportMode::Brtp);
        assert_eq!(mode("-c host -m 3"), TransportMode::Transparent);
        assert_eq!(mode("-c host -u"), TransportMode::Udp);
    }

    /// Options that the original ignores.
    #[test]
    fn options_ignored_by_the_original_are_accepted_with_notes() {
        for (arguments, letters) in [
            ("-s -t 5", &["-t"][..]),
            ("-s -P 2", &["-P"]),
            ("-s -r", &["-r"]),
            ("-s -R", &["-r"]),
            ("-s -C", &["-C"]),
            ("-s -f a b", &["-f"]),
            ("-s -f a -r -C", &["-r", "-f", "-C"]),
            ("-s -m 1", &["-m"]),
            ("-s -m 0 -f a", &["-m", "-f"]),
            ("-s -m 3 --congestion bbr", &["-m"]),
            ("-s -u", &["-u"]),
            ("-s -m 3 --only-mode 1 --congestion bbr", &["-m"]),
            ("-s -i 2", &[]),
            ("-s -I lo -p 6000 -m 2 -t 10 -i 1 -P 4 -r -d -T", &["-m", "-t", "-P", "-r"]),
            ("-c h -f a -t 5", &["-t"]),
            ("-c h -f a -b 5", &["-b"]),
            ("-c h -f a -b 5 -t 5 -C", &["-t", "-b"]),
            ("-c h -C", &["-C"]),
            ("-c h --compress=lz4", &["-C"]),
            ("-c h -t 5 -b 5 -P 2 -r -m 1", &[]),
            // From iperf3.
            ("-c h -u -N -Z", &["-N", "-Z"]),
            (
                "-c h --udp-counters-64bit --repeating-payload",
                &["--udp-counters-64bit", "--repeating-payload"],
            ),
        ] {
            let line = format!("bats_iperf {arguments}");
            let (options, role) =
                parse(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}"));
            let found: Vec<&str> = options
                .notes
                .iter()
                .map(|note| note.strip_prefix("note: ").unwrap().split(' ').next().unwrap())
                .collect();
            assert_eq!(found, letters, "{line}");
            if role == Role::Server {
                assert!(
                    options.outgoing.files.is_empty() && options.outgoing.compress.is_none(),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn only_mode_restricts_the_modes_of_a_server() {
        let modes = |arguments: &str| {
            let line = format!("bats_iperf -s {arguments}");
            let options = parse(line.split_whitespace()).unwrap().0;
            (options.service.only_mode, options.mode)
        };
        assert_eq!(modes("-m 3"), (None, TransportMode::Btp));
        assert_eq!(modes("-m 3 --only-mode 2").0, Some(TransportMode::Brctp));
        assert_eq!(modes("--only-mode quic"), (Some(TransportMode::Quic), TransportMode::Quic));
    }
}
