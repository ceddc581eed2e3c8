//! Interfaces by name, and the address that each goes by.

use std::net::IpAddr;

use super::Options;
use crate::control::printable;

impl Options {
    /// The address of `-I`, if it was given, and what is to be said about it. A client goes without
    /// an interface that there is not.
    ///
    /// # Errors
    /// There is no such interface at a server, or it has no address of the family asked for.
    pub(crate) fn local_ip(&self) -> anyhow::Result<(Option<IpAddr>, Option<String>)> {
        let Some(name) = &self.interface else { return Ok((None, None)) };
        if let Ok(address) = name.parse() {
            return match self.fits(address) {
                true => Ok((Some(address), None)),
                false => anyhow::bail!("{address} is not of the IP family asked for"),
            };
        }
        let name = if name == "loopback" { "lo" } else { name };
        let interfaces: Vec<_> = nix::ifaddrs::getifaddrs()?
            .filter(|interface| interface.interface_name == name)
            .collect();
        if interfaces.is_empty() && self.client.is_some() {
            // The original's clients do not look at the name.
            let note = format!("note: -I is ignored: there is no interface '{}'", printable(name));
            return Ok((None, Some(note)));
        }
        let addresses: Vec<IpAddr> = interfaces
            .into_iter()
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
                v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
            })
            .filter(|address| self.fits(*address))
            .collect();
        match first_of(&addresses) {
            Some(address) => Ok((Some(address), None)),
            None => anyhow::bail!("no interface '{name}' with an address (ip addr lists them)"),
        }
    }

    /// Whether an address is of the IP family asked for.
    pub(crate) fn fits(&self, address: IpAddr) -> bool {
        !(self.ipv4 && address.is_ipv6() || self.ipv6 && address.is_ipv4())
    }
}

/// The address that an interface goes by: the first as the system lists them, which is the main one,
/// of IPv4 before IPv6, and one that is good everywhere before one of the link.
fn first_of(addresses: &[IpAddr]) -> Option<IpAddr> {
    let class = |address: &&IpAddr| match address {
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
    fn an_interface_goes_by_its_main_address() {
        let first = |text: &str| {
            let addresses: Vec<IpAddr> = text.split(' ').map(|x| x.parse().unwrap()).collect();
            first_of(&addresses).unwrap().to_string()
        };
        // Not the least, but the first.
        assert_eq!(first("192.168.7.1 10.0.0.1"), "192.168.7.1");
        assert_eq!(first("fe80::1 fd00::2 2001:db8::1 10.0.0.9 10.0.0.1"), "10.0.0.9");
        assert_eq!(first("fe80::1 fd00::2 2001:db8::1"), "fd00::2");
        assert_eq!(first("fe80::1"), "fe80::1");
        assert_eq!(first_of(&[]), None);
    }

    #[test]
    fn interfaces_have_addresses() {
        let ip = |words: &str| {
            let line = format!("bats_iperf -s {words}");
            Ok::<_, anyhow::Error>(parse(line.split_whitespace()).unwrap().0.local_ip()?.0)
        };
        assert_eq!(ip("-I lo").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("-I loopback").unwrap(), Some([127, 0, 0, 1].into()));
        assert_eq!(ip("-B ::1").unwrap(), Some("::1".parse().unwrap()));
        assert!(ip("-I ::1 -4").is_err());
        assert!(ip("-I nosuch0").unwrap_err().to_string().contains("nosuch0"));
        let client = |words: &str| {
            let line = format!("bats_iperf -c host {words}");
            parse(line.split_whitespace()).unwrap().0.local_ip()
        };
        assert_eq!(client("-I lo").unwrap(), (Some([127, 0, 0, 1].into()), None));
        let (ip, note) = client("-I nosuch0").unwrap();
        assert!(ip.is_none() && note.unwrap().contains("nosuch0"));
        assert!(client("-I ::1 -4").is_err());
    }
}
