//! `batsctl`: queries and controls a running batsd, and makes the files of a new node.
#![allow(clippy::disallowed_methods, reason = "rates are per second of the real clock")]

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use batsd::{config, control, doctor, keeper};
use clap::{Parser, Subcommand};
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

#[derive(Subcommand)]
enum LinkChange {
    /// Open a link.
    Add {
        /// A new name.
        name: String,
        /// Address of the neighbour, such as 192.0.2.7:4900.
        #[arg(long)]
        remote: String,
        /// Its fingerprint, which `batsctl share` prints there.
        #[arg(long)]
        fingerprint: String,
        /// Local address to leave from.
        #[arg(long)]
        local: Option<String>,
        /// Forward the neighbour's packets to other nodes.
        #[arg(long)]
        transit: bool,
    },
    /// Close a link that this node opened.
    Del {
        /// Its name.
        name: String,
    },
}

#[derive(Subcommand)]
enum RouteChange {
    /// Use links for a node, in addition to those that it has.
    Add {
        /// ID of the node.
        to: std::net::Ipv4Addr,
        /// Names of links, each with ":" and a tier if that is not 0.
        #[arg(required = true)]
        via: Vec<String>,
    },
    /// Use links no more for a node.
    Del {
        /// ID of the node.
        to: std::net::Ipv4Addr,
        /// Names of links; without any, the route is removed.
        via: Vec<String>,
    },
}

/// Method and parameters of a change.
fn change(command: &Command) -> Option<(&'static str, Value)> {
    Some(match command {
        Command::Link(LinkChange::Add { name, remote, fingerprint, local, transit }) => (
            "LinkAdd",
            json!({
                "name": name, "remote": remote, "fingerprint": fingerprint, "local": local,
                "transit": transit,
            }),
        ),
        Command::Link(LinkChange::Del { name }) => ("LinkDel", json!({ "name": name })),
        Command::Route(RouteChange::Add { to, via }) => {
            ("RouteAdd", json!({ "to": to.to_string(), "via": via }))
        }
        Command::Route(RouteChange::Del { to, via }) => {
            ("RouteDel", json!({ "to": to.to_string(), "via": via }))
        }
        _ => return None,
    })
}

fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    (0.1..=3600.0).contains(&value).then_some(value).ok_or("0.1 to 3600 seconds".to_owned())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            format!("{:.2}", number.as_f64().unwrap_or(0.0))
        }
        Value::Array(values) if values.is_empty() => "-".to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("{key}={}", text(value));
            fields.iter().map(field).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// A table of these columns; each is a path in the rows.
fn table(rows: &Value, columns: &[(&str, &str)]) -> String {
    let rows = rows.as_array().map_or(&[][..], Vec::as_slice);
    let cell = |row: &Value, path: &str| text(row.pointer(path).unwrap_or(&Value::Null));
    let mut lines = vec![columns.iter().map(|(title, _)| (*title).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|(_, path)| cell(row, path)).collect()));
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut output = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        output += cells.collect::<Vec<_>>().join("  ").trim_end();
        output.push('\n');
    }
    output
}

fn tree(value: &Value, indent: usize, output: &mut String) {
    let Some(fields) = value.as_object() else { return };
    for (key, value) in fields {
        let space = " ".repeat(indent);
        match value {
            Value::Object(_) => {
                *output += &format!("{space}{key}:\n");
                tree(value, indent + 2, output);
            }
            value => *output += &format!("{space}{key}: {}\n", text(value)),
        }
    }
}

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
            let routes =
                table(&answer["routes"], &[("TO", "/to"), ("VIA", "/via"), ("IN USE", "/in_use")]);
            routes + &table(&answer["prefixes"], &[("PREFIX", "/prefix"), ("NODE", "/node")])
        }
        Command::Metrics => text(&answer["text"]),
        Command::Events { .. } => event_lines(answer),
        _ => String::new(),
    }
}

