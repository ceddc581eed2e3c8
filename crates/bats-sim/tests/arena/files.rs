//! Files of cells: what docs/arena.md shows works, and nothing else panics or is taken silently.

use std::path::Path;

use bats_proto::CongestionAlgorithm;
use bats_sim::arena::cell::Algorithm;
use bats_sim::arena::contest::{Contest, Plan};
use bats_sim::arena::draw::Draw;
use bats_sim::arena::file;

fn parse(text: &str) -> Result<Vec<Contest>, String> {
    file::parse("cells.yaml", text, Path::new(".")).map_err(|error| error.to_string())
}

/// The example of the documentation.
fn example() -> &'static str {
    let page = include_str!("../../../../docs/arena.md");
    let (_, rest) = page.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

/// A cell with these lines, indented as its keys are.
fn cell(lines: &str) -> String {
    format!("cells:\n  - name: X1\n    measure: 2s\n    warm_up: 1s\n{lines}")
}

const HOP: &str = "    hops: [{ rate: 10M, delay: 10ms }]\n";

#[test]
fn the_example_of_the_documentation_runs() {
    let mut contests = parse(example()).unwrap();
    assert!(contests.len() >= 2 && contests.iter().all(|contest| !contest.goals.is_empty()));
    for contest in &mut contests {
        let build = contest.build.clone();
        contest.build = std::sync::Arc::new(move |draw| {
            let mut cell = build(draw);
            cell.warm_up = std::time::Duration::from_secs(2);
            cell.measure = std::time::Duration::from_secs(3);
            cell
        });
    }
    let plan = Plan {
        contests,
        algorithms: vec![Algorithm::Brtp(CongestionAlgorithm::Ltcc)],
        seeds: vec![1],
        held_out: None,
        judge: true,
        all_peers: false,
        threads: 0,
    };
    let report = plan.run(|| {});
    for cell in &report.cells {
        assert!(cell.runs[0].figures.efficiency > 0.05, "{cell:?}");
        assert_eq!(cell.verdicts.len(), 1);
    }
}

#[test]
fn errors_name_what_is_wrong_and_where() {
    let cases = [
        ("cells:\n  - name: X1\n    hops: []\n    colour: red\n", "cells.yaml:4:", "`colour`"),
        (&cell("    hops: [{ rate: 10 }]\n"), "cells.yaml:5:", "a rate"),
        (&cell("    hops: [{ delay: 10ms }]\n"), "cells.yaml:5:", "`rate`"),
        (&cell("    hops: [{ rate: 10M, los: 2% }]\n"), "cells.yaml:5:", "`los`"),
        (&cell("    hops: [{ rate: 10M, loss: 200% }]\n"), "cells.yaml:5:", "200%"),
        (&cell("    hops: []\n"), "cells.yaml:2:", "1 to 8 hops"),
        (&cell(&format!("{HOP}    flows: [{{ algorithm: tcp/vegas }}]\n")), ":2:", "tcp/vegas"),
        (&cell(&format!("{HOP}    flows: [{{ algorithm: tcp/cubic }}]\n")), ":2:", "subject"),
        (&cell(&format!("{HOP}    flows: [{{ algorithm: subject, count: 900 }}]\n")), ":2:", "256"),
        (&cell(&format!("{HOP}    changes: [{{ at: 1s, hop: 1, set: {{}} }}]\n")), ":2:", "hop 1"),
        (&cell(&format!("{HOP}    goals: {{ speed: 1 }}\n")), "cells.yaml:6:", "`speed`"),
        ("cells:\n  - name: a b\n    hops: [{ rate: 1M }]\n", "cells.yaml:2:", "a name"),
        (
            "cells:\n  - name: X1\n    hops: [{ rate: 20G }]\n    measure: 1000s\n",
            "cells.yaml:2:",
            "bits",
        ),
        ("cells: []\n", "cells.yaml:", "1 to 1000 cells"),
    ];
    for (text, position, what) in cases {
        let error = parse(text).expect_err(text);
        assert!(error.contains(position) && error.contains(what), "{text}\n{error}");
    }
    let twice =
        "cells:\n  - { name: X, hops: [{ rate: 1M }] }\n  - { name: X, hops: [{ rate: 1M }] }\n";
    assert!(parse(twice).expect_err("two cells of one name").contains("another cell `X`"));
}

