//! The process that asks a neighbour for its certificate (trust on first use). It has the restrictions of the worker,
//! lives for one question, and accepts nothing from the neighbour but a handshake.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use openbats::node::{LinkOptions, LinkPolicy, Node, NodeId};
use openbats::{Fingerprint, Identity, TransportConfig, Trust, resolve_host};

use super::{parse_key, sandbox};
use crate::channel::{Answer, Question};
use crate::config::Remote;

/// Time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Most addresses of a host that are tried.
const MAX_ADDRESSES: usize = 3;
/// Time for the neighbour to receive the close.
const CLOSING: Duration = Duration::from_millis(300);

/// The longest that the process takes: the handshakes, and as much for a resolver.
pub(crate) const LONGEST: Duration = Duration::from_secs(20);

/// Asks one question, which is a [`Question`] at standard input, and writes an [`Answer`] to standard output.
///
/// # Errors
/// It was not started by a keeper.
pub(crate) fn run() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let input: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let question = Question::from_file(input).context("`batsd first-use` is started by batsd")?;
    let answer = match ask(&question) {
        Ok(print) => Answer::Fingerprint(print.0),
        Err(error) => Answer::Failed(format!("{error:#}")),
    };
    Ok(answer.write(&mut std::io::stdout())?)
}

fn ask(question: &Question) -> anyhow::Result<Fingerprint> {
    let Ok(remote) = question.remote.parse::<Remote>() else {
        bail!("{} is no address", question.remote);
    };
    sandbox::enter(matches!(remote, Remote::Host(_)))?;
    let addresses = match &remote {
        Remote::Address(address) => vec![*address],
        Remote::Host(host) => resolve_host(&host.name, host.port)
            .with_context(|| format!("cannot resolve {}", host.name))?,
    };
    let fits = |address: &&SocketAddr| {
        question.local.is_none_or(|local| local.is_ipv4() == address.is_ipv4())
    };
    let addresses: Vec<SocketAddr> = addresses.iter().filter(fits).copied().collect();
    // Later questions begin with the addresses after those.
    let begin = question.attempt.saturating_mul(MAX_ADDRESSES).checked_rem(addresses.len());
    let addresses =
        addresses.iter().cycle().skip(begin.unwrap_or(0)).take(addresses.len().min(MAX_ADDRESSES));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut last = anyhow::anyhow!("no address of the host has the family of `local`");
    for &address in addresses {
        match runtime.block_on(ask_at(question, address)) {
            Ok(print) => return Ok(print),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Asks at an address. The link is closed once the certificate is known: until then no packet of the neighbour is
/// accepted on it, and none is sent.
async fn ask_at(question: &Question, address: SocketAddr) -> anyhow::Result<Fingerprint> {
    let any: IpAddr = match address.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    // With the certificate of the node, the neighbour would take this process for the node, and end its links.
    let identity = Identity::generate(&["openbats-first-use"])?;
    let mut builder = Node::builder(NodeId(u32::MAX), identity)
        .listen(SocketAddr::new(question.local.unwrap_or(any), 0));
    if let Some(key) = &question.preshared_key {
        builder = builder.preshared_key(parse_key(key)?);
    }
    let node = builder.start()?;
    let transport = TransportConfig { handshake_timeout: HANDSHAKE, ..TransportConfig::default() };
    let mut options = LinkOptions::new(address, Trust::dangerous_any())
        .policy(LinkPolicy::end().sources([]).destinations([]))
        .transport(transport)
        .redial(false);
    if let Some(interface) = &question.interface {
        options = options.interface(interface.clone());
    }
    let link = node.links().open(options)?;
    let waited = tokio::time::timeout(HANDSHAKE, link.established()).await;
    // A neighbour that does not admit the certificate of this process has proved its own.
    let print = link.status().and_then(|status| status.fingerprint);
    link.close();
    let _ = tokio::time::timeout(CLOSING, node.terminate(0, "")).await;
    match (print, waited) {
        (Some(print), _) => Ok(print),
        (None, Ok(Err(error))) => bail!("{error}"),
        (None, _) => bail!("{address} does not answer"),
    }
}
