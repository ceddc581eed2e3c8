//! A session inside TLS 1.3, as used over TCP.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::sync::Arc;

use bats_types::Timestamp;
use rustls::{AlertDescription, ClientConnection, Connection, Error, ServerConnection};

use super::Session;
use super::records::Records;
use crate::config::{ClientConfig, ServerConfig, TransportConfig};
use crate::crypto::{describe_tls_error, fingerprint, tls_client, tls_server};
use crate::error::{CloseReason, ConnectError};
use crate::event::Event;

/// ALPN protocol ID; distinguishes this framing from other uses of TLS.
const ALPN: &[u8] = b"openbats-tcp/1";
/// Capacity of an empty buffer that is kept: an idle connection takes at most 16 KiB.
const KEPT_BUFFER: usize = 1 << 10;
/// Plaintext bytes encrypted at a time.
const PLAINTEXT_CHUNK: usize = 64 << 10;

/// Configuration that all accepted connections of a server share.
#[derive(Clone, Debug)]
pub struct TlsStreamServer {
    tls: Arc<rustls::ServerConfig>,
    transport: Arc<TransportConfig>,
}

impl TlsStreamServer {
    /// Builds it from a server configuration.
    ///
    /// # Errors
    ///
    /// The certificate or key cannot be used.
    pub fn new(config: &ServerConfig) -> Result<Self, ConnectError> {
        config.transport.check_psk_modes()?;
        let tls = Arc::new(tls_server(config, ALPN)?);
        Ok(Self { tls, transport: config.transport.clone() })
    }
}

/// A stream from which nothing has arrived.
struct NothingYet;

impl Read for NothingYet {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }
}

/// One end of a connection. Bytes of the TCP stream go into [`receive`](Self::receive) and come out
/// of [`transmit`](Self::transmit). [`session`](Self::session) handles their content.
#[derive(Debug)]
pub struct TlsStream {
    tls: Connection,
    session: Session,
    /// TLS has sent close_notify: no data follows.
    close_sent: bool,
    plaintext: Vec<u8>,
    records: Records,
    bytes_received: u64,
    bytes_sent: u64,
}

impl TlsStream {
    /// Starts a client connection.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`](crate::Endpoint::connect).
    pub fn client(
        now: Timestamp,
        server_name: &str,
        config: &ClientConfig,
    ) -> Result<Self, ConnectError> {
        config.transport.check_psk_modes()?;
        let (tls, name) = tls_client(config, server_name, ALPN)?;
        let tls = ClientConnection::new(Arc::new(tls), name)
            .map_err(|error| ConnectError::Configuration(error.to_string()))?;
        Ok(Self::new(tls.into(), Session::new(now, true, &config.transport)))
    }

    /// Accepts a connection on the server.
    ///
    /// # Errors
    ///
    /// TLS rejects the configuration.
    pub fn server(now: Timestamp, server: &TlsStreamServer) -> Result<Self, ConnectError> {
        let tls = ServerConnection::new(server.tls.clone())
            .map_err(|error| ConnectError::Configuration(error.to_string()))?;
        Ok(Self::new(tls.into(), Session::new(now, false, &server.transport)))
    }

    fn new(mut tls: Connection, session: Session) -> Self {
        // The buffer of `transmit` limits sealed data, so TLS needs no limit of its own.
        tls.set_buffer_limit(None);
        Self {
            tls,
            session,
            close_sent: false,
            plaintext: Vec::new(),
            records: Records::default(),
            bytes_received: 0,
            bytes_sent: 0,
        }
    }

