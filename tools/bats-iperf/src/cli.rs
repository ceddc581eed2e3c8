//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use openbats::{Fingerprint, Mode};

use crate::units::{parse_duration, parse_interval, parse_rate};

/// Measures throughput, loss and jitter of OpenBATS connections, and sends files over them.
///
/// Exit codes: 0 all went well, 1 the test or a transfer failed, 2 the command line is wrong.
#[derive(Clone, Debug, Parser)]
#[command(name = "bats_iperf", version, max_term_width = 100)]
pub(crate) struct Options {
    /// Run as a server.
    #[arg(short, long, conflicts_with = "client")]
    pub(crate) server: bool,

    /// Run as a client of the server at this address or name.
    #[arg(short, long, value_name = "HOST")]
    pub(crate) client: Option<String>,

    /// Port of the data, 2 to 65535; signalling goes over the port below it.
    #[arg(short, long, default_value_t = 5201, value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) port: u16,

    /// Transport mode: brtp (or 1).
    #[arg(short, long, default_value = "brtp", value_parser = parse_mode)]
    pub(crate) mode: Mode,

    /// Length of the test in seconds.
    #[arg(short, long, value_name = "SECONDS", default_value = "10", value_parser = parse_duration)]
    pub(crate) time: Duration,

    /// Seconds between reports.
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    /// Parallel streams, each a connection of its own.
    #[arg(short = 'P', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) parallel: u16,

    /// The server sends, the client receives.
    #[arg(short, long)]
    pub(crate) reverse: bool,

    /// Sending limit of each stream: Mbit/s, or with a unit as in 64k, 1.5G; 0 for none.
    #[arg(short, long, value_name = "RATE", default_value = "0", value_parser = parse_rate)]
    pub(crate) bandwidth: u64,

    /// Octets of a message in a throughput test.
    #[arg(long, value_name = "OCTETS", value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub(crate) length: Option<u32>,

    /// Send these files and have each verified (BLAKE3) and stored by the server.
    #[arg(short, long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["server", "reverse"])]
    pub(crate) files: Vec<PathBuf>,

    /// Server: where received files go.
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub(crate) directory: PathBuf,

    /// Server: received files replace those of the same name.
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Print one JSON document, with the keys of iperf3 and some of our own.
    #[arg(short = 'J', long)]
    pub(crate) json: bool,

    /// Server: serve one test, then exit with its outcome.
    #[arg(short = '1', long)]
    pub(crate) one_off: bool,

    /// Listen on (server) or send from (client) this interface or address.
    #[arg(short = 'I', long, value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// Begin each line with the local time.
    #[arg(short = 'T', long)]
    pub(crate) timestamps: bool,

    /// Append the report to this file, too.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) logfile: Option<PathBuf>,

    /// Log what the library does, to standard error.
    #[arg(short, long)]
    pub(crate) debug: bool,

    /// Server: certificate chain in PEM. Without it the server makes a certificate for itself and
    /// prints its fingerprint.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,

    /// Server: private key in PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,

    /// Client: the server's certificate must have this SHA-256 fingerprint.
    #[arg(long, value_name = "HEX", conflicts_with = "authorities")]
    pub(crate) fingerprint: Option<Fingerprint>,

    /// Client: the server's certificate must come from one of the authorities in this PEM file.
    #[arg(long, value_name = "FILE")]
    pub(crate) authorities: Option<PathBuf>,

    /// Client: seconds to wait for the server.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_duration)]
    pub(crate) connect_timeout: Duration,
}

/// Which side this is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Role {
    Server,
    Client(String),
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "brtp" => Ok(Mode::Brtp),
        "0" | "btp" | "2" | "brctp" | "3" | "transparent" | "10" | "tcp" | "11" | "udp" | "12"
        | "quic" => Err(format!("mode '{text}' is not built yet; brtp (1) is")),
        _ => Err(format!("'{text}' is no mode; brtp (1) is one")),
    }
}

impl Options {
    /// What the options mean together.
    ///
    /// # Errors
    /// They make no sense together.
    pub(crate) fn check(&self) -> Result<Role, clap::Error> {
        let wrong = |text: &str| Self::command().error(ErrorKind::ArgumentConflict, text);
        match (&self.client, self.server) {
            (Some(host), _) => {
                if self.one_off || self.certificate.is_some() || self.overwrite {
                    return Err(wrong("--one-off, --certificate and --overwrite are a server's"));
                }
                Ok(Role::Client(host.clone()))
            }
            (None, true) => {
                let client_only =
                    [self.reverse, self.bandwidth > 0, self.length.is_some(), self.parallel > 1];
                if client_only.contains(&true)
                    || self.fingerprint.is_some()
                    || self.authorities.is_some()
                {
                    return Err(wrong(
                        "-r, -b, -P, --length, --fingerprint and --authorities are a client's",
                    ));
                }
                Ok(Role::Server)
            }
            (None, false) => Err(Self::command()
                .error(ErrorKind::MissingRequiredArgument, "say -s for a server or -c HOST")),
        }
    }

    /// The address of `-I`, if it was given.
    ///
    /// # Errors
    /// There is no such interface, or it has no address.
    pub(crate) fn local_ip(&self) -> anyhow::Result<Option<IpAddr>> {
        let Some(name) = &self.interface else { return Ok(None) };
        if let Ok(address) = name.parse() {
            return Ok(Some(address));
        }
        let name = if name == "loopback" { "lo" } else { name };
        let mut addresses: Vec<IpAddr> = nix::ifaddrs::getifaddrs()?
            .filter(|interface| interface.interface_name == name)
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
                v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
            })
            .collect();
        addresses.sort();
        match addresses.first() {
            Some(&address) => Ok(Some(address)),
            None => anyhow::bail!("no interface '{name}' with an address (ip addr lists them)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Role, clap::Error> {
        Options::try_parse_from(line.split_whitespace()).and_then(|options| options.check())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn usual_lines_are_understood() {
        assert_eq!(parse("bats_iperf -s -I lo -p 6000 -1 -J").unwrap(), Role::Server);
        let client = "bats_iperf -c 10.0.0.1 -m 1 -p 5201 -P 4 -i 0.5 -t 3 -b 100 -r -T -l log";
        assert_eq!(parse(client).unwrap(), Role::Client("10.0.0.1".into()));
        parse("bats_iperf -c host -f a b c -P 2").unwrap();
    }

    #[test]
    fn wrong_lines_are_refused_with_two() {
        for line in [
            "bats_iperf",
            "bats_iperf -s -c host",
            "bats_iperf -s -b 5",
            "bats_iperf -s -r",
            "bats_iperf -c host -p 0",
            "bats_iperf -c host -p 70000",
            "bats_iperf -c host -m 7",
            "bats_iperf -c host -m btp",
            "bats_iperf -c host -t",
            "bats_iperf -c host -t x",
            "bats_iperf -c host -i 0.04",
            "bats_iperf -c host -P 0",
            "bats_iperf -c host -1",
            "bats_iperf -c host -f",
            "bats_iperf -c host -f a -r",
            "bats_iperf -s --certificate c",
            "bats_iperf --unknown",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn interfaces_have_addresses() {
        let ip = |name: &str| {
            let line = format!("bats_iperf -s -I {name}");
            Options::parse_from(line.split_whitespace()).local_ip()
        };
        assert_eq!(ip("lo").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("loopback").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("::1").unwrap(), Some("::1".parse().unwrap()));
        assert!(ip("nosuch0").unwrap_err().to_string().contains("nosuch0"));
    }
}
