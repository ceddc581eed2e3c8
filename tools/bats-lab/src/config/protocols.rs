//! Protocols: from names and descriptions to what it takes to run them.

use serde_saphyr::Spanned;

use super::model::{PacketType, ProtocolFile, ProtocolSpec, ProtocolType};
use super::shipped;
use super::source::{Fault, Source, unknown};
use super::values::NameOr;
use super::words::words;
use crate::plan::{Protocol, ProtocolKind};

/// This project's protocols by name.
const OURS: [&str; 4] = ["btp", "brtp", "brctp", "transparent"];

/// What `bats_iperf` takes for a mode.
const MODES: [&str; 14] = [
    "btp",
    "brtp",
    "brctp",
    "transparent",
    "tcp",
    "udp",
    "quic",
    "0",
    "1",
    "2",
    "3",
    "10",
    "11",
    "12",
];

/// Those of them that are not this project's protocols, which relays know nothing of.
const PLAIN: [&str; 6] = ["10", "tcp", "11", "udp", "12", "quic"];

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
                    && unused(spec, &[]).is_none()
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
    let mode = if spec.protocols.is_empty() { mode(source, spec, name)? } else { None };
    let is_plain = mode.is_some_and(|mode| PLAIN.contains(&mode));
    let is_ours = !is_plain && (mode.is_some() || OURS.contains(&name_text));
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
        if let Some(key) = unused(spec, &[]) {
            return Err(source.wrong(name, format!("`{key}` says nothing of `{name_text}`: it is for protocols with a `bin` of their own")));
        }
        if mode.is_none() && !spec.args.0.is_empty() {
            return Err(source.wrong(name, format!("`{name_text}` has no `bin` and takes no `args`: say `bin: bats_iperf` with `args: [-m MODE]`, or give them to a tool")));
        }
        match mode {
            Some("10" | "tcp") if version.is_some() => {
                return Err(source.wrong(name, "bats_iperf's TCP has the kernel's own congestion control: for another say for example `tcp-cubic`, without `bin`"));
            }
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
            return Ok(tcp(name_text, congestion_of(source, name, congestion)?));
        }
        if spec.bin.is_some() {
            return Err(source.wrong(
                name,
                "bats_iperf measures in one of its modes: say for example `args: [-m brtp]`",
            ));
        }
    }
    let command = |spec: &ProtocolSpec, more: &[String]| -> Result<Vec<String>, Fault> {
        let Some(bin) = &spec.bin else {
            return Err(source.wrong(name, format!("the protocol `{name_text}` needs a `bin`")));
        };
        let mut words = vec![bin.clone()];
        // Oasis's arguments may hold several words each.
        words.extend(args(source, spec, name)?);
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
        if let Some(key) = unused(spec, &["config_file"]) {
            return Err(source.wrong(name, format!("`{key}` says nothing of a program on every node: it is for a client and a server in `protocols`")));
        }
        return Ok(label(ProtocolKind::Daemon { words: command(spec, &[])? }));
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
    if spec.port.zip(client.port).is_some_and(|(one, other)| one != other) {
        return Err(
            source.wrong(name, "the protocol and its client have different ports: say `port` once")
        );
    }
    let of_ends = [("bin", spec.bin.is_some()), ("config_file", spec.config_file.is_some())];
    if let Some((key, _)) = of_ends.iter().find(|(_, is_said)| *is_said) {
        return Err(source.wrong(
            name,
            format!("`{key}` is the client's or the server's: say it in `protocols`"),
        ));
    }
    for end in [client, server] {
        let more = [("relays", end.relays.is_some()), ("protocols", !end.protocols.is_empty())];
        let more = more.iter().find(|(_, is_said)| *is_said).map(|(key, _)| *key);
        if let Some(key) = more.or_else(|| unused(end, &["config_file", "port"])) {
            return Err(source.wrong(
                end.name.as_ref().unwrap_or(name),
                format!("`{key}` says nothing of a client or a server alone: it is for both"),
            ));
        }
    }
    let both = args(source, spec, name)?;
    Ok(label(ProtocolKind::Tunnel {
        client: command(client, &both)?,
        server: command(server, &both)?,
        port,
        carries: spec.carries.unwrap_or(PacketType::Tcp),
        is_one_way: spec.one_way,
    }))
}

/// The first key beside `used` that is said and means something to a client and a server, or to a
/// program, only.
fn unused(spec: &ProtocolSpec, used: &[&str]) -> Option<&'static str> {
    let said = [
        ("port", spec.port.is_some()),
        ("config_file", spec.config_file.is_some()),
        ("carries", spec.carries.is_some()),
        ("one_way", spec.one_way),
    ];
    said.into_iter().find(|(key, is_said)| *is_said && !used.contains(key)).map(|(key, _)| key)
}

/// The words of a protocol's arguments.
fn args(
    source: &Source,
    spec: &ProtocolSpec,
    name: &Spanned<String>,
) -> Result<Vec<String>, Fault> {
    words(&spec.args.0).map_err(|error| source.wrong(name, error))
}

fn congestion_of<'a>(
    source: &Source,
    name: &Spanned<String>,
    congestion: &'a str,
) -> Result<&'a str, Fault> {
    if !is_word(congestion) {
        return Err(source.wrong(name, format!("`{congestion}` is no congestion control")));
    }
    Ok(congestion)
}

