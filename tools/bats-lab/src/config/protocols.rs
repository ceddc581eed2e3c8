//! Resolves protocols of test files to what is needed to run them.

use serde_saphyr::Spanned;

use super::model::{NodeEntry, PacketType, ProtocolFile, ProtocolSpec, ProtocolType, Relays};
use super::shipped;
use super::source::{ConfigError, Source, unknown};
use super::values::NameOr;
use super::words::words;
use crate::plan::{Protocol, ProtocolKind};

/// Names of the protocols of this project.
const OPENBATS_PROTOCOLS: [&str; 4] = ["btp", "brtp", "brctp", "transparent"];

/// Names and numbers of the modes of `bats_iperf`.
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

/// Modes that are not protocols of this project and cannot be relayed.
const FOREIGN_MODES: [&str; 6] = ["10", "tcp", "11", "udp", "12", "quic"];

/// The protocols that a file can name.
pub(crate) struct ProtocolRegistry {
    /// Source and definition of each protocol.
    entries: Vec<(Source, ProtocolSpec)>,
    /// The file next to the test file, and how many protocols it has.
    next_to: Option<(String, usize)>,
}

impl ProtocolRegistry {
    /// The protocols of the file, those of `predefined.protocols.yaml` next to it, and the predefined
    /// ones. The first match wins.
    pub(crate) fn new(source: &Source, own: &[ProtocolSpec]) -> Result<Self, ConfigError> {
        let predefined = shipped::source(shipped::PROTOCOLS);
        let list: ProtocolFile = predefined.parse()?;
        let mut entries = Vec::new();
        for spec in own {
            check_name(source, spec, &entries)?;
            entries.push((source.clone(), spec.clone()));
        }
        let next_to = source.next_to(shipped::PROTOCOLS)?;
        let next_to = match next_to {
            None => None,
            Some(file) => {
                let list: ProtocolFile = file.parse()?;
                let count = list.protocols.len();
                for spec in list.protocols {
                    check_name(&file, &spec, &entries)?;
                    entries.push((file.clone(), spec));
                }
                Some((file.name, count))
            }
        };
        entries.extend(list.protocols.into_iter().map(|spec| (predefined.clone(), spec)));
        Ok(Self { entries, next_to })
    }

