//! Transport bindings of the modes: coded packets, the kernel's TCP, QUIC, and plain UDP datagrams.

mod binding;
mod half_open;
mod packets;
#[cfg(feature = "quic")]
mod quic;
mod round_robin;
mod tcp;
#[cfg(target_os = "linux")]
mod tcp_info;
#[cfg(all(test, feature = "quic"))]
mod turns_tests;
mod udp;

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{
    ClientConfig, CloseReason, ConnectError, ConnectionCalls, ConnectionHandle, ConnectionStats,
    EndpointStats, Input, Mode, PeerLimits, SendError, Timestamp,
};
use bytes::Bytes;

#[cfg(feature = "quic")]
pub(crate) use quic::Quic;
pub(crate) use tcp::{Listener, Tcp};
pub(crate) use udp::Udp;

use crate::slot::RemoteNode;
use binding::Transport;
use packets::Packets;

/// The error for QUIC datagrams in other modes.
pub(crate) const DATAGRAMS_NEED_QUIC: &str = "datagrams are an option of mode 12 (QUIC) alone";

/// Identifies a connection of an endpoint; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Handle {
    Packets(ConnectionHandle),
    Tcp(u64),
    Udp(u64),
    #[cfg(feature = "quic")]
    Quic(u64),
}

impl Handle {
    /// Whether the packets of the connection arrive on the endpoint's UDP socket.
    pub(crate) fn uses_shared_socket(self) -> bool {
        !matches!(self, Self::Tcp(_))
    }

    /// Whether calls for the connection need only its own lock.
    pub(crate) fn has_own_lock(self) -> bool {
        matches!(self, Self::Packets(_))
    }
}

/// What the I/O thread must do next.
pub(crate) type Output = binding::Output<Handle>;

/// The transport bindings in the order of their turns.
#[derive(Clone, Copy, Debug)]
enum Binding {
    Packets,
    #[cfg(feature = "quic")]
    Quic,
    Udp,
    Tcp,
}

impl Binding {
    const ALL: &[Self] = &[
        Self::Packets,
        #[cfg(feature = "quic")]
        Self::Quic,
        Self::Udp,
        Self::Tcp,
    ];
}

/// Calls a method of the transport binding that has the connection. The call is static (ADR 0028).
macro_rules! in_transport {
    (&mut $transports:ident, $handle:expr, |$transport:ident, $id:ident| $call:expr) => {
        in_transport!(@ [&mut] $transports, $handle, $transport, $id, $call)
    };
    (&$transports:ident, $handle:expr, |$transport:ident, $id:ident| $call:expr) => {
        in_transport!(@ [&] $transports, $handle, $transport, $id, $call)
    };
    (@ [$($borrow:tt)+] $transports:ident, $handle:expr, $transport:ident, $id:ident, $call:expr) => {
        match $handle {
            Handle::Packets($id) => {
                let $transport = $($borrow)+ $transports.packets;
                $call
            }
            Handle::Tcp($id) => {
                let $transport = $($borrow)+ $transports.tcp;
                $call
            }
            Handle::Udp($id) => {
                let $transport = $($borrow)+ $transports.udp;
                $call
            }
            #[cfg(feature = "quic")]
            Handle::Quic($id) => {
                let $transport = $($borrow)+ $transports.quic;
                $call
            }
        }
    };
}

/// All transport bindings of an endpoint, with the interface of [`bats_proto::Endpoint`].
#[derive(Debug)]
pub(crate) struct Transports {
    packets: Packets,
    tcp: Tcp,
    udp: Udp,
    #[cfg(feature = "quic")]
    quic: Quic,
    /// Place in [`Binding::ALL`] of the binding whose turn it is.
    turn: usize,
}

impl Transports {
    pub(crate) fn new(
        packets: bats_proto::Endpoint,
        tcp: Tcp,
        udp: Udp,
        #[cfg(feature = "quic")] quic: Quic,
    ) -> Self {
        Self {
            packets: Packets { endpoint: packets },
            tcp,
            udp,
            #[cfg(feature = "quic")]
            quic,
            turn: 0,
        }
    }

    /// The endpoint of the coded modes, with its relay.
    pub(crate) fn packets(&mut self) -> &mut bats_proto::Endpoint {
        &mut self.packets.endpoint
    }