/// A line for each event.
fn event_lines(answer: &Value) -> String {
    let events = answer["events"].as_array().map_or(&[][..], Vec::as_slice);
    let line = |event: &Value| {
        let mut line =
            format!("{:.3}  {}", event["time"].as_f64().unwrap_or(0.0), text(&event["event"]));
        let fields = event.as_object().into_iter().flatten();
        let others = fields
            .filter(|(key, value)| !["time", "event"].contains(&key.as_str()) && !value.is_null());
        for (key, value) in others {
            line += &format!("  {key}={}", text(value));
        }
        line + "\n"
    };
    events.iter().map(line).collect()
}

/// Writes to standard output. False if no program reads it (`| head`).
fn print(text: &str) -> bool {
    let mut output = std::io::stdout();
    output.write_all(text.as_bytes()).and_then(|()| output.flush()).is_ok()
}

fn follow_events(socket: &Path, json: bool) -> anyhow::Result<()> {
    control::follow(socket, "Events", |answer| match json {
        // A line for each event.
        true => answer["events"]
            .as_array()
            .into_iter()
            .flatten()
            .all(|event| print(&format!("{event}\n"))),
        false => print(&event_lines(&answer)),
    })
}

/// One request after another. Returns the summary, and whether there was an echo.
fn ping(
    socket: &Path,
    json: bool,
    parameters: &Value,
    count: u64,
    interval: f64,
) -> anyhow::Result<(String, bool)> {
    let mut times = Vec::new();
    let mut errors = Vec::new();
    for number in 1..=count {
        if number > 1 {
            std::thread::sleep(Duration::from_secs_f64(interval));
        }
        let line = match control::call_with(socket, "Ping", parameters) {
            Ok(answer) => {
                let time = answer["rtt_ms"].as_f64().unwrap_or(f64::NAN);
                times.push(time);
                format!("{number}: {time:.2} ms\n")
            }
            Err(error) => {
                errors.push(format!("{error:#}"));
                format!("{number}: {error:#}\n")
            }
        };
        if !json && !print(&line) {
            break;
        }
    }
    let node = text(&parameters["node"]);
    let (sent, answered) = (times.len() + errors.len(), times.len());
    let summary = match json {
        true => format!(
            "{:#}\n",
            json!({ "node": node, "sent": sent, "answered": answered, "rtt_ms": times, "errors": errors })
        ),
        false => {
            times.sort_by(f64::total_cmp);
            let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
            let spread = match answered {
                0 => String::new(),
                _ => format!(
                    "; minimum {:.2}, median {:.2}, maximum {:.2} ms",
                    at(0),
                    at(answered / 2),
                    at(answered - 1)
                ),
            };
            format!("{node}: {answered} of {sent} answered{spread}\n")
        }
    };
    Ok((summary, answered > 0))
}

/// Bytes per second in Mbit/s between two looks at a counter.
fn mbps(now: &Value, before: Option<&Value>, path: &str, seconds: f64) -> Value {
    let value = |row: &Value| row.pointer(path).and_then(Value::as_u64);
    match (value(now), before.and_then(value)) {
        (Some(now), Some(before)) => json!(now.saturating_sub(before) as f64 * 8.0 / 1e6 / seconds),
        _ => Value::Null,
    }
}

/// The rows with their rates since `before`; `keys` identify a row.
fn with_rates(rows: &Value, before: &Value, keys: &[&str], seconds: f64) -> Value {
    let list = |rows: &Value| rows.as_array().cloned().unwrap_or_default();
    let old = list(before);
    let rated = list(rows).into_iter().map(|mut row| {
        let is_same = |other: &&Value| keys.iter().all(|key| other[*key] == row[*key]);
        let other = old.iter().find(is_same);
        row["sent_mbps"] = mbps(&row, other, "/traffic/bytes_sent", seconds);
        row["received_mbps"] = mbps(&row, other, "/traffic/bytes_received", seconds);
        row
    });
    Value::Array(rated.collect())
}

