//! Expands a test file: resolves all names and combinations.

use serde_saphyr::{Location, Spanned};

use super::model::{
    AssertionSpec, BackendName, EventSpec, ExecutionMode, FlowSpec, PublishedSpec, RouteName,
    TestFile, TestSpec,
};
use super::network;
use super::protocols::ProtocolRegistry;
use super::source::{ConfigError, ConfigErrors, Source};
use super::tools;
use crate::plan::{
    Assertion, Case, Event, Flow, Host, MAX_MEASUREMENTS, Network, Published, Suite, Tool,
};
use crate::result::figures;

/// Maximum number of protocols that run at once.
const MAX_PARALLEL: usize = 13;
/// Maximum number of tests, of topologies and of protocols in a file: each is compared with all others.
const MAX_DEFINITIONS: usize = 1_000;
/// Maximum number of tools, of protocols and of competing flows in a test.
const MAX_PARTS: usize = 100;
/// Maximum number of paths in all states of a test's networks: each event makes a state of each network, in which the
/// path of each tool and flow is a candidate for the verification.
const MAX_PATHS: usize = 20_000;

/// Returns the error of the first part of which there are more than `most`.
fn check_counts<const N: usize>(
    whole: &str,
    parts: [(&str, usize); N],
    most: usize,
) -> Result<(), String> {
    match parts.iter().find(|(_, count)| *count > most) {
        Some((what, count)) => Err(format!("{count} {what}: {whole} can have at most {most}")),
        None => Ok(()),
    }
}

/// Expands all tests of a file.
pub(crate) fn suite(source: &Source, file: &TestFile) -> Result<Suite, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let definitions = [
        ("tests", file.tests.0.len()),
        ("topologies", file.topologies.len()),
        ("protocols", file.protocols.len()),
    ];
    check_counts("a file", definitions, MAX_DEFINITIONS)
        .map_err(|text| source.error_at(Location::UNKNOWN, text))?;
    let registry = ProtocolRegistry::new(source, &file.protocols)?;
    let mut notes = registry.notes();
    errors.keep(unique_topologies(source, file));
    if file.containernet.is_some() {
        notes.push("`containernet` is ignored: hosts are namespaces, not containers".to_owned());
    }
    let mut testbeds = Vec::new();
    for (name, hosts) in &file.testbeds.0 {
        if hosts.len() < 2 {
            errors.keep::<()>(Err(source.invalid(name, "a testbed needs at least two hosts")));
        }
        let hosts = hosts.iter().map(|host| Host {
            user: host.user.clone(),
            ip: host.ip.value.clone(),
            address: host.address.clone().unwrap_or_else(|| host.ip.value.clone()),
            port: host.port,
            arch: host.arch.clone(),
            key: host.authorized_key.clone(),
            interface: host.intf.clone(),
            ssh_config: host.ssh_config.clone(),
        });
        testbeds.push((name.value.clone(), hosts.collect()));
    }
    let mut cases: Vec<Case> = Vec::new();
    let mut measurements = 0_usize;
    for (name, test) in &file.tests.0 {
        if cases.iter().any(|case| file_name(&case.name) == file_name(&name.value)) {
            errors.keep::<()>(Err(source.invalid(name, "duplicate test name")));
        }
        if test.backend == Some(BackendName::Ssh) && testbeds.is_empty() {
            errors.keep::<()>(Err(source.invalid(
                name,
                "`backend: ssh` needs `testbeds` in this file: the hosts to measure on",
            )));
        }
        if let Some(case) = errors.keep_all(case(source, file, &registry, name, test, &mut notes)) {
            measurements = measurements.saturating_add(case.measurements());
            if measurements > MAX_MEASUREMENTS {
                let text = format!(
                    "with this test the file has {measurements} measurements (networks x protocols x tools x \
                     repetitions); at most {MAX_MEASUREMENTS} are allowed"
                );
                errors.keep::<()>(Err(source.invalid(name, text)));
                return Err(errors);
            }
            cases.push(case);
        }
    }
    if !errors.0.is_empty() {
        return Err(errors);
    }
    Ok(Suite { file: source.name.clone(), notes, cases, testbeds })
}

/// Fails if two topologies of the file have one name: only the first would be used.
fn unique_topologies(source: &Source, file: &TestFile) -> Result<(), ConfigError> {
    let names: Vec<&Spanned<String>> =
        file.topologies.iter().filter_map(|one| one.name.as_ref()).collect();
    super::network::unique(source, &names)
}

