//! What the options mean together.

use std::ffi::OsString;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use openbats::{ClosedKey, CongestionAlgorithm, Goal, IdentityError, TransportConfig};

use super::{Existing, GoalName, Options, TransportMode};
use crate::carrier::udp;
use crate::control::Carrier;

/// Bytes in advance that a limited server takes at least.
const LEAST_BUDGET: usize = 4 << 20;

/// What streams send in modes without congestion control where no rate was asked for, as with UDP in
/// iperf3: without a limit they would only fill queues.
const UNCONTROLLED_RATE: u64 = 1_000_000;

/// Which side this is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    Server,
    Client(String),
    Generate(super::Generated),
}

/// Options that mean nothing to a server.
const CLIENT_ONLY: [&str; 16] = [
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
];
/// Options that a server takes without heed, as the original does: scripts may have them.
const IDLE_AT_A_SERVER: [&str; 7] =
    ["mode", "udp", "time", "parallel", "reverse", "files", "compress"];
/// Options that mean nothing to a client.
const SERVER_ONLY: [&str; 11] = [
    "only_mode",
    "directory",
    "existing",
    "overwrite",
    "one_off",
    "daemon",
    "idle_timeout",
    "server_bitrate_limit",
    "server_max_duration",
    "certificate",
    "key",
];
/// Options that a transfer of files does not know.
const NOT_WITH_FILES: [&str; 4] = ["bytes", "blockcount", "omit", "length"];
/// Options of iperf3 that ask for what is so anyway.
const ALWAYS_SO: [(&str, &str); 4] = [
    ("udp_counters_64bit", "all counters have 64 bits"),
    ("repeating_payload", "all messages are filled with one byte"),
    ("no_delay", "nothing waits for more data to come"),
    ("zerocopy", "datagrams leave in batches as they are made"),
];
/// Options that a transfer of files takes without heed, as the original does.
const IDLE_WITH_FILES: [&str; 2] = ["time", "bandwidth"];

/// The options and what they are for.
///
/// # Errors
/// They are unknown, have no value or a wrong one, or make no sense together; a request for help
/// is such an error, too.
pub(crate) fn parse<I: IntoIterator<Item = T>, T: Into<OsString> + Clone>(
    words: I,
) -> Result<(Options, Role), clap::Error> {
    let matches = Options::command().try_get_matches_from(words)?;
    let mut options = Options::from_arg_matches(&matches)?;
    let role = check(&options, &matches)?;
    let given = |id: &str| {
        matches.try_contains_id(id).is_ok()
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    options.has_interval = given("interval");
    // As with iperf3: none.
    options.server_bitrate_limit = options.server_bitrate_limit.filter(|limit| *limit > 0);
    if options.udp {
        options.mode = TransportMode::Udp;
    }
    options.notes = ignored(&options, &role, given);
    if role == Role::Server {
        options.forget_the_client();
    } else if !options.files.is_empty() && !given("mode") && !options.udp {
        options.mode = TransportMode::Brtp;
    }
    if role != Role::Server && options.mode == TransportMode::Udp {
        check_udp(&options, given("bandwidth"))?;
    }
    if options.mode.is_uncontrolled() && !given("bandwidth") {
        options.bandwidth = UNCONTROLLED_RATE;
    }
    check_mode(&options)?;
    if options.detached {
        options.make_absolute().map_err(|error| {
            Options::command().error(ErrorKind::Io, format!("no current directory: {error}"))
        })?;
    }
    if options.overwrite {
        options.existing = Existing::Overwrite;
    }
    Ok((options, role))
}

fn wrong(text: &str) -> clap::Error {
    Options::command().error(ErrorKind::ArgumentConflict, text)
}

/// How an option is written.
fn spelled(id: &str) -> String {
    let command = Options::command();
    let argument = command.get_arguments().find(|argument| argument.get_id() == id);
    let long = argument.and_then(|argument| argument.get_long()).unwrap_or(id);
    format!("--{long}")
}

/// Notes on what was given and has no effect.
fn ignored(options: &Options, role: &Role, given: impl Fn(&str) -> bool) -> Vec<String> {
    let has_files = !options.files.is_empty();
    let (idle, why): (&[&str], &str) = match role {
        Role::Server => (&IDLE_AT_A_SERVER, "the client decides"),
        Role::Client(_) if has_files => (&IDLE_WITH_FILES, "files are sent whole and at full rate"),
        Role::Client(_) => (&["compress"], "there are no files (-f)"),
        Role::Generate(_) => (&[], ""),
    };
    let letter = |id: &str| {
        let command = Options::command();
        let argument = command.get_arguments().find(|argument| argument.get_id() == id);
        let short = argument.and_then(|argument| argument.get_short());
        short.map_or_else(|| spelled(id), |letter| format!("-{letter}"))
    };
    let note = |id: &&str| {
        let more = match (*id, role) {
            ("mode", Role::Server) => "; --only-mode restricts it",
            _ => "",
        };
        format!("note: {} is ignored: {why}{more}", letter(id))
    };
    let always = ALWAYS_SO.iter().filter(|(id, _)| given(id));
    let always = always.map(|(id, why)| format!("note: {} is ignored: {why}", letter(id)));
    idle.iter().filter(|id| given(id)).map(note).chain(always).collect()
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
                return Err(wrong(&format!("{} is an option of the server (-s)", spelled(id))));
            }
            if !options.files.is_empty()
                && let Some(id) = NOT_WITH_FILES.iter().find(given)
            {
                return Err(wrong(&format!("{} means nothing with -f", spelled(id))));
            }
            if !options.files.is_empty() && options.reverse {
                return Err(wrong("-r means nothing with -f: files go to the server"));
            }
            check_client(options)?;
            Ok(Role::Client(host.clone()))
        }
        (None, true) => match CLIENT_ONLY.iter().find(given) {
            Some(id) => Err(wrong(&format!("{} is an option of the client (-c)", spelled(id)))),
            None if options.daemon && options.debug && options.protocol_log.is_none() => {
                Err(wrong(
                    "-d writes to standard error, which a server with -D does not have: add -L FILE",
                ))
            }
            None => Ok(Role::Server),
        },
        (None, false) => Err(Options::command()
            .error(ErrorKind::MissingRequiredArgument, "say -s for a server or -c HOST")),
    }
}