/// The mode that the arguments of a protocol name which `bats_iperf` runs. Other arguments would be
/// those of a measurement, which tools have.
fn mode(
    source: &Source,
    spec: &ProtocolSpec,
    name: &Spanned<String>,
) -> Result<Option<&'static str>, Fault> {
    let is_run = match spec.bin.as_deref() {
        Some(bin) => bin == "bats_iperf",
        None => name.value.ends_with("-next"),
    };
    if !is_run {
        return Ok(None);
    }
    let mut found = None;
    let words = args(source, spec, name)?;
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let mode = match word.strip_prefix("--mode=") {
            Some(mode) => mode,
            None if word == "-m" || word == "--mode" => words.next().unwrap_or_default(),
            None => {
                let text = unknown("argument of bats_iperf", word, ["-m", "--mode"].into_iter());
                return Err(source
                    .wrong(name, format!("{text}; more than the mode is for `args` of a tool")));
            }
        };
        let Some(known) = MODES.into_iter().find(|known| *known == mode) else {
            // What is near a number says nothing of what was meant.
            let is_word = mode.starts_with(|c: char| c.is_ascii_alphabetic());
            let text = match is_word {
                true => unknown("mode", mode, MODES.into_iter()),
                false => format!("unknown mode `{mode}`; known are {}", MODES.join(", ")),
            };
            return Err(source.wrong(name, text));
        };
        if found.replace(known).is_some() {
            return Err(source.wrong(name, "a protocol has one mode"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::TestFile;

    fn of(spec: &str) -> Result<Protocol, Fault> {
        let text = format!(
            "tests:\n  one:\n    topology: {{}}\n    target_protocols:\n      - {spec}\n    test_tools: {{ iperf: {{}} }}\n"
        );
        let source = Source::shipped("test.yaml", &text);
        let file: TestFile = source.parse()?;
        let known = Known::new(&source, &file.protocols)?;
        known.of(&source, &file.tests.0[0].1.target_protocols[0])
    }

    #[test]
    fn no_word_of_a_protocol_is_ignored() {
        for (spec, words) in [
            ("{ name: brtp, bin: bats_iperf, args: [-m 2 --nope] }", "`--nope`"),
            ("{ name: brtp, bin: bats_iperf, args: [--mod 2] }", "did you mean `--mode`?"),
            ("{ name: brtp, bin: bats_iperf, args: [-m brpt] }", "did you mean `brtp`?"),
            ("{ name: brtp, bin: bats_iperf, args: [-m 99] }", "unknown mode `99`"),
            ("{ name: brtp, bin: bats_iperf, args: [-m] }", "unknown mode ``"),
            ("{ name: brtp, bin: bats_iperf, args: [-m 1 -m 2] }", "one mode"),
            ("{ name: own, bin: bats_iperf }", "say for example"),
            ("{ name: own, bin: bats_iperf, args: [-m tcp], relays: none }", "`relays`"),
            ("{ name: own, bin: bats_iperf, args: [-m 10], version: reno }", "`tcp-cubic`"),
            ("{ name: brtp, args: [-m 2] }", "takes no `args`"),
            ("{ name: brtp, port: 7 }", "`port`"),
            ("{ name: quic, version: bbr, config_file: x }", "`config_file`"),
            ("{ name: tcp, carries: udp }", "`carries`"),
            ("{ name: udp, one_way: true }", "`one_way`"),
            ("{ name: own, bin: x, port: 7 }", "`port`"),
            ("{ name: own, bin: y, port: 7, protocols: [{ bin: x }, { bin: x }] }", "`bin`"),
            ("{ name: own, port: 7, protocols: [{ bin: x, port: 8 }, { bin: x }] }", "ports"),
            (
                "{ name: own, port: 7, protocols: [{ bin: x }, { bin: x, carries: udp }] }",
                "`carries`",
            ),
        ] {
            let fault = of(spec).expect_err(spec).to_string();
            assert!(fault.starts_with("test.yaml:5:") && fault.contains(words), "{spec}: {fault}");
        }
        let kind = |spec: &str| of(spec).unwrap_or_else(|fault| panic!("{spec}: {fault}")).kind;
        let reno = ProtocolKind::Tcp { congestion: "reno".to_owned() };
        assert_eq!(kind("{ name: tcp, version: reno }"), reno);
        // By the SDK's carrier and not by iperf3.
        let by_sdk = ProtocolKind::Bats { mode: "10".to_owned(), relays: None };
        assert_eq!(kind("{ name: own, bin: bats_iperf, args: [-m 10] }"), by_sdk);
        assert_eq!(kind("tcp-next"), by_sdk);
        let brctp = ProtocolKind::Bats { mode: "2".to_owned(), relays: None };
        assert_eq!(kind("{ name: own, bin: bats_iperf, args: [--mode=2] }"), brctp);
        let words = ["x", "-a", "--config=f"].map(str::to_owned).to_vec();
        let daemon = ProtocolKind::Daemon { words };
        assert_eq!(kind("{ name: own, bin: x, args: [-a], config_file: f }"), daemon);
    }
}
