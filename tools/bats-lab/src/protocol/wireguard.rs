//! wireguard-go as a protocol: a tunnel device on each host where a flow begins or ends. It is configured over its socket,
//! in the text protocol of <https://www.wireguard.com/xplatform/>.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use aws_lc_rs::agreement::{PrivateKey, X25519};
use aws_lc_rs::encoding::{AsBigEndian, Curve25519SeedBin};

use super::programs;
use crate::interrupt;
use crate::netlink::{Socket, add_address, interface_index, set_mtu, set_up};

/// Where wireguard-go has its sockets. The folder is the same for all hosts: they share the file system.
const SOCKETS: &str = "/var/run/wireguard";
const TUN: &str = "/dev/net/tun";
/// Default port and MTU of WireGuard, on paths with an MTU of 1500.
const PORT: u16 = 51820;
const MTU: u32 = 1420;
/// A packet of the lower host opens the session; later ones come this rarely, in seconds.
const KEEPALIVE: u32 = 25;
/// Maximum time until all sessions are open. A lost handshake is repeated after five seconds.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time of one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer: a peer takes some 400 bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// The address of a host in the tunnel. Nodes have other addresses, so both can run at the same time.
pub(crate) fn address(host: u32) -> Ipv4Addr {
    let [_, _, high, low] = (host + 1).to_be_bytes();
    Ipv4Addr::new(10, 67, high, low)
}

/// The tunnel devices of all ends, each of which is a peer of all others.
pub(crate) struct Tunnels {
    program: PathBuf,
    ends: Vec<End>,
}

/// A host with a tunnel device.
struct End {
    host: u32,
    /// Address and port at which the others reach it.
    endpoint: SocketAddr,
    /// Name of the device and of its socket.
    interface: String,
    private_key: String,
    public_key: String,
}

impl Tunnels {
    /// Makes keys and names for these hosts, given with their addresses.
    ///
    /// # Errors
    /// Something is not installed here, or not allowed; the error says what to do.
    pub(crate) fn prepare(hosts: &[(u32, IpAddr)]) -> Result<Self> {
        let program = programs::wireguard_go().with_context(programs::no_wireguard_go)?;
        if !Path::new(TUN).exists() {
            bail!(
                "wireguard-go needs {TUN}, which is missing: load the kernel module with modprobe tun"
            );
        }
        fs::create_dir_all(SOCKETS).with_context(|| {
            format!("wireguard-go needs the folder {SOCKETS} for its socket: run batslab as root")
        })?;
        let ends = hosts.iter().map(|&(host, address)| End::new(host, address));
        Ok(Self { program, ends: ends.collect::<Result<_>>()? })
    }

