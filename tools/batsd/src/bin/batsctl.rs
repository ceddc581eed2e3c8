//! `batsctl`: queries and controls a running batsd, and makes the files of a new node.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

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
    /// Routes to nodes, and the links in use; prefixes in the tunnel.
    Routes,
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
        Command::Routes => {
            let routes =
                table(&answer["routes"], &[("TO", "/to"), ("VIA", "/via"), ("IN USE", "/in_use")]);
            routes + &table(&answer["prefixes"], &[("PREFIX", "/prefix"), ("NODE", "/node")])
        }
        Command::Metrics => text(&answer["text"]),
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
    let method = match &arguments.command {
        Command::Status => "Status",
        Command::Links => "Links",
        Command::Peers => "Peers",
        Command::Sessions => "Sessions",
        Command::Routes => "Routes",
        Command::Metrics => "Metrics",
        Command::Reload => "Reload",
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
