//! Every JSON output conforms to the published schema.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Scratch, Server, client, free_port, noise, text};

const SCHEMA: &str = include_str!("../../schema/bats_iperf.schema.json");

/// Validates a value against a definition of the schema.
pub(crate) fn check(definition: &str, value: &Value) {
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    schema.as_object_mut().unwrap().remove("anyOf").unwrap();
    schema["$ref"] = format!("#/$defs/{definition}").into();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{definition}: {errors:#?}\n{value:#}");
}

pub(crate) fn document(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{error}: {}", text(bytes)))
}

/// Parses line-delimited events and validates each; returns names and data.
pub(crate) fn events(bytes: &[u8]) -> Vec<(String, Value)> {
    let events = text(bytes).lines().map(|line| document(line.as_bytes())).collect::<Vec<_>>();
    events
        .into_iter()
        .map(|mut event| {
            check("event", &event);
            (event["event"].as_str().unwrap().to_owned(), event["data"].take())
        })
        .collect()
}

#[test]
fn the_schema_rejects_invalid_documents() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(validator.is_valid(&json!({ "error": "no answer" })));
    assert!(validator.is_valid(&json!({ "event": "error", "data": "no answer" })));
    for wrong in [
        json!({}),
        json!({ "error": 5 }),
        json!({ "event": "end", "data": {} }),
        json!({ "event": "other", "data": {} }),
        json!({ "start": {}, "intervals": [], "end": {} }),
    ] {
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
}

#[test]
fn documents_of_both_sides_conform_to_the_schema() {
    for options in [
        &["-b", "8M"][..],
        &["-r", "-P", "2", "-b", "8M", "--title", "a title", "--extra-data", "more"],
        &["--bidir", "-b", "8M", "-O", "0.3"],
        &["--latency", "--get-server-output"],
        &["-b", "8M", "--baseline", "tcp,udp"],
        &["-b", "8M", "--emulate", "loss=2%,delay=2ms"],
    ] {
        let port = free_port();
        let server = Server::start(port, &["-1", "--json-stream"]);
        let output = client(port, &[options, &["-t", "0.8", "-i", "0.2", "-J"]].concat());
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
        let report = document(&output.stdout);
        check("report", &report);
        let has = |option: &str| options.contains(&option);
        assert_eq!(report["end"]["sum_sent_bidir_reverse"].is_object(), has("--bidir"));
        assert_eq!(report["end"]["latency"].is_object(), has("--latency"));
        assert_eq!(report["server_output_json"].is_object(), has("--get-server-output"));
        assert_eq!(report["title"] == "a title", has("--title"));
        assert_eq!(report["extra_data"] == "more", has("--extra-data"));
        assert_eq!(report["intervals"][0]["sum"]["omitted"], has("-O"), "{report:#}");
        if has("--baseline") {
            let protocols: Vec<&Value> =
                report["baselines"].as_array().unwrap().iter().map(|x| &x["protocol"]).collect();
            assert_eq!(protocols, ["TCP", "UDP"]);
        }
        let (code, far) = server.finish();
        assert_eq!(code, 0, "{far}");
        let names: Vec<String> = events(far.as_bytes()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names[0], "start");
        assert_eq!(names.last().unwrap(), "end");
        assert!(names.iter().filter(|name| *name == "interval").count() >= 3, "{names:?}");
    }
}

#[test]
fn line_delimited_output_has_start_intervals_and_end() {
    let port = free_port();
    let server = Server::start(port, &["-1", "-J"]);
    let options = ["-t", "0.8", "-i", "0.2", "-b", "8M", "--json-stream", "--get-server-output"];
    let output = client(port, &options);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = events(&output.stdout);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[0], "start");
    assert_eq!(names[names.len() - 2..], ["server_output_json", "end"]);
    let (_, end) = events.last().unwrap();
    let sum: u64 = events
        .iter()
        .filter(|(name, _)| name == "interval")
        .map(|(_, data)| data["sum"]["bytes"].as_u64().unwrap())
        .sum();
    assert!(sum > 0 && sum <= end["sum_sent"]["bytes"].as_u64().unwrap());
    let (_, far) = server.finish();
    check("report", &document(far.as_bytes()));
}

#[test]
fn transfers_and_failures_conform_to_the_schema() {
    let scratch = Scratch::new("json");
    fs::create_dir(scratch.0.join("d")).unwrap();
    fs::write(scratch.0.join("d/a"), noise(1_000_000, 1)).unwrap();
    std::os::unix::fs::symlink("a", scratch.0.join("d/link")).unwrap();
    fs::write(scratch.0.join("b"), "b").unwrap();
    let paths = [scratch.path("d"), scratch.path("b"), scratch.path("missing")];
    for (round, format) in ["-J", "--json-stream"].into_iter().enumerate() {
        let port = free_port();
        let server =
            Server::start(port, &["-1", format, "--directory", &scratch.path("in"), "--merge"]);
        let mut options = vec![format, "-f"];
        options.extend(paths.iter().map(String::as_str));
        let output = client(port, &options);
        assert_eq!(output.status.code(), Some(1), "one file is missing");
        let (code, far) = server.finish();
        assert_eq!(code, 0, "the server received all offered files: {far}");
        let near = match format {
            "-J" => {
                check("files_report", &document(far.as_bytes()));
                let report = document(&output.stdout);
                check("files_report", &report);
                report["files"].as_array().unwrap().clone()
            }
            _ => {
                events(far.as_bytes());
                let files = events(&output.stdout).into_iter();
                files.filter(|(name, _)| name == "file").map(|(_, data)| data).collect()
            }
        };
        let state = |name: &str| {
            let file = near.iter().find(|file| file["name"].as_str().unwrap().ends_with(name));
            file.unwrap()["state"].as_str().unwrap().to_owned()
        };
        let whole = if round == 0 { "stored" } else { "unchanged" };
        assert_eq!([state("d/a"), state("b")], [whole, whole]);
        assert_eq!([state("d/link"), state("missing")], ["skipped", "failed"]);
    }
    let port = free_port();
    for format in ["-J", "--json-stream"] {
        let output = client(port, &["--connect-timeout", "200", format]);
        assert_eq!(output.status.code(), Some(1));
        let definition = if format == "-J" { "failure" } else { "event" };
        check(definition, &document(&output.stdout));
    }
}