fn check_mode(options: &Options) -> Result<(), clap::Error> {
    if !options.files.is_empty() && !options.mode.is_reliable() {
        return Err(wrong(
            "files need all of their data: -f goes with modes 1 (brtp), 2 (brctp), 10 (tcp) and \
             12 (quic)",
        ));
    }
    let is_timely = matches!(options.mode, TransportMode::Btp | TransportMode::Transparent);
    if options.deadline.is_some() && !is_timely {
        return Err(wrong("--deadline goes with modes 0 (btp) and 3 (transparent)"));
    }
    if options.closed_key.is_some() {
        if !options.mode.to_library().is_own() {
            return Err(wrong(
                "--closed-key goes with modes 0 (btp), 1 (brtp), 2 (brctp) and 3 (transparent)",
            ));
        }
        if !options.baseline.is_empty() {
            return Err(wrong(
                "the kernel's TCP and UDP know no key: no --baseline with --closed-key",
            ));
        }
    }
    let congestion = options.congestion.map(|congestion| congestion.0);
    if options.mode == TransportMode::Quic {
        if options.goal.is_some() {
            return Err(wrong("in mode 12 (quic) nothing is coded: no --goal"));
        }
        if !matches!(congestion, None | Some(CongestionAlgorithm::Bbr | CongestionAlgorithm::Cubic))
        {
            return Err(wrong("mode 12 (quic) has --congestion bbr and cubic"));
        }
    }
    if options.mode == TransportMode::Tcp {
        if options.goal.is_some() || congestion.is_some() {
            return Err(wrong("in mode 10 (tcp) the kernel decides: no --goal or --congestion"));
        }
        if options.emulate.is_some() {
            return Err(wrong("the emulated link carries UDP only: no mode 10 with --emulate"));
        }
    }
    if options.mode == TransportMode::Udp && (options.goal.is_some() || congestion.is_some()) {
        return Err(wrong(
            "mode 11 (udp) has neither redundancy nor congestion control: no --goal and no \
             --congestion",
        ));
    }
    // A server without --only-mode may still get clients of other modes.
    let is_settled = options.client.is_some() || options.only_mode.is_some();
    if is_settled
        && options.mode == TransportMode::Transparent
        && (options.goal.is_some() || options.congestion.is_some())
    {
        return Err(wrong(
            "mode 3 (transparent) has neither redundancy nor congestion control: \
             no --goal and no --congestion",
        ));
    }
    Ok(())
}

