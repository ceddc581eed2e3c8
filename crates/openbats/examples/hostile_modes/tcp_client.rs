//! A client of the mode TCP that can send any TLS record and any frame.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305};
use aws_lc_rs::aead::{LessSafeKey, Nonce, UnboundKey};
use bats_proto::Mode;
use bats_proto::crypto::tls_client;
use rustls::{ClientConnection, ConnectionTrafficSecrets};

use crate::client_config;

const ALPN: &[u8] = b"openbats-tcp/1";
/// Content types of TLS.
pub(crate) const APPLICATION_DATA: u8 = 23;

/// A frame of a session.
pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&[kind], &length[..], payload].concat()
}

/// The first frame: it accepts messages of 64 MiB, and has a credit of 1 GiB and an idle time-out of an hour.
pub(crate) fn hello() -> Vec<u8> {
    let numbers: [u64; 3] = [64 << 20, 1 << 30, 3_600_000];
    let fields = numbers.iter().flat_map(|number| number.to_be_bytes());
    frame(0, &std::iter::once(1).chain(fields).collect::<Vec<u8>>())
}

/// A connected socket, which does not block.
pub(crate) fn connected(to: SocketAddr) -> Result<TcpStream, Box<dyn Error>> {
    let socket = TcpStream::connect(to)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The TLS connection of a client.
pub(crate) fn tls() -> Result<ClientConnection, Box<dyn Error>> {
    let (mut config, name) = tls_client(&client_config(Mode::Tcp), "localhost", ALPN)?;
    config.enable_secret_extraction = true;
    Ok(ClientConnection::new(Arc::new(config), name)?)
}

/// Discards what the server has sent.
pub(crate) fn drain(socket: &mut TcpStream) {
    let mut scratch = [0; 65_536];
    while matches!(socket.read(&mut scratch), Ok(1..)) {}
}

/// Exchanges the handshake; `serve` lets the server work.
pub(crate) fn shake_hands(
    socket: &mut TcpStream,
    tls: &mut ClientConnection,
    mut serve: impl FnMut(),
) -> Result<(), Box<dyn Error>> {
    let mut scratch = vec![0; 65_536];
    for _ in 0..100 {
        let mut out = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut out)?;
        }
        socket.write_all(&out)?;
        serve();
        match socket.read(&mut scratch) {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(len) => {
                let mut bytes = &scratch[..len];
                while !bytes.is_empty() {
                    tls.read_tls(&mut bytes)?;
                    tls.process_new_packets()?;
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if !tls.is_handshaking() && !tls.wants_write() {
            return Ok(());
        }
    }
    Err("the handshake does not end".into())
}

/// Seals records with the keys of a connection.
pub(crate) struct Sealer {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Sealer {
    pub(crate) fn new(tls: ClientConnection) -> Result<Self, Box<dyn Error>> {
        let (sequence, secrets) = tls.dangerous_extract_secrets()?.tx;
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err("an unknown cipher suite".into()),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| "an unusable key")?;
        let iv = iv.as_ref().try_into()?;
        Ok(Self { key: LessSafeKey::new(key), iv, sequence })
    }

    /// A record with this content, and zeros after it.
    pub(crate) fn record(&mut self, kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
        let mut sealed = [content, &[kind]].concat();
        sealed.resize(sealed.len() + padding, 0);
        let mut nonce = self.iv;
        let number = self.sequence.to_be_bytes();
        nonce[4..].iter_mut().zip(number).for_each(|(to, from)| *to ^= from);
        self.sequence += 1;
        let [high, low] = (sealed.len() as u16 + 16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let nonce = Nonce::assume_unique_for_key(nonce);
        let result = self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed);
        assert!(result.is_ok(), "sealed");
        [&header[..], &sealed].concat()
    }

    /// Application data, in records as large as may be.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Vec<u8> {
        bytes.chunks(16_384).flat_map(|part| self.record(APPLICATION_DATA, part, 0)).collect()
    }
}
