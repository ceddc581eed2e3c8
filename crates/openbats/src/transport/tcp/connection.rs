//! A connection over TCP: its socket and its TLS stream.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use bats_proto::stream::TlsStream;
use bats_proto::{CloseReason, Timestamp};

use crate::driver::Interest;
use crate::kernel_memory::is_lack_of_memory;
use crate::transport::lost;

/// Reads from one connection before the others are serviced.
const MAX_READS: usize = 8;
/// Encrypted bytes that wait for the socket before more are encrypted.
const MAX_SEALED: usize = 256 << 10;
/// Capacity of an empty buffer of a connection that is kept: an idle connection takes at most 16 KiB.
const KEPT_BUFFER: usize = 1 << 10;
/// Limit for writing the last bytes of a closing connection and for receiving the peer's end of
/// stream.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause of a connection for whose socket the kernel has no memory: so long that thousands of them do not occupy the
/// thread.
pub(super) const MEMORY_PAUSE: Duration = Duration::from_millis(10);

/// Progress of closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseState {
    Open,
    /// The last bytes may be written until this time.
    Flushing(Timestamp),
    /// They are written; waits for the peer's end of stream until this time, because closing the
    /// socket earlier could discard them.
    AwaitingEof(Timestamp),
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    pub(super) remote: SocketAddr,
    pub(super) tls: TlsStream,
    pub(super) is_server: bool,
    pub(super) is_connecting: bool,
    /// Counted as half-open.
    pub(super) is_counted: bool,
    pub(super) interest: Interest,
    /// Encrypted bytes; those before `written` are sent.
    pub(super) sealed: Vec<u8>,
    pub(super) written: usize,
    pub(super) close_state: CloseState,
    /// Both directions have failed.
    pub(super) is_broken: bool,
    /// The kernel had no memory for its socket: it is neither read nor written before this time.
    pub(super) paused_until: Option<Timestamp>,
    pub(super) armed: Option<Timestamp>,
    /// A defect for tests: a timer that nothing handles.
    #[cfg(test)]
    pub(super) stuck: Option<Timestamp>,
}

impl Connection {
    pub(super) fn is_half_open(&self) -> bool {
        let session = self.tls.session();
        self.is_server && !session.is_open() && !session.is_closed()
    }

    pub(super) fn fail(&mut self, error: &io::Error) {
        self.is_broken = true;
        let has_received_nothing = !self.tls.session().is_open() && self.tls.bytes().0 == 0;
        match (has_received_nothing, error.kind()) {
            // Closed before any data: equivalent to a refused connection.
            (true, ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof) => {
                self.tls.session_mut().end(CloseReason::Refused);
            }
            (true, _) => self.tls.session_mut().end(lost(error)),
            _ => self.tls.on_lost(&error.to_string()),
        }
    }

    /// Reads the received data.
    pub(super) fn read(&mut self, now: Timestamp, buffer: &mut [u8]) {
        for _ in 0..MAX_READS {
            if self.is_broken || self.is_paused() {
                return;
            }
            match self.socket.read(buffer) {
                Ok(0) => {
                    let error =
                        io::Error::new(ErrorKind::UnexpectedEof, "the peer ended the stream");
                    return self.fail(&error);
                }
                // A closing connection reads only to find the end of the stream.
                Ok(len) => self.tls.receive(now, &buffer[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_lack_of_memory(&error) => return self.pause(now),
                Err(error) => return self.fail(&error),
            }
        }
    }

    /// Writes until the socket blocks.
    pub(super) fn write(&mut self, now: Timestamp) {
        if self.is_connecting || self.is_broken || self.is_paused() {
            return;
        }
        loop {
            if self.written == self.sealed.len() {
                self.sealed.clear();
                self.written = 0;
                self.tls.transmit(now, &mut self.sealed, MAX_SEALED);
                if self.sealed.is_empty() {
                    self.sealed.shrink_to(KEPT_BUFFER);
                    return;
                }
            }
            match self.socket.write(&self.sealed[self.written..]) {
                Ok(0) => return,
                Ok(len) => self.written += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_lack_of_memory(&error) => return self.pause(now),
                Err(error) => return self.read_remaining(now, &error),
            }
        }
    }

    /// Handles a write error: first processes the data that the peer sent before it.
    fn read_remaining(&mut self, now: Timestamp, error: &io::Error) {
        let mut buffer = [0; 16 << 10];
        while !self.tls.session().is_closed() {
            match self.socket.read(&mut buffer) {
                Ok(len @ 1..) => self.tls.receive(now, &buffer[..len]),
                // The next write call fails again and leads here.
                Err(error) if is_lack_of_memory(&error) => return self.pause(now),
                Ok(0) | Err(_) => break,
            }
        }
        self.fail(error);
    }

    pub(super) fn pause(&mut self, now: Timestamp) {
        self.paused_until = Some(now + MEMORY_PAUSE);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        self.paused_until = self.paused_until.filter(|&until| until > now);
        self.tls.session_mut().handle_timeout(now);
    }

    /// The readiness of the socket that the connection waits for.
    pub(super) fn wanted(&self) -> Interest {
        let is_full = self.written < self.sealed.len();
        match is_full || self.is_connecting {
            _ if self.is_paused() => Interest::Paused,
            true => Interest::ReadWrite,
            false => Interest::Read,
        }
    }

    /// Advances the close; returns whether the connection can be removed.
    pub(super) fn advance_close(&mut self, now: Timestamp) -> bool {
        if !self.tls.session().is_closed() {
            return false;
        }
        if self.is_broken || self.is_connecting {
            return true;
        }
        if self.close_state == CloseState::Open {
            self.close_state = CloseState::Flushing(now + CLOSE_TIMEOUT);
        }
        if let CloseState::Flushing(until) = self.close_state
            && self.written == self.sealed.len()
        {
            let _ = self.socket.shutdown(Shutdown::Write);
            self.close_state = CloseState::AwaitingEof(until);
        }
        match self.close_state {
            CloseState::Open => false,
            CloseState::Flushing(until) | CloseState::AwaitingEof(until) => now >= until,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        #[cfg(test)]
        if self.stuck.is_some() {
            return self.stuck;
        }
        let next = match self.close_state {
            CloseState::Open => self.tls.session().next_timeout(),
            CloseState::Flushing(until) | CloseState::AwaitingEof(until) => Some(until),
        };
        Timestamp::earlier(next, self.paused_until)
    }
}
