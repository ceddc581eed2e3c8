//! Links emulated by the kernel: a token bucket (tbf) on the interface of the sender, and netem
//! delay and loss on an `ifb` at the receiver. Loss is applied behind the bottleneck, as in our
//! emulator.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::namespace::Namespaces;
use crate::protocol::programs::find;
use crate::settings::{Direction, Link, Loss};
use crate::state::{Home, Lab};
use crate::topology::{self, End};

/// Minimum burst of the token bucket in bytes: one full frame.
const MIN_BURST_BYTES: u64 = 1_600;

/// A command line.
type CommandLine = Vec<String>;

fn command_line(text: &str) -> CommandLine {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The commands that configure one direction: those for the interface of the sender, and those for
/// the interface of the receiver.
///
/// # Errors
/// If netem does not support a setting.
pub(crate) fn commands(
    link: &Link,
    direction: &Direction,
    sender: &str,
    receiver: &str,
    hop: u32,
) -> Result<(Vec<CommandLine>, Vec<CommandLine>)> {
    let mut send = Vec::new();
    if direction.rate > 0 {
        // Burst: 1.25 ms at the link rate. Limit: the configured queue.
        let burst = (direction.rate / 8 / 800).max(MIN_BURST_BYTES);
        let limit = link.queue_bytes(direction).max(burst);
        send.push(command_line(&format!(
            "tc qdisc replace dev {sender} root handle 1: tbf rate {}bit burst {burst}b limit {limit}b",
            direction.rate
        )));
    } else {
        // Remove the token bucket of an earlier change; veth interfaces have no queue by default.
        send.push(command_line(&format!("tc qdisc replace dev {sender} root noqueue")));
    }
    let ifb = format!("ifb{hop}");
    let mut receive = vec![
        command_line(&format!("ip link add {ifb} type ifb")),
        command_line(&format!("ip link set {ifb} up")),
        command_line(&format!("tc qdisc add dev {receiver} handle ffff: ingress")),
    ];
    for protocol in ["ip", "ipv6"] {
        let priority = if protocol == "ip" { 1 } else { 2 };
        receive.push(command_line(&format!(
            "tc filter add dev {receiver} parent ffff: protocol {protocol} prio {priority} u32 \
             match u32 0 0 action mirred egress redirect dev {ifb}"
        )));
    }
    receive.push(netem(direction, &ifb)?);
    Ok((send, receive))
}

fn netem(direction: &Direction, ifb: &str) -> Result<CommandLine> {
    if !direction.elements.is_empty() {
        bail!(
            "the backend netem has rate, delay, jitter, loss, duplicate, corrupt and queue only: use the backend netns or sim"
        );
    }
    if direction.jitter.is_zero() || direction.reorder {
        // Supported: netem reorders packets when it applies jitter.
    } else {
        bail!(
            "netem reorders packets when it applies jitter: set `reorder: true`, or use the backend netns"
        );
    }
    // A limit in packets that is never reached: twice the packets in flight, in minimum frames.
    let rate = if direction.rate > 0 { direction.rate } else { 10_000_000_000 };
    let delay = direction.delay + direction.jitter;
    let limit = (rate as f64 / 8.0 / 64.0 * delay.as_secs_f64() * 2.0) as u64 + 10_000;
    let mut text = format!("tc qdisc replace dev {ifb} root netem limit {}", limit.min(20_000_000));
    let micros = |time: std::time::Duration| time.as_micros();
    if !delay.is_zero() {
        text += &format!(" delay {}us", micros(direction.delay));
        if !direction.jitter.is_zero() {
            text += &format!(" {}us", micros(direction.jitter));
        }
    }
    let percent = |fraction: f64| format!("{:.6}%", fraction * 100.0);
    if direction.black_hole {
        text += " loss 100%";
    } else {
        match direction.loss {
            Loss::Independent(0.0) => {}
            Loss::Independent(rate) => text += &format!(" loss random {}", percent(rate)),
            // p, r, 1-h, 1-k: the losses in the bad and in the good state come last.
            Loss::GilbertElliott { enter, leave, in_bad, in_good } => {
                let (enter, leave) = (percent(enter), percent(leave));
                let [in_bad, in_good] = [in_bad, in_good].map(|loss| loss * 100.0);
                text += &format!(" loss gemodel {enter} {leave} {in_bad}% {in_good}%");
            }
            Loss::FourState { p13, p31, p32, p23, p14 } => {
                let all = [p13, p31, p32, p23, p14].map(percent);
                text += &format!(" loss state {}", all.join(" "));
            }
        }
    }
    if direction.duplicate > 0.0 {
        text += &format!(" duplicate {}", percent(direction.duplicate));
    }
    if direction.corrupt > 0.0 {
        text += &format!(" corrupt {}", percent(direction.corrupt));
    }
    Ok(command_line(&text))
}

/// Configures the links of a lab whose hosts are connected directly.
pub(crate) fn apply(home: &Home, lab: &Lab, links: &[Link]) -> Result<()> {
    let namespaces = home.namespaces(&lab.name);
    for (hop, (link, edge)) in (1..).zip(links.iter().zip(&lab.shape.edges)) {
        let host = |node: u32| -> Result<String> {
            let host = lab.shape.hosts.get(node as usize).context("no such host")?;
            Ok(topology::namespace(&lab.name, host))
        };
        let (left, right) = (host(edge.0)?, host(edge.1)?);
        let [at_left, at_right] = [End::Left, End::Right].map(|end| lab.shape.interface(hop, end));
        let (send, receive) = commands(link, &link.forward, &at_left, &at_right, hop)?;
        run(&namespaces, &left, &send)?;
        run(&namespaces, &right, &receive)?;
        let (send, receive) = commands(link, &link.backward, &at_right, &at_left, hop)?;
        run(&namespaces, &right, &send)?;
        run(&namespaces, &left, &receive)?;
    }
    Ok(())
}

fn run(namespaces: &Namespaces, host: &str, commands: &[CommandLine]) -> Result<()> {
    namespaces.within(host, || {
        for command_line in commands {
            let Some((program, arguments)) = command_line.split_first() else { continue };
            let path = find(program).with_context(|| {
                format!("the backend netem needs `{program}` (Debian: iproute2)")
            })?;
            let output = Command::new(path).args(arguments).stdin(Stdio::null()).output()?;
            let error = String::from_utf8_lossy(&output.stderr);
            // An object that exists from an earlier change needs no action.
            if !output.status.success()
                && !error.contains("File exists")
                && !error.contains("Exclusivity")
            {
                bail!("`{}` failed: {}", command_line.join(" "), explain(error.trim()));
            }
        }
        Ok(())
    })
}

fn explain(error: &str) -> String {
    if error.contains("Specified qdisc kind is unknown") || error.contains("qdisc not found") {
        return format!("{error} (this kernel has no netem: use the backend netns)");
    }
    error.lines().last().unwrap_or_default().to_owned()
}

/// Why netem is not available here, if it is not. Needs the privilege to create namespaces.
pub(crate) fn unavailable_reason() -> Option<String> {
    for program in ["ip", "tc"] {
        if find(program).is_none() {
            return Some(format!("`{program}` is not installed (Debian: iproute2)"));
        }
    }
    let checked = std::thread::scope(|scope| {
        scope
            .spawn(|| -> Result<()> {
                nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
                for text in [
                    "ip link add ifb1 type ifb",
                    "tc qdisc add dev ifb1 root netem delay 1ms loss 1%",
                    "tc qdisc replace dev ifb1 root tbf rate 1mbit burst 10kb latency 10ms",
                ] {
                    let command_line = command_line(text);
                    let path = find(&command_line[0]).context("it is not installed")?;
                    let output = Command::new(path)
                        .args(&command_line[1..])
                        .stdin(Stdio::null())
                        .output()?;
                    if !output.status.success() {
                        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                        bail!("`{text}`: {}", explain(&error));
                    }
                }
                Ok(())
            })
            .join()
    });
    match checked {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("the check panicked".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::Queue;

    /// As in Oasis: a token bucket on the egress of the sender; an ifb on the ingress of the
    /// receiver, with netem for delay and loss. Loss is applied behind the bottleneck. Unlike
    /// Oasis, the bucket has the configured queue instead of 1 ms, IPv6 is redirected too, and the
    /// netem limit (in packets) never drops.
    #[test]
    fn token_bucket_precedes_delay_and_loss() {
        let direction = Direction {
            rate: 100_000_000,
            delay: Duration::from_millis(10),
            loss: Loss::Independent(0.05),
            queue: Queue::Bytes(250_000),
            ..Direction::default()
        };
        let link = Link { forward: direction.clone(), backward: direction.clone() };
        let (send, receive) = commands(&link, &direction, "eth0", "eth1", 3).unwrap();
        let lines = |all: &[CommandLine]| {
            all.iter().map(|command_line| command_line.join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(&send),
            [
                "tc qdisc replace dev eth0 root handle 1: tbf rate 100000000bit burst 15625b limit 250000b"
            ]
        );
        assert_eq!(
            lines(&receive),
            [
                "ip link add ifb3 type ifb",
                "ip link set ifb3 up",
                "tc qdisc add dev eth1 handle ffff: ingress",
                "tc filter add dev eth1 parent ffff: protocol ip prio 1 u32 match u32 0 0 action \
                 mirred egress redirect dev ifb3",
                "tc filter add dev eth1 parent ffff: protocol ipv6 prio 2 u32 match u32 0 0 action \
                 mirred egress redirect dev ifb3",
                "tc qdisc replace dev ifb3 root netem limit 13906 delay 10000us loss random 5.000000%",
            ]
        );
    }

    #[test]
    fn unset_settings_add_no_netem_options() {
        let direction = Direction {
            rate: 0,
            delay: Duration::ZERO,
            loss: Loss::Independent(0.0),
            ..Direction::default()
        };
        let link = Link { forward: direction.clone(), backward: direction.clone() };
        let (send, receive) = commands(&link, &direction, "eth0", "eth1", 1).unwrap();
        // Without a rate there is no token bucket, and without a delay no `delay` option.
        let [command_line] = send.as_slice() else { panic!("{send:?}") };
        assert_eq!(command_line.join(" "), "tc qdisc replace dev eth0 root noqueue");
        assert_eq!(
            receive.last().unwrap().join(" "),
            "tc qdisc replace dev ifb1 root netem limit 10000"
        );
    }

    #[test]
    fn jitter_without_reordering_is_rejected() {
        let direction = Direction { jitter: Duration::from_millis(1), ..Direction::default() };
        let link = Link { forward: direction.clone(), backward: direction.clone() };
        assert!(commands(&link, &direction, "a", "b", 1).is_err());
        let direction = Direction {
            reorder: true,
            loss: Loss::GilbertElliott { enter: 0.01, leave: 0.09, in_bad: 1.0, in_good: 0.0 },
            ..direction
        };
        let (_, receive) = commands(&link, &direction, "a", "b", 1).unwrap();
        assert!(
            receive.last().unwrap().join(" ").contains("loss gemodel 1.000000% 9.000000% 100% 0%")
        );
    }
}
