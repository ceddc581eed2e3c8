//! A node that the command line describes: a SOCKS5 proxy and its exit, without a file, root and a TUN device.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use openbats::{Fingerprint, Identity, KnownHosts};

use crate::config::{self, DEFAULT_PORT, Remote, quoted};

/// Options of a node without a file.
#[derive(Args, Debug, Default)]
pub struct Options {
    /// Serve SOCKS5 and HTTP CONNECT at this address, such as 127.0.0.1:1080; --peer connects out.
    #[arg(long, value_name = "ADDRESS", requires = "peer", group = "node")]
    pub socks: Option<SocketAddr>,
    /// Address or host name of the exit, such as 192.0.2.7:4900.
    #[arg(long, value_name = "ADDRESS", requires = "socks", conflicts_with = "listen")]
    pub peer: Option<String>,
    /// Be an exit: take links of --fingerprint at this address, such as :4900.
    #[arg(long, value_name = "ADDRESS", requires = "allow", group = "node")]
    pub listen: Option<String>,
    /// A destination that the exit connects to: HOST:PORTS as in `exit.allow`, such as *.example.org:443.
    #[arg(long, value_name = "HOST:PORTS", requires = "listen")]
    pub allow: Vec<String>,
    /// Certificate of --peer, or with --listen of each client. batsd prints its own at the start. Without it, the first
    /// certificate of --peer is trusted and recorded, and a changed one is refused.
    #[arg(long, value_name = "SHA256", requires = "node")]
    pub fingerprint: Vec<String>,
    /// File with the certificates that --peer has shown.
    #[arg(long, value_name = "FILE", requires = "peer", conflicts_with = "fingerprint")]
    pub known_hosts: Option<PathBuf>,
    /// PEM file with certificate and key; made if it does not exist.
    #[arg(long, value_name = "FILE", requires = "node")]
    pub identity: Option<PathBuf>,
    /// Path of the control socket, for batsctl --socket.
    #[arg(long, value_name = "PATH", requires = "node")]
    pub control: Option<PathBuf>,
}

/// A configuration that the options are equal to.
#[derive(Debug)]
pub struct Quick {
    /// Its text, in the format of the file.
    pub text: String,
    /// Certificate of this node.
    pub fingerprint: Fingerprint,
    /// Certificate and key, PEM, for a check without the file that a start makes.
    pub identity: Option<String>,
}

/// The ID of a node that has none in a file: 28 bits of its fingerprint in 240.0.0.0/4, which networks do not
/// use for routers.
#[must_use]
pub fn id_of(fingerprint: Fingerprint) -> Ipv4Addr {
    let [a, b, c, d, ..] = fingerprint.0;
    Ipv4Addr::new(0xf0 | (a & 0x0f), b, c, d)
}

fn parse_fingerprint(text: &str) -> anyhow::Result<Fingerprint> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    digits.parse().map_err(|_| {
        anyhow::anyhow!(
            "--fingerprint {text} is not 64 hexadecimal digits after \"sha256:\"; batsd prints it there"
        )
    })
}

/// The address of all hosts of both families, or of IPv4 if this host has no IPv6.
fn any_host() -> IpAddr {
    match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// An address of this host, whose host or port may be left out.
fn own_address(text: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DEFAULT_PORT));
    }
    match text.strip_prefix(':').map(str::parse) {
        Some(Ok(port)) => Ok(SocketAddr::new(any_host(), port)),
        _ => bail!("--listen {text} is not an IP address with a port, such as 192.0.2.7:4900"),
    }
}

fn quoted_path(path: &Path) -> anyhow::Result<String> {
    quoted(path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?)
}

/// The folder for the files of a user who is not root.
fn user_folder() -> anyhow::Result<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let folder = folder.context("HOME is not set: name files by --identity and --control")?;
    Ok(folder.join("bats"))
}

