//! The keys of a link, as changes to its settings.

use std::path::Path;

use serde_saphyr::Spanned;

use super::model::LinkSpec;
use super::source::{ConfigError, Source};
use super::values::Text;
use crate::settings::{
    Changes, Direction, ElementChanges, Elements, Loss, OrNone, Queue, RateSchedule,
};
use crate::units::{self, PerDirection};

/// The changes of keys that are not for a single link.
pub(super) fn changes_of_all(source: &Source, link: &LinkSpec) -> Result<Changes, ConfigError> {
    match &link.between {
        Some(between) => {
            Err(source.invalid(between, "`between` is only for one of the `links` of a mesh"))
        }
        None => changes(source, link),
    }
}

/// The changes of the keys of a link.
pub(super) fn changes(source: &Source, link: &LinkSpec) -> Result<Changes, ConfigError> {
    fn read<T: Clone>(
        source: &Source,
        value: &Option<Spanned<Text>>,
        one: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<PerDirection<T>>, ConfigError> {
        let Some(value) = value else { return Ok(None) };
        PerDirection::parse(&value.value.0, one)
            .map(Some)
            .map_err(|error| source.invalid(value, error))
    }
    fn both<T: Clone>(value: Option<T>) -> Option<PerDirection<T>> {
        value.map(|value| PerDirection { forward: value.clone(), backward: value })
    }
    if let (Some(_), Some(schedule)) = (&link.rate, &link.rate_schedule) {
        return Err(
            source.invalid(schedule, "`rate_schedule` is in place of `rate`: remove one of them")
        );
    }
    let mut changes = Changes::default();
    changes.set(read(source, &link.rate, units::rate_with_unit)?, |one| &mut one.rate);
    changes.set(read(source, &link.delay, units::time)?, |one| &mut one.delay);
    changes.set(read(source, &link.jitter, units::time)?, |one| &mut one.jitter);
    changes.set(both(link.reorder), |one| &mut one.reorder);
    changes.set(read(source, &link.loss, Loss::parse)?, |one| &mut one.loss);
    changes.set(read(source, &link.duplicate, units::percentage)?, |one| &mut one.duplicate);
    changes.set(read(source, &link.corrupt, units::percentage)?, |one| &mut one.corrupt);
    changes.set(both(link.down), |one| &mut one.black_hole);
    changes.set(read(source, &link.queue, Queue::parse)?, |one| &mut one.queue);
    let elements = elements(source, link)?;
    changes.forward.elements = elements.clone();
    changes.backward.elements = elements;
    for (spec, is_forward) in [(&link.forward, true), (&link.backward, false)] {
        let Some(spec) = spec else { continue };
        let name = if is_forward { "forward" } else { "backward" };
        let nested = [&spec.value.forward, &spec.value.backward].into_iter().flatten().next();
        if let Some(nested) = nested {
            return Err(source.invalid(
                nested,
                format!("`{name}` is one direction already: write its keys here"),
            ));
        }
        if let Some(between) = &spec.value.between {
            return Err(
                source.invalid(between, "`between` belongs to the link, not to a direction")
            );
        }
        if let Some(value) = texts(&spec.value)
            .into_iter()
            .flatten()
            .find(|text| text.value.0.contains('/') && !text.value.0.ends_with("/s"))
        {
            return Err(source.invalid(
                value,
                format!(
                    "`{}` has two directions, but `{name}` is one: write one value",
                    value.value.0
                ),
            ));
        }
        let one = self::changes(source, &spec.value)?;
        if is_forward {
            changes.forward.extend(one.forward);
        } else {
            changes.backward.extend(one.backward);
        }
    }
    Ok(changes)
}

/// The values that may have two directions.
fn texts(link: &LinkSpec) -> [&Option<Spanned<Text>>; 7] {
    [&link.rate, &link.delay, &link.jitter, &link.loss, &link.duplicate, &link.corrupt, &link.queue]
}

/// The elements that a link sets, each of them checked.
fn elements(source: &Source, link: &LinkSpec) -> Result<ElementChanges, ConfigError> {
    let mut all = ElementChanges::default();
    /// Sets one element and checks it on a link that has only this one.
    fn set<T: Clone>(
        source: &Source,
        all: &mut ElementChanges,
        given: &Option<Spanned<T>>,
        name: &str,
        put: impl Fn(&mut ElementChanges, T),
    ) -> Result<(), ConfigError> {
        let Some(given) = given else { return Ok(()) };
        put(all, given.value.clone());
        let mut one = ElementChanges::default();
        put(&mut one, given.value.clone());
        let mut elements = Elements::default();
        one.apply(&mut elements);
        let mut config = bats_netem::LinkConfig::default();
        elements
            .configure(&mut config, Elements::FRAMES)
            .map_err(|error| source.invalid(given, format!("`{name}`: {error}")))
    }
    let mut rate_schedule = link.rate_schedule.clone();
    if let Some(given) = &mut rate_schedule
        && let OrNone::Set(RateSchedule::Trace(trace)) = &mut given.value
    {
        let folder = source.folder().unwrap_or(Path::new("/"));
        if source.folder().is_none() && !trace.path.starts_with('/') {
            return Err(source.invalid(
                given,
                "this test file is not on disk, so a trace needs an absolute path",
            ));
        }
        trace.resolve(folder).map_err(|error| source.invalid(given, error))?;
    }
    set(source, &mut all, &rate_schedule, "rate_schedule", |all, one| {
        all.rate_schedule = Some(one);
    })?;
    set(source, &mut all, &link.delay_schedule, "delay_schedule", |all, one| {
        all.delay_schedule = Some(one);
    })?;
    set(source, &mut all, &link.policer, "policer", |all, one| all.policer = Some(one))?;
    set(source, &mut all, &link.ack_thinning, "ack_thinning", |all, one| {
        all.ack_thinning = Some(one);
    })?;
    set(source, &mut all, &link.contention, "contention", |all, one| all.contention = Some(one))?;
    set(source, &mut all, &link.slots, "slots", |all, one| all.slots = Some(one))?;
    set(source, &mut all, &link.alternate_loss, "alternate_loss", |all, one| {
        all.alternate_loss = Some(one);
    })?;
    set(source, &mut all, &link.holes, "holes", |all, one| all.holes = Some(one))?;
    set(source, &mut all, &link.fade, "fade", |all, one| all.fade = Some(one))?;
    set(source, &mut all, &link.discipline, "discipline", |all, one| all.discipline = Some(one))?;
    set(source, &mut all, &link.queue_packets, "queue_packets", |all, one| {
        all.queue_packets = Some(one);
    })?;
    set(source, &mut all, &link.flow_delays, "flow_delays", |all, one| {
        all.flow_delays = Some(one);
    })?;
    if let Some(delays) = link.flow_delays.as_ref().filter(|delays| delays.value.len() > 256) {
        return Err(source.invalid(delays, "`flow_delays` has at most 256 entries"));
    }
    all.ethernet_overhead = link.ethernet_overhead;
    Ok(all)
}

/// An element of a direction that has no effect there, and what is missing.
pub(super) fn without_effect(direction: &Direction) -> Option<&'static str> {
    let elements = &direction.elements;
    if direction.has_rate() {
        return None;
    }
    let needs_rate = [
        (elements.discipline != Default::default(), "`discipline`"),
        (elements.queue_packets.is_some(), "`queue_packets`"),
        (elements.fade.is_some(), "`fade`"),
        (elements.ethernet_overhead && elements.policer.is_none(), "`ethernet_overhead`"),
    ];
    needs_rate.into_iter().find(|(is_set, _)| *is_set).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bats_netem::{Discipline as Model, LinkConfig};

    use super::*;
    use crate::backend::sim::link_config;
    use crate::config::load::parse;
    use crate::emulator::wire;
    use crate::plan::Network;

    fn network(link: &str) -> Result<Network, String> {
        let text = format!(
            "tests:\n  one:\n    topology: {{ topology_type: linear, nodes: 2, link: {{ {link} }} }}\n    target_protocols: [brtp]\n    test_tools: {{ iperf: {{}} }}\n"
        );
        let source = Source::shipped("test.yaml", &text);
        let mut suite = parse(&source).map_err(|error| error.to_string())?;
        Ok(suite.cases.remove(0).networks.remove(0))
    }

    /// The configurations of both backends, forward and backward.
    fn configs(link: &str) -> Vec<[LinkConfig; 2]> {
        let network = network(link).unwrap_or_else(|error| panic!("{link}: {error}"));
        let one = &network.links[0];
        // As the emulator receives it.
        let text = serde_json::to_string(one).unwrap();
        let again: crate::settings::Link = serde_json::from_str(&text).unwrap();
        assert_eq!(again, *one, "{text}");
        let wire = [&one.forward, &one.backward].map(|of| wire::config(one, of, 1500).unwrap());
        let sim = [&one.forward, &one.backward].map(|of| link_config(one, of).unwrap());
        vec![wire, sim]
    }

    #[test]
    fn each_element_reaches_both_backends() {
        type Check = (&'static str, fn(&LinkConfig) -> bool);
        let checks: [Check; 24] = [
            ("policer: { rate: 5M, burst: 20k }", |link| {
                link.policer
                    == Some(bats_netem::Policer {
                        rate_bps: 5_000_000,
                        burst_bytes: 20_000,
                        per_flow: false,
                    })
            }),
            ("policer: { rate: 5M, burst: 20k, per_flow: true }", |link| {
                link.policer.unwrap().per_flow
            }),
            ("discipline: codel", |link| link.discipline == Model::CoDel(Default::default())),
            (
                "discipline: { codel: { target: 9ms, interval: 50ms, ecn: false } }",
                |link| matches!(link.discipline, Model::CoDel(codel) if codel.target.as_millis() == 9 && codel.interval.as_millis() == 50 && !codel.ecn),
            ),
            (
                "discipline: { fq_codel: { flows: 8, quantum: 300 } }",
                |link| matches!(link.discipline, Model::FqCoDel(fq) if fq.flows == 8 && fq.quantum == 300),
            ),
            (
                "discipline: { pie: { target: 20ms, update: 10ms, max_burst: 0, ecn: false } }",
                |link| matches!(link.discipline, Model::Pie(pie) if pie.target.as_millis() == 20 && pie.update.as_millis() == 10 && pie.max_burst.is_zero() && !pie.ecn),
            ),
            (
                "discipline: { step_mark: { threshold: 2ms } }",
                |link| matches!(link.discipline, Model::StepMark(step) if step.threshold.as_millis() == 2),
            ),
            ("queue_packets: 7", |link| link.queue_packets == Some(7)),
            (
                "delay_schedule: { steps: [{ delay: 5ms, for: 1s }, { delay: 0, for: 2s }] }",
                |link| link.delay_schedule.is_some(),
            ),
            ("delay_schedule: { steps_once: [{ delay: 5ms, for: 1s }] }", |link| {
                link.delay_schedule.is_some()
            }),
            (
                "delay_schedule: { spikes: { extra: 50ms, length: 20ms, period: 1s } }",
                |link| matches!(link.delay_schedule, Some(bats_netem::DelaySchedule::Spikes { extra, .. }) if extra.as_millis() == 50),
            ),
            (
                "delay_schedule: { leo: { span: 20ms, seed: 4 } }",
                |link| matches!(link.delay_schedule, Some(bats_netem::DelaySchedule::Leo { period, seed: 4, .. }) if period.as_secs() == 15),
            ),
            ("flow_delays: [0, 10ms]", |link| {
                link.flow_delays == [Duration::ZERO, Duration::from_millis(10)]
            }),
            ("slots: { interval: 5ms, limit: 3 }", |link| link.slots.unwrap().limit == 3),
            ("contention: { jitter: 7ms }", |link| {
                link.contention.unwrap() == bats_netem::Contention::wifi(Duration::from_millis(7))
            }),
            ("alternate_loss: { loss: \"ge:1%,10%\", every: 3s }", |link| {
                link.alternate_loss.unwrap().every.as_secs() == 3
            }),
            (
                "holes: { periodic: { period: 500ms, length: 50ms } }",
                |link| matches!(link.holes, Some(bats_netem::Holes::Periodic { length, .. }) if length.as_millis() == 50),
            ),
            (
                "holes: { random: { mean_gap: 1s, mean_length: 100ms } }",
                |link| matches!(link.holes, Some(bats_netem::Holes::Random { mean_gap, .. }) if mean_gap.as_secs() == 1),
            ),
            ("fade: { high: 8M, low: 2M, loss: 50% }", |link| link.fade.unwrap().loss == 0.5),
            (
                "loss: \"ge:1%,9%,60%,0.5%\"",
                |link| matches!(link.loss, bats_netem::Loss::GilbertElliott { loss_bad, loss_good, .. } if loss_bad == 0.6 && loss_good == 0.005),
            ),
            (
                "loss: \"4state:2%,20%,10%,30%,1%\"",
                |link| matches!(link.loss, bats_netem::Loss::FourState { p13, .. } if p13 == 0.02),
            ),
            ("ack_thinning: { keep_one_of: 4, window: 20ms, max_size: 100 }", |link| {
                link.thinning.unwrap().keep_one_of == 4
            }),
            ("ethernet_overhead: true", |link| {
                link.frame_overhead == 24 || link.frame_overhead == 66
            }),
            ("forward: { delay: 4ms }, backward: { delay: 4ms }", |link| {
                link.delay.as_millis() == 4
            }),
        ];
        for (keys, check) in checks {
            for [forward, backward] in configs(&format!("rate: 10M, {keys}")) {
                assert!(check(&forward) && check(&backward), "{keys}: {forward:?}");
            }
        }
        for [forward, backward] in
            configs("rate: 9M, backward: { ack_thinning: { keep_one_of: 3 } }")
        {
            assert!(forward.thinning.is_none() && backward.thinning.is_some());
        }
        // Sizes of thinned packets are those of IP packets on both.
        let sizes: Vec<usize> =
            configs("rate: 1M, ack_thinning: { keep_one_of: 3, max_size: 100 }")
                .iter()
                .map(|[forward, _]| forward.thinning.unwrap().max_len)
                .collect();
        assert_eq!(sizes, [114, 72]);
    }

    #[test]
    fn rate_schedules_have_their_mean_on_both_backends() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("a trace");
        std::fs::write(&trace, "1\n2\n3\n3\n4\n").unwrap();
        let trace = format!("trace: \"{}\"", trace.display());
        for (keys, mean) in [
            ("steps: [{ rate: 10M, for: 1s }, { rate: 0, for: 1s }]", 5e6),
            ("saw: { low: 2M, high: 6M, rise: 2s, fall: 1s }", 4e6),
            (trace.as_str(), 15e6),
        ] {
            for [forward, _] in configs(&format!("rate_schedule: {{ {keys} }}")) {
                let schedule = forward.rate_schedule.unwrap();
                let start = bats_netem::Timestamp::ZERO;
                let bits = schedule.bits(start, start, start + Duration::from_secs(60));
                assert!((bits / 60.0 / mean - 1.0).abs() < 0.01, "{keys}: {bits}");
                assert_eq!(forward.rate_bps, None);
            }
        }
        let of = |keys: &str| network(&format!("rate_schedule: {{ {keys} }}")).unwrap();
        let steps = of("steps_once: [{ rate: 10M, for: 1s }, { rate: 4M, for: 1s }]");
        let bound = |from, to| steps.bound(0, 1, (from, to)).unwrap() * 1514.0 / 1472.0;
        assert!((bound(0.0, 1.0) / 10e6 - 1.0).abs() < 1e-6, "{}", bound(0.0, 1.0));
        assert!((bound(5.0, 9.0) / 4e6 - 1.0).abs() < 1e-6);
        for keys in ["lte: { mean: 20M, seed: 2 }", "leo: { base: 20M }"] {
            let network = of(keys);
            assert_eq!(network.links[0].forward.mean_rate(), 20_000_000);
            assert!(network.label.contains("like rate"), "{}", network.label);
            // One BDP of the mean rate would be 0 without a delay.
            assert_eq!(network.links[0].queue_bytes(&network.links[0].forward), 64 * 1024);
        }
    }

    #[test]
    fn a_trace_is_relative_to_the_test_file_and_bad_lines_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.yaml");
        let text = "tests:\n  one:\n    topology: { topology_type: linear, nodes: 2, link: { rate_schedule: { trace: down.trace } } }\n    target_protocols: [brtp]\n    test_tools: { iperf: {} }\n";
        std::fs::write(&file, text).unwrap();
        let load = || parse(&Source::open(&file).unwrap()).map_err(|error| error.to_string());
        let missing = load().unwrap_err();
        assert!(
            missing.contains("test.yaml:3:") && missing.contains("down.trace cannot be read"),
            "{missing}"
        );
        std::fs::write(folder.path().join("down.trace"), "1\nx\n").unwrap();
        let bad = load().unwrap_err();
        assert!(bad.contains("test.yaml:3:") && bad.contains("down.trace:2 is invalid"), "{bad}");
        std::fs::write(folder.path().join("down.trace"), "1\n2\n").unwrap();
        assert_eq!(load().unwrap().cases[0].networks[0].links[0].forward.mean_rate(), 12_000_000);
        let posted = network("rate_schedule: { trace: down.trace }").unwrap_err();
        assert!(posted.contains("absolute path"), "{posted}");
    }

    #[test]
    fn wrong_elements_are_refused_with_key_and_remedy() {
        for (keys, words) in [
            (
                "rate: 1M, rate_schedule: { saw: { low: 1M, high: 2M, rise: 1s } }",
                "in place of `rate`",
            ),
            ("rate_schedule: { saw: { low: 3M, high: 2M, rise: 1s } }", "`low`"),
            ("rate_schedule: { steps: [] }", "`rate_schedule`"),
            ("rate_schedule: { steps: [{ rate: 10, for: 1s }] }", "has no unit"),
            ("rate_schedule: { stesp: [] }", "did you mean `steps`"),
            ("rate_schedule: fast", "`fast` is not `none`"),
            ("rate: 1M, discipline: cake", "unknown value `cake`"),
            ("rate: 1M, discipline: coddel", "did you mean `codel`"),
            ("discipline: codel", "set `rate`"),
            ("fade: { high: 8M, low: 2M, loss: 50% }", "set `rate`"),
            ("rate: 1M, fade: { high: 2M, low: 8M, loss: 50% }", "`fade`"),
            ("rate: 1M, policer: { rate: 1M }", "missing key `burst`"),
            ("rate: 1M, policer: { rate: 1M, burst: 0 }", "number of bytes"),
            ("rate: 1M, holes: { periodic: { period: 1s, length: 2s } }", "`holes`"),
            ("rate: 1M, slots: { interval: 0 }", "`slots`"),
            ("rate: 1M, ack_thinning: { keep_one_of: 0 }", "`ack_thinning`"),
            (
                "rate: 1M, delay_schedule: { spikes: { extra: 1ms, length: 2s, period: 1s } }",
                "`delay_schedule`",
            ),
            ("rate: 1M, forward: { loss: 1%/2% }", "write one value"),
            ("rate: 1M, forward: { backward: { loss: 1% } }", "one direction already"),
            ("rate: 1M, loss: 0.05", "use for example 0.05% or 5%"),
            ("rate: 1M, loss: 5", "use for example 5%"),
            ("rate: 1M, duplicate: 0.1", "has no unit"),
        ] {
            let error = network(keys).expect_err(keys);
            assert!(error.contains("test.yaml:") && error.contains(words), "{keys}: {error}");
        }
    }

    #[test]
    fn several_errors_are_reported_at_once() {
        let text = "topologies:\n  - { name: a, topology_type: linear, nodes: 2, link: { rate: 40 } }\n  - { name: a, topology_type: linear, nodes: 2 }\ntests:\n  one:\n    topology: { config_name: a }\n    target_protocols: [brpt, tcp-cubic]\n    test_tool: { iperf: {}, ping: { file_size: 3 } }\n    repetitions: 0\n  two:\n    toplogy: { config_name: b }\n    target_protocols: [brtp]\n    test_tools: {}\n";
        let errors = parse(&Source::shipped("test.yaml", text)).unwrap_err().to_string();
        let lines: Vec<&str> = errors.lines().collect();
        let expected = [
            (2, "has no unit"),
            (3, "two topologies have the name `a`, the first in line 2"),
            (7, "unknown protocol `brpt`"),
            (8, "unknown key `test_tool`"),
            (8, "no key `file_size`"),
            (9, "`repetitions`"),
            (10, "`test_tools` is empty"),
            (11, "unknown key `toplogy`"),
            (11, "unknown topology `b`"),
        ];
        assert_eq!(lines.len(), expected.len(), "{errors}");
        for (line, (number, words)) in lines.iter().zip(expected) {
            assert!(
                line.starts_with(&format!("test.yaml:{number}:")) && line.contains(words),
                "{line}: {words}"
            );
        }
    }

    #[test]
    fn unused_parallel_paths_are_noted() {
        let of = |links: &str| {
            let text = format!(
                "tests:\n  one:\n    topology: {{ topology_type: mesh, nodes: 4, link: {{ rate: 10M }}, links: [{links}] }}\n    target_protocols: [brtp]\n    test_tools: {{ iperf: {{}} }}\n"
            );
            parse(&Source::shipped("test.yaml", &text)).map_err(|error| error.to_string())
        };
        let notes = of(
            "{ between: [0, 1] }, { between: [1, 3] }, { between: [0, 2] }, { between: [2, 3] }",
        )
        .unwrap()
        .notes;
        assert!(
            notes.iter().any(|note| note.contains("links 3 (0 - 2), 4 (2 - 3) are not used")
                && note.contains("packets take one")),
            "{notes:?}"
        );
        let error = of("{ between: [0, 3] }, { between: [3, 0] }").unwrap_err();
        assert!(error.contains("for a parallel path put a node into it"), "{error}");
    }
}