/// A client in mode 11. Without a rate datagrams would only fill queues.
fn check_udp(options: &Options, has_rate: bool) -> Result<(), clap::Error> {
    if has_rate && options.bandwidth == 0 {
        return Err(wrong("mode 11 (udp) has no congestion control: give a rate with -b"));
    }
    if options.length.is_some_and(|length| length > udp::LONGEST) {
        let longest = udp::LONGEST;
        return Err(wrong(&format!("a datagram has at most {longest} bytes: no --length beyond")));
    }
    if options.cport.is_some() {
        return Err(wrong("in mode 11 (udp) each stream has a port of its own: no --cport"));
    }
    if options.baseline.contains(&Carrier::Udp) {
        return Err(wrong("mode 11 (udp) is what --baseline udp would compare it with"));
    }
    Ok(())
}

fn check_client(options: &Options) -> Result<(), clap::Error> {
    if options.reverse && (options.goal.is_some() || options.congestion.is_some()) {
        return Err(wrong(
            "with -r the server sends: --goal and --congestion must be given to the server",
        ));
    }
    if options.emulate.is_some() && options.baseline.contains(&Carrier::Tcp) {
        return Err(wrong("the emulated link carries UDP only: no --baseline tcp with --emulate"));
    }
    if options.omit >= options.time && options.bytes.is_none() && options.blockcount.is_none() {
        return Err(wrong("-O leaves nothing of -t"));
    }
    if !options.omit.is_zero() && (options.bytes.is_some() || options.blockcount.is_some()) {
        return Err(wrong("-O goes with -t, not with -n or -k"));
    }
    if options.latency && (options.bytes.is_some() || options.blockcount.is_some()) {
        return Err(wrong("--latency goes with -t, not with -n or -k"));
    }
    if options.extra_data.is_some() && !options.is_json() {
        return Err(wrong("--extra-data goes with -J or --json-stream"));
    }
    Ok(())
}

/// A format of strftime that can be printed.
pub(super) fn parse_format(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let now = jiff::Zoned::now();
    jiff::fmt::strtime::format(text, &now)
        .map(|_| text.to_owned())
        .map_err(|error| format!("'{text}' is no time format: {error}"))
}

impl Options {
    /// The key of `--closed-key`.
    ///
    /// # Errors
    /// The file cannot be read, or holds no key.
    pub(crate) fn read_closed_key(&self) -> Result<Option<ClosedKey>, IdentityError> {
        self.closed_key.as_deref().map(openbats::read_closed_key).transpose()
    }

    /// Limits and behaviour of the data connections of this side.
    pub(crate) fn transport(&self) -> TransportConfig {
        let goal = match self.goal {
            Some(GoalName::Latency) => Goal::Latency,
            Some(GoalName::Throughput) => Goal::Throughput,
            Some(GoalName::Balanced) | None => Goal::Balanced,
        };
        let default = TransportConfig::default();
        // What a limited server takes in advance must not be a multiple of what it allows.
        let receive_budget = match self.server_bitrate_limit {
            Some(limit) => usize::try_from(limit / 8)
                .unwrap_or(usize::MAX)
                .clamp(LEAST_BUDGET, default.receive_budget),
            None => default.receive_budget,
        };
        TransportConfig {
            receive_budget,
            mode: self.mode.to_library(),
            goal,
            congestion: self.congestion.map_or(default.congestion, |congestion| congestion.0),
            // A receiver of a slow stream is silent, and so is a server that reads what a file
            // was interrupted at.
            keep_alive: Some(Duration::from_secs(5)),
            ..default
        }
    }

    /// A server goes by what its clients say, whatever it was given.
    fn forget_the_client(&mut self) {
        self.mode = self.only_mode.unwrap_or(TransportMode::Btp);
        self.files.clear();
        self.compress = None;
        self.reverse = false;
    }