#[test]
fn keys_mean_what_they_say() {
    let text = cell(
        "    hops:
      - { rate: 30M, delay: 20ms, queue: 50packets, loss: \"bursts:10%,15\", discipline: codel,
          reverse: { rate: 3M, delay: 5ms, loss: 1% } }
    changes: [{ at: 2s, set: { rate: 5M, down: true } }]
    flows:
      - { algorithm: subject }
      - { algorithm: tcp/reno, count: 2, start: 1s, apart: 500ms, end: 3s, reverse: true }
    relays: true
    ecn: true
",
    );
    let contests = parse(&text).unwrap();
    let cell = contests[0].cell(&mut Draw::published(1));
    let (up, down) = (&cell.hops[0].up, &cell.hops[0].down);
    assert_eq!((up.rate_bps, down.rate_bps), (Some(30_000_000), Some(3_000_000)));
    assert_eq!((up.delay.as_millis(), down.delay.as_millis()), (20, 5));
    assert!((up.loss.mean() - 0.1).abs() < 1e-9 && (down.loss.mean() - 0.01).abs() < 1e-9);
    assert_eq!((up.queue_packets, up.queue_bytes), (Some(50), None));
    assert!(matches!(up.discipline, bats_netem::Discipline::CoDel(_)));
    let change = &cell.changes[0];
    assert_eq!((change.link.rate_bps, change.link.black_hole), (Some(5_000_000), true));
    assert_eq!(change.link.delay, up.delay);
    assert_eq!(cell.flows.len(), 3);
    assert_eq!(cell.flows[2].start.as_millis(), 1_500);
    assert!(cell.flows[2].reverse && cell.relays && cell.tcp_ecn);
    // Rate, delay and queue are redrawn for judging.
    let drawn = |seed| contests[0].cell(&mut Draw::held_out(seed, "X1", 1)).hops[0].up.rate_bps;
    assert!((1..10).any(|seed| drawn(seed) != Some(30_000_000)));
}

#[test]
fn garbage_is_refused_without_a_panic() {
    let valid = example();
    // Every prefix, and every byte replaced by others that mean something in YAML.
    let mut accepted = 0;
    for end in (0..valid.len()).filter(|&end| valid.is_char_boundary(end)) {
        accepted += usize::from(parse(&valid[..end]).is_ok());
    }
    let mut state = 7_u64;
    for _ in 0..4_000 {
        let mut bytes = valid.as_bytes().to_vec();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = b"-:{}[],9\"#&*!|>%\n 0kMe."[(state >> 20) as usize % 23];
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if let Ok(contests) = parse(&text) {
            // Accepted cells can be built, also with drawn parameters.
            for contest in contests {
                assert!(!contest.cell(&mut Draw::published(1)).flows.is_empty());
                assert!(!contest.cell(&mut Draw::held_out(3, "x", 2)).hops.is_empty());
            }
            accepted += 1;
        }
    }
    assert!(accepted > 10, "{accepted}");
    let deep = format!("cells: {}{}", "[".repeat(20_000), "]".repeat(20_000));
    assert!(parse(&deep).is_err());
    let mut bomb = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (name, of) in ["b", "c", "d", "e", "f", "g", "h"].into_iter().zip("abcdefg".chars()) {
        bomb += &format!("{name}: &{name} [*{of},*{of},*{of},*{of},*{of},*{of},*{of},*{of}]\n");
    }
    assert!(parse(&(bomb + "cells: *h\n")).is_err());
}

#[test]
fn unusable_files_are_refused() {
    let folder = std::env::temp_dir().join(format!("bats-sim-arena-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("cells.yaml");
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(file::load(&path).unwrap_err().to_string().contains("more than"));
    std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(file::load(&path).is_err());
    assert!(file::load(&folder).is_err() && file::load(&folder.join("none")).is_err());
    // A recorded trace is looked for next to the file.
    let hop = "    hops: [{ rate: 12M, delay: 5ms, schedule: { trace: rate.trace } }]\n";
    std::fs::write(&path, cell(hop)).unwrap();
    assert!(file::load(&path).unwrap_err().text.contains("rate.trace"));
    std::fs::write(folder.join("rate.trace"), "1\n2\n3\n").unwrap();
    let contests = file::load(&path).unwrap();
    let cell = contests[0].cell(&mut Draw::published(1));
    assert!(cell.hops[0].up.rate_schedule.is_some());
    std::fs::remove_dir_all(&folder).unwrap();
}
