//! Trust on first use: a file with the certificate fingerprints of known servers, as ssh keeps one.
//!
//! Each line has the name of a server, with its port, and a fingerprint:
//!
//! ```text
//! server.example:5201 sha256:0f3c...
//! ```
//!
//! Empty lines and lines that begin with `#` are ignored. A server may have several lines.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

use rustix::fs::{FlockOperation, flock};

use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::state_directory::{check, open};

/// Largest file that is read and written, in bytes: about ten thousand servers.
const MAX_BYTES: u64 = 1 << 20;
/// Longest name of a server in bytes: a DNS name with a port and an IPv6 zone.
const MAX_NAME: usize = 300;
const ALGORITHM: &str = "sha256:";

/// Certificate fingerprints of known servers in a file. Any number of processes may use it at the
/// same time.
///
/// The file is created with the permissions 0600 when the first server is recorded. A file that
/// others than its owner may write to, or that belongs neither to this user nor to root, is refused,
/// because they could add servers. A symbolic link is followed, but not in the state directory of this
/// software ([`of_user`](Self::of_user)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHosts {
    path: PathBuf,
    name: Option<String>,
    only_known: bool,
}

impl KnownHosts {
    /// Uses this file; it does not need to exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), name: None, only_known: false }
    }

    /// The name under which the server is recorded, in place of `SERVER_NAME:PORT` as passed to
    /// `connect`. For servers that use several ports.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Refuses servers that the file does not contain, rather than recording them.
    #[must_use]
    pub fn only_known(mut self) -> Self {
        self.only_known = true;
        self
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name under which a server is recorded.
    pub(crate) fn name_of(&self, server_name: &str, port: u16) -> String {
        self.name.clone().unwrap_or_else(|| match server_name.contains(':') {
            true => format!("[{server_name}]:{port}"),
            false => format!("{server_name}:{port}"),
        })
    }

    /// Returns the fingerprints recorded for a server.
    ///
    /// # Errors
    /// The file cannot be read or is unusable.
    pub fn fingerprints(&self, name: &str) -> Result<Vec<Fingerprint>, TrustError> {
        Ok(self.entries_of_file(name)?.into_iter().map(|(_, fingerprint)| fingerprint).collect())
    }

    /// Returns the fingerprints recorded for each of these servers, in the order of their lines. The file is read once.
    ///
    /// # Errors
    /// As of [`fingerprints`](Self::fingerprints).
    pub fn fingerprints_of<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<BTreeMap<&'a str, Vec<Fingerprint>>, TrustError> {
        let names: BTreeMap<&str, Server> =
            names.into_iter().map(|name| (name, Server::new(name))).collect();
        let mut recorded: BTreeMap<&Server, Vec<Fingerprint>> =
            names.values().map(|server| (server, Vec::new())).collect();
        let text = self.text()?;
        for (number, server, words) in lines(&text) {
            if let Some(prints) = recorded.get_mut(&server) {
                prints.push(self.fingerprint(number, words)?);
            }
        }
        let of = |server| recorded.get(server).cloned().unwrap_or_default();
        Ok(names.iter().map(|(name, server)| (*name, of(server))).collect())
    }

    /// Checks the fingerprint of a server. An unknown server is recorded; returns whether it was.
    ///
    /// # Errors
    /// [`TrustError::Changed`] if the file has other fingerprints of this server,
    /// [`TrustError::Unknown`] if it has none and must not be extended. Another error if the file
    /// cannot be used.
    pub fn check(&self, name: &str, fingerprint: Fingerprint) -> Result<bool, TrustError> {
        if !is_valid_name(name) {
            let name = name.escape_debug().to_string();
            return Err(self.unusable(format!("the server name '{name}' cannot be recorded")));
        }
        if !self.fingerprints(name)?.is_empty() || self.only_known {
            return self.verify(&self.entries_of_file(name)?, name, fingerprint).map(|()| false);
        }
        if let Some(parent) = self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder
                .create(parent)
                .map_err(|error| self.failed("create the directory of", error))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file =
            open(&mut options, &self.path).map_err(|error| self.failed("write", error))?;
        // Another process may record the same server at this moment.
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|error| self.failed("lock", error.into()))?;
        let text = self.read(&mut file)?;
        let entries = self.entries(&text, name)?;
        if !entries.is_empty() {
            return self.verify(&entries, name, fingerprint).map(|()| false);
        }
        // An earlier writer may have been killed within a line.
        let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let line = format!("{separator}{name} {ALGORITHM}{fingerprint}\n");
        if text.len().saturating_add(line.len()) as u64 > MAX_BYTES {
            return Err(
                self.unusable(format!("it is full ({MAX_BYTES} bytes): remove old servers"))
            );
        }
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        written.map_err(|error| {
            // A part of a line, for which the disk had room, would be taken for a damaged one.
            if let Err(undo) = file.set_len(text.len() as u64) {
                return self.unusable(format!(
                    "cannot write it: {error}; its last line, which may be damaged, cannot be removed: {undo}"
                ));
            }
            self.failed("write", error)
        })?;
        Ok(true)
    }

    fn entries_of_file(&self, name: &str) -> Result<Vec<(usize, Fingerprint)>, TrustError> {
        self.entries(&self.text()?, name)
    }

    /// The text of the file; none if there is no file.
    fn text(&self) -> Result<String, TrustError> {
        match open(OpenOptions::new().read(true), &self.path) {
            Ok(mut file) => self.read(&mut file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    fn verify(
        &self,
        entries: &[(usize, Fingerprint)],
        name: &str,
        fingerprint: Fingerprint,
    ) -> Result<(), TrustError> {
        let path = self.path.display().to_string();
        match entries.first() {
            None => Err(TrustError::Unknown { name: name.to_owned(), found: fingerprint, path }),
            Some(_) if entries.iter().any(|(_, known)| *known == fingerprint) => Ok(()),
            Some((line, known)) => Err(TrustError::Changed {
                name: name.to_owned(),
                known: *known,
                found: fingerprint,
                path,
                line: *line,
            }),
        }
    }

    /// The recorded fingerprints of a server, with their line numbers from 1.
    fn entries(&self, text: &str, name: &str) -> Result<Vec<(usize, Fingerprint)>, TrustError> {
        let wanted = Server::new(name);
        lines(text)
            .filter(|(_, server, _)| *server == wanted)
            .map(|(number, _, words)| Ok((number, self.fingerprint(number, words)?)))
            .collect()
    }

    /// The fingerprint on a line, from the words after the name.
    fn fingerprint(
        &self,
        number: usize,
        mut words: SplitAsciiWhitespace<'_>,
    ) -> Result<Fingerprint, TrustError> {
        let fingerprint = words.next().and_then(|word| word.strip_prefix(ALGORITHM));
        match (fingerprint.and_then(|hex| hex.parse().ok()), words.next()) {
            (Some(fingerprint), None) => Ok(fingerprint),
            // A damaged line must not turn a known server into an unknown one.
            _ => Err(self.unusable(format!("line {number} is damaged: correct or remove it"))),
        }
    }

    fn read(&self, file: &mut File) -> Result<String, TrustError> {
        let checked = check(file).map_err(|error| self.failed("inspect", error))?;
        let metadata = checked.map_err(|problem| self.unusable(problem))?;
        if metadata.mode() & 0o022 != 0 {
            return Err(self.unusable(
                "others than its owner may write to it: use chmod 600, after you have checked it"
                    .into(),
            ));
        }
        let mut bytes = Vec::new();
        let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.failed("read", error))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(self.unusable(format!("it is longer than {MAX_BYTES} bytes")));
        }
        String::from_utf8(bytes).map_err(|_| self.unusable("it is not text".into()))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> TrustError {
        let problem = format!("cannot {action} it: {source}");
        TrustError::File { path: self.path.display().to_string(), problem }
    }

    fn unusable(&self, problem: String) -> TrustError {
        TrustError::File { path: self.path.display().to_string(), problem }
    }
}

/// A server, by its name: letters of host names have no case, and an address has several texts.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Server {
    Address(SocketAddr),
    Host(String),
}

