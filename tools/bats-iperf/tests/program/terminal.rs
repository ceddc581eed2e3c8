//! Progress bars of a file transfer on a terminal.

use std::fs;
use std::process::Command;

use crate::support::{PROGRAM, Scratch, Server, free_port, noise, skipped, text};

/// Runs a client on a terminal created by util-linux's `script`; returns its output.
fn on_a_terminal(scratch: &Scratch, port: u16, options: &str) -> Option<String> {
    let line = format!("exec '{PROGRAM}' -c 127.0.0.1 -p {port} {options}");
    let output = Command::new("script")
        .args(["-q", "-e", "-f", "-c", &line, "typescript"])
        .current_dir(&scratch.0)
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::null())
        .output()
        .ok()?;
    assert!(output.status.success(), "{}", text(&output.stdout));
    Some(text(&output.stdout))
}

#[test]
fn each_file_has_a_progress_bar_and_a_final_line() {
    let scratch = Scratch::new("terminal");
    let names = ["first", "second", "third"];
    for (name, seed) in names.into_iter().zip(1..) {
        fs::write(scratch.0.join(name), noise(1_500_000, seed)).unwrap();
    }
    let port = free_port();
    let directory = scratch.path("in");
    let _server = Server::start(port, &["--directory", &directory, "--overwrite"]);
    let options = "-P 3 --congestion 10M -f first second third";
    let Some(shown) = on_a_terminal(&scratch, port, options) else {
        skipped("each_file_has_a_progress_bar_and_a_final_line", "there is no `script`");
        return;
    };
    // Redrawn lines: the cursor moves up over the other bars.
    let ups = shown.matches("\u{1b}[1A").count() + shown.matches("\u{1b}[2A").count();
    assert!(ups >= 3, "{ups}: {shown:?}");
    for name in names {
        let bars = shown.split(['\r', '\n', '\u{1b}']).filter(|piece| {
            piece.contains(&format!(" {name}"))
                && piece.contains("% [")
                && piece.contains("/1.50 MB")
        });
        let percents: std::collections::BTreeSet<u32> = bars
            .filter_map(|bar| bar.split_once("% [")?.0.split_whitespace().last()?.parse().ok())
            .collect();
        // The bar showed intermediate progress.
        assert!(percents.iter().any(|percent| (1..100).contains(percent)), "{name}: {percents:?}");
        assert!(shown.contains(&format!("sent {name}: 1.50 MBytes")), "{shown}");
    }
    assert!(shown.contains("3 of 3 files verified"), "{shown}");
    // Debug output replaces the bars.
    let debug = format!("-d {options}");
    let shown = on_a_terminal(&scratch, port, &debug).unwrap();
    assert!(!shown.contains("% ["), "{shown:?}");
    assert!(
        shown.contains(" INFO bats_iperf") && shown.contains("3 of 3 files verified"),
        "{shown}"
    );
}
