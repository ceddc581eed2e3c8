//! The options of a connection, as `quinn-proto` has them.

use std::sync::Arc;
use std::time::Duration;

use bats_proto::{CongestionAlgorithm, ConnectError, TransportConfig};
use quinn_proto::{NoneTokenStore, VarInt, congestion};

use super::datagrams::QUIC_SEND_BUFFER;
use super::tls_config::unusable;

/// Largest flow control window of a stream in bytes: 1 Gbit/s at 128 ms RTT.
pub(super) const MAX_WINDOW: u32 = 16 << 20;
/// Buffer of QUIC for received datagrams in bytes; they are taken out after each packet.
const RECEIVE_BUFFER: usize = 256 << 10;

/// Flow control window in bytes for a receive budget.
pub(super) fn window(budget: usize) -> VarInt {
    u32::try_from(budget).unwrap_or(u32::MAX).clamp(1 << 16, MAX_WINDOW).into()
}

/// The common options that QUIC has, too.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Settings {
    receive_budget: usize,
    idle_timeout: Duration,
    keep_alive_interval: Option<Duration>,
    max_udp_payload: u16,
    has_datagrams: bool,
    controller: Controller,
}

impl Settings {
    pub(super) fn of(
        config: &TransportConfig,
        has_datagrams: bool,
        controller: Controller,
    ) -> Self {
        Self {
            receive_budget: config.receive_budget,
            idle_timeout: config.idle_timeout,
            keep_alive_interval: config.keep_alive_interval(),
            max_udp_payload: config.max_udp_payload,
            has_datagrams,
            controller,
        }
    }

    pub(super) fn transport(&self) -> quinn_proto::TransportConfig {
        let mut transport = quinn_proto::TransportConfig::default();
        let window = window(self.receive_budget);
        transport
            .max_concurrent_bidi_streams(1u32.into())
            .max_concurrent_uni_streams(0u32.into())
            .stream_receive_window(window)
            .receive_window(window)
            .send_window(MAX_WINDOW.into())
            // An idle timeout that QUIC cannot encode means no timeout.
            .max_idle_timeout(self.idle_timeout.try_into().ok())
            .keep_alive_interval(self.keep_alive_interval)
            .datagram_receive_buffer_size(self.has_datagrams.then_some(RECEIVE_BUFFER))
            .datagram_send_buffer_size(QUIC_SEND_BUFFER);
        let mut discovery = quinn_proto::MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_udp_payload);
        transport.mtu_discovery_config(Some(discovery));
        match self.controller {
            Controller::Bbr => {
                transport.congestion_controller_factory(Arc::new(congestion::BbrConfig::default()));
            }
            Controller::Cubic => {
                transport
                    .congestion_controller_factory(Arc::new(congestion::CubicConfig::default()));
            }
        }
        transport
    }
}

/// What the connections of clients share, so that it takes memory once.
pub(super) struct Shared {
    /// The settings of the last connection, and what they are for QUIC.
    last: Option<(Settings, Arc<quinn_proto::TransportConfig>)>,
    /// Keeps no tokens for later connections (RFC 9000 section 8.1.3).
    pub(super) tokens: Arc<NoneTokenStore>,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self { last: None, tokens: Arc::new(NoneTokenStore) }
    }

    pub(super) fn transport(&mut self, settings: Settings) -> Arc<quinn_proto::TransportConfig> {
        match &self.last {
            Some((last, transport)) if *last == settings => transport.clone(),
            _ => {
                let transport = Arc::new(settings.transport());
                self.last = Some((settings, transport.clone()));
                transport
            }
        }
    }
}

/// The congestion controllers of `quinn-proto` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Controller {
    Bbr,
    Cubic,
}

impl Controller {
    pub(super) fn of(algorithm: CongestionAlgorithm) -> Option<Self> {
        match algorithm {
            CongestionAlgorithm::Ltcc | CongestionAlgorithm::Bbr3 => Some(Self::Bbr),
            CongestionAlgorithm::Cubic => Some(Self::Cubic),
            _ => None,
        }
    }

    /// The name of the controller in the statistics.
    pub(super) fn state(self) -> &'static str {
        match self {
            Self::Bbr => "quic bbr",
            Self::Cubic => "quic cubic",
        }
    }
}

pub(super) fn unsupported_controller() -> ConnectError {
    unusable("mode 12 (QUIC) has the congestion controllers BBR and CUBIC only: select one of them")
}