/// Links that no tool and no flow of the test uses, as a note.
fn unused_links(
    name: &str,
    networks: &[Network],
    tools: &[Tool],
    flows: &[Flow],
) -> Option<String> {
    let network = networks.first()?;
    let ends = tools.iter().map(|tool| (tool.client, tool.server));
    let ends: Vec<(u32, u32)> =
        ends.chain(flows.iter().map(|flow| (flow.client, flow.server))).collect();
    let used: std::collections::BTreeSet<usize> = ends
        .iter()
        .filter_map(|&(from, to)| network.path(from, to))
        .flatten()
        .map(|(link, _)| link)
        .collect();
    let unused: Vec<String> = (network.edges.iter().enumerate())
        .filter(|(link, _)| !used.contains(link))
        .map(|(link, (one, other))| format!("{} ({one} - {other})", link.saturating_add(1)))
        .collect();
    if unused.is_empty() {
        return None;
    }
    let (are, links) = if unused.len() == 1 { ("is", "link") } else { ("are", "links") };
    Some(format!(
        "`{name}`: {links} {} {are} not used: routes are static with the fewest hops, and of several paths between two nodes packets take one, the first in the order of the links; nodes (the protocol `node`) send over all of these paths at once",
        unused.join(", ")
    ))
}

/// The name of a test as a directory name.
pub(crate) fn file_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    let text: String = name.chars().map(|c| if fits(c) { c } else { '_' }).take(80).collect();
    if text.starts_with('.') || text.is_empty() { format!("_{text}") } else { text }
}

fn case(
    source: &Source,
    file: &TestFile,
    registry: &ProtocolRegistry,
    name: &Spanned<String>,
    test: &TestSpec,
    notes: &mut Vec<String>,
) -> Result<Case, ConfigErrors> {
    let mut errors = ConfigErrors::default();
    let parts = [
        ("tools", test.test_tools.0.len()),
        ("protocols", test.target_protocols.len()),
        ("competing flows", test.competition_flows.len()),
    ];
    check_counts("a test", parts, MAX_PARTS).map_err(|text| source.invalid(name, text))?;
    let networks = errors
        .keep(network::networks(source, &test.topology, &file.topologies))
        .unwrap_or_default();
    let last = networks.first().map_or(u32::MAX, |first| first.nodes.saturating_sub(1));
    if let Some(first) = networks.first()
        && let Some(route) = &test.route
    {
        match route.value {
            RouteName::StaticBfs => {}
            RouteName::StaticRoute => {
                let chain = (0..).zip(1..);
                let is_chain = first.edges.iter().zip(chain).all(|(edge, ends)| *edge == ends);
                if !is_chain {
                    errors.keep::<()>(Err(
                        source.invalid(route, "`static_route` is for chains: use `static_bfs`")
                    ));
                }
            }
            RouteName::OlsrRoute => notes.push(format!(
                "`{}`: `olsr_route` runs no routing daemon: the routes are static with the fewest hops, as OLSR finds them over equal links",
                name.value
            )),
            RouteName::OpenrRoute => {
                errors.keep::<()>(Err(
                    source.invalid(route, "Open/R is not supported: use `static_bfs`")
                ));
            }
        }
    }
    if test.target_protocols.is_empty() {
        errors.keep::<()>(Err(source.invalid(name, "`target_protocols` is empty")));
    }
    let protocols: Vec<_> = test
        .target_protocols
        .iter()
        .filter_map(|given| errors.keep(registry.of(source, given)))
        .collect();
    for (index, protocol) in protocols.iter().enumerate() {
        if protocols.iter().take(index).any(|other| other.name == protocol.name) {
            errors
                .keep::<()>(Err(source
                    .invalid(name, format!("`{}` is twice in `target_protocols`", protocol.name))));
        }
    }
    let is_parallel = test.execution_mode == ExecutionMode::Parallel;
    if is_parallel && protocols.len() > MAX_PARALLEL {
        errors
            .keep::<()>(Err(source
                .invalid(name, format!("at most {MAX_PARALLEL} protocols can run in parallel"))));
    }
    if test.test_tools.0.is_empty() {
        errors.keep::<()>(Err(source.invalid(name, "`test_tools` is empty")));
    }
    let mut all_tools = Vec::new();
    for (tool_name, spec) in &test.test_tools.0 {
        let Some(tool) = errors.keep(tools::tool(source, tool_name, spec, last)) else { continue };
        let position = spec.server_host.as_ref().or(spec.client_host.as_ref());
        let position = position.map_or(tool_name.referenced, |host| host.referenced);
        errors.keep(network::check_path(source, &networks, tool.client, tool.server, position));
        all_tools.push(tool);
    }
    let repetitions = match &test.repetitions {
        Some(count) if !(1..=1000).contains(&count.value) => {
            errors.keep::<u32>(Err(source.invalid(count, "`repetitions` must be 1 to 1000")))
        }
        other => other.as_ref().map(|count| count.value),
    };
    let sample_interval = match &test.sample_interval {
        Some(interval) if !(0.01..=10.0).contains(&interval.value) => errors
            .keep::<f64>(Err(source.invalid(interval, "`sample_interval` must be 0.01 to 10 s"))),
        other => other.as_ref().map(|interval| interval.value),
    };
    let published =
        test.published.iter().filter_map(|one| errors.keep(published(source, one))).collect();
    let ends = all_tools.len().saturating_add(test.competition_flows.len());
    let states = networks.len().saturating_mul(test.events.len().saturating_add(1));
    let paths = states.saturating_mul(ends);
    if paths > MAX_PATHS {
        let text = format!(
            "{} networks with {} events and {ends} tools and flows have {paths} paths; at most {MAX_PATHS} are allowed",
            networks.len(),
            test.events.len()
        );
        errors.keep::<()>(Err(source.invalid(name, text)));
    }
    // Errors of flows, events and assertions may follow from wrong networks, protocols or tools.
    if !errors.0.is_empty() {
        return Err(errors);
    }
    let flows: Vec<Flow> = test
        .competition_flows
        .iter()
        .filter_map(|flow| errors.keep(flow_of(source, registry, flow, &networks, &all_tools)))
        .collect();
    let events = events(source, &test.events, &networks, &all_tools, &mut errors);
    let assertions = test
        .assertions
        .iter()
        .filter_map(|one| errors.keep(assertion(source, one, &protocols, &all_tools, &networks)))
        .collect();
    if !errors.0.is_empty() {
        return Err(errors);
    }
    notes.extend(unused_links(&name.value, &networks, &all_tools, &flows));
    Ok(Case {
        name: name.value.clone(),
        description: test.description.clone(),
        enabled: test.enabled,
        backend: test.backend,
        networks,
        protocols,
        tools: all_tools,
        flows,
        events,
        is_parallel,
        allow_failure: test.allow_failure,
        repetitions: repetitions.unwrap_or(1),
        seed: test.seed.unwrap_or(1),
        assertions,
        published,
        verify: test.verify,
        capture: test.capture,
        sample_interval: sample_interval.unwrap_or(0.1),
    })
}

