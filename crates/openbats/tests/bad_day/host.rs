//! Faults of the host and its processes: clock, stopped processes, file descriptors, disk.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use openbats::file::{self, FileError, Receiver};
use openbats::{
    ClientOptions, Connection, Endpoint, Fingerprint, Identity, KnownHosts, Mode, ServerOptions,
    SessionStore, TransportConfig, Trust, Wait,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use socket2::{Domain, Socket, Type};
use tracing_subscriber::fmt::MakeWriter;

use crate::network::{FAR, FarHost, hosts, run};
use crate::transfer::{Sender, Transfer, connect, connect_with, receive, serve};
use crate::{CASE, LIMIT, wait_until};

/// Makes a child process the peer of [`peer_stopped`].
pub(crate) const PEER: &str = "peer that is stopped";

/// The peer stops for 20 s, as in a debugger or a frozen container, and continues.
pub(crate) fn peer_stopped() {
    let far = hosts();
    let mut child = far.run(|| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([crate::TEST, "--exact", "--nocapture"]).env(CASE, PEER);
        command.stdout(Stdio::piped()).spawn().unwrap()
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = |key: &str| lines.find_map(|line| Some(line.strip_prefix(key)?.to_owned()));
    let fingerprint = next("fingerprint ").unwrap().parse().unwrap();
    let address: SocketAddr = next("address ").unwrap().parse().unwrap();
    let client = Endpoint::builder().start().unwrap();
    let near = connect(&client, address, fingerprint);

    // A stopped peer sends nothing.
    let received = Arc::new(AtomicU64::new(0));
    let (counted, statistics) = (received.clone(), near.clone());
    thread::spawn(move || {
        loop {
            counted.store(statistics.stats().packets.received, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
    });
    let transfer = Transfer::over((near.clone(), near), received, None);
    let id = Pid::from_child(&child);
    let signal = |signal| kill_process(id, signal).unwrap();
    let is_running = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        !status.contains("State:\tT")
    };
    let (stop, go_on) = (|| signal(Signal::STOP), || signal(Signal::CONT));
    transfer.outage(&is_running, Duration::from_secs(20), stop, go_on);
    let sent = blake3::Hash::from(transfer.finish_sending()).to_string();
    assert_eq!(next("received "), Some(sent), "the receiver got what was sent");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The peer of [`peer_stopped`].
pub(crate) fn peer() {
    let identity = Identity::generate(&["far"]).unwrap();
    println!("\nfingerprint {}", identity.fingerprint());
    let address = format!("{FAR}:0").parse().unwrap();
    let server = Endpoint::builder().bind(address).server(ServerOptions::new(identity));
    let server = server.start().unwrap();
    println!("address {}", server.local_addr());
    let connection = server.accept().wait_for(LIMIT).unwrap().unwrap();
    let (receiving, _) = receive(connection);
    println!("received {}", blake3::Hash::from(receiving.join().unwrap()));
    // The last acknowledgement may be lost: answer until the test ends this process.
    thread::sleep(LIMIT);
}

/// Where the clock's offset is for libfaketime(1). The clock of the host stays as it is.
fn offset_file() -> PathBuf {
    let parent = std::env::var("OPENBATS_BAD_DAY_OFFSET");
    parent.map_or_else(
        |_| std::env::temp_dir().join(format!("openbats-offset-{}", std::process::id())),
        PathBuf::from,
    )
}

/// Lets a process read a clock that [`clock_stepped`] steps.
pub(crate) fn preload_stepped_clock(command: &mut Command) {
    let folders = fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path());
    let libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let library =
        libraries.into_iter().find(|path| path.exists()).expect("the library of faketime");
    fs::write(offset_file(), "+0s\n").unwrap();
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", offset_file());
    command.env("OPENBATS_BAD_DAY_OFFSET", offset_file());
    // As a step does: the monotonic clock goes on.
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// An hour ahead, and then an hour back beyond the start: the transfer goes on, and new connections work,
/// also those that resume a session of the other time.
#[expect(clippy::disallowed_methods, reason = "the test is about this clock")]
pub(crate) fn clock_stepped() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Near);
    let (server, fingerprint) = serve(&far, FAR);
    let client = Endpoint::builder().start().unwrap();
    let store = SessionStore::new(8);
    let reconnect = || {
        let options = ClientOptions::new(Trust::fingerprint(fingerprint)).sessions(&store);
        let to = server.local_addr();
        let near =
            client.connect(to, "far", options).wait_for(LIMIT).unwrap().expect("a connection");
        let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
        // The ticket arrives after the handshake.
        far.send("ticket before this").wait_for(LIMIT).unwrap().unwrap();
        near.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        near.stats().resumed
    };
    assert!(!reconnect() && reconnect(), "the second connection resumes the session of the first");
    transfer.await_progress();
    let hour = Duration::from_secs(3_600);
    for (offset, is_later) in [("+1h\n", true), ("-1h\n", false)] {
        let before = SystemTime::now();
        fs::write(offset_file(), offset).unwrap();
        let after = SystemTime::now();
        let step =
            if is_later { after.duration_since(before) } else { before.duration_since(after) };
        assert!(step.expect("a step") > hour - Duration::from_secs(60), "the clock was stepped");
        transfer.resumes_in_time();
        reconnect();
        thread::sleep(Duration::from_secs(3));
        transfer.resumes_in_time();
    }
    transfer.finish();
    let _ = fs::remove_file(offset_file());
}

/// Open connections go on, and what needs a file descriptor fails with the system's words, until there are
/// some again.
pub(crate) fn out_of_file_descriptors() {
    const WORDS: &str = "Too many open files";
    // Connections wait without data for as long as a busy host takes for the others.
    let waiting = || TransportConfig { idle_timeout: LIMIT, ..TransportConfig::default() };
    let log = Log::start();
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Near);
    let directory = Scratch::new("files");
    let source = directory.file("source", 1 << 20);
    let incoming = Receiver::new(directory.0.join("in"));
    let (server, fingerprint) = far.run(move || {
        let identity = Identity::generate(&["far"]).unwrap();
        let fingerprint = identity.fingerprint();
        let options = ServerOptions::new(identity).modes([Mode::Brtp, Mode::Tcp]);
        let options = options.transport(waiting());
        let address = format!("{FAR}:0").parse().unwrap();
        (Endpoint::builder().bind(address).server(options).start().unwrap(), fingerprint)
    });
    let client = Endpoint::builder().start().unwrap();
    let pair = || {
        let options = ClientOptions::new(Trust::fingerprint(fingerprint)).transport(waiting());
        let near = connect_with(&client, server.local_addr(), options);
        (near, server.accept().wait_for(LIMIT).unwrap().unwrap())
    };
    let (near, receiving) = pair();
    let sending = {
        let source = source.clone();
        thread::spawn(move || file::send(&near, &source, |_, _| ()).wait_for(LIMIT).unwrap())
    };
    let unopened = pair();
    let stream = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();

    transfer.await_progress();
    let limits = getrlimit(Resource::Nofile);
    let enough = 256;
    setrlimit(Resource::Nofile, Rlimit { current: Some(enough), ..limits }).unwrap();
    let mut all = Vec::new();
    let mut take_all = || {
        while let Ok(file) = File::open("/dev/null") {
            all.push(file);
        }
    };
    take_all();
    let error = Endpoint::builder().start().expect_err("no socket").to_string();
    assert!(error.contains(WORDS), "{error}");
    let error = incoming.receive(&receiving, |_, _, _| ()).wait_for(LIMIT).unwrap().unwrap_err();
    assert!(error.to_string().contains(WORDS), "{error}");
    let error = sending.join().unwrap().unwrap_err();
    assert!(matches!(&error, FileError::Peer(why) if why.contains(WORDS)), "{error}");
    // The sender has closed the file.
    take_all();
    let error = file::send(&unopened.0, &source, |_, _| ()).wait_for(LIMIT).unwrap().unwrap_err();
    assert!(error.to_string().contains(WORDS), "{error}");
    // Wakes the listener, which can accept nothing.
    stream.connect(&server.local_addr().into()).unwrap();
    log.contains("cannot accept over TCP");
    transfer.resumes_in_time();

    drop(all);
    let options = ClientOptions::new(Trust::fingerprint(fingerprint)).mode(Mode::Tcp);
    let connected = client.connect(server.local_addr(), "far", options).wait_for(LIMIT).unwrap();
    connected.expect("a connection over TCP");
    let (near, receiving) = pair();
    // Skip the connection over TCP.
    let receiving = match receiving.mode() {
        Mode::Tcp => server.accept().wait_for(LIMIT).unwrap().unwrap(),
        _ => receiving,
    };
    assert_eq!(send_file(&near, receiving, &incoming, &source), (Ok(()), Ok(())));
    transfer.finish();
}

/// The kernel has no memory for one of three receive calls and one of two send calls, for some seconds.
/// None ends an endpoint or a connection over TCP, and the transfers go on.
pub(crate) fn lack_of_kernel_memory() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Near);
    let over_tcp = TcpTransfer::start(&far);
    for error in ["ENOMEM", "ENOBUFS"] {
        transfer.await_progress();
        over_tcp.await_progress();
        let mut tracer = Command::new("strace")
            .args(["-f", "-qq", "-p", &std::process::id().to_string()])
            .args(["-e", "trace=recvmsg,recvmmsg,sendmsg,sendmmsg,recvfrom,sendto"])
            // The first calls of each thread only: a call in which the tracer ends would fail with ENOSYS.
            .args(["-e", &format!("inject=recvmsg,recvmmsg:error={error}:when=1..1000+3")])
            .args(["-e", &format!("inject=sendmsg,sendmmsg:error={error}:when=1..1000+2")])
            // The calls of connections over TCP.
            .args(["-e", &format!("inject=recvfrom:error={error}:when=1..100+3")])
            .args(["-e", &format!("inject=sendto:error={error}:when=1..100+2")])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(tracer.stderr.take().unwrap()).lines().map(Result::unwrap);
        let count = thread::spawn(move || {
            let mut failed = [0_usize; 4];
            for line in lines.filter(|line| line.ends_with("(INJECTED)")) {
                for (count, call) in failed.iter_mut().zip(["recvm", "sendm", "recvfrom", "sendto"])
                {
                    *count += usize::from(line.contains(call));
                }
            }
            failed
        });
        thread::sleep(Duration::from_secs(3));
        transfer.await_progress();
        over_tcp.await_progress();
        kill_process(Pid::from_child(&tracer), Signal::INT).unwrap();
        tracer.wait().unwrap();
        let failed = count.join().unwrap();
        assert!(failed.iter().all(|&count| count > 10), "{error}: {failed:?} failed calls");
        transfer.resumes_in_time();
    }
    transfer.finish();
    over_tcp.finish();
}

