//! Captures the first packets at the client as a pcap-ng file.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufWriter;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use crate::backend::HostBackend;
use crate::topology;

/// Maximum number of packets in a file.
const MAX_PACKETS: usize = 100_000;
/// Snapshot length in bytes: enough for all headers.
const SNAPSHOT_LENGTH: usize = 192;

/// A running capture.
pub(super) struct Capture {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Capture {
    /// Starts a capture at the node `client`, into a file in this folder.
    pub(super) fn begin(backend: &dyn HostBackend, client: u32, folder: &Path) -> Result<Self> {
        let (home, lab) = backend.lab().context("packets can only be captured in namespaces")?;
        let host = lab.shape.hosts.get(client as usize).context("no such host")?;
        let namespaces = home.namespaces(&lab.name);
        let namespace = topology::namespace(&lab.name, host);
        let path = folder.join("capture.pcapng");
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let socket = namespaces.within(&namespace, || {
            let socket = socket(
                AddressFamily::Packet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::EthAll,
            )
            .context("cannot capture packets")?;
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, 100_000))?;
            let _ = setsockopt(&socket, sockopt::RcvBuf, &(4 << 20));
            Ok(socket)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut writer = PcapNgWriter::new(BufWriter::new(file))?;
            let mut block =
                InterfaceDescriptionBlock::new(DataLink::ETHERNET, SNAPSHOT_LENGTH as u32);
            block.options = vec![InterfaceDescriptionOption::IfTsResol(9)];
            writer.write_pcapng_block(block)?;
            let mut buffer = vec![0; 65_536];
            let mut count = 0;
            while count < MAX_PACKETS && !stopped.load(Ordering::Relaxed) {
                // The timeout is there to check `stop`.
                let Ok(length) = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC) else {
                    continue;
                };
                let captured = length.min(SNAPSHOT_LENGTH).min(buffer.len());
                writer.write_pcapng_block(EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp: SystemTime::now()
                        .duration_since(UNIX_EPOCH)
                        .unwrap_or(Duration::ZERO),
                    original_len: length as u32,
                    data: Cow::Borrowed(&buffer[..captured]),
                    options: Vec::new(),
                })?;
                count += 1;
            }
            std::io::Write::flush(&mut writer.into_inner())?;
            Ok(())
        });
        Ok(Self { stop, thread })
    }

    /// Stops the capture and closes the file.
    pub(super) fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow!("the capture panicked"))?
            .context("cannot write the capture")
    }
}
