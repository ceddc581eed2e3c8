//! Packets for an instruction counter: `hostile_packets CASE honest|hostile`. `.ci/hostile-packets`
//! runs it under callgrind, which counts the instructions of [`attack::measured`] only, and compares a
//! hostile packet with an honest one. Prints the number of packets measured and whether the
//! connection is closed for misbehaviour. `--list` prints the cases, each with a name of its honest packets,
//! which several cases share.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

#[path = "../../tests/harness/mod.rs"]
mod harness;

mod attack;
mod attacks;
mod honest;
mod psk;
mod relay;

use std::process::ExitCode;

use attack::{Attack, INTERVAL, measured};

/// Number of packets, and whether the server closed the connection.
fn hostile(case: &str) -> Option<(u64, bool)> {
    let target = attacks::attacked(case, harness::transport(), true)?;
    Some((target.packets, target.is_closed))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["--list"] => {
            for case in attacks::NAMES.iter().chain(relay::NAMES).chain(psk::NAMES) {
                let others = match psk::NAMES.contains(case) {
                    true => psk::honest_name(case),
                    false => relay::honest_name(case),
                };
                let honest = honest::name(case).unwrap_or_else(|| others.to_owned());
                println!("{case} {honest}");
            }
            return ExitCode::SUCCESS;
        }
        [case, kind @ ("honest" | "hostile")] => relay::run(case, kind == "hostile")
            .or_else(|| psk::run(case, kind == "hostile"))
            .or_else(|| if kind == "hostile" { hostile(case) } else { honest::run(case) }),
        _ => None,
    };
    let Some((packets, is_closed)) = outcome else {
        eprintln!("usage: hostile_packets --list | CASE honest|hostile");
        return ExitCode::FAILURE;
    };
    let is_honest = words.last() == Some(&"honest");
    if packets == 0 || is_honest && is_closed {
        eprintln!("{words:?}: the connection was closed after {packets} packets");
        return ExitCode::FAILURE;
    }
    println!("{packets} {}", if is_closed { "closed" } else { "open" });
    ExitCode::SUCCESS
}
