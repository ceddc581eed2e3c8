//! `batsctl`: queries and controls a running batsd, and makes the files of a new node.
#![allow(clippy::disallowed_methods, reason = "rates are per second of the real clock")]

mod changes;
mod events;
mod output;
mod ping;
mod schema;
mod speedtest;
mod top;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use batsd::{config, control, doctor, keeper};
use changes::{LinkChange, RouteChange};
use clap::{Parser, Subcommand};
use output::{print, table, text, tree};
use serde_json::{Value, json};

/// Queries and controls a running batsd, and makes the files of a new node. See docs/node.md.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file.
    #[arg(long, global = true, default_value = config::DEFAULT_PATH)]
    config: PathBuf,
    /// Control socket of the daemon; by default the one in the configuration file.
    #[arg(long, global = true)]
    socket: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// State of the node and counters of its TUN device.
    Status,
    /// Links to neighbours.
    Links,
    /// Other nodes, and whether there are sessions with them.
    Peers,
    /// Sessions of the tunnel and their queues.
    Sessions,
    /// Flows of sessions that this node sends, receives or relays.
    Flows,
    /// Routes to nodes, and the links in use; prefixes in the tunnel.
    Routes,
    /// Open channels of sessions: connections of programs, and those made for peers.
    Channels,
    /// Nodes on the path to another one, with the round-trip times to each; the exit code is 1 if it is not
    /// reached.
    Trace {
        /// ID of the node.
        node: std::net::Ipv4Addr,
    },
    /// Throughput to a peer and back, over the reliable session; the peer must allow it.
    Speedtest {
        /// ID of the peer.
        node: std::net::Ipv4Addr,
        /// Seconds for each direction.
        #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10))]
        seconds: u64,
        /// `out` (to the peer), `in` (from it), or both one after the other.
        #[arg(long, default_value = "both", value_parser = ["out", "in", "both"])]
        direction: String,
    },
    /// Take nothing new, wait for open connections of programs and peers, and end the daemon; the exit code is
    /// 1 if connections were cut.
    Drain {
        /// Longest time to wait, in seconds.
        #[arg(long, default_value_t = 60.0, value_parser = limit)]
        limit: f64,
    },
    /// JSON Schema of what the verbs print with --json.
    Schema {
        /// A verb, such as `links` or `link-add`; without it, the definitions of all.
        verb: Option<String>,
    },
    /// The latest events of links and sessions.
    Events {
        /// Print also each new one, until Ctrl-C.
        #[arg(short, long)]
        follow: bool,
    },
    /// Echo requests to a peer, through the sessions of the tunnel; the exit code is 1 if none is answered.
    Ping {
        /// ID of the peer.
        node: std::net::Ipv4Addr,
        /// Number of requests.
        #[arg(short, long, default_value_t = 4)]
        count: u64,
        /// Seconds between two requests.
        #[arg(short, long, default_value_t = 1.0, value_parser = seconds)]
        interval: f64,
        /// Session: `datagram` (BTP) or `stream` (BRTP).
        #[arg(long, default_value = "datagram", value_parser = ["datagram", "stream"])]
        class: String,
    },
    /// Links and sessions with their present rates, until Ctrl-C.
    Top {
        /// Seconds between two looks.
        #[arg(long, default_value_t = 1.0, value_parser = seconds)]
        interval: f64,
        /// End after this number of looks.
        #[arg(long)]
        count: Option<u64>,
    },
    /// Open or close a link, until the next reload or the end of the worker.
    #[command(subcommand)]
    Link(LinkChange),
    /// Change the route to a node, until the next reload or the end of the worker.
    #[command(subcommand)]
    Route(RouteChange),
    /// Metrics in Prometheus' text format.
    Metrics,
    /// Read the configuration again and apply the differences, or nothing if it is wrong.
    Reload,
    /// Check the configuration and the files that it names.
    Check,
    /// Name what keeps the node from working, and what to do; the exit code is 1 if there is something.
    Doctor,
    /// Make the identity of a node and print its fingerprint.
    Keygen {
        /// PEM file to write.
        #[arg(default_value = config::DEFAULT_IDENTITY)]
        path: PathBuf,
    },
    /// Print the configuration lines with which another node adds this one as a peer.
    Share {
        /// Address at which the other node can reach this one.
        #[arg(long)]
        address: Option<String>,
    },
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    (0.1..=3600.0).contains(&value).then_some(value).ok_or("0.1 to 3600 seconds".to_owned())
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn limit(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    (0.0..=86_400.0).contains(&value).then_some(value).ok_or("0 to 86400 seconds".to_owned())
}