    /// Names files from the root: a process that leaves its directory would not find them.
    fn make_absolute(&mut self) -> std::io::Result<()> {
        self.directory = std::path::absolute(&self.directory)?;
        for path in [
            &mut self.logfile,
            &mut self.protocol_log,
            &mut self.pidfile,
            &mut self.certificate,
            &mut self.key,
            &mut self.closed_key,
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
    fn modes_without_a_control_have_a_rate_of_their_own() {
        let bandwidth = |words: &str| {
            let line = format!("bats_iperf -c host {words}");
            parse(line.split_whitespace()).unwrap().0.bandwidth
        };
        for (words, rate) in [
            ("-m 3", 1_000_000),
            ("-m 11", 1_000_000),
            ("-u -P 4 -r", 1_000_000),
            ("-m 3 -b 0", 0),
            ("-m 3 -b 5", 5_000_000),
            ("-m 0", 0),
            ("-m 1 --latency", 0),
        ] {
            assert_eq!(bandwidth(words), rate, "{words}");
        }
    }

    #[test]
    fn a_limit_of_nothing_is_none() {
        let limit = |rate: &str| {
            let line = format!("bats_iperf -s --server-bitrate-limit {rate}");
            parse(line.split_whitespace()).unwrap().0.server_bitrate_limit
        };
        assert_eq!((limit("0"), limit("0M"), limit("1k")), (None, None, Some(1_000)));
    }

    fn role(line: &str) -> Result<Role, clap::Error> {
        parse(line.split_whitespace()).map(|(_, role)| role)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        let command = Options::command();
        let known: Vec<&str> =
            command.get_arguments().map(|argument| argument.get_id().as_str()).collect();
        for id in CLIENT_ONLY
            .iter()
            .chain(&IDLE_AT_A_SERVER)
            .chain(&SERVER_ONLY)
            .chain(&NOT_WITH_FILES)
            .chain(&IDLE_WITH_FILES)
            .chain(ALWAYS_SO.iter().map(|(id, _)| id))
        {
            assert!(known.contains(id), "{id}");
        }
    }

    #[test]
    fn usual_lines_are_understood() {
        assert_eq!(role("bats_iperf -s -I lo -p 6000 -1 -J -i 1").unwrap(), Role::Server);
        let client = "bats_iperf -c 10.0.0.1 -m 1 -p 5201 -P 4 -i 0.5 -t 3 -b 100 -r -T -l log";
        assert_eq!(role(client).unwrap(), Role::Client("10.0.0.1".into()));
        // As Oasis starts it.
        role("bats_iperf -s -p 4000 -I eth0 -l /tmp/log -L /tmp/dir").unwrap();
        role("bats_iperf -c 10.0.0.2 -m 1 -p 4000 -P 2 -i 1 -t 10 -L /tmp/dir").unwrap();
        let (options, _) = parse("bats_iperf -c host -f a b c -P 2 -f d".split(' ')).unwrap();
        assert_eq!(options.files.len(), 4);
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
    fn wrong_lines_are_refused_with_two() {
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
            "-s --overwrite --existing rename",
            "-c host --generate man",
        ] {
            let line = format!("bats_iperf {line}");
            assert_eq!(role(&line).map_err(|error| error.exit_code()), Err(2), "{line}");
        }
    }

    #[test]
    fn the_mode_is_btp_unless_files_go() {
        let mode = |words: &str| {
            let line = format!("bats_iperf {words}");
            parse(line.split_whitespace()).unwrap().0.mode
        };
        assert_eq!(mode("-c host"), TransportMode::Btp);
        assert_eq!(mode("-c host -f a"), TransportMode::Brtp);
        assert_eq!(mode("-c host -m 3"), TransportMode::Transparent);
        assert_eq!(mode("-c host -u"), TransportMode::Udp);
    }

    /// What the original takes without heed.
    #[test]
    fn scripts_for_the_original_run_with_notes() {
        for (words, letters) in [
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
            // Of iperf3.
            ("-c h -u -N -Z", &["-N", "-Z"]),
            (
                "-c h --udp-counters-64bit --repeating-payload",
                &["--udp-counters-64bit", "--repeating-payload"],
            ),
        ] {
            let line = format!("bats_iperf {words}");
            let (options, role) =
                parse(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}"));
            let found: Vec<&str> = options
                .notes
                .iter()
                .map(|note| note.strip_prefix("note: ").unwrap().split(' ').next().unwrap())
                .collect();
            assert_eq!(found, letters, "{line}");
            if role == Role::Server {
                assert!(options.files.is_empty() && options.compress.is_none(), "{line}");
            }
        }
    }

    #[test]
    fn a_server_has_the_modes_that_it_is_restricted_to() {
        let modes = |words: &str| {
            let line = format!("bats_iperf -s {words}");
            let options = parse(line.split_whitespace()).unwrap().0;
            (options.only_mode, options.mode)
        };
        assert_eq!(modes("-m 3"), (None, TransportMode::Btp));
        assert_eq!(modes("-m 3 --only-mode 2").0, Some(TransportMode::Brctp));
        assert_eq!(modes("--only-mode quic"), (Some(TransportMode::Quic), TransportMode::Quic));
    }
}
