//! Two network namespaces with a lossy link between them: a TUN device in each, and a thread for each
//! direction that limits the rate, and drops and delays packets.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bats_tun::{HEADER, MAX_PACKET, Tun};

/// Rate of the link in bits per second, in each direction.
pub(crate) const RATE: f64 = 50e6;
/// Maximum queueing delay of the link.
const QUEUE: Duration = Duration::from_millis(50);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Two hosts, 192.0.2.1 and 192.0.2.2. The namespaces are removed when this is dropped.
pub(crate) struct Wan {
    pub(crate) hosts: [String; 2],
}

pub(crate) fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Why the test cannot run here.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root, to make network namespaces and TUN devices".into());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Some("this kernel has no /dev/net/tun".into());
    }
    let tools = ["ip", "iperf3", "curl", "python3"];
    let lacks = |tool: &&str| {
        !run(Command::new("sh").args(["-c", &format!("command -v {tool}")])).status.success()
    };
    tools.into_iter().find(lacks).map(|tool| format!("{tool} is not installed"))
}

impl Wan {
    pub(crate) fn new(loss: f64, delay: Duration) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let hosts = ["a", "b"].map(|host| format!("batsd-{}-{number}-{host}", std::process::id()));
        let wan = Self { hosts };
        let mut ends = Vec::new();
        for (index, host) in wan.hosts.iter().enumerate() {
            assert!(run(Command::new("ip").args(["netns", "add", host])).status.success());
            let path = format!("/run/netns/{host}");
            let open = move || {
                let namespace = File::open(path).unwrap();
                rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
                Tun::open("wan").unwrap()
            };
            ends.push(thread::spawn(open).join().unwrap());
            let address = Ipv4Addr::new(192, 0, 2, index as u8 + 1);
            for command in [
                "ip link set lo up".to_owned(),
                format!("ip addr add {address}/24 dev wan"),
                "ip link set wan up txqueuelen 2000".to_owned(),
            ] {
                let output = wan.on(index, &command);
                assert!(output.status.success(), "{command}: {output:?}");
            }
        }
        let others: Vec<Tun> = ends.iter().rev().map(|tun| tun.try_clone().unwrap()).collect();
        for (seed, (from, to)) in ends.into_iter().zip(others).enumerate() {
            forward(from, to, loss, delay, seed as u64 + 1);
        }
        wan
    }

    /// The network namespace of a host.
    pub(crate) fn namespace(&self, host: usize) -> File {
        File::open(format!("/run/netns/{}", self.hosts[host])).unwrap()
    }

    /// Runs a command on a host.
    pub(crate) fn on(&self, host: usize, command: &str) -> Output {
        run(self.command(host).args(command.split_whitespace()))
    }

    /// A command on a host; its program is the first argument.
    pub(crate) fn command(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[host]]);
        command
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        for host in &self.hosts {
            run(Command::new("ip").args(["netns", "del", host]));
        }
    }
}

fn forward(from: Tun, to: Tun, loss: f64, delay: Duration, seed: u64) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; HEADER + MAX_PACKET];
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut free = Instant::now();
        while let Ok((_, length)) = from.read(&mut buffer) {
            // xorshift64: the same losses at each run.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if (random >> 11) as f64 / (1u64 << 53) as f64 >= loss {
                let packet = buffer[HEADER..HEADER + length].to_vec();
                let now = Instant::now();
                if free > now + QUEUE {
                    continue;
                }
                free = free.max(now) + Duration::from_secs_f64(length as f64 * 8.0 / RATE);
                let _ = sender.send((free + delay, packet));
            }
        }
    });
    thread::spawn(move || {
        while let Ok((due, packet)) = receiver.recv() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // The device does not exist any more at the end of the test.
            if to.write(&[0; HEADER], &packet).is_err() {
                return;
            }
        }
    });
}
