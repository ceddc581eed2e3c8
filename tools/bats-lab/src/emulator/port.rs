//! A packet socket on one interface: receives frames with kernel timestamps, and sends frames.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, GetSockOpt, LinkAddr, MsgFlags, MultiHeaders, SetSockOpt,
    SockFlag, SockProtocol, SockType, bind, recv, recvmmsg, sendmmsg, setsockopt, socket, sockopt,
};
use nix::{cmsg_space, getsockopt_impl, setsockopt_impl};

use crate::shortage::MEMORY_PAUSE;

/// Limit of frames per system call.
pub(crate) const BATCH: usize = 64;

/// Receive buffer in bytes for frames that arrive while the emulator sleeps or is not scheduled:
/// some 15,000 full frames, 180 ms at 1 Gbit/s.
const RECEIVE_BUFFER: usize = 64 << 20;

/// Socket option: frames bypass traffic control and go to the driver directly.
#[derive(Clone, Copy)]
struct BypassTrafficControl;
setsockopt_impl!(
    BypassTrafficControl,
    libc::SOL_PACKET,
    libc::PACKET_QDISC_BYPASS,
    bool,
    sockopt::SetBool
);

/// Socket option: frames received and dropped by the socket since the last query.
#[derive(Clone, Copy)]
struct Statistics;
getsockopt_impl!(
    Statistics,
    libc::SOL_PACKET,
    libc::PACKET_STATISTICS,
    libc::tpacket_stats,
    sockopt::GetStruct<libc::tpacket_stats>
);

/// A frame received into one of the buffers passed to [`Port::receive`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Bytes of the frame.
    pub(crate) length: usize,
    /// The kernel's timestamp, real-time clock.
    pub(crate) at: Option<Duration>,
}

/// One end of an emulated link.
pub(crate) struct Port {
    socket: OwnedFd,
    incoming: MultiHeaders<LinkAddr>,
    outgoing: MultiHeaders<LinkAddr>,
}

impl Port {
    /// Opens a packet socket on an interface of the calling thread's namespace.
    pub(crate) fn socket(interface: &str) -> Result<OwnedFd> {
        // A packet socket is bound to the interface's link-layer address.
        let address = getifaddrs()
            .context("cannot list interfaces")?
            .filter(|found| found.interface_name == interface)
            .find_map(|found| found.address?.as_link_addr().copied())
            .with_context(|| format!("there is no interface {interface}"))?;
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            Some(SockProtocol::EthAll),
        )
        .context("cannot open a packet socket")?;
        bind(socket.as_raw_fd(), &address)
            .with_context(|| format!("cannot bind a packet socket to {interface}"))?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        // Without this option frames pass through traffic control to the same driver.
        let _ = BypassTrafficControl.set(&socket, &true);
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        let _ = setsockopt(&socket, sockopt::SndBuf, &(4 << 20));
        // Drop frames of other interfaces, received before the socket was bound.
        let mut rest = [0; 64];
        while recv(socket.as_raw_fd(), &mut rest, MsgFlags::empty()).is_ok() {}
        Ok(socket)
    }

    /// Wraps a socket; called on the thread that uses it.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let port = Self {
            socket,
            incoming: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(libc::timespec))),
            outgoing: MultiHeaders::preallocate(BATCH, None),
        };
        // A query resets the drop counter, which may include drops of other interfaces.
        port.take_drops();
        port
    }

    /// Receives available frames into `buffers`; `arrivals` describes the buffers that were filled.
    pub(crate) fn receive(
        &mut self,
        buffers: &mut [Vec<u8>],
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), Error> {
        arrivals.clear();
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        let received = recvmmsg(
            self.socket.as_raw_fd(),
            &mut self.incoming,
            slices.iter_mut(),
            MsgFlags::MSG_DONTWAIT,
            None,
        );
        match received {
            Ok(messages) => {
                arrivals.extend(messages.map(|message| Arrival {
                    length: message.bytes,
                    at: message.cmsgs().ok().into_iter().flatten().find_map(
                        |control| match control {
                            ControlMessageOwned::ScmTimestampns(at) => Some(at.into()),
                            _ => None,
                        },
                    ),
                }));
                Ok(())
            }
            Err(error) => without_frames(error),
        }
    }

    /// Sends the first frames of `frames`, at most [`BATCH`]; returns how many the kernel accepted.
    pub(crate) fn send<'a>(
        &'a mut self,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> Result<usize, Error> {
        let slices: Vec<[IoSlice<'_>; 1]> =
            frames.take(BATCH).map(|frame| [IoSlice::new(frame)]).collect();
        send_slices(&self.socket, &mut self.outgoing, &slices)
    }

    /// Frames that the kernel dropped since the last call, because the emulator was too slow.
    pub(crate) fn take_drops(&self) -> u64 {
        Statistics.get(&self.socket).map_or(0, |statistics| u64::from(statistics.tp_drops))
    }
}

/// Passes on errors of a receive call that mean more than that there are no frames now.
fn without_frames(error: Errno) -> Result<(), Error> {
    match error {
        // An interface that goes down reports ENETDOWN once.
        Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN => Ok(()),
        // The frames wait, and their socket stays ready.
        Errno::ENOMEM | Errno::ENOBUFS => {
            std::thread::sleep(MEMORY_PAUSE);
            Ok(())
        }
        _ => Err(error.into()),
    }
}

fn send_slices(
    socket: &OwnedFd,
    headers: &mut MultiHeaders<LinkAddr>,
    slices: &[[IoSlice<'_>; 1]],
) -> Result<usize, Error> {
    const NO_DESTINATIONS: [Option<LinkAddr>; BATCH] = [None; BATCH];
    match sendmmsg(socket.as_raw_fd(), headers, slices, NO_DESTINATIONS, [], MsgFlags::MSG_DONTWAIT)
    {
        Ok(sent) => Ok(sent.count()),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::ENOMEM) => {
            Err(Error::from(ErrorKind::WouldBlock))
        }
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_kernel_memory_ends_no_link() {
        for code in [Errno::ENOMEM, Errno::ENOBUFS, Errno::EAGAIN, Errno::EINTR, Errno::ENETDOWN] {
            assert!(without_frames(code).is_ok(), "{code}");
        }
        for code in [Errno::EBADF, Errno::ENXIO] {
            assert!(without_frames(code).is_err(), "{code}");
        }
    }
}
