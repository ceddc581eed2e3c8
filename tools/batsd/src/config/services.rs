//! Listeners for programs, and what this node serves as an exit.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bats_node::{NodeId, Plan};
use toml::Spanned;

use super::{ConfigError, Source, model};
use crate::proxy::allow::{AllowList, MAX_RULES, Rule};
use crate::proxy::target::Target;

/// Most listeners: the keeper passes their descriptors in one message, of at most 253 (SCM_MAX_FD).
pub const MAX_LISTENERS: usize = 64;
/// Longest user and password (RFC 1929 section 2).
const MAX_CREDENTIAL: usize = 255;

/// What a listener does with what it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// SOCKS5 and HTTP CONNECT on one port; users with their passwords, or no authentication.
    Proxy(BTreeMap<String, String>),
    /// TCP connections to one destination.
    Tcp(Target),
    /// Datagrams to one destination.
    Udp(Target),
}

/// A listener for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its local address.
    pub address: SocketAddr,
    /// The node that connects to the destinations.
    pub exit: NodeId,
    /// What it does.
    pub service: Service,
}

impl Listener {
    /// Whether its socket is of UDP.
    #[must_use]
    pub fn is_udp(&self) -> bool {
        matches!(self.service, Service::Udp(_))
    }
}

pub(super) fn listeners(
    source: &Source<'_>,
    file: &model::File,
    plan: &Plan,
) -> Result<Vec<Listener>, ConfigError> {
    let mut list: Vec<Listener> = Vec::new();
    let mut add = |listen: &Spanned<String>, exit: &Spanned<String>, service| {
        let listener = Listener {
            address: source.socket("listen", listen)?,
            exit: source.id("exit", exit)?,
            service,
        };
        if !plan.peers.contains_key(&listener.exit) {
            let text =
                format!("exit = \"{}\" is no [[peer]]: add one with this id", exit.get_ref());
            return Err(source.error(Some(exit.span()), text));
        }
        let is_same = |other: &Listener| {
            other.address == listener.address && other.is_udp() == listener.is_udp()
        };
        if list.iter().any(is_same) {
            let text = format!("two listeners have the address {}: change one", listener.address);
            return Err(source.error(Some(listen.span()), text));
        }
        if list.len() >= MAX_LISTENERS {
            let text = format!("more than {MAX_LISTENERS} listeners");
            return Err(source.error(Some(listen.span()), text));
        }
        list.push(listener);
        Ok(())
    };
    for proxy in &file.proxy {
        let listen = source.socket("listen", &proxy.listen)?;
        let is_exposed = !listen.ip().to_canonical().is_loopback();
        if is_exposed && proxy.users.is_empty() && !proxy.open {
            let text = format!(
                "the proxy at {listen} would serve everyone who reaches it: name `users`, listen at \
                 127.0.0.1, or say `open = true`"
            );
            return Err(source.error(Some(proxy.listen.span()), text));
        }
        let is_bad = |text: &str| text.is_empty() || text.len() > MAX_CREDENTIAL;
        for (user, password) in &proxy.users {
            if is_bad(user) || is_bad(password) || user.contains(':') {
                let text = format!(
                    "users: \"{user}\" and its password need 1 to {MAX_CREDENTIAL} bytes, the user \
                     no colon"
                );
                return Err(source.error(Some(proxy.listen.span()), text));
            }
        }
        add(&proxy.listen, &proxy.exit, Service::Proxy(proxy.users.clone()))?;
    }
    for forward in &file.forward {
        let to: Target = forward.to.get_ref().parse().map_err(|error| {
            let text = format!("to = \"{}\" is no destination: {error}", forward.to.get_ref());
            source.error(Some(forward.to.span()), text)
        })?;
        let service = match forward.protocol.as_ref().map(|protocol| protocol.get_ref().as_str()) {
            None | Some("tcp") => Service::Tcp(to),
            Some("udp") => Service::Udp(to),
            Some(other) => {
                let text = format!("protocol = \"{other}\" is not \"tcp\" or \"udp\"");
                return Err(source.error(forward.protocol.as_ref().map(Spanned::span), text));
            }
        };
        add(&forward.listen, &forward.exit, service)?;
    }
    Ok(list)
}

pub(super) fn exit(source: &Source<'_>, exit: &model::Exit) -> Result<AllowList, ConfigError> {
    let mut rules = Vec::new();
    for rule in &exit.allow {
        let parsed: Rule = rule.get_ref().parse().map_err(|()| {
            let text = format!(
                "allow: \"{}\" is not HOST:PORTS, such as \"10.0.0.0/8:22\", \"[fd00::/8]:80-90\", \
                 \"*.example.org:443\" or \"*:*\"",
                rule.get_ref()
            );
            source.error(Some(rule.span()), text)
        })?;
        rules.push(parsed);
        if rules.len() > MAX_RULES {
            return Err(source.error(Some(rule.span()), format!("more than {MAX_RULES} rules")));
        }
    }
    Ok(AllowList::new(rules))
}
