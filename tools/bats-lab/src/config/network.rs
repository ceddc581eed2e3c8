//! Converts topologies of test files to networks; every combination of steps is a network.

use serde_saphyr::Spanned;

use super::attributes::{arrays, matrices};
use super::link::{changes, changes_of_all};
use super::link_set::{LinkSet, MAX_NETWORKS, chain};
use super::model::{LinkSpec, MatrixSpec, TopologyFile, TopologyType, TopologyUse};
use super::source::{ConfigError, Source};
use super::values::Text;
use crate::plan::Network;
use crate::settings::{Direction, Link};
use crate::topology::{MAX_HOPS, path};

/// Maximum number of nodes: a chain with the maximum number of links.
const MAX_NODES: u32 = MAX_HOPS + 1;

/// The networks of a test. `own` are the topologies of its file.
pub(crate) fn networks(
    source: &Source,
    used: &Spanned<TopologyUse>,
    own: &[TopologyUse],
) -> Result<Vec<Network>, ConfigError> {
    let Some(name) = &used.value.config_name else {
        if let Some(file) = &used.value.config_file {
            return Err(source
                .invalid(file, "`config_file` needs `config_name`: which topology of the file?"));
        }
        return expand(source, &used.value, used);
    };
    if let Some(key) = first_topology_key(&used.value) {
        return Err(source.invalid(
            name,
            format!("`config_name` references a topology, so `{key}` cannot be set here"),
        ));
    }
    // The test can set another name for reports.
    let renamed = |mut topology: TopologyUse| {
        topology.name = used.value.name.clone().or(topology.name);
        topology
    };
    let mut known: Vec<String> = Vec::new();
    let found = |list: &[TopologyUse], known: &mut Vec<String>| {
        let name_of = |one: &TopologyUse| one.name.as_ref().map(|name| name.value.clone());
        known.extend(list.iter().filter_map(name_of));
        list.iter().find(|one| name_of(one).as_ref() == Some(&name.value)).cloned()
    };
    if let Some(file) = &used.value.config_file {
        let file = source.open_relative(file)?;
        // A test file can name itself as `config_file`.
        let is_itself = file.text() == source.text();
        let list = if is_itself { own.to_vec() } else { file.parse::<TopologyFile>()?.topology };
        if !is_itself {
            let names: Vec<&Spanned<String>> =
                list.iter().filter_map(|one| one.name.as_ref()).collect();
            unique(&file, &names)?;
        }
        if let Some(topology) = found(&list, &mut known) {
            return expand(&file, &renamed(topology), used);
        }
    } else {
        if let Some(topology) = found(own, &mut known) {
            return expand(source, &renamed(topology), used);
        }
        let file = super::shipped::source(super::shipped::TOPOLOGIES);
        let list: TopologyFile = file.parse()?;
        if let Some(topology) = found(&list.topology, &mut known) {
            return expand(&file, &renamed(topology), used);
        }
    }
    Err(source.unknown("topology", name, known.iter().map(String::as_str)))
}

/// Fails if two topologies have one name: only the first could be used.
pub(super) fn unique(source: &Source, names: &[&Spanned<String>]) -> Result<(), ConfigError> {
    for (index, name) in names.iter().enumerate() {
        if let Some(first) = names.iter().take(index).find(|first| first.value == name.value) {
            return Err(source.invalid(
                name,
                format!(
                    "two topologies have the name `{}`, the first in line {}: rename one of them",
                    name.value,
                    first.referenced.line()
                ),
            ));
        }
    }
    Ok(())
}

/// The first key that is set and defines a topology.
fn first_topology_key(topology: &TopologyUse) -> Option<&'static str> {
    let keys = [
        ("topology_type", topology.topology_type.is_some()),
        ("nodes", topology.nodes.is_some()),
        ("link", topology.link.is_some()),
        ("links", !topology.links.is_empty()),
        ("matrix", topology.matrix.is_some()),
        ("array_description", !topology.array_description.is_empty()),
        ("json_description", topology.json_description.is_some()),
    ];
    keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
}

