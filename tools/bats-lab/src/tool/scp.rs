//! Copies a random file with scp and compares the copy.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{Job, OutputParser, PORT, ToolContext};
use crate::config::model::PacketType;
use crate::plan::{Protocol, ProtocolKind};
use crate::protocol::incompatible;
use crate::protocol::programs::find;
use crate::protocol::reading::Reading;
use crate::result::figures::set;

/// A file copy.
#[derive(Clone, Debug)]
pub(crate) struct FileCopy {
    /// The directory with file, copy and keys; removed with the last reference.
    folder: Arc<TempDir>,
    bytes: u64,
}

/// Prepares the command lines and the keys and files that they need.
pub(super) fn job(protocol: &Protocol, context: &ToolContext<'_>, megabytes: u32) -> Result<Job> {
    let (to, port) = match &protocol.kind {
        ProtocolKind::Tunnel { port, carries: PacketType::Tcp, .. } => ("127.0.0.1", *port),
        ProtocolKind::Tcp { .. }
        | ProtocolKind::Daemon { .. }
        | ProtocolKind::Node { .. }
        | ProtocolKind::WireGuard { .. } => (context.to, PORT),
        _ => incompatible!(
            "scp needs TCP, which {} does not transport without a proxy",
            protocol.name
        ),
    };
    if !context.is_local {
        incompatible!(
            "scp needs hosts in namespaces on this machine, to compare the file with its copy"
        );
    }
    let programs = ["sshd", "ssh-keygen", "scp"].map(|name| (name, find(name)));
    if let Some((name, _)) = programs.iter().find(|(_, path)| path.is_none()) {
        bail!(
            "scp needs `{name}`, which is not installed (Debian: openssh-server, openssh-client)"
        );
    }
    let [sshd, keygen, scp] = programs.map(|(_, path)| path.unwrap_or_default());
    // Not in the results directory: the keys are of no use later.
    let temporary = tempfile::Builder::new().prefix("batslab-scp-").tempdir();
    let temporary = Arc::new(temporary.context("cannot make a folder for keys")?);
    let folder = temporary.path();
    for name in ["host_key", "user_key"] {
        let made = Command::new(&keygen)
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(folder.join(name))
            .stdin(Stdio::null())
            .status()
            .context("cannot run ssh-keygen")?;
        if !made.success() {
            bail!("ssh-keygen failed to make a key");
        }
    }
    // sshd's privilege separation needs this directory, which its service normally creates.
    let _ = fs::create_dir_all("/run/sshd");
    let bytes = u64::from(megabytes) * 1_000_000;
    let (sent, arrived) = (folder.join("file"), folder.join("copy"));
    let mut random = File::open("/dev/urandom")?.take(bytes);
    std::io::copy(&mut random, &mut File::create(&sent)?)
        .context("cannot write the file to send")?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let config = format!(
        "Port {port}\nHostKey {key}\nAuthorizedKeysFile {known}\nPidFile none\nUsePAM no\n\
         StrictModes no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\nPasswordAuthentication no\n",
        key = text(&folder.join("host_key")),
        known = text(&folder.join("user_key.pub")),
    );
    fs::write(folder.join("sshd_config"), config)?;
    let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
    let mut client = vec![text(&scp), "-q".to_owned(), "-P".to_owned(), port.to_string()];
    client.extend(["-i".to_owned(), text(&folder.join("user_key"))]);
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "ConnectTimeout=20",
    ] {
        client.extend(["-o".to_owned(), option.to_owned()]);
    }
    client.extend([text(&sent), format!("{user}@{to}:{}", text(&arrived))]);
    Ok(Job {
        server: Some(vec![
            text(&sshd),
            "-D".to_owned(),
            "-e".to_owned(),
            "-f".to_owned(),
            text(&folder.join("sshd_config")),
        ]),
        client,
        read: OutputParser::File(FileCopy { folder: temporary, bytes }),
        ends_after: None,
        has_stand_in: false,
        port,
    })
}

impl FileCopy {
    /// Compares the file with its copy and returns the results.
    ///
    /// # Errors
    /// They differ, or the copy is missing.
    pub(super) fn read(&self, seconds: f64) -> Result<Reading> {
        let [sent, arrived] = ["file", "copy"].map(|name| self.folder.path().join(name));
        if hash(&sent)? != hash(&arrived)? {
            bail!("the received file differs from the sent file");
        }
        let mut reading = Reading::default();
        set(&mut reading.figures, "file_seconds", seconds);
        let rate = self.bytes as f64 * 8e-6 / seconds.max(1e-9);
        set(&mut reading.figures, "throughput_mbps", rate);
        Ok(reading)
    }
}

fn hash(path: &Path) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path).context("the file did not arrive")?;
    std::io::copy(&mut file, &mut hasher)?;
    Ok(hasher.finalize())
}
