//! The client: requests a test, opens the streams, runs its side and prints the report.

mod baseline;
mod session;
mod throughput;
mod transfer;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Endpoint, PresharedKey, Trust, Wait};

use crate::cli::Options;
use crate::console::{Console, Output};
use crate::pidfile::PidFile;
use crate::report::text;
use crate::stream::Local;
use crate::{files, signals};

pub(crate) use session::receive_summary;
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
    trust: Trust,
    psk: Option<PresharedKey>,
}

/// Runs the client.
///
/// # Errors
/// The server cannot be reached, denies the test, or disconnects.
pub(crate) fn run(options: &Options, console: &Arc<Console>, host: &str) -> Result<ExitCode> {
    // Brackets as in a URL: [::1].
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let set = files::collect(options)?;
    let (local_ip, note) = options.local_ip()?;
    if let Some(note) = note {
        console.note(&note);
    }
    let remote = resolve(options, host, local_ip)?;
    if let Some(path) = &options.report {
        // Fail now rather than after the test.
        std::fs::write(path, "").with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut builder = Endpoint::builder().dscp(options.code_point());
    if local_ip.is_some() || options.cport.is_some() {
        let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        builder = builder.bind((local_ip.unwrap_or(any), options.cport.unwrap_or(0)).into());
    }
    if let Some(device) = &options.bind_dev {
        builder = builder.bind_device(device);
    }
    let endpoint = builder.start()?;
    signals::watch(vec![endpoint.clone()], console.clone())?;
    let _pidfile = options.pidfile.as_deref().map(PidFile::write).transpose()?;
    let (device, dscp) = (options.bind_dev.clone(), options.code_point());
    let local = Local { ip: local_ip, device, dscp };
    let (trust, psk) = (trust(options)?, options.read_preshared_key()?);
    let client = Client { options, console, endpoint, host, local, remote, trust, psk };
    let output = Output::new(console.clone());
    text::banner().iter().for_each(|line| output.line(line));
    output.line(&format!("Connecting to host {host}, port {}", options.port - 1));
    if options.fingerprint.is_none() && options.authorities.is_none() {
        output.note("note: the server is not authenticated (use --fingerprint or --authorities)");
    }
    let result = match set {
        Some(set) => client.transfer(&output, set),
        None => client.throughput(&output),
    };
    client.endpoint.shut_down(0, "");
    // If the close is lost, the peer's idle timeout ends the connection.
    let _ = client.endpoint.idle().wait_for(CLOSE_TIMEOUT);
    match result {
        Err(_) if signals::requested() => bail!("interrupted"),
        other => other,
    }
}

fn trust(options: &Options) -> Result<Trust> {
    Ok(match (&options.fingerprint, &options.authorities) {
        (Some(fingerprint), _) => Trust::fingerprint(*fingerprint),
        (None, Some(path)) => Trust::authorities(path)?,
        (None, None) => Trust::dangerous_any(),
    })
}

/// Resolves the host to an address of the same family as the local address, if given.
fn resolve(options: &Options, host: &str, local: Option<IpAddr>) -> Result<SocketAddr> {
    let port = options.port;
    let addresses = (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve the host '{host}'"))?;
    let addresses: Vec<SocketAddr> = addresses
        .filter(|address| local.is_none_or(|ip| ip.is_ipv4() == address.is_ipv4()))
        .filter(|address| options.fits(address.ip()))
        .collect();
    // Prefer IPv4, which is all that the original supports.
    let address = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    address.copied().with_context(|| format!("'{host}' has no address of the requested IP family"))
}