    /// The session inside TLS.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session inside TLS, to send and receive messages.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// SHA-256 of the peer's end-entity certificate, if the peer sent one.
    pub fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.tls.peer_certificates()?.first().map(|certificate| fingerprint(certificate))
    }

    /// Bytes of the TCP stream received and sent.
    pub fn bytes(&self) -> (u64, u64) {
        (self.bytes_received, self.bytes_sent)
    }

    /// The next event for the application.
    pub fn pop_event(&mut self) -> Option<Event> {
        self.session.pop_event()
    }

    /// Processes the next bytes of the TCP stream.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn receive(&mut self, now: Timestamp, mut bytes: &[u8]) {
        self.bytes_received = self.bytes_received.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() && !self.session.is_closed() {
            // Reading from a slice fails only if plaintext is buffered, and `process_plaintext` has
            // removed that.
            let before = bytes;
            match self.tls.read_tls(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return self.session.end(CloseReason::Lost(error.to_string())),
            }
            if let Err(error) = self.tls.process_new_packets() {
                return self.fail(&error);
            }
            let with_data = self.process_plaintext(now);
            let read = before.get(..before.len().saturating_sub(bytes.len())).unwrap_or_default();
            if self.records.exceed(read, with_data) {
                let rule = "too many TLS records without data";
                return match self.session.is_open() {
                    true => self.session.violation(rule),
                    false => self.session.end(CloseReason::Handshake(rule.to_owned())),
                };
            }
        }
        // TLS shrinks its buffer of a large record when it reads again, which an idle connection does not.
        let _ = self.tls.read_tls(&mut NothingYet);
    }

    fn fail(&mut self, error: &Error) {
        let reason = match error {
            _ if self.session.is_open() => CloseReason::PeerMisbehaved(error.to_string()),
            Error::AlertReceived(AlertDescription::NoApplicationProtocol)
            | Error::NoApplicationProtocol => CloseReason::Handshake(
                "the peer uses TLS, but not OpenBATS over TCP (mode 10)".to_owned(),
            ),
            _ => {
                let is_client = matches!(self.tls, Connection::Client(_));
                CloseReason::Handshake(describe_tls_error(error, is_client))
            }
        };
        self.session.end(reason);
    }

    /// Returns the number of records whose data there was.
    fn process_plaintext(&mut self, now: Timestamp) -> u64 {
        if !self.tls.is_handshaking()
            && !self.session.is_open()
            && self.tls.alpn_protocol() != Some(ALPN)
        {
            let text = "the peer uses TLS, but not OpenBATS over TCP (mode 10)";
            self.session.end(CloseReason::Handshake(text.to_owned()));
            return 0;
        }
        let mut with_data = 0;
        loop {
            let mut reader = self.tls.reader();
            // An error means no data yet, or the end of the stream, which `on_lost` handles.
            let Ok(plaintext) = reader.fill_buf() else { return with_data };
            if plaintext.is_empty() {
                // The peer's TLS closed without a Close frame of the session.
                self.session.on_lost("the peer ended the stream");
                return with_data;
            }
            // TLS keeps the data of each record apart.
            with_data += 1;
            let len = plaintext.len();
            self.session.receive(now, plaintext);
            reader.consume(len);
        }
    }

    /// Reports that the TCP stream ended or failed.
    pub fn on_lost(&mut self, text: &str) {
        self.session.on_lost(text);
    }

    /// Appends the bytes to write to the TCP stream, until `out` holds `limit` bytes or slightly
    /// more.
    pub fn transmit(&mut self, now: Timestamp, out: &mut Vec<u8>, limit: usize) {
        let before = out.len();
        loop {
            while self.tls.wants_write() {
                // Writing to a buffer in memory cannot block.
                if self.tls.write_tls(out).is_err() {
                    break;
                }
            }
            if out.len() >= limit || self.close_sent {
                break;
            }
            self.plaintext.clear();
            if !self.tls.is_handshaking() {
                self.session.transmit(now, &mut self.plaintext, PLAINTEXT_CHUNK);
            }
            if !self.plaintext.is_empty() {
                // TLS has no buffer limit here, so it accepts all bytes.
                let _ = self.tls.writer().write_all(&self.plaintext);
            } else if self.session.is_closed() {
                self.tls.send_close_notify();
                self.close_sent = true;
            } else {
                break;
            }
        }
        if self.plaintext.is_empty() {
            self.plaintext.shrink_to(KEPT_BUFFER);
        }
        self.bytes_sent += (out.len() - before) as u64;
    }
}
