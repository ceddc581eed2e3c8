//! `bats_cli`: the original's question whether the node is ready.

use std::process::ExitCode;

use batsd::{control, original};
use serde_json::Value;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !matches!(&*words, [api, node] if api == "api" && node == "main_node") {
        eprintln!("usage: bats_cli api main_node (batsctl has more)");
        return ExitCode::from(2);
    }
    match control::call(original::control().as_path(), "Status") {
        Ok(answer) => {
            println!("state: {}", answer["status"]["state"].as_str().unwrap_or("unknown"));
            match &answer["status"]["state"] {
                Value::String(state) if state == "started" => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            println!("state: not started");
            eprintln!("bats_cli: {error:#}");
            ExitCode::FAILURE
        }
    }
}
