//! TCP flows in the tunnel do not wait for each other.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Tunnel;

/// Bytes of a request, and of its answer.
const SIZE: usize = 512;
const REQUESTS: usize = 200;
/// A connection that waits for longer has failed.
const LIMIT: Duration = Duration::from_secs(20);

fn enter(namespace: &File) {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
}

/// Answers the requests of one client in a namespace.
pub(crate) fn answer(namespace: File, address: &'static str) {
    std::thread::spawn(move || {
        enter(&namespace);
        let listener = TcpListener::bind(address).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; SIZE];
        while stream.read_exact(&mut bytes).is_ok() && stream.write_all(&bytes).is_ok() {}
    });
}

/// Round trips of requests, one after the other, in order of their length.
pub(crate) fn ask(namespace: File, address: &'static str) -> Vec<Duration> {
    let client = std::thread::spawn(move || {
        enter(&namespace);
        let address = address.parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let times = (0..REQUESTS).map(|_| {
            let (start, mut bytes) = (Instant::now(), [7; SIZE]);
            stream.write_all(&bytes).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            let time = start.elapsed();
            sleep(Duration::from_millis(10).saturating_sub(time));
            time
        });
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        times
    });
    client.join().unwrap()
}

/// In one order of all flows, a request would wait for what the session holds of the bulk flow and for the
/// repair of its losses: as long as the bulk flow's own segments.
#[test]
fn requests_do_not_wait_for_a_bulk_flow() {
    need!();
    let tunnel = Tunnel::start(0.05);
    let mut server = tunnel.wan.command(1);
    let mut server = server.args(["iperf3", "-s", "-1"]).stdout(Stdio::null()).spawn().unwrap();
    answer(tunnel.wan.namespace(1), "10.66.0.2:7777");
    sleep(Duration::from_millis(300));
    let mut bulk = tunnel.wan.command(0);
    bulk.args(["iperf3", "-c", "10.66.0.2", "-C", "cubic", "-t", "8", "-J"]).stdout(Stdio::piped());
    let bulk = bulk.spawn().unwrap();
    sleep(Duration::from_secs(2));
    let times = ask(tunnel.wan.namespace(0), "10.66.0.2:7777");
    let output = bulk.wait_with_output().unwrap();
    let _ = server.kill();
    let _ = server.wait();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_bulk = &json["end"]["streams"][0]["sender"]["mean_rtt"];
    let of_bulk = of_bulk.as_f64().unwrap() / 1e3;
    let rate = json["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6;
    let [median, late] = [50, 99].map(|part| times[REQUESTS * part / 100].as_secs_f64() * 1e3);
    eprintln!(
        "next to a bulk flow of {rate:.1} Mbit/s with round trips of {of_bulk:.1} ms: requests of {SIZE} \
         bytes take {median:.1} ms, p99 {late:.1} ms; the link 10 ms"
    );
    assert!(median < 0.8 * of_bulk, "{median} ms next to {of_bulk} ms");
}