/// The answer of the daemon for people.
fn human(command: &Command, answer: &Value) -> String {
    match command {
        Command::Status => {
            let mut output = String::new();
            tree(&answer["status"], 0, &mut output);
            output
        }
        Command::Links => table(
            &answer["links"],
            &[
                ("NAME", "/name"),
                ("STATE", "/state"),
                ("REMOTE", "/remote"),
                ("INTERFACE", "/interface"),
                ("RTT ms", "/traffic/rtt_ms"),
                ("LOSS", "/traffic/loss"),
                ("SENT", "/traffic/bytes_sent"),
                ("RECEIVED", "/traffic/bytes_received"),
                ("LAST END", "/last_end"),
            ],
        ),
        Command::Peers => table(
            &answer["peers"],
            &[
                ("ID", "/id"),
                ("PREFIXES", "/prefixes"),
                ("STREAM", "/stream"),
                ("DATAGRAM", "/datagram"),
            ],
        ),
        Command::Sessions => table(
            &answer["sessions"],
            &[
                ("PEER", "/peer"),
                ("CLASS", "/class"),
                ("DIRECTION", "/direction"),
                ("LINK", "/over_link/link"),
                ("RTT ms", "/traffic/rtt_ms"),
                ("CODE RATE", "/traffic/code_rate"),
                ("SENT", "/traffic/messages_sent"),
                ("RECEIVED", "/traffic/messages_received"),
                ("QUEUE", "/queue/packets"),
                ("DELAY ms", "/queue/delay_ms"),
                ("DROPPED", "/queue/dropped"),
            ],
        ),
        Command::Flows => table(
            &answer["flows"],
            &[
                ("SOURCE", "/source"),
                ("DESTINATION", "/destination"),
                ("FLOW", "/flow"),
                ("RECEIVED", "/bytes_received"),
                ("SENT", "/bytes_sent"),
                ("QUEUED", "/queued"),
                ("HELD", "/bytes_held"),
                ("IDLE s", "/idle_seconds"),
            ],
        ),
        Command::Routes => {
            let routes = table(
                &answer["routes"],
                &[("TO", "/to"), ("SOURCE", "/source"), ("VIA", "/via"), ("IN USE", "/in_use")],
            );
            let columns = [
                ("TO", "/to"),
                ("GATEWAY", "/gateway"),
                ("INTERFACE", "/interface"),
                ("NOT USED", "/reason"),
            ];
            let ignored = match answer["kernel"] == true {
                true => table(&answer["ignored"], &columns),
                false => String::new(),
            };
            let counts = [
                ("left_out", "host routes of the kernel are left out: there are too many"),
                (
                    "unreadable",
                    "answers of the kernel cannot be read: these addresses have no route",
                ),
            ];
            let counts: String = counts
                .iter()
                .map(|(key, text)| (answer[key].as_u64().unwrap_or(0), text))
                .filter(|(count, _)| *count > 0)
                .map(|(count, text)| format!("{count} {text}\n"))
                .collect();
            routes
                + &ignored
                + &counts
                + &table(&answer["prefixes"], &[("PREFIX", "/prefix"), ("NODE", "/node")])
        }
        Command::Channels => table(
            &answer["channels"],
            &[
                ("PEER", "/peer"),
                ("ID", "/id"),
                ("OPENED HERE", "/opened_here"),
                ("KIND", "/kind"),
                ("TO", "/to"),
                ("SENT", "/bytes_sent"),
                ("QUEUED", "/bytes_queued"),
                ("CREDIT", "/credit"),
                ("RECEIVED", "/bytes_received"),
                ("UNREAD", "/bytes_unread"),
                ("WAITS FOR", "/waits_for"),
            ],
        ),
        Command::Metrics => text(&answer["text"]),
        Command::Events { .. } => events::lines(answer),
        _ => String::new(),
    }
}

