//! TUN devices of Linux whose packets are TCP super-packets of up to 64 KiB.
//!
//! The only unsafe code is in [`Tun::open`] and [`Tun::set_offload`]: ioctls, whose structures are
//! defined here.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
#![deny(missing_docs)]

mod checksum;
mod offload;
mod packet;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use offload::{HEADER, Malformed, Offload};
pub use packet::{Packet, TCP, UDP, mark_ce};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Updater, ioctl};

/// Longest packet of a TUN device.
pub const MAX_PACKET: usize = 65_535;

// linux/if_tun.h
const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
const TUNSETOFFLOAD: rustix::ioctl::Opcode = 0x4004_54d0;
const IFF_TUN: u16 = 0x0001;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;

/// `struct ifreq` of linux/if.h: the name, and a union of 24 bytes of which the first two are the
/// flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Work that the kernel may leave to the reader of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffloadLevel {
    /// Nothing: each packet is complete.
    None,
    /// Checksums of TCP and UDP.
    Checksums,
    /// Checksums, and TCP segmentation: super-packets arrive unsegmented.
    Segmentation,
}

/// A TUN device. The kernel removes it when its last descriptor is closed.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
}

impl Tun {
    /// Creates a device with this name, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is not 1 to 15 bytes; otherwise the error of the kernel, for
    /// example `PermissionDenied` without CAP_NET_ADMIN or `ResourceBusy` if the name is in use.
    pub fn open(name: &str) -> io::Result<Self> {
        let mut request = InterfaceRequest {
            name: [0; 16],
            flags: IFF_TUN | IFF_NO_PI | IFF_VNET_HDR,
            rest: [0; 22],
        };
        if name.is_empty() || name.len() > 15 || name.contains(['\0', '/', '%']) {
            let text = format!("'{name}' is no interface name: it needs 1 to 15 bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        for (place, byte) in request.name.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        let fd = rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, of which `InterfaceRequest` has the
        // size (40 bytes) and the layout.
        unsafe { ioctl(&fd, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request))? };
        Ok(Self { fd })
    }

    /// A device whose descriptor another process has opened with [`open`](Self::open).
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Sets the work that the kernel may leave to the reader, and returns the level that the kernel has
    /// accepted: the wanted one or a lower one.
    ///
    /// # Errors
    /// The kernel refuses even complete packets.
    pub fn set_offload(&self, wanted: OffloadLevel) -> io::Result<OffloadLevel> {
        let levels = [
            (OffloadLevel::Segmentation, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6),
            (OffloadLevel::Checksums, TUN_F_CSUM),
            (OffloadLevel::None, 0),
        ];
        let mut refused = Errno::INVAL;
        for (level, flags) in levels.into_iter().filter(|(level, _)| *level <= wanted) {
            // SAFETY: TUNSETOFFLOAD takes its flags by value, and no memory.
            match unsafe { ioctl(&self.fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(flags)) } {
                Ok(()) => return Ok(level),
                Err(error) => refused = error,
            }
        }
        Err(refused.into())
    }

    /// Reads a packet, with its header, into a buffer of at least [`HEADER`] + [`MAX_PACKET`] bytes.
    /// Returns the work that is left and the length of the packet, which begins at [`HEADER`].
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<(Offload, usize)> {
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer))?;
        let read = buffer.get(..length).and_then(|bytes| bytes.split_first_chunk::<HEADER>());
        let (header, packet) = read.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((Offload::of_header(header), packet.len()))
    }

    /// Writes a packet with a header that [`Offload::header_for`] has built.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn write(&self, header: &[u8; HEADER], packet: &[u8]) -> io::Result<()> {
        let parts = [io::IoSlice::new(header), io::IoSlice::new(packet)];
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.fd, &parts))?;
        Ok(())
    }

    /// Another descriptor of the same device.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.fd.try_clone().map(Self::from_fd)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
