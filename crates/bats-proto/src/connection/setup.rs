//! Connection setup: before and after the peer's transport parameters are known, and early data (0-RTT).

use std::sync::Arc;

use bats_types::Timestamp;

use super::Connection;
use crate::config::{Mode, TransportConfig};
use crate::datagram::Local;
use crate::error::CloseReason;
use crate::event::Event;
use crate::handshake::Handshake;
use crate::link::{Link, LinkSetup, Medium, Role};
use crate::remote::Remote;
use crate::session::Session;
use crate::wire::parameters::TransportParameters;

/// Everything needed to create a connection.
pub(crate) struct Setup {
    pub(crate) role: Role,
    pub(crate) config: Arc<TransportConfig>,
    pub(crate) remote: Remote,
    pub(crate) local: Local,
    pub(crate) local_cid: [u8; 4],
    pub(crate) handshake: Handshake,
    pub(crate) seed: [u8; 32],
    /// Seed of the coefficients of this end's repairs, as in its transport parameters.
    pub(crate) code_seed: u64,
    /// Whether this node's relay recodes, which concerns end-to-end sessions.
    pub(crate) is_recoding: bool,
}

impl Connection {
    pub(crate) fn new(now: Timestamp, setup: Setup) -> Self {
        let medium = match setup.remote {
            Remote::Network(_) => Medium::Network,
            Remote::Relays(_) => Medium::Relays,
        };
        let end_to_end = setup.remote.flow_key().map(|key| (key, setup.is_recoding));
        let session = Session::new(setup.config.clone(), setup.code_seed, end_to_end);
        let link = LinkSetup {
            role: setup.role,
            medium,
            config: setup.config,
            remote: setup.remote,
            local: setup.local,
            local_cid: setup.local_cid,
            handshake: setup.handshake,
            seed: setup.seed,
        };
        Self { link: Link::new(now, link), session }
    }

    /// Takes a datagram with long headers.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn handle_handshake_datagram(&mut self, now: Timestamp, datagram: &mut [u8]) {
        if self.link.handle_handshake_datagram(now, datagram, &mut self.session) {
            self.progress_handshake(now);
        }
    }

    /// Installs keys and establishes the connection as far as the handshake allows.
    fn progress_handshake(&mut self, now: Timestamp) {
        self.link.install_keys(now);
        let is_complete = self.link.handshake().is_complete();
        if self.link.is_provisional() && self.link.is_active() {
            if is_complete {
                self.confirm_provisional(now);
            }
            return self.take_early_data(now);
        }
        let is_ready = is_complete || self.may_be_provisional();
        if !self.link.is_handshaking() || !is_ready {
            return;
        }
        let Some((parameters, remote_cid)) = self.link.peer() else {
            let reason = CloseReason::Handshake("peer sent no parameters".to_owned());
            return self.link.close_silently(reason, &mut self.session);
        };
        self.link.set_remote_cid(remote_cid);
        self.establish(now, &parameters);
        self.take_early_data(now);
    }

    fn is_server(&self) -> bool {
        self.link.role() == Role::Server
    }

    fn establish(&mut self, now: Timestamp, peer: &TransportParameters) {
        let Some(mode) = self.session.agreed_mode(self.is_server(), peer.mode) else {
            let text = format!("mode {} is not offered here", peer.mode);
            let reason = CloseReason::Handshake(text.clone());
            return self.link.begin_close(now, false, 3, &text, reason, &mut self.session);
        };
        self.link.establish(now, peer, self.session.algorithm(mode));
        self.session.establish(mode, peer, self.is_server());
        if self.is_server() {
            self.session.push_event(Event::Accepted);
            if self.link.is_provisional() {
                return;
            }
            self.link.confirm_to_client();
            self.close_early_data();
        } else {
            self.resend_unaccepted_early(now);
            self.link.confirm_to_server();
            if !self.link.handshake().awaits_acceptance() {
                self.session.push_event(Event::Connected);
            }
        }
        self.establish_end_to_end(now);
        self.link.release_tls_session();
        self.link.handle_early(now, &mut self.session);
    }

    /// Sets up symbol protection when the handshake is complete.
    fn establish_end_to_end(&mut self, now: Timestamp) {
        let keys = self.link.handshake().symbol_keys();
        let (early, slowest) = self.session.establish_end_to_end(keys, self.link.rtt().smoothed);
        for (kind, payload) in early {
            self.handle_flow_packet(now, kind, &payload, slowest);
        }
    }

    /// Client, when the handshake completes: sends the early messages that the server does not have
    /// as normal data.
    fn resend_unaccepted_early(&mut self, now: Timestamp) {
        match self.link.early_messages().finish() {
            Ok(Some((messages, arrived))) => {
                self.session.resend_unaccepted_early(messages, arrived);
            }
            Ok(None) => {}
            Err(rule) => self.link.on_protocol_violation(now, rule, &mut self.session),
        }
    }

    /// Server: whether the connection can be set up from the client's first flight.
    fn may_be_provisional(&self) -> bool {
        let handshake = self.link.handshake();
        self.is_server()
            && handshake.takes_early()
            && self.link.has_keys()
            && handshake.peer_parameters().is_some_and(|peer| {
                self.session.agreed_mode(true, peer.mode).is_some_and(Mode::supports_early_data)
            })
    }

    /// Server: delivers the early data received so far.
    fn take_early_data(&mut self, now: Timestamp) {
        if !self.link.is_provisional() {
            return;
        }
        for payload in self.link.early_messages().take() {
            match self.session.take_early(&payload) {
                Ok(Some(arrived)) => self.link.early_messages().record(arrived),
                Ok(None) => return,
                Err(failure) => return self.link.fail(now, failure, &mut self.session),
            }
        }
    }

    /// Server, when the handshake completes: messages that replays of the first flight have
    /// delivered on other connections are not delivered again.
    fn close_early_data(&mut self) {
        self.session.record_early(self.link.early_messages().close());
    }

    /// Server: the client is validated.
    fn confirm_provisional(&mut self, now: Timestamp) {
        self.close_early_data();
        self.link.confirm_provisional(now);
        self.link.handle_early(now, &mut self.session);
    }
}