impl Options {
    /// Whether the options describe a node, so that there is no file.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.socks.is_some() || self.listen.is_some()
    }

    /// Makes the identity if there is none, and the configuration. A check makes no file: its identity exists only
    /// for the check. `first_use` is called if the certificate of `peer` is neither given nor recorded.
    ///
    /// # Errors
    /// An option is missing or wrong, the identity cannot be read or made, or `first_use` fails.
    pub fn configure(
        &self,
        is_check: bool,
        first_use: impl FnOnce(&FirstUse) -> anyhow::Result<Fingerprint>,
    ) -> anyhow::Result<Quick> {
        let is_root = rustix::process::geteuid().is_root();
        let identity = match &self.identity {
            Some(path) => path.clone(),
            None if is_root => config::DEFAULT_IDENTITY.into(),
            None => user_folder()?.join("node.pem"),
        };
        let mut temporary = None;
        let fingerprint = if is_check && !identity.exists() {
            let (new, pem) = config::new_identity()?;
            temporary = Some(pem);
            new.fingerprint()
        } else {
            if !identity.exists() {
                config::generate_identity(&identity)?;
            }
            let pem = std::fs::read(&identity)
                .with_context(|| format!("cannot read the identity {}", identity.display()))?;
            Identity::from_pem(&identity.display().to_string(), &pem)?.fingerprint()
        };
        let prints = self.fingerprint.iter().map(|text| parse_fingerprint(text));
        let prints = prints.collect::<anyhow::Result<Vec<_>>>()?;
        let mut text = format!("[node]\nid = \"{}\"\n", id_of(fingerprint));
        let _ = writeln!(text, "identity = {}", quoted_path(&identity)?);
        // /run is root's.
        let has_runtime = is_root || std::env::var_os("XDG_RUNTIME_DIR").is_some();
        match &self.control {
            Some(path) => _ = writeln!(text, "control = {}", quoted_path(path)?),
            None if has_runtime => {}
            None => {
                let path = user_folder()?.join("control");
                let _ = writeln!(text, "control = {}", quoted_path(&path)?);
            }
        }
        let entry = |print: &Fingerprint| {
            format!("[[peer]]\nid = \"{}\"\nfingerprint = \"sha256:{print}\"\n", id_of(*print))
        };
        if let (Some(socks), Some(peer)) = (self.socks, &self.peer) {
            let Ok(remote) = Remote::with_port(peer, DEFAULT_PORT) else {
                bail!("--peer {peer} is not {}", config::WANTED_REMOTE);
            };
            let known_hosts = match prints.is_empty() {
                true => Some(self.known_hosts()?),
                false => None,
            };
            let print = match (&*prints, &known_hosts) {
                ([print], _) => *print,
                ([], Some(path)) => recorded(path, &remote, (fingerprint, is_check), first_use)?,
                _ => bail!("--peer has one --fingerprint: the batsd there prints it at its start"),
            };
            let any = match &remote {
                Remote::Address(remote) if remote.is_ipv4() => Ipv4Addr::UNSPECIFIED.into(),
                Remote::Address(_) => Ipv6Addr::UNSPECIFIED.into(),
                Remote::Host(_) => any_host(),
            };
            let any = SocketAddr::new(any, 0);
            let remote = quoted(&remote.to_string())?;
            let _ = writeln!(text, "listen = [\"{any}\"]");
            match known_hosts {
                Some(path) => {
                    let (path, id) = (quoted_path(&path)?, id_of(print));
                    let _ = writeln!(text, "known_hosts = {path}\n[[peer]]\nid = \"{id}\"");
                }
                None => text += &entry(&print),
            }
            let _ = writeln!(text, "remote = {remote}");
            let _ = writeln!(text, "[[proxy]]\nlisten = \"{socks}\"\nexit = \"{}\"", id_of(print));
        } else if let Some(listen) = &self.listen {
            let listen = own_address(listen)?;
            if prints.is_empty() {
                bail!(
                    "--listen needs the --fingerprint of each client: `batsctl keygen FILE` there makes an \
                     identity and prints it, and so does the client at its start. (That of this node is \
                     sha256:{fingerprint}.)"
                );
            }
            let _ = writeln!(text, "listen = [\"{listen}\"]");
            prints.iter().for_each(|print| text += &entry(print));
            let rules = self.allow.iter().map(|rule| quoted(rule));
            let rules = rules.collect::<anyhow::Result<Vec<_>>>()?;
            let _ = writeln!(text, "[exit]\nallow = [{}]", rules.join(", "));
        }
        Ok(Quick { text, fingerprint, identity: temporary })
    }

    /// The file with the certificates of exits.
    fn known_hosts(&self) -> anyhow::Result<PathBuf> {
        match &self.known_hosts {
            Some(path) => std::path::absolute(path).context("--known-hosts names no file"),
            None => config::default_known_hosts()
                .context("HOME is not set: name a file by --known-hosts, or --fingerprint"),
        }
    }
}