/// Numbered messages over TCP.
struct TcpTransfer {
    received: Arc<AtomicU64>,
    is_stopping: Arc<AtomicBool>,
    sending: thread::JoinHandle<u64>,
    receiving: thread::JoinHandle<u64>,
}

impl TcpTransfer {
    fn start(far: &FarHost) -> Self {
        let (server, fingerprint) = far.run(|| {
            let identity = Identity::generate(&["far"]).unwrap();
            let fingerprint = identity.fingerprint();
            let options = ServerOptions::new(identity).modes([Mode::Tcp]);
            let address = format!("{FAR}:0").parse().unwrap();
            (Endpoint::builder().bind(address).server(options).start().unwrap(), fingerprint)
        });
        let options = ClientOptions::new(Trust::fingerprint(fingerprint)).mode(Mode::Tcp);
        let client = Endpoint::builder().start().unwrap();
        let connecting = client.connect(server.local_addr(), "far", options);
        let near = connecting.wait_for(LIMIT).unwrap().expect("a connection over TCP");
        let accepted = server.accept().wait_for(LIMIT).unwrap().unwrap();
        let (received, is_stopping) = (Arc::new(AtomicU64::new(0)), Arc::default());
        let (count, stop) = (received.clone(), Arc::clone(&is_stopping));
        let sending = thread::spawn(move || {
            let _endpoint = client;
            let mut number = 0_u64;
            while !AtomicBool::load(&stop, Ordering::Relaxed) {
                let message = number.to_be_bytes().repeat(1_000);
                near.send(message).wait_for(LIMIT).expect("room in time").expect("a send");
                number += 1;
                // Each call is traced, which takes much of the processors.
                thread::sleep(Duration::from_millis(10));
            }
            near.finish().wait_for(LIMIT).expect("an end in time").expect("an end");
            number
        });
        let receiving = thread::spawn(move || {
            let _endpoint = server;
            let mut number = 0_u64;
            while let Some(message) = accepted.recv().wait_for(LIMIT).unwrap().expect("a message") {
                assert_eq!(message, number.to_be_bytes().repeat(1_000));
                number += 1;
                count.store(number, Ordering::Relaxed);
            }
            number
        });
        Self { received, is_stopping, sending, receiving }
    }