    /// What a user should know about the protocols.
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |(file, count): &(String, usize)| {
            let protocols = if *count == 1 { "protocol" } else { "protocols" };
            format!("{count} {protocols} of {file} replace the predefined ones of these names")
        };
        self.next_to.iter().map(note).collect()
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.entries
            .iter()
            .filter_map(|(_, spec)| spec.name.as_ref())
            .map(|name| name.value.as_str())
    }

    /// The protocol with this name.
    pub(crate) fn named(
        &self,
        source: &Source,
        name: &Spanned<String>,
    ) -> Result<Protocol, ConfigError> {
        let found = self
            .entries
            .iter()
            .find(|(_, spec)| spec.name.as_ref().is_some_and(|known| known.value == name.value));
        match found {
            Some((from, spec)) => protocol(from, spec),
            // Any congestion control of the kernel can be used, for example `tcp-bbr2`.
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

    /// The protocol that a test names or defines inline.
    pub(crate) fn of(
        &self,
        source: &Source,
        given: &NameOr<ProtocolSpec>,
    ) -> Result<Protocol, ConfigError> {
        match given {
            NameOr::Name(name) => self.named(source, name),
            NameOr::Inline(spec) => {
                if let Some(name) = &spec.name
                    && spec.bin.is_none()
                    && spec.protocols.is_empty()
                    && spec.args.0.is_empty()
                    && spec.version.is_none()
                    && spec.relays.is_none()
                    && spec.entry.is_none()
                    && first_set_key(spec, &[]).is_none()
                {
                    return self.named(source, name);
                }
                protocol(source, spec)
            }
        }
    }
}

/// Fails if a protocol of a list has no name, or the name of another of the same file.
fn check_name(
    file: &Source,
    spec: &ProtocolSpec,
    entries: &[(Source, ProtocolSpec)],
) -> Result<(), ConfigError> {
    let Some(name) = &spec.name else {
        return Err(file.error_at(
            serde_saphyr::Location::UNKNOWN,
            "a protocol in `protocols` has no `name`: add `name: NAME` to it",
        ));
    };
    let is_same = |(source, other): &(Source, ProtocolSpec)| {
        source.name == file.name && other.name.as_ref().is_some_and(|one| one.value == name.value)
    };
    if entries.iter().any(is_same) {
        return Err(file.invalid(
            name,
            format!("two protocols have the name `{}`: rename one of them", name.value),
        ));
    }
    Ok(())
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

/// Resolves the definition of a protocol.
fn protocol(source: &Source, spec: &ProtocolSpec) -> Result<Protocol, ConfigError> {
    let Some(name) = &spec.name else {
        return Err(source.error_at(serde_saphyr::Location::UNKNOWN, "a protocol needs a `name`"));
    };
    let name_text = name.value.as_str();
    if let Some(one) = daemon_of_oasis(source, spec, name)? {
        return Ok(one);
    }
    // Files for Oasis write `bin: ""` for what is part of the kernel.
    let without_bin = ProtocolSpec { bin: None, ..spec.clone() };
    let spec = if spec.bin.as_deref() == Some("") { &without_bin } else { spec };
    let version = spec.version.as_ref().map(|version| version.0.as_str());
    let label = match version {
        Some(version) => format!("{} {}", name_text.to_uppercase(), version),
        None => name_text.to_uppercase(),
    };
    let label = |kind| Protocol { name: name_text.to_owned(), label: label.clone(), kind };
    let mode = if spec.protocols.is_empty() { mode(source, spec, name)? } else { None };
    let is_foreign = mode.is_some_and(|mode| FOREIGN_MODES.contains(&mode));
    let is_openbats = !is_foreign && (mode.is_some() || OPENBATS_PROTOCOLS.contains(&name_text));
    let is_node = name_text == "node" || name_text.starts_with("node-");
    if spec.relays.is_some() && !((is_openbats || is_node) && spec.protocols.is_empty()) {
        return Err(
            source.invalid(name, "`relays` is only for btp, brtp, brctp, transparent and node")
        );
    }
    if spec.entry.is_some() && !(is_node && spec.protocols.is_empty()) {
        return Err(source.invalid(name, "`entry` is only for node"));
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
        if let Some(key) = first_set_key(spec, &[]) {
            return Err(source.invalid(name, format!("`{key}` has no effect for `{name_text}`: it is for protocols with their own `bin`")));
        }
        if mode.is_none() && !spec.args.0.is_empty() {
            return Err(source.invalid(name, format!("`{name_text}` has no `bin` and takes no `args`: use `bin: bats_iperf` with `args: [-m MODE]`, or set `args` of a tool")));
        }
        match mode {
            Some("10" | "tcp") if version.is_some() => {
                return Err(source.invalid(name, "TCP of bats_iperf uses the default congestion control of the kernel: for another use for example `tcp-cubic`, without `bin`"));
            }
            Some(mode) => return Ok(bats(mode.to_owned())),
            None => {}
        }
        match name_text {
            "udp" => return Ok(label(ProtocolKind::Udp)),
            _ if OPENBATS_PROTOCOLS.contains(&name_text) => return Ok(bats(name_text.to_owned())),
            _ => {}
        }
        if is_node {
            if spec.relays == Some(Relays::Forward) {
                return Err(source
                    .invalid(name, "relays of the node recode: `relays` is `recode` or `none`"));
            }
            let congestion = congestion_of(source, name, version.unwrap_or("cubic"))?;
            let relays = spec.relays != Some(Relays::None);
            let route = if relays { "" } else { ", relays: none" };
            let entry = spec.entry.unwrap_or(NodeEntry::Tun);
            let inner = match entry {
                NodeEntry::Tun => format!("TCP {}", congestion.to_uppercase()),
                NodeEntry::Forward => "forward".to_owned(),
            };
            return Ok(Protocol {
                name: name_text.to_owned(),
                label: format!("node, {inner}{route}"),
                kind: ProtocolKind::Node { congestion: congestion.to_owned(), relays, entry },
            });
        }
        if name_text == "wireguard-go" || name_text.starts_with("wireguard-go-") {
            let congestion = congestion_of(source, name, version.unwrap_or("cubic"))?;
            return Ok(Protocol {
                name: name_text.to_owned(),
                label: format!("wireguard-go, TCP {}", congestion.to_uppercase()),
                kind: ProtocolKind::WireGuard { congestion: congestion.to_owned() },
            });
        }
        if name_text.starts_with("quic") {
            let congestion = version.unwrap_or("cubic");
            if !["bbr", "cubic", "newreno"].contains(&congestion) {
                return Err(source.invalid(name, format!("quinn has no congestion control `{congestion}`; it has bbr, cubic and newreno")));
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
            return Err(
                source.invalid(name, "bats_iperf needs a mode: use for example `args: [-m brtp]`")
            );
        }
    }
    let command = |spec: &ProtocolSpec, more: &[String]| -> Result<Vec<String>, ConfigError> {
        let Some(bin) = &spec.bin else {
            return Err(source.invalid(name, format!("the protocol `{name_text}` needs a `bin`")));
        };
        let mut words = vec![bin.clone()];
        // An entry of `args` may hold several words, as in Oasis.
        words.extend(args(source, spec, name)?);
        words.extend(more.iter().cloned());
        if let Some(file) = &spec.config_file {
            words.push(format!("--config={file}"));
        }
        Ok(words)
    };
    let is_pair = spec.kind == Some(ProtocolType::NoneDistributed) || !spec.protocols.is_empty();
    if !is_pair {
        if let Some(key) = first_set_key(spec, &["config_file"]) {
            return Err(source.invalid(name, format!("`{key}` has no effect for a daemon on every node: it is for a client and a server in `protocols`")));
        }
        return Ok(label(ProtocolKind::Daemon { words: command(spec, &[])? }));
    }
    let [client, server] = spec.protocols.as_slice() else {
        return Err(source.invalid(
            name,
            "a protocol of type `none_distributed` has two `protocols`: client, then server",
        ));
    };
    let Some(port) = spec.port.or(client.port).filter(|&port| port > 0) else {
        return Err(
            source.invalid(name, "a client and a server need a `port` that tools connect to")
        );
    };
    if spec.port.zip(client.port).is_some_and(|(one, other)| one != other) {
        return Err(source
            .invalid(name, "the protocol and its client have different ports: set `port` once"));
    }
    let of_ends = [("bin", spec.bin.is_some()), ("config_file", spec.config_file.is_some())];
    if let Some((key, _)) = of_ends.iter().find(|(_, is_set)| *is_set) {
        return Err(source.invalid(
            name,
            format!("`{key}` belongs to the client or the server: set it in `protocols`"),
        ));
    }
    for end in [client, server] {
        let more = [
            ("relays", end.relays.is_some()),
            ("entry", end.entry.is_some()),
            ("protocols", !end.protocols.is_empty()),
        ];
        let more = more.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key);
        if let Some(key) = more.or_else(|| first_set_key(end, &["config_file", "port"])) {
            return Err(source.invalid(
                end.name.as_ref().unwrap_or(name),
                format!(
                    "`{key}` applies to client and server together: set it outside `protocols`"
                ),
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

/// A protocol by the daemon of n-hop. With `--tun_protocol` it is this project's protocol of that name;
/// the proxy has nothing that corresponds to it.
fn daemon_of_oasis(
    source: &Source,
    spec: &ProtocolSpec,
    name: &Spanned<String>,
) -> Result<Option<Protocol>, ConfigError> {
    if spec.bin.as_deref() != Some("bats_protocol") {
        return Ok(None);
    }
    let words = args(source, spec, name)?;
    let tunnel = words.iter().find_map(|word| word.strip_prefix("--tun_protocol="));
    let Some(tunnel) = tunnel else {
        return Ok(Some(missing(
            &name.value,
            "the proxy of the bats_protocol daemon is not here: brtp measures the same protocol without it",
        )));
    };
    let mode = tunnel.to_lowercase();
    if mode != "btp" && mode != "brtp" {
        return Err(source
            .invalid(name, unknown("protocol of a tunnel", tunnel, ["BTP", "BRTP"].into_iter())));
    }
    let known = ["--daemon_enabled=true", "--api_enabled=true"];
    let other =
        |word: &&String| !known.contains(&word.as_str()) && !word.starts_with("--tun_protocol=");
    if let Some(word) = words.iter().find(other) {
        return Err(source.invalid(
            name,
            format!("`{word}` has no effect: `{}` is this project's {mode} here, without the bats_protocol daemon. Remove it", name.value),
        ));
    }
    Ok(Some(Protocol {
        name: name.value.clone(),
        label: name.value.to_uppercase(),
        kind: ProtocolKind::Bats { mode, relays: spec.relays },
    }))
}

/// The first key that is set, is not in `used`, and applies only to a client and a server or to a
/// program.
fn first_set_key(spec: &ProtocolSpec, used: &[&str]) -> Option<&'static str> {
    let keys = [
        ("port", spec.port.is_some()),
        ("config_file", spec.config_file.is_some()),
        ("carries", spec.carries.is_some()),
        ("one_way", spec.one_way),
    ];
    keys.into_iter().find(|(key, is_set)| *is_set && !used.contains(key)).map(|(key, _)| key)
}

/// The words of the arguments of a protocol.
fn args(
    source: &Source,
    spec: &ProtocolSpec,
    name: &Spanned<String>,
) -> Result<Vec<String>, ConfigError> {
    words(&spec.args.0).map_err(|error| source.invalid(name, error))
}

fn congestion_of<'a>(
    source: &Source,
    name: &Spanned<String>,
    congestion: &'a str,
) -> Result<&'a str, ConfigError> {
    if !is_word(congestion) {
        return Err(
            source.invalid(name, format!("`{congestion}` is not a valid congestion control name"))
        );
    }
    Ok(congestion)
}

/// The mode of `bats_iperf` in the arguments of a protocol. Other arguments belong to tools.
fn mode(
    source: &Source,
    spec: &ProtocolSpec,
    name: &Spanned<String>,
) -> Result<Option<&'static str>, ConfigError> {
    let uses_bats_iperf = match spec.bin.as_deref() {
        Some(bin) => bin == "bats_iperf",
        None => name.value.ends_with("-next"),
    };
    if !uses_bats_iperf {
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
                    .invalid(name, format!("{text}; other arguments belong in `args` of a tool")));
            }
        };
        let Some(known) = MODES.into_iter().find(|known| *known == mode) else {
            // For a number, a similar number is no useful suggestion.
            let is_word = mode.starts_with(|c: char| c.is_ascii_alphabetic());
            let text = match is_word {
                true => unknown("mode", mode, MODES.into_iter()),
                false => format!("unknown mode `{mode}`; known are {}", MODES.join(", ")),
            };
            return Err(source.invalid(name, text));
        };
        if found.replace(known).is_some() {
            return Err(source.invalid(name, "a protocol can have only one mode"));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::TestFile;

    fn of(spec: &str) -> Result<Protocol, ConfigError> {
        let text = format!(
            "tests:\n  one:\n    topology: {{}}\n    target_protocols:\n      - {spec}\n    test_tools: {{ iperf: {{}} }}\n"
        );
        let source = Source::shipped("test.yaml", &text);
        let file: TestFile = source.parse()?;
        let known = ProtocolRegistry::new(&source, &file.protocols)?;
        known.of(&source, &file.tests.0[0].1.target_protocols[0])
    }

    #[test]
    fn keys_without_effect_on_a_protocol_are_rejected() {
        for (spec, words) in [
            ("{ name: brtp, bin: bats_iperf, args: [-m 2 --nope] }", "`--nope`"),
            ("{ name: brtp, bin: bats_iperf, args: [--mod 2] }", "did you mean `--mode`?"),
            ("{ name: brtp, bin: bats_iperf, args: [-m brpt] }", "did you mean `brtp`?"),
            ("{ name: brtp, bin: bats_iperf, args: [-m 99] }", "unknown mode `99`"),
            ("{ name: brtp, bin: bats_iperf, args: [-m] }", "unknown mode ``"),
            ("{ name: brtp, bin: bats_iperf, args: [-m 1 -m 2] }", "only one mode"),
            ("{ name: own, bin: bats_iperf }", "use for example"),
            ("{ name: node, relays: forward }", "relays of the node recode"),
            ("{ name: node, version: 'a b' }", "not a valid congestion control"),
            ("{ name: brtp, entry: forward }", "`entry` is only for node"),
            ("{ name: node, entry: socks }", "known are tun, forward"),
            ("{ name: node, args: [-x] }", "takes no `args`"),
            ("{ name: wireguard-go, args: [-x] }", "takes no `args`"),
            ("{ name: wireguard-go, relays: none }", "`relays`"),
            ("{ name: wireguard-go, entry: forward }", "`entry` is only for node"),
            ("{ name: wireguard-go, port: 51820 }", "`port`"),
            ("{ name: wireguard-go, version: 'a b' }", "not a valid congestion control"),
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
            let error = of(spec).expect_err(spec).to_string();
            assert!(error.starts_with("test.yaml:5:") && error.contains(words), "{spec}: {error}");
        }
        let kind = |spec: &str| of(spec).unwrap_or_else(|error| panic!("{spec}: {error}")).kind;
        let reno = ProtocolKind::Tcp { congestion: "reno".to_owned() };
        assert_eq!(kind("{ name: tcp, version: reno }"), reno);
        // TCP transport of bats_iperf, not iperf3.
        let by_sdk = ProtocolKind::Bats { mode: "10".to_owned(), relays: None };
        assert_eq!(kind("{ name: own, bin: bats_iperf, args: [-m 10] }"), by_sdk);
        assert_eq!(kind("tcp-next"), by_sdk);
        let node = |congestion: &str, relays| {
            let congestion = congestion.to_owned();
            ProtocolKind::Node { congestion, relays, entry: NodeEntry::Tun }
        };
        assert_eq!(kind("node"), node("cubic", true));
        assert_eq!(kind("node-direct"), node("cubic", false));
        assert_eq!(kind("{ name: node-x, version: reno, relays: none }"), node("reno", false));
        let congestion = "cubic".to_owned();
        let forward = ProtocolKind::Node { congestion, relays: true, entry: NodeEntry::Forward };
        assert_eq!(kind("node-forward"), forward);
        let wireguard = |congestion: &str| {
            let congestion = congestion.to_owned();
            ProtocolKind::WireGuard { congestion }
        };
        assert_eq!(kind("wireguard-go"), wireguard("cubic"));
        assert_eq!(kind("{ name: wireguard-go-bbr, version: bbr }"), wireguard("bbr"));
        let brctp = ProtocolKind::Bats { mode: "2".to_owned(), relays: None };
        assert_eq!(kind("{ name: own, bin: bats_iperf, args: [--mode=2] }"), brctp);
        let words = ["x", "-a", "--config=f"].map(str::to_owned).to_vec();
        let daemon = ProtocolKind::Daemon { words };
        assert_eq!(kind("{ name: own, bin: x, args: [-a], config_file: f }"), daemon);
    }
}
