//! Link attributes as Oasis writes them: arrays for chains, matrices for any network.

use super::attribute::{ArrayValues, Attribute};
use super::link_set::{LinkSet, MAX_NETWORKS, chain};
use super::model::{ArraySpec, Matrices, TopologyType};
use super::source::{ConfigError, Source};
use super::values::NameOr;
use crate::settings::{Direction, Link, Loss};
use crate::units;

type Setter = fn(&mut Link, f64) -> Result<(), String>;

fn loss(link: &mut Link, percent: f64) -> Result<(), String> {
    let fraction = units::fraction(&percent.to_string())?;
    for direction in [&mut link.forward, &mut link.backward] {
        direction.loss = Loss::Independent(fraction);
    }
    Ok(())
}

fn latency(link: &mut Link, ms: f64) -> Result<(), String> {
    let delay = units::time(&ms.to_string())?;
    (link.forward.delay, link.backward.delay) = (delay, delay);
    Ok(())
}

fn jitter(link: &mut Link, ms: f64) -> Result<(), String> {
    let jitter = units::time(&ms.to_string())?;
    (link.forward.jitter, link.backward.jitter) = (jitter, jitter);
    Ok(())
}

fn megabits(value: f64) -> Result<u64, String> {
    units::rate(&format!("{value}M"))
}

fn forward(link: &mut Link, value: f64) -> Result<(), String> {
    link.forward.rate = megabits(value)?;
    // The default of the other direction is the same rate.
    if link.backward.rate == 0 {
        link.backward.rate = link.forward.rate;
    }
    Ok(())
}

fn backward(link: &mut Link, value: f64) -> Result<(), String> {
    link.backward.rate = megabits(value)?;
    Ok(())
}

/// The links of a chain for every combination of the steps of attributes: loss varies slowest, then
/// latency, jitter, bandwidth.
pub(super) fn arrays(
    source: &Source,
    arrays: &[ArraySpec],
    links: usize,
) -> Result<Vec<Vec<Link>>, ConfigError> {
    let mut attributes: Vec<(&str, ArrayValues)> = Vec::new();
    for array in arrays {
        for (name, values) in attributes_of(source, array)? {
            if attributes.iter().any(|&(known, _)| known == name) {
                return Err(source.invalid(
                    &values.init_value,
                    format!("`{name}` is there twice: remove one of them"),
                ));
            }
            attributes.push((name, values));
        }
    }
    let mut networks =
        vec![vec![
            Link { forward: Direction::unrestricted(), backward: Direction::unrestricted() };
            links
        ]];
    for (name, setter) in ATTRIBUTES {
        let Some((_, values)) = attributes.iter().find(|&&(known, _)| known == name) else {
            continue;
        };
        let steps = steps(source, values, links)?;
        if networks.len().saturating_mul(steps.len()) > MAX_NETWORKS {
            return Err(
                source.invalid(&values.init_value, format!("more than {MAX_NETWORKS} networks"))
            );
        }
        let mut more = Vec::new();
        for network in &networks {
            for step in &steps {
                let mut network = network.clone();
                for (link, &value) in network.iter_mut().zip(step) {
                    setter(link, value)
                        .map_err(|error| source.invalid(&values.init_value, error))?;
                }
                more.push(network);
            }
        }
        networks = more;
    }
    Ok(networks)
}

/// Names of the attributes, and what sets them. The steps of the first vary slowest.
const ATTRIBUTES: [(&str, Setter); 5] = [
    ("link_loss", loss),
    ("link_latency", latency),
    ("link_jitter", jitter),
    ("link_bandwidth_forward", forward),
    ("link_bandwidth_backward", backward),
];

/// The names of the attributes of an entry and their values, which stand below the attribute or
/// next to it.
fn attributes_of(
    source: &Source,
    array: &ArraySpec,
) -> Result<Vec<(&'static str, ArrayValues)>, ConfigError> {
    let all = [
        &array.link_loss,
        &array.link_latency,
        &array.link_jitter,
        &array.link_bandwidth_forward,
        &array.link_bandwidth_backward,
    ];
    let mut found = Vec::new();
    let mut bare = None;
    for ((name, _), attribute) in ATTRIBUTES.into_iter().zip(all) {
        match attribute {
            Attribute::Absent => {}
            Attribute::Values(values) => found.push((name, values.clone())),
            Attribute::Bare(at) => match bare {
                None => bare = Some((name, at)),
                Some((other, _)) => {
                    return Err(source.invalid(
                        at,
                        format!(
                            "`{other}` and `{name}` are in one entry, so `init_value` is ambiguous: begin each attribute with `-`"
                        ),
                    ));
                }
            },
        }
    }
    match (bare, &array.init_value) {
        (Some((name, _)), Some(init_value)) => {
            let (step_len, step_num) = (array.step_len, array.step_num);
            found.push((name, ArrayValues { init_value: init_value.clone(), step_len, step_num }));
        }
        (Some((name, at)), None) => {
            return Err(source.invalid(
                at,
                format!("`{name}` has no values: add for example `init_value: [10]`"),
            ));
        }
        (None, Some(init_value)) => {
            let text = match found.first() {
                Some((name, _)) => format!(
                    "`{name}` of this entry has its values below it already: remove this `init_value`"
                ),
                None => format!(
                    "`init_value` of which attribute? Add one of {} to this entry",
                    ATTRIBUTES.map(|(name, _)| name).join(", ")
                ),
            };
            return Err(source.invalid(init_value, text));
        }
        (None, None) => {}
    }
    Ok(found)
}