    fn await_progress(&self) {
        let before = self.received.load(Ordering::Relaxed);
        wait_until("more messages arrive over TCP", || {
            let is_over = self.sending.is_finished() || self.receiving.is_finished();
            assert!(!is_over, "the connection over TCP has ended");
            self.received.load(Ordering::Relaxed) > before
        });
    }

    fn finish(self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        assert_eq!(self.sending.join().unwrap(), self.receiving.join().unwrap());
    }
}

/// A file of which the disk has no room is refused before its data, or given up when the disk fills; both
/// ends say why, nothing is left of it, and later files arrive.
pub(crate) fn disk_full() {
    let far = hosts();
    let transfer = Transfer::start(&far, FAR, Sender::Near);
    let directory = Scratch::new("disk");
    let disk = directory.0.join("in");
    run("mount", &format!("-t tmpfs -o size=2m none {}", disk.display()));
    let (server, fingerprint) = serve(&far, FAR);
    let client = Endpoint::builder().start().unwrap();
    let send = |incoming: &Receiver, path: &Path| {
        let near = connect(&client, server.local_addr(), fingerprint);
        let receiving = server.accept().wait_for(LIMIT).unwrap().unwrap();
        send_file(&near, receiving, incoming, path)
    };
    let incoming = Receiver::new(&disk);
    let (sent, received) = send(&incoming, &directory.file("large", 3 << 20));
    let (sent, received) = (sent.unwrap_err(), received.unwrap_err());
    // The sender learns no path of the receiver.
    assert!(received.contains(&format!("bytes free in {}", disk.display())), "{received}");
    assert!(sent.contains("bytes free, 3145728 needed"), "{sent}");
    assert!(received.contains("3145728 needed"), "{received}");

    let fitting = directory.file("fitting", 1_500_000);
    let near = connect(&client, server.local_addr(), fingerprint);
    let receiving = server.accept().wait_for(LIMIT).unwrap().unwrap();
    let filler = disk.join("of another program");
    let (sent, received) = thread::scope(|scope| {
        let received = scope.spawn(|| {
            let mut is_filled = false;
            let fill = |_: &str, _: u64, _: u64| {
                if !std::mem::replace(&mut is_filled, true) {
                    fs::write(&filler, vec![0; 1_000_000]).unwrap();
                }
            };
            incoming.receive(&receiving, fill).wait_for(LIMIT).unwrap().unwrap_err().to_string()
        });
        let sent = file::send(&near, &fitting, |_, _| ()).wait_for(LIMIT).unwrap().unwrap_err();
        (sent.to_string(), received.join().unwrap())
    });
    for error in [sent, received] {
        assert!(error.contains("bytes free") && error.contains(" needed"), "{error}");
    }
    let names = fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().path());
    let left: Vec<_> = names.collect();
    assert_eq!(left, std::slice::from_ref(&filler), "nothing is left of the file");

    fs::remove_file(&filler).unwrap();
    known_hosts_stays_as_it_was(&disk, fingerprint);
    assert_eq!(send(&incoming, &fitting), (Ok(()), Ok(())));
    let hash = |path: &Path| blake3::hash(&fs::read(path).unwrap());
    assert_eq!(hash(&disk.join("fitting")), hash(&fitting));
    transfer.resumes_in_time();
    transfer.finish();
}

