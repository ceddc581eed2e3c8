//! Traffic that a test sends while it does harm: numbered datagrams that are echoed, and a numbered TCP stream.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Time between two datagrams, and between two records of the stream.
const INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of a datagram, and of a record: 0.8 and 3.2 Mbit/s.
const DATAGRAM: usize = 500;
const RECORD: usize = 2_000;
/// Longest wait in a call, so that threads end.
const CALL: Duration = Duration::from_millis(100);

/// Whether tests run with their full counts, which take minutes.
pub(crate) fn is_long() -> bool {
    std::env::var_os("OPENBATS_TEST_LONG").is_some_and(|value| value == "1")
}

/// Runs code on a thread in a network namespace: sockets that it opens stay there.
pub(crate) fn enter<T: Send + 'static>(
    namespace: File,
    run: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::spawn(move || {
        rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
        run()
    })
}

/// Times in milliseconds, sorted by size.
#[derive(Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e3);
        self.0.sort_by(f64::total_cmp);
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// Prints the times, and asserts a bound on the median: the worst ones also show what else the host does. The first
    /// bound is the goal, for long runs. A short run has few times, which other tests of a busy host delay: the second
    /// bound is weaker, half of the times may exceed it, and none four times of it.
    pub(crate) fn report(&self, what: &str, [goal, short]: [Duration; 2]) {
        eprintln!("{what}: {}", self.summary());
        let (time, bound) = match is_long() {
            true => (self.median(), goal),
            false => (self.0[(self.0.len() - 1) / 2], short),
        };
        let bound = bound.as_secs_f64() * 1e3;
        assert!(time <= bound, "{what}: half take at least {time:.0} ms, not {bound:.0}");
        let worst = self.worst();
        assert!(is_long() || worst <= 4.0 * bound, "{what}: one takes {worst:.0} ms");
    }

    fn worst(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// Median, a high quantile and the maximum, for people.
    pub(crate) fn summary(&self) -> String {
        let high = self.0[self.0.len() * 95 / 100];
        let count = self.0.len();
        format!(
            "{count} times: median {:.0} ms, 95 % {high:.0} ms, worst {:.0} ms",
            self.median(),
            self.worst()
        )
    }
}

/// What has arrived. Messages have their number and the time at which they were sent.
pub(crate) struct Seen {
    start: Instant,
    /// Nothing more is sent, and threads end.
    is_ending: AtomicBool,
    is_over: AtomicBool,
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) reordered: AtomicU64,
    /// Connections that broke.
    pub(crate) broken: AtomicU64,
    /// When the newest message that has arrived was sent, in microseconds from the start.
    newest: AtomicU64,
    numbers: Mutex<Vec<bool>>,
}

impl Seen {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            is_ending: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            reordered: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            numbers: Mutex::default(),
        })
    }

    fn micros(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.start).as_micros() as u64
    }

    fn next(&self, length: usize) -> Vec<u8> {
        let mut message = vec![0x5a; length];
        message[..8].copy_from_slice(&self.sent.fetch_add(1, Relaxed).to_be_bytes());
        message[8..16].copy_from_slice(&self.micros(Instant::now()).to_be_bytes());
        message
    }

    fn take(&self, message: &[u8]) {
        let word = |at: usize| u64::from_be_bytes(message[at..at + 8].try_into().unwrap());
        let number = word(0) as usize;
        assert!(message[16..].iter().all(|byte| *byte == 0x5a), "message {number} is damaged");
        let mut numbers = self.numbers.lock().unwrap();
        if numbers.len() <= number {
            numbers.resize(number + 1, false);
        } else if !numbers[number] {
            self.reordered.fetch_add(1, Relaxed);
        }
        if std::mem::replace(&mut numbers[number], true) {
            self.duplicates.fetch_add(1, Relaxed);
        } else {
            self.received.fetch_add(1, Relaxed);
        }
        self.newest.fetch_max(word(8), Relaxed);
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Messages sent that have not arrived.
    pub(crate) fn missing(&self) -> u64 {
        self.sent.load(Relaxed).saturating_sub(self.received.load(Relaxed))
    }

    /// Waits until a message that was sent after this time has arrived. Returns how long after it.
    pub(crate) fn wait_for_message_after(
        &self,
        what: &str,
        at: Instant,
        limit: Duration,
    ) -> Duration {
        let mark = self.micros(at) + 1;
        while self.newest.load(Relaxed) < mark {
            assert!(at.elapsed() < limit, "no traffic within {limit:?}: {what}");
            sleep(Duration::from_millis(1));
        }
        at.elapsed()
    }

    pub(crate) fn summary(&self) -> String {
        let value = |counter: &AtomicU64| counter.load(Relaxed);
        format!(
            "{} sent, {} missing, {} duplicates, {} reordered, {} broken connections",
            value(&self.sent),
            self.missing(),
            value(&self.duplicates),
            value(&self.reordered),
            value(&self.broken),
        )
    }
}

