//! Protocols: from names and descriptions to what it takes to run them.

use serde_saphyr::Spanned;

use super::model::{PacketType, ProtocolFile, ProtocolSpec, ProtocolType};
use super::shipped;
use super::source::{Fault, Source};
use super::values::NameOr;
use crate::plan::{Protocol, ProtocolKind};

/// This project's protocols by name.
const OURS: [&str; 4] = ["btp", "brtp", "brctp", "transparent"];

/// The protocols that a file may name.
pub(crate) struct Known {
    /// Where each is from, and what it is.
    entries: Vec<(Source, ProtocolSpec)>,
}

impl Known {
    /// The predefined protocols and those of the file, which come first.
    pub(crate) fn new(source: &Source, own: &[ProtocolSpec]) -> Result<Self, Fault> {
        let predefined = shipped::source(shipped::PROTOCOLS);
        let list: ProtocolFile = predefined.parse()?;
        let mut entries = Vec::new();
        for spec in own {
            if spec.name.is_none() {
                return Err(source.fault(
                    serde_saphyr::Location::UNKNOWN,
                    "a protocol in `protocols` has no `name`",
                ));
            }
            entries.push((source.clone(), spec.clone()));
        }
        entries.extend(list.protocols.into_iter().map(|spec| (predefined.clone(), spec)));
        Ok(Self { entries })
    }