/// The values of all links at each step.
fn steps(
    source: &Source,
    values: &ArrayValues,
    links: usize,
) -> Result<Vec<Vec<f64>>, ConfigError> {
    let init = &values.init_value.value.0;
    let first: Vec<f64> = match init.as_slice() {
        [one] => vec![*one; links],
        all if all.len() == links => all.to_vec(),
        other => {
            return Err(source.invalid(
                &values.init_value,
                format!(
                    "expected one value for all {links} links, or {links} values, found {}: a chain of {} nodes has {links} links",
                    other.len(),
                    links.saturating_add(1)
                ),
            ));
        }
    };
    let (len, count) = (values.step_len.unwrap_or(0.0), values.step_num.unwrap_or(0));
    let is_incomplete = values.step_len.is_some() != values.step_num.is_some();
    // In files for Oasis a 0 in either key means no steps.
    if is_incomplete && (len != 0.0 || count != 0) {
        return Err(source.invalid(&values.init_value, "steps need both `step_len` and `step_num`"));
    }
    if len == 0.0 || count == 0 {
        return Ok(vec![first]);
    }
    if count as usize >= MAX_NETWORKS {
        return Err(source.invalid(&values.init_value, format!("{count} steps are too many")));
    }
    // Rounded, so that ten steps of 0.1 end at exactly 1.
    let at = |value: f64, step: u32| ((value + len * f64::from(step)) * 1e9).round() / 1e9;
    Ok((0..=count).map(|step| first.iter().map(|&value| at(value, step)).collect()).collect())
}

/// A value of a matrix; 0 outside of it.
fn entry(rows: &[Vec<f64>], from: u32, to: u32) -> f64 {
    rows.get(from as usize).and_then(|row| row.get(to as usize)).copied().unwrap_or_default()
}

/// The ends and the settings of the links from matrices as in Oasis.
pub(super) fn matrices(
    source: &Source,
    given: &NameOr<Matrices>,
    nodes: u32,
    kind: TopologyType,
) -> Result<LinkSet, ConfigError> {
    let (file, matrices) = match given {
        NameOr::Inline(matrices) => (source.clone(), (**matrices).clone()),
        NameOr::Name(name) => {
            let file = source.open_relative(name)?;
            let matrices: Matrices = file.parse()?;
            (file, matrices)
        }
    };
    let size = nodes as usize;
    for matrix in &matrices.data {
        let rows = &matrix.matrix_data.value;
        if rows.len() != size || rows.iter().any(|row| row.len() != size) {
            return Err(file.invalid(
                &matrix.matrix_data,
                format!("a network of {nodes} nodes needs {nodes} rows of {nodes} values"),
            ));
        }
        if matrix.matrix_type.value > 4 {
            return Err(file.invalid(&matrix.matrix_type, "`matrix_type` must be 0 (adjacency), 1 (bandwidth), 2 (loss), 3 (latency) or 4 (jitter)"));
        }
    }
    let of_type = |kind: u32| matrices.data.iter().find(|matrix| matrix.matrix_type.value == kind);
    let edges: Vec<(u32, u32)> = match of_type(0) {
        Some(matrix) => {
            let rows = &matrix.matrix_data.value;
            (0..nodes)
                .flat_map(|i| (i.saturating_add(1)..nodes).map(move |j| (i, j)))
                .filter(|&(i, j)| entry(rows, i, j) != 0.0 || entry(rows, j, i) != 0.0)
                .collect()
        }
        None if kind == TopologyType::Linear => chain(nodes),
        None => {
            return Err(error_without_position(
                &file,
                "a mesh needs a matrix of type 0 (adjacency)",
            ));
        }
    };
    if kind == TopologyType::Linear && edges != chain(nodes) {
        return Err(error_without_position(
            &file,
            "these matrices do not describe a chain: use `topology_type: mesh`",
        ));
    }
    let mut links = Vec::with_capacity(edges.len());
    for &(i, j) in &edges {
        let mut link =
            Link { forward: Direction::unrestricted(), backward: Direction::unrestricted() };
        for (direction, (from, to)) in [(&mut link.forward, (i, j)), (&mut link.backward, (j, i))] {
            for matrix in &matrices.data {
                let value = entry(&matrix.matrix_data.value, from, to);
                let wrong = |error: String| file.invalid(&matrix.matrix_data, error);
                match matrix.matrix_type.value {
                    1 => direction.rate = megabits(value).map_err(wrong)?,
                    2 => {
                        direction.loss =
                            Loss::Independent(units::fraction(&value.to_string()).map_err(wrong)?)
                    }
                    3 => direction.delay = units::time(&value.to_string()).map_err(wrong)?,
                    4 => direction.jitter = units::time(&value.to_string()).map_err(wrong)?,
                    _ => {}
                }
            }
        }
        links.push(link);
    }
    Ok((edges, links))
}

fn error_without_position(file: &Source, text: &str) -> ConfigError {
    file.error_at(serde_saphyr::Location::UNKNOWN, text)
}