/// Traffic that goes on until this is dropped.
pub(crate) struct Traffic {
    pub(crate) seen: Arc<Seen>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Sends datagrams from one namespace to this address, and gets them back from a program in the other one.
    pub(crate) fn echoed(from: File, to: File, at: &str) -> Self {
        let at: SocketAddr = at.parse().unwrap();
        let any = SocketAddr::new(if at.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() }, 0);
        let seen = Seen::new();
        let open = move |port| {
            move || {
                let socket = UdpSocket::bind(SocketAddr::new(any.ip(), port)).unwrap();
                socket.set_read_timeout(Some(CALL)).unwrap();
                socket
            }
        };
        let server = enter(to, open(at.port())).join().unwrap();
        let client = enter(from, open(0)).join().unwrap();
        let sender = client.try_clone().unwrap();
        let (over, sending, receiving) = (seen.clone(), seen.clone(), seen.clone());
        let threads = vec![
            thread::spawn(move || {
                let mut buffer = [0; DATAGRAM];
                while !over.is_over() {
                    if let Ok((length, from)) = server.recv_from(&mut buffer) {
                        let _ = server.send_to(&buffer[..length], from);
                    }
                }
            }),
            thread::spawn(move || {
                while !sending.is_ending() {
                    // Without a route there is an error.
                    let _ = sender.send_to(&sending.next(DATAGRAM), at);
                    sleep(INTERVAL);
                }
            }),
            thread::spawn(move || {
                let mut buffer = [0; DATAGRAM];
                while !receiving.is_over() {
                    if client.recv(&mut buffer).is_ok_and(|length| length == DATAGRAM) {
                        receiving.take(&buffer);
                    }
                }
            }),
        ];
        Self { seen, threads }
    }

    /// Sends records over a TCP connection to this address, where a program reads them. After a broken
    /// connection, there is a new one.
    pub(crate) fn stream(from: File, to: File, at: &str) -> Self {
        let at: SocketAddr = at.parse().unwrap();
        Self::stream_to(from, to, at, at)
    }

    /// As [`stream`](Self::stream), if a program reads at another address than clients connect to.
    pub(crate) fn stream_to(from: File, to: File, at: SocketAddr, server: SocketAddr) -> Self {
        let seen = Seen::new();
        // The address may not be there yet, or not any more.
        let any = if server.ip().is_loopback() { server.ip() } else { [0; 4].into() };
        let listen = move || TcpListener::bind(SocketAddr::new(any, server.port())).unwrap();
        let listener = enter(to, listen).join().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (reading, writing) = (seen.clone(), seen.clone());
        let threads = vec![
            thread::spawn(move || {
                let mut readers = Vec::new();
                while !reading.is_over() {
                    if let Ok((stream, _)) = listener.accept() {
                        let seen = reading.clone();
                        readers.push(thread::spawn(move || read_records(&seen, &stream)));
                    }
                    sleep(Duration::from_millis(1));
                }
                readers.into_iter().for_each(|reader| reader.join().unwrap());
            }),
            enter(from, move || {
                while !writing.is_ending() {
                    match TcpStream::connect_timeout(&at, Duration::from_secs(5)) {
                        Ok(stream) => write_records(&writing, &stream),
                        Err(_) => sleep(INTERVAL),
                    }
                }
            }),
        ];
        Self { seen, threads }
    }

    /// Ends the traffic once all has arrived, or after this time. Returns what has arrived.
    pub(crate) fn end(mut self, limit: Duration) -> Arc<Seen> {
        self.seen.is_ending.store(true, Relaxed);
        let start = Instant::now();
        // A message may be under way to be sent.
        sleep(4 * INTERVAL);
        while self.seen.missing() > 0 && start.elapsed() < limit {
            sleep(INTERVAL);
        }
        self.stop();
        self.seen.clone()
    }

    fn stop(&mut self) {
        self.seen.is_ending.store(true, Relaxed);
        self.seen.is_over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let result = thread.join();
            assert!(result.is_ok() || thread::panicking(), "a thread of the traffic has failed");
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_no_end(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn read_records(seen: &Seen, mut stream: &TcpStream) {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(CALL)).unwrap();
    let (mut record, mut filled) = ([0; RECORD], 0);
    while !seen.is_over() {
        match stream.read(&mut record[filled..]) {
            Ok(0) => return,
            Ok(length) => filled += length,
            // ETIMEDOUT of the connection itself has no kind of its own: the writer counts it.
            Err(error) if is_no_end(&error) => {}
            Err(_) => return,
        }
        if filled == RECORD {
            seen.take(&record);
            filled = 0;
        }
    }
}

fn write_records(seen: &Seen, mut stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(CALL)).unwrap();
    // A connection whose peer is gone ends when data arrives there again.
    let has_ended = || {
        let mut byte = [0];
        stream.set_nonblocking(true).unwrap();
        let result = stream.peek(&mut byte);
        stream.set_nonblocking(false).unwrap();
        match result {
            Ok(_) => true,
            Err(error) => !is_no_end(&error),
        }
    };
    while !seen.is_ending() {
        let record = seen.next(RECORD);
        let mut written = 0;
        while written < RECORD && !seen.is_over() {
            match stream.write(&record[written..]) {
                Ok(length) => written += length,
                Err(error) if is_no_end(&error) && !has_ended() => {}
                Err(_) => {
                    seen.broken.fetch_add(1, Relaxed);
                    return;
                }
            }
        }
        if has_ended() {
            seen.broken.fetch_add(1, Relaxed);
            return;
        }
        sleep(INTERVAL);
    }
}
