//! The keeper starts workers again.

use crate::node::{Daemon, free_udp_port, identity, node, start, wait_for};

/// The process that does the work of a daemon.
fn worker(daemon: &Daemon) -> Option<rustix::process::Pid> {
    let path = format!("/proc/{0}/task/{0}/children", daemon.child.id());
    let children = std::fs::read_to_string(path).unwrap();
    let pid = children.split_whitespace().next()?.parse().unwrap();
    rustix::process::Pid::from_raw(pid)
}

fn kill_worker(daemon: &Daemon) {
    wait_for("there is a worker", || worker(daemon).is_some());
    let pid = worker(daemon).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_for("it has ended", || worker(daemon) != Some(pid));
}

#[test]
fn reload_before_a_worker_is_started_again_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    identity(&folder.join("0.pem"));
    let near = node(folder, 0, free_udp_port(), "");
    let daemon = start(folder, 0, &near);
    // The first one is started without a delay, the third one after half a second.
    for _ in 0..2 {
        kill_worker(&daemon);
        wait_for("another one", || worker(&daemon).is_some());
    }
    kill_worker(&daemon);
    let link = format!(
        "[[link]]\nname = \"new\"\nremote = \"127.0.0.1:9\"\nfingerprint = \"{}\"\n",
        "ab".repeat(32)
    );
    std::fs::write(&daemon.config, near + &link).unwrap();
    daemon.signal(rustix::process::Signal::HUP);
    wait_for("the new link", || {
        daemon.ctl("links").is_ok_and(|links| links["links"][0]["name"] == "new")
    });
}

#[test]
fn keeper_without_descriptors_starts_a_worker_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    identity(&folder.join("0.pem"));
    let mut daemon = start(folder, 0, &node(folder, 0, free_udp_port(), ""));
    let keeper = rustix::process::Pid::from_child(&daemon.child);
    let maximum = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let set = |current| {
        rustix::process::prlimit(
            Some(keeper),
            rustix::process::Resource::Nofile,
            rustix::process::Rlimit { current, maximum },
        )
        .unwrap()
    };
    let before = set(Some(3));
    kill_worker(&daemon);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(daemon.status().is_none(), "the keeper has ended");
    assert!(worker(&daemon).is_none());
    set(before.current);
    wait_for("a worker answers", || daemon.ctl("status").is_ok());
}