/// The recorded certificate of an exit, or that of the first use.
fn recorded(
    known_hosts: &Path,
    remote: &Remote,
    (own, is_check): (Fingerprint, bool),
    first_use: impl FnOnce(&FirstUse<'_>) -> anyhow::Result<Fingerprint>,
) -> anyhow::Result<Fingerprint> {
    let recorded = KnownHosts::new(known_hosts).fingerprints(&remote.to_string())?;
    match recorded.last() {
        Some(print) => Ok(*print),
        // A check asks no peer.
        None if is_check => Ok(config::placeholder(remote)),
        None => first_use(&FirstUse { remote, known_hosts, fingerprint: own }),
    }
}

/// An exit whose certificate is not known.
#[derive(Debug)]
pub struct FirstUse<'a> {
    /// Where it is.
    pub(crate) remote: &'a Remote,
    /// The file to record its certificate in.
    pub(crate) known_hosts: &'a Path,
    /// Certificate of this node.
    pub(crate) fingerprint: Fingerprint,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keeper::{Source, check_source};

    fn asks_no_peer(entry: &FirstUse<'_>) -> anyhow::Result<Fingerprint> {
        panic!("{entry:?}")
    }

    #[test]
    fn the_exit_has_an_address_or_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let configure = |peer: &str| {
            let options = Options {
                socks: Some("127.0.0.1:1080".parse().unwrap()),
                peer: Some(peer.to_owned()),
                fingerprint: vec!["ab".repeat(32)],
                identity: Some(folder.path().join("node.pem")),
                control: Some(folder.path().join("control")),
                ..Options::default()
            };
            let quick = options.configure(true, asks_no_peer).map_err(|error| error.to_string())?;
            Ok::<_, String>(config::Config::parse(Path::new("quick"), &quick.text).unwrap())
        };
        let plan = configure("192.0.2.7").unwrap().plan;
        let link = plan.links.into_values().next().unwrap();
        assert_eq!(link.remote, "192.0.2.7:4900".parse().unwrap());
        // The name of an interface may have quotes.
        for (peer, expected) in [
            ("node.example.org", "node.example.org:4900"),
            ("[fe80::2%a\"b]:7", "[fe80::2%a\"b]:7"),
        ] {
            let plan = configure(peer).unwrap().plan;
            let link = plan.hosts.into_values().next().unwrap();
            assert_eq!(link.host.to_string(), expected);
        }
        for (peer, words) in
            [("192.0.2", "or a host name with a port"), ("fe80::2%a'b", "has a quote")]
        {
            let error = configure(peer).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_check_makes_no_identity() {
        let folder = tempfile::tempdir().unwrap();
        let identity = folder.path().join("node.pem");
        let own = Options {
            identity: Some(identity.clone()),
            control: Some(folder.path().join("control")),
            fingerprint: vec!["ab".repeat(32)],
            ..Options::default()
        };
        let proxy = Options {
            socks: Some("127.0.0.1:1080".parse().unwrap()),
            peer: Some("192.0.2.7".to_owned()),
            identity: own.identity.clone(),
            control: own.control.clone(),
            fingerprint: own.fingerprint.clone(),
            ..Options::default()
        };
        let exit =
            Options { listen: Some(":4900".to_owned()), allow: vec!["*:443".to_owned()], ..own };
        for options in [&proxy, &exit] {
            let quick = options.configure(true, asks_no_peer).unwrap();
            let (_, checked) =
                check_source(&Source::CommandLine(quick.text, quick.identity)).unwrap();
            assert_eq!(checked.fingerprint(), quick.fingerprint);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // A start makes it, and a check after it takes it.
        let made = proxy.configure(false, asks_no_peer).unwrap().fingerprint;
        assert!(identity.exists());
        let checked = proxy.configure(true, asks_no_peer).unwrap();
        assert_eq!((checked.fingerprint, checked.identity), (made, None));
    }
}
