//! A session inside TLS 1.3: what goes over TCP.

use std::io::{BufRead, Write};
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::{AlertDescription, ClientConnection, Connection, Error, ServerConnection};

use super::Session;
use crate::config::{ClientConfig, ServerConfig, TransportConfig};
use crate::crypto::{fingerprint, tls_client, tls_server};
use crate::error::{CloseReason, ConnectError};
use crate::event::Event;

/// Tells two peers of this framing from other users of TLS.
const ALPN: &[u8] = b"openbats-tcp/1";
/// Plain bytes sealed at a time.
const PLAIN_AT_ONCE: usize = 64 << 10;

/// What the connections that a server accepts have in common.
#[derive(Clone, Debug)]
pub struct SecuredServer {
    tls: Arc<rustls::ServerConfig>,
    transport: Arc<TransportConfig>,
}

impl SecuredServer {
    /// Of a server's configuration.
    ///
    /// # Errors
    ///
    /// Certificate or key cannot be used.
    pub fn new(config: &ServerConfig) -> Result<Self, ConnectError> {
        config.transport.check_closed()?;
        let tls = Arc::new(tls_server(config, ALPN)?);
        Ok(Self { tls, transport: config.transport.clone() })
    }
}

/// One end of a connection. Bytes of the TCP stream go in by [`receive`](Self::receive) and come
/// out of [`transmit`](Self::transmit); what they carry is [`session`](Self::session)'s matter.
#[derive(Debug)]
pub struct Secured {
    tls: Connection,
    session: Session,
    /// TLS has said goodbye: nothing follows.
    is_shut: bool,
    plain: Vec<u8>,
    bytes_received: u64,
    bytes_sent: u64,
}

impl Secured {
    /// Begins a connection.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`](crate::Endpoint::connect).
    pub fn client(
        now: Timestamp,
        server_name: &str,
        config: &ClientConfig,
    ) -> Result<Self, ConnectError> {
        config.transport.check_closed()?;
        let (tls, name) = tls_client(config, server_name, ALPN)?;
        let tls = ClientConnection::new(Arc::new(tls), name)
            .map_err(|error| ConnectError::Configuration(error.to_string()))?;
        Ok(Self::new(tls.into(), Session::new(now, true, &config.transport)))
    }

    /// The server's end of a connection that somebody has begun.
    ///
    /// # Errors
    ///
    /// TLS cannot work with the configuration.
    pub fn server(now: Timestamp, server: &SecuredServer) -> Result<Self, ConnectError> {
        let tls = ServerConnection::new(server.tls.clone())
            .map_err(|error| ConnectError::Configuration(error.to_string()))?;
        Ok(Self::new(tls.into(), Session::new(now, false, &server.transport)))
    }

    fn new(mut tls: Connection, session: Session) -> Self {
        // What is sealed waits in `transmit`'s buffer, never in TLS: that sets the limit.
        tls.set_buffer_limit(None);
        Self { tls, session, is_shut: false, plain: Vec::new(), bytes_received: 0, bytes_sent: 0 }
    }

    /// The protocol inside.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The protocol inside, to send and to receive messages.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// SHA-256 of the peer's end-entity certificate, if it showed one.
    pub fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.tls.peer_certificates()?.first().map(|certificate| fingerprint(certificate))
    }

    /// Bytes of the TCP stream, in and out.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes_received, self.bytes_sent)
    }

    /// The next thing to tell the user.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.session.pop_event()
    }

    /// Takes the next bytes of the TCP stream.
    pub fn receive(&mut self, now: Timestamp, mut bytes: &[u8]) {
        self.bytes_received += bytes.len() as u64;
        while !bytes.is_empty() && !self.session.is_over() {
            // Reading from a slice fails only if plain text waits, and that was taken below.
            match self.tls.read_tls(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return self.session.end(CloseReason::Lost(error.to_string())),
            }
            if let Err(error) = self.tls.process_new_packets() {
                return self.fail(&error);
            }
            self.take_plain(now);
        }
    }

    fn fail(&mut self, error: &Error) {
        let reason = match error {
            _ if self.session.is_open() => CloseReason::PeerMisbehaved(error.to_string()),
            Error::AlertReceived(AlertDescription::NoApplicationProtocol)
            | Error::NoApplicationProtocol => CloseReason::Handshake(
                "the peer speaks TLS, but not OpenBATS over TCP (mode 10)".to_owned(),
            ),
            _ => CloseReason::Handshake(error.to_string()),
        };
        self.session.end(reason);
    }

    fn take_plain(&mut self, now: Timestamp) {
        if !self.tls.is_handshaking()
            && !self.session.is_open()
            && self.tls.alpn_protocol() != Some(ALPN)
        {
            let text = "the peer speaks TLS, but not OpenBATS over TCP (mode 10)";
            return self.session.end(CloseReason::Handshake(text.to_owned()));
        }
        loop {
            let mut reader = self.tls.reader();
            // An error means that nothing is there yet, or the end, which `on_end` judges.
            let Ok(plain) = reader.fill_buf() else { return };
            if plain.is_empty() {
                // The peer's TLS said goodbye without the session's.
                return self.session.on_lost("the peer ended the stream");
            }
            let len = plain.len();
            self.session.receive(now, plain);
            reader.consume(len);
        }
    }

    /// The TCP stream has ended or broken.
    pub fn on_lost(&mut self, text: &str) {
        self.session.on_lost(text);
    }

    /// Appends what is to be written to the TCP stream, until `out` holds `limit` bytes or a little
    /// more.
    pub fn transmit(&mut self, now: Timestamp, out: &mut Vec<u8>, limit: usize) {
        let before = out.len();
        loop {
            while self.tls.wants_write() {
                // A buffer in memory takes everything.
                if self.tls.write_tls(out).is_err() {
                    break;
                }
            }
            if out.len() >= limit || self.is_shut {
                break;
            }
            self.plain.clear();
            if !self.tls.is_handshaking() {
                self.session.transmit(now, &mut self.plain, PLAIN_AT_ONCE);
            }
            if !self.plain.is_empty() {
                // Without a limit of its own TLS takes everything.
                let _ = self.tls.writer().write_all(&self.plain);
            } else if self.session.is_over() {
                self.tls.send_close_notify();
                self.is_shut = true;
            } else {
                break;
            }
        }
        self.bytes_sent += (out.len() - before) as u64;
    }
}
