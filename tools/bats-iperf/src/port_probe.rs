//! Finds out whether a server's port is closed, by ICMP "port unreachable" errors.
//!
//! The library's socket is shared by connections to many hosts and does not report them, because
//! anyone on the path can forge them. Here they only end a client's run early, when nothing else
//! arrives, and the kernel accepts them for the addresses and ports of this socket only.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use openbats::Connection;

use crate::clock::Clock;
use crate::stream::Local;

/// Between two probes. Systems send few ICMP errors per second.
const INTERVAL: Duration = Duration::from_millis(200);
/// Refusals in a row that count: one could be of a server that starts at this moment.
const REFUSALS: u32 = 2;
/// Time without a packet from the server during a test after which the client probes the server.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// A socket that sends to one port.
#[derive(Debug)]
pub(crate) struct PortProbe {
    socket: UdpSocket,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sent_at: Option<Duration>,
    refusals: u32,
    packets: u64,
    heard_at: Duration,
}

impl PortProbe {
    pub(crate) fn new(local: &Local, remote: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(local.to_bind(remote)).context("cannot open a UDP socket")?;
        local.prepare(&socket)?;
        socket.set_nonblocking(true)?;
        socket.connect(remote).with_context(|| format!("cannot reach {remote}"))?;
        Ok(Self { socket, clock: Clock::start(), state: Mutex::default() })
    }

    /// Whether the port has refused probes. Sends the next one if it is due.
    pub(crate) fn is_closed(&self) -> bool {
        let Ok(mut state) = self.state.lock() else { return false };
        self.probe(&mut state)
    }

    /// As [`is_closed`](Self::is_closed), but probes only while nothing arrives over these
    /// connections.
    pub(crate) fn is_closed_and_silent(&self, connections: &[&Connection]) -> bool {
        let packets =
            connections.iter().fold(0_u64, |sum, x| sum.saturating_add(x.stats().packets.received));
        let Ok(mut state) = self.state.lock() else { return false };
        let now = self.clock.elapsed();
        if packets != state.packets {
            *state = State { packets, heard_at: now, ..State::default() };
        }
        now.saturating_sub(state.heard_at) >= IDLE_TIME && self.probe(&mut state)
    }

    fn probe(&self, state: &mut State) -> bool {
        let now = self.clock.elapsed();
        // An error is reported once, by the next call.
        let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        let mut is_refused = self.socket.recv(&mut [0; 1]).is_err_and(|error| refused(&error));
        if state.sent_at.is_none_or(|at| now.saturating_sub(at) >= INTERVAL) {
            // The server drops it as no packet of any connection.
            is_refused |= self.socket.send(&[0]).is_err_and(|error| refused(&error));
            state.sent_at = Some(now);
        }
        state.refusals += u32::from(is_refused);
        state.refusals >= REFUSALS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed_within(probe: &PortProbe, limit: Duration) -> bool {
        let clock = Clock::start();
        while clock.elapsed() < limit {
            if probe.is_closed() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    #[test]
    fn a_closed_port_is_detected_and_an_open_one_is_not() {
        let open = UdpSocket::bind("127.0.0.1:0").unwrap();
        let probe = PortProbe::new(&Local::default(), open.local_addr().unwrap()).unwrap();
        assert!(!closed_within(&probe, Duration::from_millis(700)));
        drop(open);
        assert!(closed_within(&probe, Duration::from_secs(10)));
    }
}