fn flow_of(
    source: &Source,
    registry: &ProtocolRegistry,
    flow: &FlowSpec,
    networks: &[Network],
    tools: &[Tool],
) -> Result<Flow, ConfigError> {
    let position = flow.client_host.referenced;
    let with_competition = tools.iter().filter(|tool| tool.has_competing_flows());
    let Some(longest) = with_competition.map(Tool::seconds).reduce(f64::max) else {
        return Err(source.invalid(
            &flow.flow_type,
            "competing flows need a throughput tool (`iperf`, `bats_iperf`), or `under_load: true` of `rtt` or `ping`, and this test has none",
        ));
    };
    if let Some(delay) = &flow.delay
        && delay.value >= longest
    {
        return Err(source.invalid(
            delay,
            format!("competing flows end with the tool, and the longest of their tools runs for {longest} s: this flow would never start"),
        ));
    }
    network::check_path(
        source,
        networks,
        flow.client_host.value,
        flow.server_host.value,
        position,
    )?;
    let seconds = |value: &Option<Spanned<f64>>, min: f64| match value {
        Some(value) if !(min..=86_400.0).contains(&value.value) => {
            Err(source.invalid(value, format!("must be {min} to 86400 seconds")))
        }
        other => Ok(other.as_ref().map(|value| value.value)),
    };
    Ok(Flow {
        protocol: registry.named(source, &flow.flow_type)?,
        client: flow.client_host.value,
        server: flow.server_host.value,
        delay: seconds(&flow.delay, 0.0)?,
        duration: seconds(&flow.duration, 0.1)?,
    })
}