    pub(crate) fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        server_name: &str,
        config: ClientConfig,
        has_datagrams: bool,
    ) -> Result<Handle, ConnectError> {
        if self.udp.is_exclusive() && !matches!(config.transport.mode, Mode::Udp | Mode::Tcp) {
            let text = "the socket of this endpoint is for mode 11 (UDP) alone";
            return Err(ConnectError::Configuration(text.to_owned()));
        }
        if config.transport.early_data && !config.transport.mode.is_own() {
            let text = "only mode 0 (BTP) has early data";
            return Err(ConnectError::Configuration(text.to_owned()));
        }
        config.transport.check_psk_modes()?;
        if has_datagrams && config.transport.mode != Mode::Quic {
            return Err(ConnectError::Configuration(DATAGRAMS_NEED_QUIC.to_owned()));
        }
        match config.transport.mode {
            Mode::Udp => self.udp.connect(now, remote, &config).map(Handle::Udp),
            #[cfg(not(feature = "quic"))]
            Mode::Quic => {
                let text = "mode 12 (QUIC) is not in this build: the feature `quic` is off";
                Err(ConnectError::Configuration(text.to_owned()))
            }
            Mode::Tcp => self.tcp.connect(now, remote, server_name, &config).map(Handle::Tcp),
            #[cfg(feature = "quic")]
            Mode::Quic => self
                .quic
                .connect(now, remote, server_name, &config, has_datagrams)
                .map(Handle::Quic),
            _ => {
                self.packets.endpoint.connect(now, remote, server_name, config).map(Handle::Packets)
            }
        }
    }

    /// Stops accepting connections in the modes in which even a refused handshake has a cost.
    pub(crate) fn stop_listening(&mut self) {
        self.tcp.stop_listening();
        self.udp.stop_listening();
        #[cfg(feature = "quic")]
        self.quic.stop_listening();
    }

    /// Handles expired timers. [`Input::Timeout`] also serves the sockets of TCP connections.
    pub(crate) fn handle_timers(&mut self, now: Timestamp) {
        self.tcp.handle_timers(now);
        self.udp.handle_timeout(now);
        #[cfg(feature = "quic")]
        self.quic.handle_timeout(now);
        self.packets.endpoint.handle(now, Input::Timeout);
    }

    pub(crate) fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        if matches!(input, Input::Timeout) {
            self.handle_timers(now);
            return self.tcp.poll_sockets(now);
        }
        if let Input::Datagram(datagram) = &input
            && self.udp.wants(datagram.remote)
        {
            return self.udp.handle_datagram(now, datagram);
        }
        #[cfg(feature = "quic")]
        if let Input::Datagram(datagram) = &input
            && self.quic.wants(datagram.remote, datagram.payload)
        {
            return self.quic.handle_datagram(now, datagram);
        }
        self.packets.endpoint.handle(now, input);
    }

    /// Handles an ICMP "port unreachable" error, which quotes a part of a sent datagram.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(crate) fn handle_unreachable_port(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        quoted: &[u8],
    ) {
        self.udp.handle_unreachable_port(remote);
        self.packets.endpoint.handle_unreachable_port(now, remote, quoted);
        #[cfg(feature = "quic")]
        self.quic.handle_unreachable_port(now, remote, quoted);
    }

    /// Returns the next datagram, event or timeout. The bindings take turns, so that a connection with much data to send
    /// does not hold up those of other modes.
    pub(crate) fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        let mut timeout = None;
        for _ in Binding::ALL {
            let binding = Binding::ALL[self.turn];
            self.turn = (self.turn + 1) % Binding::ALL.len();
            match self.poll_binding(binding, now, buffer) {
                Output::Timeout(at) => timeout = Timestamp::earlier(timeout, at),
                output => return output,
            }
        }
        Output::Timeout(timeout)
    }

    fn poll_binding(&mut self, binding: Binding, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        match binding {
            Binding::Packets => self.packets.poll(now, buffer).with_handle(Handle::Packets),
            #[cfg(feature = "quic")]
            Binding::Quic => self.quic.poll(now, buffer).with_handle(Handle::Quic),
            Binding::Udp => self.udp.poll(now, buffer).with_handle(Handle::Udp),
            Binding::Tcp => self.tcp.poll(now, buffer).with_handle(Handle::Tcp),
        }
    }

    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        handle: Handle,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        in_transport!(&mut self, handle, |transport, id| transport.send(now, id, message, deadline))
    }

    /// The connection, if it has a lock of its own.
    pub(crate) fn calls(&self, handle: Handle) -> Option<ConnectionCalls> {
        match handle {
            Handle::Packets(connection) => self.packets.endpoint.calls(connection),
            _ => None,
        }
    }

    /// A call of the application may have led to packets.
    pub(crate) fn mark_called(&mut self, handle: Handle) {
        if let Handle::Packets(connection) = handle {
            self.packets.endpoint.mark_called(connection);
        }
    }

    pub(crate) fn finish(&mut self, now: Timestamp, handle: Handle) -> Result<(), SendError> {
        in_transport!(&mut self, handle, |transport, id| transport.finish(now, id))
    }

    pub(crate) fn recv(&mut self, now: Timestamp, handle: Handle) -> Option<Bytes> {
        in_transport!(&mut self, handle, |transport, id| transport.recv(now, id))
    }

    pub(crate) fn is_finished(&self, handle: Handle) -> bool {
        in_transport!(&self, handle, |transport, id| transport.is_finished(id))
    }

    pub(crate) fn is_all_acknowledged(&self, handle: Handle) -> bool {
        in_transport!(&self, handle, |transport, id| transport.is_all_acknowledged(id))
    }

    pub(crate) fn close(&mut self, now: Timestamp, handle: Handle, code: u64, reason: &str) {
        in_transport!(&mut self, handle, |transport, id| transport.close(now, id, code, reason))
    }

    pub(crate) fn stats(&self, now: Timestamp, handle: Handle) -> Option<ConnectionStats> {
        in_transport!(&self, handle, |transport, id| transport.stats(now, id))
    }

    /// Received bytes that the application has not taken.
    pub(crate) fn receive_buffer_bytes(&self, handle: Handle) -> usize {
        in_transport!(&self, handle, |transport, id| transport.receive_buffer_bytes(id))
    }

    /// Marks a peer as trusted.
    pub(crate) fn trust_peer(&mut self, handle: Handle) {
        in_transport!(&mut self, handle, |transport, id| transport.trust_peer(id))
    }

    pub(crate) fn remote(&self, handle: Handle) -> Option<SocketAddr> {
        in_transport!(&self, handle, |transport, id| transport.remote(id))
    }

    /// The other end of a session between nodes.
    pub(crate) fn remote_node(&self, handle: Handle) -> Option<RemoteNode> {
        in_transport!(&self, handle, |transport, id| transport.remote_node(id))
    }

    /// The connection's local address, if it can differ from the endpoint's.
    pub(crate) fn local(&self, handle: Handle) -> Option<SocketAddr> {
        in_transport!(&self, handle, |transport, id| transport.local(id))
    }

    /// Closes all sockets when the I/O thread ends.
    pub(crate) fn abandon(&mut self) {
        self.tcp.abandon();
    }

    pub(crate) fn mode(&self, handle: Handle) -> Option<Mode> {
        in_transport!(&self, handle, |transport, id| transport.mode(id))
    }

    pub(crate) fn peer_limits(&self, handle: Handle) -> Option<PeerLimits> {
        in_transport!(&self, handle, |transport, id| transport.peer_limits(id))
    }

    /// Whether messages arrive, unless the connection ends.
    pub(crate) fn is_reliable(&self, handle: Handle) -> bool {
        let is_reliable = self.mode(handle).is_some_and(Mode::is_reliable);
        is_reliable && self.longest_datagram(handle).is_none()
    }

    /// Size in bytes of the longest message that can be sent now, if there is a limit.
    pub(crate) fn longest_message(&self, handle: Handle) -> Option<usize> {
        let of_peer = self.peer_limits(handle).map(|peer| peer.max_message_size);
        [of_peer, self.longest_datagram(handle)].into_iter().flatten().min()
    }

    fn longest_datagram(&self, handle: Handle) -> Option<usize> {
        in_transport!(&self, handle, |transport, id| transport.longest_datagram(id))
    }

    pub(crate) fn peer_fingerprint(&self, handle: Handle) -> Option<[u8; 32]> {
        in_transport!(&self, handle, |transport, id| transport.peer_fingerprint(id))
    }

    pub(crate) fn endpoint_stats(&self) -> EndpointStats {
        let (packets, tcp) = (self.packets.endpoint.endpoint_stats(), self.tcp.counters());
        let packets = EndpointStats {
            handshakes_started: packets.handshakes_started + tcp.handshakes_started,
            connections_refused: packets.connections_refused + tcp.refused + self.udp.refused(),
            timers_stuck: packets.timers_stuck + tcp.timers_stuck,
            ..packets
        };
        #[cfg(feature = "quic")]
        let packets = {
            let quic = self.quic.counters();
            EndpointStats {
                handshakes_started: packets.handshakes_started + quic.handshakes_started,
                retries_sent: packets.retries_sent + quic.retries_sent,
                connections_refused: packets.connections_refused + quic.refused,
                half_open_refused: packets.half_open_refused + quic.half_open_refused,
                answers_dropped: packets.answers_dropped + quic.answers_dropped,
                timers_stuck: packets.timers_stuck + quic.timers_stuck,
                ..packets
            }
        };
        packets
    }

    pub(crate) fn connection_count(&self) -> usize {
        let count = self.packets.connection_count()
            + self.tcp.connection_count()
            + self.udp.connection_count();
        #[cfg(feature = "quic")]
        let count = count + self.quic.connection_count();
        count
    }
}

/// The close reason of a TCP connection after a socket error during its handshake.
pub(crate) fn lost(error: &std::io::Error) -> CloseReason {
    use std::io::ErrorKind::{ConnectionRefused, TimedOut};
    match error.kind() {
        ConnectionRefused => CloseReason::Refused,
        TimedOut => CloseReason::HandshakeTimeout,
        _ => CloseReason::Handshake(error.to_string()),
    }
}