    /// The names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.entries
            .iter()
            .filter_map(|(_, spec)| spec.name.as_ref())
            .map(|name| name.value.as_str())
    }

    /// The protocol of this name.
    pub(crate) fn named(&self, source: &Source, name: &Spanned<String>) -> Result<Protocol, Fault> {
        let found = self
            .entries
            .iter()
            .find(|(_, spec)| spec.name.as_ref().is_some_and(|known| known.value == name.value));
        match found {
            Some((from, spec)) => protocol(from, spec),
            // `tcp-bbr2` is as good as the kernel that has it.
            None => match name.value.strip_prefix("tcp-") {
                Some(congestion)
                    if is_word(congestion) && crate::protocol::kernel_has(congestion) =>
                {
                    Ok(tcp(&name.value, congestion))
                }
                _ => Err(source.unknown("protocol", name, self.names())),
            },
        }
    }

    /// The protocol that a test names or describes.
    pub(crate) fn of(
        &self,
        source: &Source,
        given: &NameOr<ProtocolSpec>,
    ) -> Result<Protocol, Fault> {
        match given {
            NameOr::Name(name) => self.named(source, name),
            NameOr::Inline(spec) => {
                if let Some(name) = &spec.name
                    && spec.bin.is_none()
                    && spec.protocols.is_empty()
                    && spec.args.0.is_empty()
                    && spec.version.is_none()
                    && spec.relays.is_none()
                {
                    return self.named(source, name);
                }
                protocol(source, spec)
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    (1..=15).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn tcp(name: &str, congestion: &str) -> Protocol {
    Protocol {
        name: name.to_owned(),
        label: format!("TCP {}", congestion.to_uppercase()),
        kind: ProtocolKind::Tcp { congestion: congestion.to_owned() },
    }
}

fn missing(name: &str, why: &str) -> Protocol {
    let kind = ProtocolKind::Missing { why: why.to_owned() };
    Protocol { name: name.to_owned(), label: name.to_uppercase(), kind }
}

/// What it takes to run a protocol as it is described.
fn protocol(source: &Source, spec: &ProtocolSpec) -> Result<Protocol, Fault> {
    let Some(name) = &spec.name else {
        return Err(source.fault(serde_saphyr::Location::UNKNOWN, "a protocol needs a `name`"));
    };
    let name_text = name.value.as_str();
    let version = spec.version.as_ref().map(|version| version.0.as_str());
    let label = match version {
        Some(version) => format!("{} {}", name_text.to_uppercase(), version),
        None => name_text.to_uppercase(),
    };
    let label = |kind| Protocol { name: name_text.to_owned(), label: label.clone(), kind };
    let is_ours = mode(spec).is_some() || OURS.contains(&name_text);
    if spec.relays.is_some() && !(is_ours && spec.protocols.is_empty()) {
        return Err(source.wrong(name, "`relays` is for this project's protocols"));
    }
    let bats = |mode: String| {
        let mut one = label(ProtocolKind::Bats { mode, relays: spec.relays });
        if let Some(relays) = spec.relays
            && !name_text.contains('-')
        {
            one.label = format!("{}, relays: {}", one.label, relays.name());
        }
        one
    };
    if spec.protocols.is_empty() && spec.bin.as_deref().is_none_or(|bin| bin == "bats_iperf") {
        match mode(spec).as_deref() {
            Some("10" | "tcp") => return Ok(tcp(name_text, "cubic")),
            Some("11" | "udp") => return Ok(label(ProtocolKind::Udp)),
            Some(mode) => return Ok(bats(mode.to_owned())),
            None => {}
        }
        match name_text {
            "udp" => return Ok(label(ProtocolKind::Udp)),
            _ if OURS.contains(&name_text) => return Ok(bats(name_text.to_owned())),
            _ => {}
        }
        if name_text.starts_with("quic") {
            let congestion = version.unwrap_or("cubic");
            if !["bbr", "cubic", "newreno"].contains(&congestion) {
                return Err(source.wrong(name, format!("quinn has no congestion control `{congestion}`; it has bbr, cubic and newreno")));
            }
            return Ok(Protocol {
                name: name_text.to_owned(),
                label: format!("QUIC {}", congestion.to_uppercase()),
                kind: ProtocolKind::Quic { congestion: congestion.to_owned() },
            });
        }
        if name_text.starts_with("tcp") {
            let congestion =
                version.unwrap_or_else(|| name_text.strip_prefix("tcp-").unwrap_or("cubic"));
            if !is_word(congestion) {
                return Err(source.wrong(name, format!("`{congestion}` is no congestion control")));
            }
            return Ok(tcp(name_text, congestion));
        }
    }
    let words = |spec: &ProtocolSpec, more: &[String]| -> Result<Vec<String>, Fault> {
        let Some(bin) = &spec.bin else {
            return Err(source.wrong(name, format!("the protocol `{name_text}` needs a `bin`")));
        };
        let mut words = vec![bin.clone()];
        // Oasis's arguments may hold several words each.
        words.extend(
            spec.args.0.iter().flat_map(|text| text.0.split_whitespace().map(str::to_owned)),
        );
        words.extend(more.iter().cloned());
        if let Some(file) = &spec.config_file {
            words.push(format!("--config={file}"));
        }
        Ok(words)
    };
    if spec.bin.as_deref() == Some("bats_protocol") {
        return Ok(missing(
            name_text,
            "the daemon comes with the node; btp-next and brtp-next measure the same protocols without it",
        ));
    }
    let is_pair = spec.kind == Some(ProtocolType::NoneDistributed) || !spec.protocols.is_empty();
    if !is_pair {
        return Ok(label(ProtocolKind::Daemon { words: words(spec, &[])? }));
    }
    let [client, server] = spec.protocols.as_slice() else {
        return Err(source.wrong(
            name,
            "a protocol of type `none_distributed` has two `protocols`: client, then server",
        ));
    };
    let Some(port) = spec.port.or(client.port).filter(|&port| port > 0) else {
        return Err(source.wrong(name, "a client and a server need a `port` that tools connect to"));
    };
    let both: Vec<String> =
        spec.args.0.iter().flat_map(|text| text.0.split_whitespace().map(str::to_owned)).collect();
    Ok(label(ProtocolKind::Tunnel {
        client: words(client, &both)?,
        server: words(server, &both)?,
        port,
        carries: spec.carries.unwrap_or(PacketType::Tcp),
        is_one_way: spec.one_way,
    }))
}

/// The mode among the arguments of a protocol that `bats_iperf` runs.
fn mode(spec: &ProtocolSpec) -> Option<String> {
    let name = &spec.name.as_ref()?.value;
    if !(name.ends_with("-next") || spec.bin.as_deref() == Some("bats_iperf")) {
        return None;
    }
    let words: Vec<&str> = spec.args.0.iter().flat_map(|text| text.0.split_whitespace()).collect();
    let at = words.iter().position(|word| *word == "-m" || *word == "--mode")?;
    words.get(at + 1).map(|mode| (*mode).to_owned())
}