    /// The hosts that run a daemon, and its command line.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (u32, Vec<String>)> + '_ {
        let program = self.program.to_string_lossy();
        self.ends.iter().map(move |end| {
            (end.host, vec![program.clone().into_owned(), "-f".to_owned(), end.interface.clone()])
        })
    }

    /// Gives the running daemon of a host its keys and peers; false if it does not listen yet.
    ///
    /// # Errors
    /// The daemon refuses them.
    pub(crate) fn configure(&self, host: u32) -> Result<bool> {
        let end = self.end(host)?;
        let stream = match UnixStream::connect(end.socket()) {
            Ok(stream) => stream,
            Err(error) if is_absent(&error) => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot reach {}", end.name()));
            }
        };
        ask(stream, &self.configuration(end)).map(|_| true).with_context(|| end.name())
    }

    /// Gives the device of a host its address and brings it up. Must run in the network namespace of the host.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn set_up_device(&self, host: u32) -> Result<()> {
        let end = self.end(host)?;
        let set = || -> io::Result<()> {
            let mut socket = Socket::route()?;
            let index = interface_index(&end.interface)?;
            set_mtu(&mut socket, &end.interface, MTU)?;
            add_address(&mut socket, index, address(host).into(), 16)?;
            set_up(&mut socket, &end.interface)
        };
        set().with_context(|| format!("cannot set up the device of {}", end.name()))
    }

    /// Waits until all sessions are open.
    ///
    /// # Errors
    /// They are not in time.
    pub(crate) fn wait_until_open(&self) -> Result<()> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        for end in &self.ends {
            while !self.is_open(end)? {
                if Instant::now() > deadline {
                    bail!("the sessions of {} are not open: no handshake in time", end.name());
                }
                interrupt::check()?;
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Whether the sessions that this end opens are open.
    fn is_open(&self, end: &End) -> Result<bool> {
        let stream = UnixStream::connect(end.socket())
            .with_context(|| format!("cannot reach {}", end.name()))?;
        let answer = ask(stream, "get=1\n\n").with_context(|| end.name())?;
        let open = open_sessions(&answer);
        let mut opened = self.ends.iter().filter(|other| end.opens(other));
        Ok(opened.all(|other| open.contains(other.public_key.as_str())))
    }

    fn end(&self, host: u32) -> Result<&End> {
        let found = self.ends.iter().find(|end| end.host == host);
        found.with_context(|| format!("node {host} has no tunnel"))
    }

    /// The request that configures an end.
    fn configuration(&self, end: &End) -> String {
        let mut text = format!("set=1\nprivate_key={}\nlisten_port={PORT}\n", end.private_key);
        for other in self.ends.iter().filter(|other| other.host != end.host) {
            let _ = write!(
                text,
                "public_key={}\nendpoint={}\nallowed_ip={}/32\n",
                other.public_key,
                other.endpoint,
                address(other.host)
            );
            if end.opens(other) {
                let _ = writeln!(text, "persistent_keepalive_interval={KEEPALIVE}");
            }
        }
        text.push('\n');
        text
    }
}

impl End {
    fn new(host: u32, address: IpAddr) -> Result<Self> {
        let (private_key, public_key) = keys()?;
        // Names of interfaces have at most 15 bytes.
        let mut random = [0; 6];
        getrandom::fill(&mut random).map_err(|error| anyhow!("no random numbers: {error}"))?;
        let interface = format!("wg{}", hex(&random));
        let endpoint = SocketAddr::new(address, PORT);
        Ok(Self { host, endpoint, interface, private_key, public_key })
    }

    fn socket(&self) -> PathBuf {
        Path::new(SOCKETS).join(format!("{}.sock", self.interface))
    }

    fn name(&self) -> String {
        format!("wireguard-go of node {}", self.host)
    }

    /// Whether this end opens the session with the other one.
    fn opens(&self, other: &Self) -> bool {
        self.host < other.host
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // A daemon that is killed leaves it.
        let _ = fs::remove_file(self.socket());
    }
}

/// A private key and its public key, in hex.
fn keys() -> Result<(String, String)> {
    let failed = |_| anyhow!("cannot make a key for wireguard-go");
    let private = PrivateKey::generate(&X25519).map_err(failed)?;
    let public = private.compute_public_key().map_err(failed)?;
    let private: Curve25519SeedBin<'_> = private.as_be_bytes().map_err(failed)?;
    Ok((hex(private.as_ref()), hex(public.as_ref())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether nothing listens at a socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Sends a request and returns the lines of the answer, as keys and values without the errno.
fn ask(mut stream: UnixStream, request: &str) -> Result<Vec<(String, String)>> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(request.as_bytes()).context("cannot send a request")?;
    let mut stream = stream.take(MAX_ANSWER);
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    // The connection stays open: an empty line ends the answer.
    while !answer.ends_with(b"\n\n") {
        let rest = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.get_ref().set_read_timeout(Some(rest))?;
        let count = stream.read(&mut part).context("no answer")?;
        if count == 0 {
            bail!("the answer has no end");
        }
        answer.extend_from_slice(part.get(..count).unwrap_or_default());
    }
    parse_answer(&String::from_utf8_lossy(&answer))
}

/// Keys and values of an answer.
///
/// # Errors
/// It reports an error, or is no answer.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn parse_answer(text: &str) -> Result<Vec<(String, String)>> {
    let (mut values, mut errno) = (Vec::new(), None);
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (key, value) =
            line.split_once('=').with_context(|| format!("no `=` in the answer `{line}`"))?;
        if key == "errno" {
            let number: i32 =
                value.parse().with_context(|| format!("the errno `{value}` is no number"))?;
            errno = Some(number);
        } else {
            values.push((key.to_owned(), value.to_owned()));
        }
    }
    match errno.context("the answer has no errno")? {
        0 => Ok(values),
        // wireguard-go reports negative numbers.
        number => {
            let number = i32::try_from(number.unsigned_abs()).unwrap_or_default();
            bail!("the request failed: {}", io::Error::from_raw_os_error(number))
        }
    }
}

/// The public keys of peers with which there was a handshake.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn open_sessions(answer: &[(String, String)]) -> BTreeSet<&str> {
    let (mut open, mut peer) = (BTreeSet::new(), "");
    for (key, value) in answer {
        match key.as_str() {
            "public_key" => peer = value,
            "last_handshake_time_sec" if value.parse::<u64>().is_ok_and(|time| time > 0) => {
                open.insert(peer);
            }
            _ => {}
        }
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tunnels(hosts: &[u32]) -> Tunnels {
        let address = |host: u32| IpAddr::from([10, 1, 0, host as u8]);
        let ends = hosts.iter().map(|&host| End::new(host, address(host)).unwrap()).collect();
        Tunnels { program: "wireguard-go".into(), ends }
    }

    #[test]
    fn each_end_knows_all_others_and_the_lower_one_opens_the_session() {
        let tunnels = tunnels(&[0, 2, 300]);
        let [first, second, third] = tunnels.ends.as_slice() else { panic!("three ends") };
        let text = tunnels.configuration(second);
        let expected = format!(
            "set=1\nprivate_key={}\nlisten_port=51820\n\
             public_key={}\nendpoint=10.1.0.0:51820\nallowed_ip=10.67.0.1/32\n\
             public_key={}\nendpoint=10.1.0.44:51820\nallowed_ip=10.67.1.45/32\n\
             persistent_keepalive_interval=25\n\n",
            second.private_key, first.public_key, third.public_key
        );
        assert_eq!(text, expected);
        assert_eq!(tunnels.configuration(third).matches("keepalive").count(), 0);
    }

    #[test]
    fn keys_and_names_are_fresh_and_fit() {
        let (one, other) = (tunnels(&[0, 1]), tunnels(&[0, 1]));
        let ends: Vec<&End> = one.ends.iter().chain(&other.ends).collect();
        let all = |of: fn(&End) -> &str| ends.iter().map(|end| of(end)).collect::<BTreeSet<_>>();
        assert_eq!(all(|end| &end.interface).len(), 4);
        assert_eq!(all(|end| &end.private_key).len(), 4);
        for end in &ends {
            assert!(end.interface.len() <= 15, "{}", end.interface);
            assert_eq!((end.private_key.len(), end.public_key.len()), (64, 64));
        }
        // Both ends of a pair agree on a secret.
        let bytes = |text: &str| -> Vec<u8> {
            let digits = text.as_bytes().chunks(2);
            digits
                .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
                .collect()
        };
        let secret = |private: &str, public: &str| {
            let private = PrivateKey::from_private_key(&X25519, &bytes(private)).unwrap();
            let public = aws_lc_rs::agreement::UnparsedPublicKey::new(&X25519, bytes(public));
            aws_lc_rs::agreement::agree(&private, public, (), |secret| Ok(secret.to_vec())).unwrap()
        };
        let (a, b) = (ends[0], ends[1]);
        assert_eq!(secret(&a.private_key, &b.public_key), secret(&b.private_key, &a.public_key));
    }

    #[test]
    fn commands_run_in_the_foreground_with_a_device_for_each_host() {
        let tunnels = tunnels(&[0, 3]);
        let commands: Vec<_> = tunnels.commands().collect();
        for ((host, words), end) in commands.iter().zip(&tunnels.ends) {
            assert_eq!(*host, end.host);
            assert_eq!(words, &["wireguard-go", "-f", end.interface.as_str()]);
            assert!(!words.iter().any(|word| word.contains(&end.private_key)));
        }
        assert!(tunnels.end(1).is_err());
    }

    #[test]
    fn answers_have_values_or_an_error() {
        let values = parse_answer("listen_port=51820\nfwmark=0\nerrno=0\n\n").unwrap();
        assert_eq!(values, [("listen_port".into(), "51820".into()), ("fwmark".into(), "0".into())]);
        assert!(parse_answer("errno=0\n\n").unwrap().is_empty());
        for (text, words) in [
            ("errno=-22\n\n", "Invalid argument"),
            ("errno=22\n\n", "Invalid argument"),
            ("errno=-2147483648\n\n", "the request failed"),
            ("errno=99999999999\n\n", "is no number"),
            ("listen_port=1\n\n", "has no errno"),
            ("errno\n\n", "no `=`"),
            ("", "has no errno"),
        ] {
            let error = format!("{:#}", parse_answer(text).expect_err(text));
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn sessions_are_open_after_a_handshake() {
        let text = "private_key=00\nlisten_port=1\n\
            public_key=aa\nlast_handshake_time_sec=0\nlast_handshake_time_nsec=0\n\
            public_key=bb\nlast_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\n\
            public_key=cc\nlast_handshake_time_sec=x\nerrno=0\n\n";
        let answer = parse_answer(text).unwrap();
        assert_eq!(open_sessions(&answer), BTreeSet::from(["bb"]));
    }

    #[test]
    fn answers_are_read_to_their_empty_line() {
        let ask_of = |parts: &'static [&'static str]| {
            let (near, mut far) = UnixStream::pair().unwrap();
            let peer = std::thread::spawn(move || {
                let mut request = [0; 7];
                far.read_exact(&mut request).unwrap();
                for part in parts {
                    far.write_all(part.as_bytes()).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
                // The end without an empty line is seen when the connection ends.
                request
            });
            let answer = ask(near, "get=1\n\n");
            assert_eq!(&peer.join().unwrap(), b"get=1\n\n");
            answer
        };
        let answer = ask_of(&["listen_po", "rt=7\nerrno=0\n", "\n"]).unwrap();
        assert_eq!(answer, [("listen_port".to_owned(), "7".to_owned())]);
        let error = ask_of(&["listen_port=7\n"]).unwrap_err();
        assert!(error.to_string().contains("has no end"), "{error}");
    }
}