fn events(
    source: &Source,
    specs: &[EventSpec],
    networks: &[Network],
    tools: &[Tool],
    errors: &mut ConfigErrors,
) -> Vec<Event> {
    let longest = tools.iter().map(Tool::seconds).fold(0.0, f64::max);
    let link_count = networks.iter().map(|network| network.links.len()).min().unwrap_or(0);
    let event = |spec: &EventSpec| {
        if !(0.0..=longest).contains(&spec.at.value) {
            return Err(source.invalid(
                &spec.at,
                format!("`at` must be from 0 to {longest} s, the time of the longest tool"),
            ));
        }
        let link = match &spec.link {
            Some(link) => {
                let index = (link.value as usize).checked_sub(1);
                let Some(index) = index.filter(|&index| index < link_count) else {
                    let text = format!("this network has the links 1 to {link_count}");
                    return Err(source.invalid(link, text));
                };
                Some(index)
            }
            None => None,
        };
        let changes = super::link::changes_of_all(source, &spec.set)?;
        if changes == crate::settings::Changes::default() {
            return Err(source.invalid(
                &spec.at,
                "this event changes nothing: set for example `set: { loss: 5% }`",
            ));
        }
        Ok(Event { at: spec.at.value, link, changes })
    };
    let mut events: Vec<Event> = specs.iter().filter_map(|spec| errors.keep(event(spec))).collect();
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

fn assertion(
    source: &Source,
    spec: &AssertionSpec,
    protocols: &[crate::plan::Protocol],
    tools: &[Tool],
    networks: &[Network],
) -> Result<Assertion, ConfigError> {
    let names = || protocols.iter().map(|protocol| protocol.name.as_str());
    let of = |name: &Option<Spanned<String>>| match name {
        Some(name) if !names().any(|known| known == name.value) => {
            Err(source.unknown("protocol of this test", name, names()))
        }
        other => Ok(other.as_ref().map(|name| name.value.clone())),
    };
    figure(source, &spec.figure)?;
    if spec.at_least.is_none() && spec.at_most.is_none() {
        return Err(source.invalid(&spec.figure, "an assertion needs `at_least` or `at_most`"));
    }
    if [spec.at_least, spec.at_most].into_iter().flatten().any(|bound| !bound.is_finite()) {
        return Err(source.invalid(&spec.figure, "`at_least` and `at_most` must be finite numbers"));
    }
    let tool = match &spec.tool {
        Some(tool) if !tools.iter().any(|known| known.name == tool.value) => {
            let names = tools.iter().map(|tool| tool.name.as_str());
            return Err(source.unknown("tool of this test", tool, names));
        }
        other => other.as_ref().map(|tool| tool.value.clone()),
    };
    let is_selected = |one: &&Tool| tool.as_ref().is_none_or(|name| *name == one.name);
    let has_figure = |one: &Tool| figures::tool_has_figure(&one.kind, &spec.figure.value);
    if !tools.iter().filter(is_selected).any(has_figure) {
        let names: Vec<&str> =
            tools.iter().filter(is_selected).map(|one| one.name.as_str()).collect();
        return Err(source.invalid(
            &spec.figure,
            format!("`{}` has no figure `{}`", names.join("`, `"), spec.figure.value),
        ));
    }
    let network = match &spec.topology {
        Some(index) if index.value as usize >= networks.len() => {
            return Err(source.invalid(
                index,
                format!("this test has the networks 0 to {}", networks.len().saturating_sub(1)),
            ));
        }
        other => other.as_ref().map(|index| index.value as usize),
    };
    Ok(Assertion {
        figure: spec.figure.value.clone(),
        protocol: of(&spec.protocol)?,
        tool,
        network,
        at_least: spec.at_least,
        at_most: spec.at_most,
        relative_to: of(&spec.relative_to)?,
    })
}

fn figure(source: &Source, name: &Spanned<String>) -> Result<(), ConfigError> {
    if figures::FIGURES.iter().any(|known| known.name == name.value) {
        return Ok(());
    }
    Err(source.unknown("figure", name, figures::FIGURES.iter().map(|known| known.name)))
}

fn published(source: &Source, spec: &PublishedSpec) -> Result<Published, ConfigError> {
    figure(source, &spec.figure)?;
    let mut cells = Vec::new();
    if let Some(values) = &spec.values {
        let (rows, columns) = (spec.loss.len(), spec.delay.len());
        if values.value.len() != rows || values.value.iter().any(|row| row.len() != columns) {
            return Err(source.invalid(
                values,
                format!("`loss` and `delay` need {rows} rows of {columns} values"),
            ));
        }
        for (loss, row) in spec.loss.iter().zip(&values.value) {
            for (delay, value) in spec.delay.iter().zip(row) {
                cells.extend(value.map(|value| (*loss, *delay, value)));
            }
        }
    } else if spec.value.is_none() {
        return Err(source.invalid(
            &spec.figure,
            "published figures need a `value`, or `values` with `loss` and `delay`",
        ));
    }
    let of_cells = cells.iter().flat_map(|&(loss, delay, value)| [loss, delay, value]);
    if of_cells.chain(spec.value).any(|number| !number.is_finite()) {
        return Err(source.invalid(&spec.figure, "published figures must be finite numbers"));
    }
    Ok(Published {
        source: spec.source.clone(),
        label: spec.label.clone(),
        figure: spec.figure.value.clone(),
        value: spec.value,
        cells,
    })
}