/// The findings, and whether all is good.
fn examine(arguments: &Arguments) -> (String, bool) {
    let findings = doctor::examine(&arguments.config, arguments.socket.as_deref());
    let is_good = findings.iter().all(|finding| finding.problem.is_none());
    if arguments.json {
        return (format!("{:#}\n", json!({ "findings": findings, "good": is_good })), is_good);
    }
    let line = |finding: &doctor::Finding| match &finding.problem {
        None => format!("good     {}\n", finding.check),
        Some(problem) => format!("PROBLEM  {}: {problem}\n", finding.check),
    };
    (findings.iter().map(line).collect(), is_good)
}

fn run(arguments: &Arguments) -> anyhow::Result<(String, bool)> {
    let done = |text| Ok((text, true));
    let socket = || match &arguments.socket {
        Some(socket) => Ok(socket.clone()),
        // A daemon without a file, or with the original's, has the socket at the usual place.
        None if arguments.config.extension().is_some_and(|extension| extension == "ini")
            || (arguments.config == Path::new(config::DEFAULT_PATH)
                && !arguments.config.exists()) =>
        {
            Ok(config::default_control())
        }
        None => config::Config::read(&arguments.config).map(|config| config.control),
    };
    let call = |method: &str, parameters: &Value| -> anyhow::Result<(String, bool)> {
        let answer = control::call_with(&socket()?, method, parameters)?;
        let text = match arguments.json {
            true => format!("{answer:#}\n"),
            false => human(&arguments.command, &answer),
        };
        Ok((text, true))
    };
    let query = |method: &str| call(method, &json!({}));
    match &arguments.command {
        Command::Status => query("Status"),
        Command::Links => query("Links"),
        Command::Peers => query("Peers"),
        Command::Sessions => query("Sessions"),
        Command::Flows => query("Flows"),
        Command::Routes => query("Routes"),
        Command::Channels => query("Channels"),
        Command::Metrics => query("Metrics"),
        Command::Speedtest { node, seconds, direction } => {
            speedtest::speedtest(&socket()?, arguments.json, &node.to_string(), *seconds, direction)
        }
        Command::Trace { node } => trace::trace(&socket()?, arguments.json, &node.to_string()),
        Command::Drain { limit } => {
            let longer = Duration::from_secs_f64(*limit);
            let parameters = json!({ "seconds": limit });
            let answer = control::call_within(&socket()?, "Drain", &parameters, longer)?;
            let text = match arguments.json {
                true => format!("{answer:#}\n"),
                false => format!(
                    "drained after {} s, {} connections cut\n",
                    text(&answer["seconds"]),
                    text(&answer["cut"])
                ),
            };
            Ok((text, answer["cut"] == 0))
        }
        Command::Schema { verb } => done(schema::schema(verb.as_deref())?),
        Command::Reload => query("Reload"),
        Command::Events { follow: false } => query("Events"),
        Command::Events { follow: true } => {
            events::follow(&socket()?, arguments.json)?;
            done(String::new())
        }
        Command::Top { interval, count } => {
            top::top(&socket()?, arguments.json, *interval, *count)?;
            done(String::new())
        }
        Command::Ping { node, count, interval, class } => {
            let parameters = json!({ "node": node.to_string(), "class": class });
            ping::ping(&socket()?, arguments.json, &parameters, *count, *interval)
        }
        Command::Link(change) => {
            let (method, parameters) = change.call();
            call(method, &parameters)
        }
        Command::Route(change) => {
            let (method, parameters) = change.call();
            call(method, &parameters)
        }
        Command::Doctor => Ok(examine(arguments)),
        Command::Check => {
            keeper::check(&arguments.config)?;
            let path = arguments.config.display().to_string();
            done(match arguments.json {
                true => format!("{}\n", json!({ "path": path, "good": true })),
                false => format!("{path}: good\n"),
            })
        }
        Command::Keygen { path } => {
            let print = format!("sha256:{}", config::generate_identity(path)?);
            done(match arguments.json {
                true => format!("{}\n", json!({ "path": path, "fingerprint": print })),
                false => format!("{print}\n"),
            })
        }
        Command::Share { address } => {
            let (config, identity) = keeper::check(&arguments.config)?;
            let lines = config::share(&config, identity.fingerprint(), address.as_deref())?;
            done(match arguments.json {
                true => format!("{}\n", json!({ "toml": lines })),
                false => lines,
            })
        }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok((text, is_good)) => {
            // A closed pipe (`| head`) is no error.
            print(&text);
            if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("batsctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}
