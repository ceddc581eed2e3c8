//! What the options mean together.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use openbats::{CongestionAlgorithm, Goal, TransportConfig};

use super::{Existing, GoalName, Options, TransportMode};
use crate::control::Carrier;

/// Which side this is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    Server,
    Client(String),
    Generate(super::Generated),
}

/// Options that mean nothing to a server.
const CLIENT_ONLY: [&str; 21] = [
    "time",
    "bytes",
    "blockcount",
    "omit",
    "parallel",
    "reverse",
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
    "files",
    "compress",
];
/// Options that mean nothing to a client.
const SERVER_ONLY: [&str; 9] = [
    "directory",
    "existing",
    "overwrite",
    "one_off",
    "daemon",
    "idle_timeout",
    "server_bitrate_limit",
    "certificate",
    "key",
];
/// Options that a transfer of files does not know.
const NOT_WITH_FILES: [&str; 6] = ["time", "bytes", "blockcount", "omit", "bandwidth", "length"];

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
    let given = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
    (options.has_interval, options.has_mode) = (given("interval"), given("mode"));
    if !options.files.is_empty() && !options.has_mode {
        options.mode = TransportMode::Brtp;
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

fn check(options: &Options, matches: &ArgMatches) -> Result<Role, clap::Error> {
    let given = |id: &&&str| {
        matches.try_contains_id(id).is_ok()
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let spelled = |id: &str| {
        let command = Options::command();
        let argument = command.get_arguments().find(|argument| argument.get_id() == id);
        let long = argument.and_then(|argument| argument.get_long()).unwrap_or(id);
        format!("--{long}")
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
            "files need all of their data: -f goes with modes 1 (brtp) and 2 (brctp)",
        ));
    }
    if options.deadline.is_some() && options.mode.is_reliable() {
        return Err(wrong("--deadline goes with modes 0 (btp) and 3 (transparent)"));
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
    // A server without -m may still get clients of other modes.
    let is_settled = options.client.is_some() || options.has_mode;
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
    /// Limits and behaviour of the data connections of this side.
    pub(crate) fn transport(&self) -> TransportConfig {
        let goal = match self.goal {
            Some(GoalName::Latency) => Goal::Latency,
            Some(GoalName::Throughput) => Goal::Throughput,
            Some(GoalName::Balanced) | None => Goal::Balanced,
        };
        let default = TransportConfig::default();
        TransportConfig {
            mode: self.mode.to_library(),
            goal,
            congestion: self.congestion.map_or(default.congestion, |congestion| congestion.0),
            // A receiver of a slow stream is silent, and so is a server that reads what a file
            // was interrupted at.
            keep_alive: Some(Duration::from_secs(5)),
            ..default
        }
    }

    /// The address of `-I`, if it was given.
    ///
    /// # Errors
    /// There is no such interface, or it has no address of the family asked for.
    pub(crate) fn local_ip(&self) -> anyhow::Result<Option<IpAddr>> {
        let Some(name) = &self.interface else { return Ok(None) };
        if let Ok(address) = name.parse() {
            return match self.fits(address) {
                true => Ok(Some(address)),
                false => anyhow::bail!("{address} is not of the IP family asked for"),
            };
        }
        let name = if name == "loopback" { "lo" } else { name };
        let mut addresses: Vec<IpAddr> = nix::ifaddrs::getifaddrs()?
            .filter(|interface| interface.interface_name == name)
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
                v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
            })
            .filter(|address| self.fits(*address))
            .collect();
        addresses.sort();
        match addresses.first() {
            Some(&address) => Ok(Some(address)),
            None => anyhow::bail!("no interface '{name}' with an address (ip addr lists them)"),
        }
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
        ]
        .into_iter()
        .flatten()
        {
            *path = std::path::absolute(&*path)?;
        }
        Ok(())
    }

    /// Whether an address is of the IP family asked for.
    pub(crate) fn fits(&self, address: IpAddr) -> bool {
        !(self.ipv4 && address.is_ipv6() || self.ipv6 && address.is_ipv4())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(line: &str) -> Result<Role, clap::Error> {
        parse(line.split_whitespace()).map(|(_, role)| role)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        let command = Options::command();
        let known: Vec<&str> =
            command.get_arguments().map(|argument| argument.get_id().as_str()).collect();
        for id in CLIENT_ONLY.iter().chain(&SERVER_ONLY).chain(&NOT_WITH_FILES) {
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
            "-c h --timestamps=%H:%M:%S",
            "-s --existing rename --directory /tmp --idle-timeout 60 --server-bitrate-limit 1G",
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
            "-s -r",
            "-s -P 2",
            "-s -f a",
            "-s -t 5",
            "-s --latency",
            "-c host -p 0",
            "-c host -p 70000",
            "-c host -m 7",
            "-c host -m udp",
            "-c host -m 11",
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
            "-c host -f a -b 5",
            "-c host -f a -t 5",
            "-c host -C",
            "-c host -f a --compress=density",
            "-c host -D",
            "-s -D -d",
            "-s --detached",
            "-c host -m 3 --goal latency",
            "-c host -m 3 --congestion bbr",
            "-s -m 3 --congestion bbr",
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
    }

    #[test]
    fn interfaces_have_addresses() {
        let ip = |words: &str| {
            let line = format!("bats_iperf -s {words}");
            parse(line.split_whitespace()).unwrap().0.local_ip()
        };
        assert_eq!(ip("-I lo").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("-I loopback").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("-B ::1").unwrap(), Some("::1".parse().unwrap()));
        assert!(ip("-I ::1 -4").is_err());
        assert!(ip("-I nosuch0").unwrap_err().to_string().contains("nosuch0"));
    }
}
