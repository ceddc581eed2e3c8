//! The channel between keeper and worker: SEQPACKET, one short JSON value per message, with file
//! descriptors. Long texts are passed in a memory file.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

/// Longest message; longer errors are truncated.
const MAX_MESSAGE: usize = 8 << 10;
/// Most descriptors of a message: memory file, control socket, TUN, listeners.
const MAX_DESCRIPTORS: usize = 3 + crate::config::MAX_LISTENERS;

/// From the keeper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToWorker {
    /// The memory file holds a [`Setup`]; at the start with the control socket, and the TUN device if
    /// there is one. The sockets of the configuration's listeners follow, in its order.
    Setup,
    /// As `Setup`, after the first use of a neighbour: what the configuration has in addition. Changes since it was
    /// loaded stay.
    FirstUse,
    /// The reason why the configuration was not loaded again.
    Refused(String),
}

/// From the worker. None has parameters for the keeper: it acts only on the configuration that it reads
/// itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToKeeper {
    /// Everything is set up.
    Ready,
    /// Read the configuration again.
    Reload,
    /// Close the sockets of listeners, and do not start another worker.
    Drain,
    /// End, as after a signal.
    Stop,
}

/// The files that the worker cannot read itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Path of the configuration, for errors.
    pub(crate) path: std::path::PathBuf,
    /// Its text.
    pub(crate) text: String,
    /// Certificate and key.
    pub(crate) identity: String,
    /// Pre-shared key of PSK mode.
    pub(crate) preshared_key: Option<String>,
    /// Certificates of neighbours that have no fingerprint in the text.
    pub(crate) known: crate::config::Known,
}

impl Setup {
    pub(crate) fn to_file(&self) -> io::Result<OwnedFd> {
        to_file("batsd-setup", self)
    }

    pub(crate) fn from_file(fd: OwnedFd) -> io::Result<Self> {
        from_file(fd)
    }
}

/// Asks for the certificate of a neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    /// Address or host name, with a port.
    pub(crate) remote: String,
    /// The local address to leave from.
    pub(crate) local: Option<std::net::IpAddr>,
    /// The only interface to leave through.
    pub(crate) interface: Option<String>,
    /// Number of earlier questions: a host with many addresses is asked at others.
    pub(crate) attempt: usize,
    /// Pre-shared key of PSK mode.
    pub(crate) preshared_key: Option<String>,
}

/// The answer to a [`Question`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The neighbour has this certificate.
    Fingerprint([u8; 32]),
    /// It did not answer, in words.
    Failed(String),
}

impl Question {
    pub(crate) fn to_file(&self) -> io::Result<OwnedFd> {
        to_file("batsd-question", self)
    }

    pub(crate) fn from_file(fd: OwnedFd) -> io::Result<Self> {
        from_file(fd)
    }
}

/// Longest answer.
const MAX_ANSWER: u64 = 4 << 10;

impl Answer {
    /// A file for the answer. It cannot grow, and unlike a pipe it has an end whatever process has it.
    pub(crate) fn file() -> io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("batsd-answer", flags)?);
        file.set_len(MAX_ANSWER)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(file)
    }

    /// Writes the answer to a file.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        to.write_all(&text)?;
        to.flush()
    }

    /// Reads an answer from the file; an error if there is none.
    pub(crate) fn read(file: &mut File) -> io::Result<Self> {
        file.rewind()?;
        let mut bytes = Vec::new();
        file.take(MAX_ANSWER).read_to_end(&mut bytes)?;
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(serde_json::from_slice(line)?)
    }
}

fn to_file(name: &str, value: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    file.rewind()?;
    Ok(file.into())
}

fn from_file<T: for<'a> Deserialize<'a>>(fd: OwnedFd) -> io::Result<T> {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// A pair of connected sockets.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message, and waits if the other end has many to read.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::NOSIGNAL)
}

/// Sends a message, or returns an error if the other end has many to read: the keeper waits for no worker, which
/// could be compromised.
pub(crate) fn send_now(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for a message"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Waits for a message; `None` when the other end is closed.
pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
    socket: impl AsFd,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(bytes.get(..received.bytes).unwrap_or_default())?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_descriptors_and_hostile_ones_are_errors() {
        let (one, other) = pair().unwrap();
        let setup = Setup {
            path: "/x".into(),
            text: "long ".repeat(100_000),
            identity: "pem".into(),
            preshared_key: None,
            known: [("192.0.2.7:4900".to_owned(), [7; 32])].into(),
        };
        let file = setup.to_file().unwrap();
        send(one.as_fd(), &ToWorker::Setup, &[file.as_fd()]).unwrap();
        let (message, mut descriptors) = receive::<ToWorker>(&other).unwrap().unwrap();
        assert!(matches!(message, ToWorker::Setup));
        let read = Setup::from_file(descriptors.pop().unwrap()).unwrap();
        assert_eq!((read.text, read.known), (setup.text, setup.known));
        for bytes in [&b"{}"[..], b"\"install a route\"", b"\xff\xff", &[b'['; MAX_MESSAGE]] {
            rustix::net::send(&other, bytes, SendFlags::empty()).unwrap();
            assert!(receive::<ToKeeper>(&one).is_err());
        }
        drop(other);
        assert!(receive::<ToKeeper>(&one).unwrap().is_none());
    }

    #[test]
    fn answers_have_an_end_and_a_limit() {
        let mut file = Answer::file().unwrap();
        assert!(Answer::read(&mut file).is_err(), "nothing is written");
        file.rewind().unwrap();
        Answer::Fingerprint([7; 32]).write(&mut file).unwrap();
        assert!(
            matches!(Answer::read(&mut file).unwrap(), Answer::Fingerprint(print) if print == [7; 32])
        );
        file.rewind().unwrap();
        assert!(file.write_all(&[b'['; MAX_ANSWER as usize + 1]).is_err());
        assert!(Answer::read(&mut file).is_err());
    }

    #[test]
    fn the_keeper_waits_for_no_worker_that_does_not_read() {
        let (keeper, _worker) = pair().unwrap();
        let refused = ToWorker::Refused("x".repeat(1_000));
        let error = (0..100_000).find_map(|_| send_now(keeper.as_fd(), &refused, &[]).err());
        assert_eq!(error.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