/// The networks of one topology. `used` is the position of errors without a better one.
fn expand(
    source: &Source,
    topology: &TopologyUse,
    used: &Spanned<TopologyUse>,
) -> Result<Vec<Network>, ConfigError> {
    let error = |text: String| source.invalid(used, text);
    if used.value.config_name.is_some()
        && (topology.config_name.is_some() || topology.config_file.is_some())
    {
        return Err(error("a referenced topology cannot reference another one".to_owned()));
    }
    let Some(kind) = &topology.topology_type else {
        return Err(error("a topology needs `topology_type` or `config_name`".to_owned()));
    };
    let Some(nodes) = &topology.nodes else {
        return Err(error("a topology needs `nodes`".to_owned()));
    };
    if !(2..=MAX_NODES).contains(&nodes.value) {
        return Err(source.invalid(nodes, format!("a network must have 2 to {MAX_NODES} nodes")));
    }
    let count = nodes.value;
    let chain_links = count.saturating_sub(1) as usize;
    let mut base = Link { forward: Direction::unrestricted(), backward: Direction::unrestricted() };
    let mut shapes = vec![(chain(count), vec![base.clone(); chain_links])];
    let mut is_applied = false;
    if let Some(given) = &topology.json_description {
        if !topology.array_description.is_empty() {
            return Err(source
                .invalid(kind, "use either `array_description` or `json_description`, not both"));
        }
        if kind.value == TopologyType::Mesh && !topology.links.is_empty() {
            return Err(source
                .invalid(kind, "use either `links` or `json_description` for a mesh, not both"));
        }
        shapes = vec![matrices(source, given, count, kind.value)?];
    } else if !topology.array_description.is_empty() {
        if kind.value == TopologyType::Mesh {
            return Err(source.invalid(kind, "`array_description` is for `linear` topologies"));
        }
        let links = arrays(source, &topology.array_description, chain_links)?;
        shapes = links.into_iter().map(|links| (chain(count), links)).collect();
    } else if kind.value == TopologyType::Mesh {
        // Settings of a link override those of `link`.
        if let Some(link) = &topology.link {
            changes_of_all(source, link)?.apply(&mut base);
        }
        shapes = vec![mesh_links(source, topology, count, kind, base)?];
        is_applied = true;
    }
    if let Some(link) = topology.link.as_ref().filter(|_| !is_applied) {
        let changes = changes_of_all(source, link)?;
        shapes.iter_mut().flat_map(|(_, links)| links).for_each(|link| changes.apply(link));
    }
    if kind.value == TopologyType::Linear && !topology.links.is_empty() {
        if topology.links.len() != chain_links {
            return Err(source.invalid(
                nodes,
                format!(
                    "a chain of {count} nodes has {chain_links} links, but `links` has {}",
                    topology.links.len()
                ),
            ));
        }
        for (index, spec) in topology.links.iter().enumerate() {
            if let Some(between) = &spec.between {
                return Err(source.invalid(between, "`between` is for `mesh` topologies"));
            }
            let changes = changes(source, spec)?;
            let same_link = shapes.iter_mut().filter_map(|(_, links)| links.get_mut(index));
            same_link.for_each(|link| changes.apply(link));
        }
    }
    if let Some(matrix) = &topology.matrix {
        shapes = expand_matrix(source, matrix, shapes)?;
    }
    if shapes.len() > MAX_NETWORKS {
        return Err(error(format!("{} networks exceed the limit of {MAX_NETWORKS}", shapes.len())));
    }
    let name = topology.name.as_ref().map_or("inline", |name| name.value.as_str()).to_owned();
    let mut networks = Vec::with_capacity(shapes.len());
    for (edges, links) in shapes {
        if edges.is_empty() {
            return Err(error("this network has no links".to_owned()));
        }
        if edges.len() > MAX_HOPS as usize {
            return Err(error(format!("a network can have at most {MAX_HOPS} links")));
        }
        for (number, link) in (1..).zip(&links) {
            let of_direction = [&link.forward, &link.backward].into_iter();
            if let Some(key) = of_direction.filter_map(super::link::without_effect).next() {
                return Err(error(format!(
                    "{key} of link {number} has no effect without a queue: set `rate` or `rate_schedule` as well"
                )));
            }
        }
        networks.push(network(&name, count, edges, links));
    }
    Ok(networks)
}

