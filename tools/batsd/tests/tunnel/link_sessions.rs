//! Which session transports the tunnel: that of a sole link to the peer, otherwise the one over routes.

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Tunnel;
use super::daemon::Daemon;

const LIMIT: Duration = Duration::from_secs(20);
/// Far above what sessions send of their own.
const ENOUGH: u64 = 1_000_000;

impl Tunnel {
    /// Adds a second link between the two hosts. The session over routes transports the tunnel then.
    pub(crate) fn add_second_link(&self) {
        self.wan.on(1, "ip addr add 192.0.2.3/24 dev wan");
        let daemon = &self.daemons[0];
        let links = daemon.ctl("links").unwrap();
        let print = links["links"][0]["fingerprint"].as_str().unwrap();
        let add = format!("link add second --remote 192.0.2.3:4900 --fingerprint {print}");
        daemon.ctl(&add).unwrap();
        daemon.ctl("route add 10.255.0.2 second").unwrap();
        let end = Instant::now() + LIMIT;
        let is_up = |link: &Value| link["name"] == "second" && link["state"] == "up";
        while !daemon.ctl("links").unwrap()["links"].as_array().unwrap().iter().any(is_up) {
            assert!(Instant::now() < end, "{}", daemon.ctl("links").unwrap());
            sleep(Duration::from_millis(20));
        }
    }
}

/// The reliable session to the peer.
fn session(daemon: &Daemon) -> Value {
    let all = daemon.ctl("sessions").unwrap();
    let is_stream =
        |session: &&Value| session["class"] == "stream" && session["direction"] == "out";
    all["sessions"].as_array().unwrap().iter().find(is_stream).cloned().unwrap_or_default()
}

fn sent(traffic: &Value) -> u64 {
    traffic["bytes_sent"].as_u64().unwrap_or(0)
}

/// Waits until the session of the link of this name transports packets of the tunnel, or the session over routes does,
/// and the other one does not.
fn wait_for(daemon: &Daemon, link: Option<&str>) {
    let (end, mut first) = (Instant::now() + LIMIT, None);
    loop {
        let session = session(daemon);
        let over_link = session["over_link"]["link"].as_str();
        let over_routes = sent(&session["traffic"]);
        // With what the session over routes sends.
        let of_link = sent(&session["over_link"]["traffic"]);
        let (of_link_before, over_routes_before) = *first.get_or_insert((of_link, over_routes));
        let since = [of_link - of_link_before.min(of_link), over_routes - over_routes_before];
        let is_moving = match link {
            Some(_) => since[0] > ENOUGH && since[1] < ENOUGH / 10,
            None => since[1] > ENOUGH,
        };
        if over_link == link && is_moving {
            return;
        }
        // What was written before the change may still be sent.
        let is_other = link.is_some() && since[1] >= ENOUGH / 10;
        first = first.filter(|_| over_link == link && !is_other);
        assert!(Instant::now() < end, "not over {link:?}: {session}");
        sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sole_link_transports_the_tunnel_and_with_two_the_session_over_routes_does() {
    need!();
    let tunnel = Tunnel::start(0.02);
    let daemon = &tunnel.daemons[0];
    let mut server = tunnel.wan.command(1);
    let mut server = server.args(["iperf3", "-s", "-1"]).stdout(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_millis(300));
    let mut bulk = tunnel.wan.command(0);
    bulk.args(["iperf3", "-c", "10.66.0.2", "-C", "cubic", "-t", "12", "-J"]);
    let bulk = bulk.stdout(Stdio::piped()).spawn().unwrap();
    wait_for(daemon, Some("peer-10.255.0.2"));
    let over_routes = sent(&session(daemon)["traffic"]);
    assert!(over_routes < ENOUGH, "{over_routes} bytes over routes, too");
    tunnel.add_second_link();
    wait_for(daemon, None);
    daemon.ctl("link del second").unwrap();
    wait_for(daemon, Some("peer-10.255.0.2"));
    let output = bulk.wait_with_output().unwrap();
    let _ = server.kill();
    let _ = server.wait();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{}", json["error"]);
    let rate = json["end"]["sum_received"]["bits_per_second"].as_f64().unwrap() / 1e6;
    eprintln!("{rate:.1} Mbit/s over one, two and one links again, of 50 Mbit/s");
}
