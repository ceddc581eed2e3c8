//! A packet socket on one interface: frames in with the kernel's time of arrival, frames out.

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

/// Most frames that one system call moves.
pub(crate) const BATCH: usize = 64;

/// Room for what arrives while the emulator sleeps or is kept from running: some 15,000 full
/// frames, 180 ms at 1 Gbit/s.
const RECEIVE_BUFFER: usize = 64 << 20;

/// Frames go to the driver at once, past traffic control.
#[derive(Clone, Copy)]
struct BypassTrafficControl;
setsockopt_impl!(
    BypassTrafficControl,
    libc::SOL_PACKET,
    libc::PACKET_QDISC_BYPASS,
    bool,
    sockopt::SetBool
);

/// Frames received and dropped by the socket since this was last asked.
#[derive(Clone, Copy)]
struct Statistics;
getsockopt_impl!(
    Statistics,
    libc::SOL_PACKET,
    libc::PACKET_STATISTICS,
    libc::tpacket_stats,
    sockopt::GetStruct<libc::tpacket_stats>
);

/// A frame that has arrived in one of the buffers given to [`Port::receive`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Bytes of the frame.
    pub(crate) length: usize,
    /// When the kernel saw it, since the epoch of the real-time clock.
    pub(crate) at: Option<Duration>,
}

/// One end of an emulated link.
pub(crate) struct Port {
    socket: OwnedFd,
    incoming: MultiHeaders<LinkAddr>,
    outgoing: MultiHeaders<LinkAddr>,
}

impl Port {
    /// A packet socket on an interface of the calling thread's namespace.
    pub(crate) fn socket(interface: &str) -> Result<OwnedFd> {
        // The kernel's own link address of the interface is what a packet socket is bound to.
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
        // A kernel without this takes the longer way, which ends at the same driver.
        let _ = BypassTrafficControl.set(&socket, &true);
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER)?;
        }
        let _ = setsockopt(&socket, sockopt::SndBuf, &(4 << 20));
        // Until it was bound the socket heard all interfaces.
        let mut rest = [0; 64];
        while recv(socket.as_raw_fd(), &mut rest, MsgFlags::empty()).is_ok() {}
        Ok(socket)
    }

    /// The port of a socket, for the thread that uses it.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let port = Self {
            socket,
            incoming: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(libc::timespec))),
            outgoing: MultiHeaders::preallocate(BATCH, None),
        };
        // Asking resets the count; what other interfaces caused before is none of ours.
        port.take_drops();
        port
    }

    /// Receives frames into `buffers` as far as there are any, and says what has arrived in the
    /// first of them.
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
            // An interface that goes down says so once; the next call shows what follows.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends the first frames of `frames`, at most [`BATCH`]; says how many the kernel took.
    pub(crate) fn send<'a>(
        &'a mut self,
        frames: impl Iterator<Item = &'a [u8]>,
    ) -> Result<usize, Error> {
        let slices: Vec<[IoSlice<'_>; 1]> =
            frames.take(BATCH).map(|frame| [IoSlice::new(frame)]).collect();
        send_slices(&self.socket, &mut self.outgoing, &slices)
    }

    /// Frames that the kernel dropped since this was last asked, because the emulator was late.
    pub(crate) fn take_drops(&self) -> u64 {
        Statistics.get(&self.socket).map_or(0, |statistics| u64::from(statistics.tp_drops))
    }
}

fn send_slices(
    socket: &OwnedFd,
    headers: &mut MultiHeaders<LinkAddr>,
    slices: &[[IoSlice<'_>; 1]],
) -> Result<usize, Error> {
    const NOWHERE: [Option<LinkAddr>; BATCH] = [None; BATCH];
    match sendmmsg(socket.as_raw_fd(), headers, slices, NOWHERE, [], MsgFlags::MSG_DONTWAIT) {
        Ok(sent) => Ok(sent.count()),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => {
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