fn network(name: &str, nodes: u32, edges: Vec<(u32, u32)>, links: Vec<Link>) -> Network {
    let same = |value: &dyn Fn(&Direction) -> f64| {
        let mut values =
            links.iter().flat_map(|link| [value(&link.forward), value(&link.backward)]);
        let first = values.next()?;
        values.all(|other| (other - first).abs() < 1e-9).then_some(first)
    };
    let round = |value: f64| (value * 1e6).round() / 1e6;
    let loss_percent = same(&|direction| round(direction.loss.mean() * 100.0));
    let delay_ms = same(&|direction| round(direction.delay.as_secs_f64() * 1e3));
    let shape = if edges == chain(nodes) {
        format!("{} hop{}", edges.len(), if edges.len() == 1 { "" } else { "s" })
    } else {
        format!("{nodes} nodes, {} links", edges.len())
    };
    let label = match links.split_first() {
        Some((first, others)) if others.iter().any(|link| link != first) => {
            format!("{shape}, first link {}, others differ", first.forward)
        }
        Some((first, _)) if first.forward == first.backward => {
            format!("{shape}, both directions {}", first.forward)
        }
        Some((first, _)) => {
            format!("{shape}, forward {}; backward {}", first.forward, first.backward)
        }
        None => shape,
    };
    Network { name: name.to_owned(), label, nodes, edges, links, loss_percent, delay_ms }
}

/// The links of a mesh from `links`.
fn mesh_links(
    source: &Source,
    topology: &TopologyUse,
    nodes: u32,
    kind: &Spanned<TopologyType>,
    base: Link,
) -> Result<LinkSet, ConfigError> {
    if topology.links.is_empty() {
        return Err(source.invalid(kind, "a mesh needs `links` or `json_description`"));
    }
    let (mut edges, mut links) = (Vec::new(), Vec::new());
    for spec in &topology.links {
        let Some(between) = &spec.between else {
            return Err(source.invalid(kind, "each link of a mesh needs `between: [NODE, NODE]`"));
        };
        let &[one, other] = between.value.as_slice() else {
            return Err(source.invalid(between, "`between` needs two nodes"));
        };
        if one == other || one >= nodes || other >= nodes {
            return Err(source.invalid(
                between,
                format!(
                    "a link must connect two different nodes of 0 to {}",
                    nodes.saturating_sub(1)
                ),
            ));
        }
        let edge = (one.min(other), one.max(other));
        if edges.contains(&edge) {
            return Err(source.invalid(
                between,
                format!(
                    "nodes {one} and {other} have a link already, and a pair of nodes has one: for a parallel path put a node into it"
                ),
            ));
        }
        let mut link = base.clone();
        changes(source, spec)?.apply(&mut link);
        edges.push(edge);
        links.push(link);
    }
    Ok((edges, links))
}

type LinkSets = Vec<LinkSet>;

/// Every combination of the values of the matrix, for every set of links.
fn expand_matrix(
    source: &Source,
    matrix: &MatrixSpec,
    mut shapes: LinkSets,
) -> Result<LinkSets, ConfigError> {
    type Pick = fn(Spanned<Text>) -> LinkSpec;
    let axes: [(&Vec<Spanned<Text>>, Pick); 5] = [
        (&matrix.loss, |value| LinkSpec { loss: Some(value), ..LinkSpec::default() }),
        (&matrix.delay, |value| LinkSpec { delay: Some(value), ..LinkSpec::default() }),
        (&matrix.jitter, |value| LinkSpec { jitter: Some(value), ..LinkSpec::default() }),
        (&matrix.rate, |value| LinkSpec { rate: Some(value), ..LinkSpec::default() }),
        (&matrix.queue, |value| LinkSpec { queue: Some(value), ..LinkSpec::default() }),
    ];
    for (values, pick) in axes {
        let Some(first) = values.first() else { continue };
        if shapes.len().saturating_mul(values.len()) > MAX_NETWORKS {
            return Err(source.invalid(first, format!("more than {MAX_NETWORKS} networks")));
        }
        let mut more = Vec::new();
        for (edges, links) in &shapes {
            for value in values {
                let changes = changes(source, &pick(value.clone()))?;
                let mut links = links.clone();
                links.iter_mut().for_each(|link| changes.apply(link));
                more.push((edges.clone(), links));
            }
        }
        shapes = more;
    }
    Ok(shapes)
}

