//! Files of a new node: an identity, and the configuration lines for other nodes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use openbats::{Fingerprint, Identity};

use super::Config;

/// User of the systemd unit, and of the worker of a keeper that runs as root.
pub(crate) const SERVICE_USER: &str = "bats";

/// Writes a new certificate and key to a file that only its owner may read. Does not replace a file.
///
/// # Errors
/// The file exists or cannot be written.
pub fn generate_identity(path: &Path) -> anyhow::Result<Fingerprint> {
    let (identity, text) = new_identity()?;
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut options = std::fs::OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    match opened {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => bail!(
            "{} exists: the node would lose its identity; remove it first if that is intended",
            path.display()
        ),
        opened => opened.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            give_to_service(path, &file);
            Ok(())
        }),
    }
    .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(identity.fingerprint())
}

/// A new identity, and its certificate and key in PEM.
pub(crate) fn new_identity() -> anyhow::Result<(Identity, String)> {
    let identity = Identity::generate(&["openbats-node"])?;
    let mut text = String::new();
    for certificate in identity.certificates() {
        text += &pem::encode(&pem::Pem::new("CERTIFICATE", certificate.clone()));
    }
    text += &pem::encode(&pem::Pem::new("PRIVATE KEY", identity.private_key().to_vec()));
    Ok((identity, text))
}

/// Lets the user of the systemd unit read a file that root made, if there is that user. It changes the open
/// file: the owner of its folder may have put another file, or a symbolic link, in its place.
fn give_to_service(path: &Path, file: &std::fs::File) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some((_, group)) = super::find_user(SERVICE_USER) else { return };
    let given = std::os::unix::fs::fchown(file, None, Some(group))
        .and_then(|()| file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)));
    if let Err(error) = given {
        eprintln!("the user {SERVICE_USER} cannot read {}: {error}", path.display());
    }
}

/// The `[[peer]]` lines with which another node can reach this one. `address` is the address or host name of this
/// node if the configuration does not name exactly one.
///
/// # Errors
/// `address` is neither.
pub fn share(
    config: &Config,
    fingerprint: Fingerprint,
    address: Option<&str>,
) -> anyhow::Result<String> {
    let mut text = String::from("[[peer]]\n");
    let _ = writeln!(text, "id = \"{}\"", config.plan.id);
    let _ = writeln!(text, "fingerprint = \"sha256:{fingerprint}\"");
    let port = config.listen.first().map_or(super::DEFAULT_PORT, |listen| listen.port());
    let listened = config.listen.iter().find(|listen| !listen.ip().is_unspecified());
    match (address, listened) {
        (Some(address), _) => {
            let Ok(remote) = super::Remote::with_port(address, port) else {
                anyhow::bail!("{address} is not {}", super::WANTED_REMOTE);
            };
            let remote = super::quoted(&remote.to_string())?;
            let _ = writeln!(text, "remote = {remote}");
        }
        (None, Some(listen)) => {
            let _ = writeln!(text, "remote = \"{listen}\"");
        }
        (None, None) => {
            let _ =
                writeln!(text, "# remote = \"ADDRESS:{port}\" # if that node shall open the link");
        }
    }
    let addresses = config.tun.iter().flat_map(|tun| &tun.addresses);
    let prefixes: Vec<String> =
        addresses.map(|net| format!("\"{}\"", ipnet::IpNet::from(net.addr()))).collect();
    let _ = writeln!(text, "prefixes = [{}]", prefixes.join(", "));
    Ok(text)
}
