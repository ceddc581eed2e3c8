//! TCP of the device and echoes have a share of the link that they have in common with programs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use super::Tunnel;
use crate::flows::{answer, ask};
use crate::traffic::enter;

const FORWARD: &str = "[[forward]]\nlisten = \"127.0.0.1:2000\"\nexit = \"10.255.0.2\"\n\
                       to = \"127.0.0.1:9000\"\n";
const EXIT: &str = "[exit]\nallow = [\"127.0.0.1:9000\"]\n";
/// Twenty times the round trip of the link with its queue. Without a share, echoes had no answer in seconds.
const LIMIT: Duration = Duration::from_millis(1_200);

/// Uploads through the forward until it is dropped.
struct Uploads {
    is_over: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    server: TcpListener,
}

impl Uploads {
    fn start(tunnel: &Tunnel) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:9000").unwrap();
        let server = enter(tunnel.wan.namespace(1), listen).join().unwrap();
        Self { is_over: Arc::default(), written: Arc::default(), threads: Vec::new(), server }
    }

    /// Adds a program that writes as much as it can. The destination reads all of it, or nothing.
    fn add(&mut self, tunnel: &Tunnel, is_read: bool) {
        let connect = || TcpStream::connect("127.0.0.1:2000").unwrap();
        let mut client = enter(tunnel.wan.namespace(0), connect).join().unwrap();
        let (mut accepted, _) = self.server.accept().unwrap();
        client.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        accepted.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (over, reading_over) = (self.is_over.clone(), self.is_over.clone());
        let written = self.written.clone();
        self.threads.push(thread::spawn(move || {
            let bytes = vec![7; 1 << 16];
            while !over.load(Relaxed) {
                written.fetch_add(client.write(&bytes).unwrap_or(0) as u64, Relaxed);
            }
        }));
        self.threads.push(thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while !reading_over.load(Relaxed) {
                match is_read {
                    true => drop(accepted.read(&mut bytes)),
                    false => sleep(Duration::from_millis(10)),
                }
            }
        }));
    }

    fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let result = thread.join();
            assert!(result.is_ok() || thread::panicking(), "a thread of the uploads has failed");
        }
    }
}

/// Echoes in the session of the tunnel's TCP: all are answered, and most of them soon.
fn assert_echoes(tunnel: &Tunnel, what: &str) {
    let echoes = tunnel.daemons[0].ctl("ping 10.255.0.2 -c 10 -i 0.1 --class stream");
    let echoes = echoes.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut times: Vec<f64> =
        echoes["rtt_ms"].as_array().unwrap().iter().filter_map(|time| time.as_f64()).collect();
    times.sort_by(f64::total_cmp);
    eprintln!("{what}: echoes {times:.0?} ms");
    assert_eq!(echoes["answered"], 10, "{what}: {echoes}");
    assert!(times[times.len() / 2] < LIMIT.as_secs_f64() * 1e3, "{what}: {times:?}");
}

fn assert_requests(tunnel: &Tunnel, what: &str) {
    let times = ask(tunnel.wan.namespace(0), "10.66.0.2:7777");
    let [median, late] = [50, 99].map(|part| times[times.len() * part / 100]);
    eprintln!("{what}: requests take {median:.0?}, p99 {late:.0?}");
    assert!(median < LIMIT, "{what}: {times:?}");
}

#[test]
fn uploads_through_forwards_leave_a_share_to_the_tunnel() {
    need!();
    for has_second_link in [false, true] {
        uploads_leave_a_share(has_second_link);
    }
}

/// With a second link, the tunnel and the programs have one session in common; otherwise the tunnel uses that of the
/// link.
fn start(loss: f64, has_second_link: bool) -> Tunnel {
    let tunnel = Tunnel::start_with(loss, [FORWARD, EXIT]);
    if has_second_link {
        tunnel.add_second_link();
    }
    answer(tunnel.wan.namespace(1), "10.66.0.2:7777");
    tunnel
}

fn uploads_leave_a_share(has_second_link: bool) {
    let tunnel = start(0.01, has_second_link);
    let mut uploads = Uploads::start(&tunnel);
    for count in 1..=4 {
        uploads.add(&tunnel, true);
        if count == 1 || count == 4 {
            sleep(Duration::from_secs(1));
            assert_echoes(&tunnel, &format!("{count} uploads"));
        }
    }
    let (before, start) = (uploads.written(), Instant::now());
    assert_requests(&tunnel, "4 uploads");
    let rate = (uploads.written() - before) as f64 * 8e-6 / start.elapsed().as_secs_f64();
    eprintln!("the uploads had {rate:.1} Mbit/s meanwhile");
    assert!(rate > 1.0, "the uploads go on, too: {rate}");
}

#[test]
fn uploads_that_are_not_read_leave_the_session_to_the_tunnel() {
    need!();
    for has_second_link in [false, true] {
        unread_uploads_leave_the_session(has_second_link);
    }
}

fn unread_uploads_leave_the_session(has_second_link: bool) {
    let tunnel = start(0.0, has_second_link);
    let mut uploads = Uploads::start(&tunnel);
    for _ in 0..2 {
        uploads.add(&tunnel, false);
    }
    // Until the credit of their channels is used up.
    let end = Instant::now() + Duration::from_secs(60);
    let mut before = (uploads.written(), Instant::now());
    while before.1.elapsed() < Duration::from_secs(1) {
        assert!(Instant::now() < end, "{} bytes are held for no reader", uploads.written());
        sleep(Duration::from_millis(50));
        if uploads.written() != before.0 {
            before = (uploads.written(), Instant::now());
        }
    }
    assert_echoes(&tunnel, "2 uploads that are not read");
    assert_requests(&tunnel, "2 uploads that are not read");
}