impl Server {
    fn new(name: &str) -> Self {
        let address = name.parse().map(Self::Address);
        address.unwrap_or_else(|_| Self::Host(name.to_ascii_lowercase()))
    }
}

/// The lines with servers: their numbers from 1, the server, and the words after its name.
fn lines(text: &str) -> impl Iterator<Item = (usize, Server, SplitAsciiWhitespace<'_>)> {
    text.lines().zip(1..).filter_map(|(line, number)| {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().filter(|name| !name.starts_with('#'))?;
        Some((number, Server::new(name), words))
    })
}

/// Whether a name fits on a line of the file.
fn is_valid_name(name: &str) -> bool {
    let is_plain = |char: char| !char.is_whitespace() && !char.is_control();
    !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.starts_with('#')
        && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("openbats-hosts-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn hosts(&self) -> KnownHosts {
            KnownHosts::new(self.0.join("state/known_hosts"))
        }

        fn write(&self, text: impl AsRef<[u8]>) {
            fs::create_dir_all(self.0.join("state")).unwrap();
            fs::write(self.hosts().path(), text).unwrap();
            self.allow(0o600);
        }

        fn allow(&self, mode: u32) {
            fs::set_permissions(self.hosts().path(), fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const A: Fingerprint = Fingerprint([0xaa; 32]);
    const B: Fingerprint = Fingerprint([0xbb; 32]);

    #[test]
    fn a_server_is_recorded_once_and_a_changed_one_is_refused() {
        let scratch = Scratch::new("once");
        let hosts = scratch.hosts();
        assert!(
            hosts.clone().only_known().check("a:1", A).unwrap_err().to_string().contains("a:1")
        );
        assert!(hosts.check("a:1", A).unwrap());
        assert!(!hosts.check("a:1", A).unwrap());
        assert!(!hosts.clone().only_known().check("a:1", A).unwrap());
        assert!(hosts.check("a:2", B).unwrap(), "another port is another server");
        let error = hosts.check("a:1", B).unwrap_err();
        let TrustError::Changed { known, found, line, .. } = &error else { panic!("{error}") };
        assert_eq!((*known, *found, *line), (A, B, 1));
        let text = error.to_string();
        for words in ["a:1", "state/known_hosts", "line 1", &A.to_string(), &B.to_string()] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(fs::metadata(hosts.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(scratch.0.join("state")).unwrap().mode() & 0o777, 0o700);
        assert_eq!(hosts.fingerprints("a:1").unwrap(), [A]);
    }

    #[test]
    fn comments_and_several_fingerprints_are_allowed() {
        let scratch = Scratch::new("lines");
        scratch
            .write(format!("# a:1 x\n\n  a:1\t{ALGORITHM}{A}\na:1 {ALGORITHM}{B}\nb:1 nonsense"));
        let hosts = scratch.hosts();
        assert!(!hosts.check("a:1", A).unwrap() && !hosts.check("a:1", B).unwrap());
        assert!(hosts.check("c:1", B).unwrap(), "a line without an end is completed");
        assert!(hosts.check("b:1", A).unwrap_err().to_string().contains("line 5 is damaged"));
        assert!(!hosts.check("c:1", B).unwrap());
    }

    #[test]
    fn names_have_no_case_and_addresses_have_several_texts() {
        let scratch = Scratch::new("names");
        scratch.write(format!(
            "Node.Example.org:1 {ALGORITHM}{A}\n[2001:DB8:0::7]:1 {ALGORITHM}{A}\n"
        ));
        let hosts = scratch.hosts();
        for name in ["node.example.org:1", "[2001:db8::7]:1"] {
            assert!(!hosts.check(name, A).unwrap(), "{name}");
            let error = hosts.check(name, B).unwrap_err();
            assert!(matches!(error, TrustError::Changed { .. }), "{error}");
        }
        assert!(hosts.check("node.example.org:2", B).unwrap(), "another port");
    }

    #[test]
    fn several_servers_have_the_fingerprints_that_each_of_them_has_alone() {
        let scratch = Scratch::new("several");
        let hosts = scratch.hosts();
        let names = ["a.example:1", "A.Example:1", "[2001:db8::7]:1", "192.0.2.7:1", "none:1"];
        let of_all = || hosts.fingerprints_of(names);
        assert!(of_all().unwrap().values().all(Vec::is_empty), "there is no file");
        scratch.write(format!(
            "# a.example:1 x\n\na.example:1 {ALGORITHM}{A}\n192.0.2.7:1 {ALGORITHM}{B}\nother:1 nonsense\n\
             [2001:DB8:0::7]:1 {ALGORITHM}{B}\na.EXAMPLE:1 {ALGORITHM}{B}\n192.0.2.7:2 {ALGORITHM}{A}\n"
        ));
        let all = of_all().unwrap();
        assert_eq!(
            (all["a.example:1"].as_slice(), all["none:1"].as_slice()),
            (&[A, B][..], &[][..])
        );
        for name in names {
            assert_eq!(all[name], hosts.fingerprints(name).unwrap(), "{name}");
        }
        scratch.write(format!("192.0.2.7:1 {ALGORITHM}{B} x\n"));
        assert!(of_all().unwrap_err().to_string().contains("line 1 is damaged"));
        scratch.allow(0o620);
        assert!(of_all().unwrap_err().to_string().contains("chmod 600"));
    }

    #[test]
    fn unusable_files_and_names_are_refused() {
        let scratch = Scratch::new("unusable");
        let hosts = scratch.hosts();
        let problem = |words: &str| {
            let error = hosts.check("a:1", A).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
        };
        for name in ["", "a b", "a\nb:1", "#a", "a\u{1b}", &"x".repeat(MAX_NAME + 1)] {
            assert!(hosts.check(name, A).is_err(), "{name:?}");
        }
        assert!(!hosts.path().exists());
        scratch.write("");
        scratch.allow(0o620);
        problem("chmod 600");
        scratch.write([0xff]);
        problem("not text");
        scratch.write(vec![b'\n'; MAX_BYTES as usize]);
        problem("full");
        scratch.write(vec![b'\n'; MAX_BYTES as usize + 1]);
        problem("longer");
        fs::remove_file(hosts.path()).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            hosts.path(),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        problem("not a regular file");
        fs::remove_file(hosts.path()).unwrap();
        fs::create_dir(hosts.path()).unwrap();
        assert!(hosts.check("a:1", A).is_err());
    }

    #[test]
    fn concurrent_writers_record_each_server_once() {
        let scratch = Scratch::new("concurrent");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let hosts = scratch.hosts();
                scope.spawn(move || {
                    for number in 0..20_u8 {
                        let number = (number + writer) % 20;
                        let name = format!("host{number}:1");
                        hosts.check(&name, Fingerprint([number; 32])).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(scratch.hosts().path()).unwrap();
        let mut names: Vec<&str> =
            text.lines().map(|line| line.split(' ').next().unwrap()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), text.lines().count()), (20, 20), "{text}");
    }

    #[test]
    fn ipv6_addresses_are_recorded_in_brackets() {
        let hosts = KnownHosts::new("x");
        assert_eq!(hosts.name_of("::1", 7), "[::1]:7");
        assert_eq!(hosts.name_of("a.b", 7), "a.b:7");
        assert_eq!(hosts.name("c").name_of("a.b", 7), "c");
    }
}