fn top(socket: &Path, json: bool, interval: f64, count: Option<u64>) -> anyhow::Result<()> {
    let look = || anyhow::Ok((control::call(socket, "Links")?, control::call(socket, "Sessions")?));
    let (mut before, mut at) = (look()?, Instant::now());
    let mut looks = 0;
    while count.is_none_or(|count| looks < count) {
        std::thread::sleep(Duration::from_secs_f64(interval));
        let now = look()?;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        let links = with_rates(&now.0["links"], &before.0["links"], &["name", "remote"], seconds);
        let sessions = with_rates(
            &now.1["sessions"],
            &before.1["sessions"],
            &["peer", "class", "direction"],
            seconds,
        );
        before = now;
        looks += 1;
        let text = match json {
            true => format!("{}\n", json!({ "links": links, "sessions": sessions })),
            false => top_screen(&links, &sessions),
        };
        if !print(&text) {
            break;
        }
    }
    Ok(())
}

fn top_screen(links: &Value, sessions: &Value) -> String {
    let rates = [("OUT Mbit/s", "/sent_mbps"), ("IN Mbit/s", "/received_mbps")];
    let mut of_links = vec![("LINK", "/name"), ("REMOTE", "/remote"), ("STATE", "/state")];
    of_links.extend(rates);
    of_links.extend([("RTT ms", "/traffic/rtt_ms"), ("LOSS", "/traffic/loss")]);
    let mut of_sessions = vec![("PEER", "/peer"), ("CLASS", "/class"), ("DIRECTION", "/direction")];
    of_sessions.extend(rates);
    of_sessions.extend([
        ("RTT ms", "/traffic/rtt_ms"),
        ("QUEUE", "/queue/packets"),
        ("DELAY ms", "/queue/delay_ms"),
    ]);
    // A terminal shows the newest look at the same place.
    let clear = if std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
    format!("{clear}{}\n{}\n", table(links, &of_links), table(sessions, &of_sessions))
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
    let method = match &arguments.command {
        Command::Status => "Status",
        Command::Links => "Links",
        Command::Peers => "Peers",
        Command::Sessions => "Sessions",
        Command::Routes => "Routes",
        Command::Flows => "Flows",
        Command::Metrics => "Metrics",
        Command::Reload => "Reload",
        Command::Events { .. } => "Events",
        Command::Top { .. } => "Links",
        Command::Ping { .. } => "Ping",
        // Their methods have parameters.
        Command::Link(_) | Command::Route(_) => "",
        Command::Doctor => return Ok(examine(arguments)),
        Command::Check => {
            keeper::check(&arguments.config)?;
            let path = arguments.config.display().to_string();
            return done(match arguments.json {
                true => format!("{}\n", json!({ "path": path, "good": true })),
                false => format!("{path}: good\n"),
            });
        }
        Command::Keygen { path } => {
            let print = format!("sha256:{}", config::generate_identity(path)?);
            return done(match arguments.json {
                true => format!("{}\n", json!({ "path": path, "fingerprint": print })),
                false => format!("{print}\n"),
            });
        }
        Command::Share { address } => {
            let (config, identity) = keeper::check(&arguments.config)?;
            let lines = config::share(&config, identity.fingerprint(), address.as_deref());
            return done(match arguments.json {
                true => format!("{}\n", json!({ "toml": lines })),
                false => lines,
            });
        }
    };
    let socket = match &arguments.socket {
        Some(socket) => socket.clone(),
        None => config::Config::read(&arguments.config)?.control,
    };
    if let Some((method, parameters)) = change(&arguments.command) {
        let answer = control::call_with(&socket, method, &parameters)?;
        return done(if arguments.json { format!("{answer:#}\n") } else { String::new() });
    }
    match &arguments.command {
        Command::Events { follow: true } => {
            follow_events(&socket, arguments.json)?;
            return done(String::new());
        }
        Command::Top { interval, count } => {
            top(&socket, arguments.json, *interval, *count)?;
            return done(String::new());
        }
        Command::Ping { node, count, interval, class } => {
            let parameters = json!({ "node": node.to_string(), "class": class });
            return ping(&socket, arguments.json, &parameters, *count, *interval);
        }
        _ => {}
    }
    let answer = control::call(&socket, method)?;
    done(match arguments.json {
        true => format!("{answer:#}\n"),
        false => human(&arguments.command, &answer),
    })
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok((text, is_good)) => {
            // A closed pipe (`| head`) is no error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("batsctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}
