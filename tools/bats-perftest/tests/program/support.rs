//! Publishers and subscribers as processes on loopback.

use std::io::Read;
use std::net::UdpSocket;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bats_perftest");

/// The program, with a state directory of this test run: subscribers share an identity in it, and
/// publishers record them.
pub(crate) fn program() -> Command {
    static STATE: OnceLock<PathBuf> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("state-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    });
    let mut command = Command::new(PROGRAM);
    command.env("XDG_STATE_HOME", state);
    command
}

/// Domains whose ports are below the ephemeral ports of the system.
const FIRST_DOMAIN: u32 = 2;
const DOMAINS: u32 = 98;
/// Version of the messages that set up a test.
const VERSION: u32 = 2;
/// A port of a domain that the program does not use.
const FREE_OFFSET: u16 = 9;

/// A domain that no other test uses, also not one of another run of the tests at the same time, until this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Domain {
    number: String,
    _reserved: Vec<UdpSocket>,
}

impl Deref for Domain {
    type Target = str;

    fn deref(&self) -> &str {
        &self.number
    }
}

/// A domain for one test.
pub(crate) fn domain() -> Domain {
    domains(1)
}

/// The first of `count` domains in a row, all of them reserved.
pub(crate) fn domains(count: u32) -> Domain {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let bind = |number: u32, offset| {
        UdpSocket::bind(("127.0.0.1", port(&number.to_string(), offset))).ok()
    };
    let reserve = |number: u32| {
        // Also programs that were not started by a test may use a domain: subscribers 0 and 1, publisher 0.
        [12, 14, 11].iter().all(|&offset| bind(number, offset).is_some()).then_some(())?;
        bind(number, FREE_OFFSET)
    };
    for _ in 0..6_000 {
        let turn = std::process::id() * 37 + NEXT.fetch_add(count, Ordering::Relaxed);
        let first = FIRST_DOMAIN + turn % (DOMAINS - count + 1);
        if let Some(reserved) = (first..first + count).map(reserve).collect() {
            return Domain { number: first.to_string(), _reserved: reserved };
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no {count} free domains in a minute");
}

/// A running program; killed when dropped.
pub(crate) struct Program {
    child: Child,
    output: Stream,
    errors: Stream,
}

/// Reads an output as it is written.
struct Stream {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Stream {
    fn start(mut source: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(length @ 1..) = source.read(&mut bytes) {
                sink.lock().unwrap().extend_from_slice(&bytes[..length]);
            }
        });
        Self { text, thread: Some(thread) }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    fn all(&mut self) -> String {
        self.thread.take().unwrap().join().unwrap();
        self.so_far()
    }
}

/// What a program has printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Program {
    /// Starts the program on loopback with these words.
    pub(crate) fn start(domain: &str, words: &str) -> Self {
        Self::of(program(), domain, words)
    }

    /// Starts this command, the program with its environment, likewise.
    pub(crate) fn of(mut command: Command, domain: &str, words: &str) -> Self {
        let mut child = command
            .args(["-domain", domain, "-nic", "127.0.0.1"])
            .args(words.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Stream::start(child.stdout.take().unwrap());
        let errors = Stream::start(child.stderr.take().unwrap());
        Self { child, output, errors }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the tables contain this text, at most a minute.
    pub(crate) fn wait_for(&self, text: &str) {
        for _ in 0..6_000 {
            if self.output.so_far().contains(text) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no '{text}': {}", self.errors.so_far());
    }

    /// Waits until standard error contains this text, at most a minute.
    pub(crate) fn wait_for_errors(&self, text: &str) {
        for _ in 0..6_000 {
            if self.errors.so_far().contains(text) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("no '{text}': {}", self.errors.so_far());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the end, at most a minute.
    pub(crate) fn end(self) -> Ended {
        self.end_within(Duration::from_secs(60))
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
    }

    /// Waits for the end; killed at the limit.
    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        for _ in 0..limit.as_millis() / 10 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Ended {
                    code: status.code(),
                    output: self.output.all(),
                    errors: self.errors.all(),
                };
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        // As after an error, so that what the other side says is shown, too.
        let errors = format!("no end: {}", self.errors.all());
        Ended { code: None, output: self.output.all(), errors }
    }

    /// Waits for a successful end.
    pub(crate) fn success(self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a publisher and a subscriber, both successfully.
pub(crate) fn run(both: &str, publisher: &str, subscriber: &str) -> (Ended, Ended) {
    let domain = domain();
    let subscriber = Program::start(&domain, &format!("-sub {both} {subscriber}"));
    let publisher = Program::start(&domain, &format!("-pub {both} {publisher}"));
    // If the other one cannot start, that is the reason.
    let publisher = publisher.end();
    let subscriber = subscriber.end();
    assert_eq!(
        (publisher.code, subscriber.code),
        (Some(0), Some(0)),
        "{publisher:?} {subscriber:?}"
    );
    (publisher, subscriber)
}

/// Port of a domain.
pub(crate) fn port(domain: &str, offset: u16) -> u16 {
    7_400 + 250 * domain.parse::<u16>().unwrap() + offset
}

/// A sample, or a control message, as the format says.
pub(crate) fn message(words: [u32; 6], body: &[u8]) -> Vec<u8> {
    let words = words.into_iter().chain([body.len() as u32]);
    words.flat_map(u32::to_le_bytes).chain(body.iter().copied()).collect()
}

/// A hello message.
pub(crate) fn hello(domain: &str, publisher: u32) -> Vec<u8> {
    let mut body = b"BATSPERF".to_vec();
    for word in [VERSION, domain.parse().unwrap(), 100, 1] {
        body.extend_from_slice(&u32::to_le_bytes(word));
    }
    body.extend_from_slice(&7u64.to_le_bytes());
    body.push(0);
    body.extend_from_slice(&1u32.to_le_bytes());
    message([0, publisher, 0, 0, 0, -2i32 as u32], &body)
}

/// An announcement of a subscriber.
pub(crate) fn announcement(domain: &str, subscriber: u32, process: u64, port: u16) -> Vec<u8> {
    let mut body = b"BATSPERF".to_vec();
    for word in [VERSION, domain.parse().unwrap(), port.into()] {
        body.extend_from_slice(&u32::to_le_bytes(word));
    }
    body.extend_from_slice(&process.to_le_bytes());
    message([subscriber, 0, 0, 0, 0, -3i32 as u32], &body)
}

/// An end mark after this number of samples.
pub(crate) fn end_mark(samples: u32) -> Vec<u8> {
    message([0, 0, 0, samples, 0, -6i32 as u32], &[])
}

/// The cells of the last line.
pub(crate) fn summary(table: &str) -> Vec<f64> {
    let line = table.lines().next_back().unwrap_or_default();
    line.split(',').map(|cell| cell.trim().parse().unwrap_or(f64::NAN)).collect()
}

/// A temporary directory; removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("bats-perftest-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pseudo-random bytes.
pub(crate) fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}
