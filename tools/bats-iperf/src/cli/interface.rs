//! Resolves interface names to local addresses.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use anyhow::Context;

use super::Options;
use crate::printable::printable;

impl Options {
    /// The address of `-I`, if given, and a note to print. A client ignores an interface that does
    /// not exist.
    ///
    /// # Errors
    /// At a server the interface does not exist, or it has no address of the requested family.
    pub(crate) fn local_address(&self) -> anyhow::Result<(Option<SocketAddr>, Option<String>)> {
        let Some(name) = &self.socket.interface else { return Ok((None, None)) };
        if let Some(address) = parse_address(name)? {
            return match self.fits(address.ip()) {
                true => Ok((Some(address), None)),
                false => anyhow::bail!("{name} is not of the requested IP family (-4, -6)"),
            };
        }
        let name = if name == "loopback" { "lo" } else { name };
        let interfaces: Vec<_> = nix::ifaddrs::getifaddrs()?
            .filter(|interface| interface.interface_name == name)
            .collect();
        if interfaces.is_empty() && self.client.is_some() {
            // Clients of the original tool do not check the name.
            let note = format!("note: -I is ignored: there is no interface '{}'", printable(name));
            return Ok((None, Some(note)));
        }
        let addresses: Vec<SocketAddr> = interfaces
            .into_iter()
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), 0)));
                v4.or_else(|| {
                    let v6 = address.as_sockaddr_in6()?;
                    Some(SocketAddrV6::new(v6.ip(), 0, 0, v6.scope_id()).into())
                })
            })
            .filter(|address| self.fits(address.ip()))
            .collect();
        match first_of(&addresses) {
            Some(address) => Ok((Some(address), None)),
            None => anyhow::bail!("no interface '{name}' with an address (see ip addr)"),
        }
    }

    /// Whether an address is of the requested IP family.
    pub(crate) fn fits(&self, address: IpAddr) -> bool {
        !(self.family.ipv4 && address.is_ipv6() || self.family.ipv6 && address.is_ipv4())
    }
}

/// Parses an address, for a link-local one with its zone: the interface by name or number. Returns
/// `None` if the text is no address.
fn parse_address(text: &str) -> anyhow::Result<Option<SocketAddr>> {
    let (ip, zone) = match text.split_once('%') {
        Some((ip, zone)) => (ip, Some(zone)),
        None => (text, None),
    };
    let Ok(ip) = ip.parse::<IpAddr>() else { return Ok(None) };
    match (ip, zone) {
        (IpAddr::V6(ip), Some(zone)) => {
            let number = zone.parse().ok().or_else(|| nix::net::if_::if_nametoindex(zone).ok());
            let number = number
                .with_context(|| format!("{text}: there is no interface '{}'", printable(zone)))?;
            Ok(Some(SocketAddrV6::new(ip, 0, 0, number).into()))
        }
        (IpAddr::V6(v6), None) if v6.is_unicast_link_local() => {
            anyhow::bail!("{ip} is link-local: add its interface, such as {ip}%eth0")
        }
        (_, Some(_)) => Ok(None),
        (_, None) => Ok(Some(SocketAddr::new(ip, 0))),
    }
}

/// The address used for an interface: the first that the system lists, which is the primary one.
/// IPv4 goes before IPv6, and global addresses before link-local ones.
fn first_of(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let class = |address: &&SocketAddr| match address.ip() {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    };
    addresses.iter().min_by_key(class).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse;

    #[test]
    fn an_interface_resolves_to_its_primary_address() {
        let first = |text: &str| {
            let parse = |text: &str| SocketAddr::new(text.parse().unwrap(), 0);
            let addresses: Vec<SocketAddr> = text.split(' ').map(parse).collect();
            first_of(&addresses).unwrap().ip().to_string()
        };
        // The first, not the lowest.
        assert_eq!(first("192.168.7.1 10.0.0.1"), "192.168.7.1");
        assert_eq!(first("fe80::1 fd00::2 2001:db8::1 10.0.0.9 10.0.0.1"), "10.0.0.9");
        assert_eq!(first("fe80::1 fd00::2 2001:db8::1"), "fd00::2");
        assert_eq!(first("fe80::1"), "fe80::1");
        assert_eq!(first_of(&[]), None);
    }

    #[test]
    fn interface_names_and_addresses_resolve() {
        let ip = |arguments: &str| {
            let line = format!("bats_iperf -s {arguments}");
            Ok::<_, anyhow::Error>(parse(line.split_whitespace()).unwrap().0.local_address()?.0)
        };
        let ip = |arguments: &str| ip(arguments).map(|found| found.map(|found| found.ip()));
        assert_eq!(ip("-I lo").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("-I loopback").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("-B ::1").unwrap(), Some("::1".parse().unwrap()));
        assert_eq!(ip("-B fe80::1%lo").unwrap(), Some("fe80::1".parse().unwrap()));
        assert!(ip("-B fe80::1").unwrap_err().to_string().contains("fe80::1%eth0"));
        assert!(ip("-B fe80::1%nosuch0").unwrap_err().to_string().contains("nosuch0"));
        assert!(ip("-I ::1 -4").is_err());
        assert!(ip("-I nosuch0").unwrap_err().to_string().contains("nosuch0"));
        let client = |arguments: &str| {
            let line = format!("bats_iperf -c host {arguments}");
            parse(line.split_whitespace()).unwrap().0.local_address()
        };
        assert_eq!(client("-I lo").unwrap(), (Some(([127, 0, 0, 1], 0).into()), None));
        let (ip, note) = client("-I nosuch0").unwrap();
        assert!(ip.is_none() && note.unwrap().contains("nosuch0"));
        assert!(client("-I ::1 -4").is_err());
    }
}