/// A line for which the disk has room only in part leaves nothing in the file of known servers.
fn known_hosts_stays_as_it_was(disk: &Path, fingerprint: Fingerprint) {
    let hosts = KnownHosts::new(disk.join("known_hosts"));
    let comment = format!("#{}\n", " ".repeat(2_000));
    // Ten bytes fit on the last page.
    let before = comment.repeat(3)[..4_086].to_owned();
    fs::write(hosts.path(), &before).unwrap();
    fs::set_permissions(hosts.path(), fs::Permissions::from_mode(0o600)).unwrap();
    let filler = disk.join("of another program");
    let filled = fs::write(&filler, vec![0; 4 << 20]).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    let error = hosts.check("far:5201", fingerprint).unwrap_err().to_string();
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(fs::read_to_string(hosts.path()).unwrap(), before);
    fs::remove_file(&filler).unwrap();
    assert!(hosts.check("far:5201", fingerprint).unwrap(), "the server is recorded now");
    assert!(!hosts.check("far:5201", fingerprint).unwrap());
    fs::remove_file(hosts.path()).unwrap();
}

type Texts = (Result<(), String>, Result<(), String>);

/// Sends a file; returns the texts of the errors of both ends.
fn send_file(near: &Connection, far: Connection, incoming: &Receiver, path: &Path) -> Texts {
    let incoming = incoming.clone();
    let receiving = thread::spawn(move || {
        let received = incoming.receive(&far, |_, _, _| ()).wait_for(LIMIT).unwrap();
        // The verdict reaches the sender.
        let _ = far.flush().wait_for(LIMIT).unwrap();
        received.map(|file| assert!(file.is_some())).map_err(|error| error.to_string())
    });
    let sent = file::send(near, path, |_, _| ()).wait_for(LIMIT).unwrap();
    (sent.map(drop).map_err(|error| error.to_string()), receiving.join().unwrap())
}

/// A temporary directory with a subdirectory for received files.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        // Process numbers repeat: each case has its own.
        let start = std::env::var(CASE).unwrap_or_default().len();
        let id = fs::read_link("/proc/self/ns/pid").unwrap();
        let id: String = id.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let path = std::env::temp_dir().join(format!("openbats-bad-day-{name}-{id}-{start}"));
        fs::create_dir_all(path.join("in")).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, size: usize) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, (0..size).map(|at| (at * 31 + at / 251) as u8).collect::<Vec<_>>())
            .unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.join("in")).stderr(Stdio::null()).status();
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the library logs in this process.
#[derive(Clone)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn start() -> Self {
        let log = Self(Arc::default());
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).init();
        log
    }

    /// Waits for a line with this text.
    pub(crate) fn contains(&self, text: &str) {
        wait_until(text, || String::from_utf8_lossy(&self.0.lock().unwrap()).contains(text));
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
