//! The client: requests a test, opens the streams, runs its side and prints the report.

mod baseline;
mod run;
mod session;
mod throughput;
mod transfer;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Endpoint, Identity, PresharedKey, Wait};

use crate::cli::Options;
use crate::console::{Console, Output};
use crate::pidfile::PidFile;
use crate::report::text;
use crate::state_files::ServerTrust;
use crate::stream::{Local, with_port};
use crate::{files, interrupt, signals, state_files};

pub(crate) use session::{checked_summary, receive_summary};
pub(crate) use throughput::params;

/// How long closing the endpoint may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A client with its endpoint.
struct Client<'a> {
    options: &'a Options,
    console: &'a Arc<Console>,
    /// For signalling, and for data unless there is an emulated link.
    endpoint: Endpoint,
    host: &'a str,
    local: Local,
    remote: SocketAddr,
    trust: ServerTrust,
    psk: Option<PresharedKey>,
    /// For servers that authenticate their clients.
    identity: Option<Identity>,
}

/// A host without the brackets of a URL: `[::1]`.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Runs the client.
///
/// # Errors
/// The server cannot be reached, denies the test, or disconnects.
pub(crate) fn run(options: &Options, console: &Arc<Console>, host: &str) -> Result<ExitCode> {
    let host = without_brackets(host);
    let set = files::collect(options)?;
    let (local_address, note) = options.local_address()?;
    if let Some(note) = note {
        console.note(&note);
    }
    let remote = resolve(options, host, local_address)?;
    if let Some(path) = &options.test.report {
        // Fail now rather than after the test.
        std::fs::write(path, "").with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut builder = Endpoint::builder().dscp(options.socket.code_point());
    let local = Local {
        address: local_address,
        device: options.socket.bind_dev.clone(),
        dscp: options.socket.code_point(),
    };
    if local_address.is_some() || options.test.cport.is_some() {
        builder = builder.bind(with_port(local.to_bind(remote), options.test.cport.unwrap_or(0)));
    }
    if let Some(device) = &options.socket.bind_dev {
        builder = builder.bind_device(device);
    }
    let endpoint = builder.start()?;
    signals::watch(vec![endpoint.clone()], console.clone())?;
    let _pidfile = options.pidfile.as_deref().map(PidFile::write).transpose()?;
    let (trust, psk) = (ServerTrust::new(options, host, console)?, options.read_preshared_key()?);
    let identity = state_files::client_identity(options, console)?;
    let client = Client { options, console, endpoint, host, local, remote, trust, psk, identity };
    let output = Output::new(console.clone());
    text::banner().iter().for_each(|line| output.line(line));
    output.line(&format!("Connecting to host {host}, port {}", options.port - 1));
    let result = match set {
        Some(set) => client.transfer(&output, set),
        None => client.throughput(&output),
    };
    client.endpoint.shut_down(0, "");
    // If the close is lost, the peer's idle timeout ends the connection.
    let _ = client.endpoint.idle().wait_for(CLOSE_TIMEOUT);
    match result {
        Err(_) if interrupt::requested() => bail!("interrupted"),
        other => other,
    }
}

/// Resolves the host to an address of the same family as the local address, if given.
fn resolve(options: &Options, host: &str, local: Option<SocketAddr>) -> Result<SocketAddr> {
    let port = options.port;
    let addresses = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve the host '{host}'"))?;
    let addresses: Vec<SocketAddr> = addresses
        .filter(|address| local.is_none_or(|local| local.is_ipv4() == address.is_ipv4()))
        .filter(|address| options.fits(address.ip()))
        .collect();
    // Prefer IPv4, which is all that the original supports.
    let address = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    let needs_zone = |address: &SocketAddr| match address {
        SocketAddr::V6(v6) => v6.ip().is_unicast_link_local() && v6.scope_id() == 0,
        SocketAddr::V4(_) => false,
    };
    if address.is_some_and(needs_zone) {
        bail!("{host} is link-local: add the interface to reach it by, such as {host}%eth0");
    }
    address.copied().with_context(|| format!("'{host}' has no address of the requested IP family"))
}