/// Fails if there is no path from a node to another in one of the networks.
pub(crate) fn check_path(
    source: &Source,
    networks: &[Network],
    from: u32,
    to: u32,
    at: serde_saphyr::Location,
) -> Result<(), ConfigError> {
    for network in networks {
        if from == to {
            return Err(source.error_at(at, "client and server are the same node"));
        }
        if from >= network.nodes || to >= network.nodes {
            let last = network.nodes.saturating_sub(1);
            return Err(source.error_at(at, format!("this network has the nodes 0 to {last}")));
        }
        if path(&network.edges, from, to).is_none() {
            return Err(
                source.error_at(at, format!("there is no path from node {from} to node {to}"))
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::TestFile;

    /// The networks of a test with this topology.
    fn of(topology: &str) -> Result<Vec<Network>, ConfigError> {
        let text = format!(
            "tests:\n  one:\n    topology: {topology}\n    target_protocols: [brtp]\n    test_tools: {{ iperf: {{}} }}\n"
        );
        let source = Source::shipped("test.yaml", &text);
        let file: TestFile = source.parse()?;
        networks(&source, &file.tests.0[0].1.topology, &file.topologies)
    }

    #[test]
    fn settings_of_a_mesh_link_override_those_of_all_links() {
        let networks = of("{ topology_type: mesh, nodes: 3, link: { rate: 10M, delay: 5ms }, \
                           links: [{ between: [0, 1], rate: 2M }, { between: [1, 2] }] }")
        .unwrap();
        let rates: Vec<u64> = networks[0].links.iter().map(|link| link.forward.rate).collect();
        assert_eq!(rates, [2_000_000, 10_000_000]);
        assert!(networks[0].links.iter().all(|link| link.backward.delay.as_millis() == 5));
    }

    #[test]
    fn conflicting_topology_keys_are_rejected() {
        let mesh = "topology_type: mesh, nodes: 2";
        let line = "topology_type: linear, nodes: 2";
        let named = "config_name: linear_network_1";
        let matrix =
            "json_description: { data: [{ matrix_type: 0, matrix_data: [[0, 1], [1, 0]] }] }";
        let array = "array_description: [{ link_loss: { init_value: [1] } }]";
        for (topology, words) in [
            (format!("{named}, link: {{ loss: 1% }}"), "`link`"),
            (format!("{named}, links: [{{ loss: 1% }}]"), "`links`"),
            (format!("{named}, matrix: {{ loss: [1%] }}"), "`matrix`"),
            (format!("{named}, {array}"), "`array_description`"),
            (format!("{named}, {matrix}"), "`json_description`"),
            (format!("{line}, config_file: predefined.topology.yaml"), "needs `config_name`"),
            (format!("{line}, {array}, {matrix}"), "not both"),
            (format!("{mesh}, {matrix}, links: [{{ between: [0, 1] }}]"), "not both"),
            (format!("{line}, link: {{ between: [0, 1] }}"), "`between` is only for one"),
            (
                format!("{mesh}, link: {{ between: [0, 1] }}, links: [{{ between: [0, 1] }}]"),
                "`between` is only for one",
            ),
        ] {
            let error = of(&format!("{{ {topology} }}")).expect_err(&topology).to_string();
            assert!(error.starts_with("test.yaml:3:") && error.contains(words), "{error}");
        }
        let network = of(&format!("{{ {named}, name: mine }}")).unwrap().remove(0);
        assert_eq!((network.name.as_str(), network.loss_percent), ("mine", Some(5.0)));
        assert!(of(&format!("{{ {line}, {matrix}, links: [{{ loss: 1% }}] }}")).is_ok());
    }
}
