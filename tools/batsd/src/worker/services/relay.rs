//! Bytes and datagrams between sockets and channels.

use std::io;
use std::time::Duration;

use openbats::Channel;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{BUFFER, RESET};
use crate::proxy::Parsed;
use crate::proxy::request::decode_datagram;
use crate::proxy::target::Target;

/// Interval at which a connection that sends nothing looks whether the session has ended.
const CHECK: Duration = Duration::from_secs(10);

/// Makes the kernel send a reset when the connection is dropped.
pub(super) fn reset_on_drop(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Carries bytes in both directions until both have ended, or one fails: then both ends get a reset.
/// `first` has come over the channel (or the connection) before, and goes first.
pub(super) async fn carry(
    mut stream: TcpStream,
    channel: &Channel,
    to_stream: Vec<u8>,
    to_channel: Vec<u8>,
) {
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    // Also if this is dropped before its end: the program must not take what it has for all.
    reset_on_drop(&stream);
    let (mut reader, mut writer) = stream.split();
    let up = async {
        channel.write_all(&to_channel).await?;
        let mut buffer = vec![0; BUFFER];
        loop {
            let length = match timeout(CHECK, reader.read(&mut buffer)).await {
                Ok(read) => read?,
                Err(_) if channel.connection().close_reason().is_some() => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Err(_) => continue,
            };
            match buffer.get(..length) {
                None | Some([]) => return Ok::<(), io::Error>(channel.finish()?),
                Some(bytes) => channel.write_all(bytes).await?,
            }
        }
    };
    let down = async {
        writer.write_all(&to_stream).await?;
        let mut reader = BufReader::with_capacity(BUFFER, channel);
        tokio::io::copy_buf(&mut reader, &mut writer).await?;
        writer.shutdown().await
    };
    match tokio::try_join!(up, down) {
        Ok(_) => _ = rustix::net::sockopt::set_socket_linger(&stream, None),
        Err(_) => {
            channel.reset(RESET);
            channel.stop(RESET);
        }
    }
}

/// Reads datagrams from a channel.
pub(super) struct Datagrams<'a> {
    channel: &'a Channel,
    bytes: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a> Datagrams<'a> {
    pub(super) fn new(channel: &'a Channel) -> Self {
        Self { channel, bytes: Vec::new(), buffer: vec![0; BUFFER] }
    }

    /// The next datagram, or an error at the end and for bytes that are none.
    pub(super) async fn next(&mut self) -> io::Result<(Target, Vec<u8>)> {
        loop {
            match decode_datagram(&self.bytes).map_err(io::Error::other)? {
                Parsed::Complete(datagram, length) => {
                    self.bytes.drain(..length);
                    return Ok(datagram);
                }
                // Less than the 64 KiB that two bytes of length can announce.
                Parsed::Incomplete => {}
            }
            let length = self.channel.read(&mut self.buffer).await?;
            match self.buffer.get(..length) {
                None | Some([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(bytes) => self.bytes.extend(bytes),
            }
        }
    }
}
