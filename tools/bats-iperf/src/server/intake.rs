//! Limits of the files that the server stores for its clients.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use openbats::file::set::StorageBudget;

use crate::cli::Options;

/// Maximum number of client addresses with a quota of their own, in about 6 MB. It is not reached
/// by chance: an address counts once its client has been accepted.
const MAX_CLIENTS: usize = 65_536;

/// The quotas of `--quota` and `--client-quota`.
#[derive(Debug)]
pub(super) struct Intake {
    whole: StorageBudget,
    client_quota: u64,
    clients: Mutex<BTreeMap<IpAddr, StorageBudget>>,
}

impl Intake {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            whole: StorageBudget::new(options.quota),
            client_quota: options.client_quota,
            clients: Mutex::default(),
        }
    }

    /// The budget of a client. `None` if there were too many clients.
    pub(super) fn of(&self, client: IpAddr) -> Option<StorageBudget> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(client);
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&network) {
            return None;
        }
        let budget = clients.entry(network).or_insert_with(|| self.whole.part(self.client_quota));
        Some(budget.clone())
    }
}

/// The address of a client, or the first 64 bits of an IPv6 address, of which a host may use any
/// number.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_one_quota_each_and_ipv6_networks_too() {
        let arguments = "bats_iperf -s --directory / --quota 1M --client-quota 600k";
        let intake = Intake::new(&crate::cli::parse(arguments.split(' ')).unwrap().0);
        let left = |client: &str| intake.of(client.parse().unwrap()).unwrap().left();
        assert_eq!((left("10.0.0.1"), left("2001:db8::1")), (600_000, 600_000));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), network([10, 0, 0, 1].into()));
        assert_eq!(
            network("2001:db8::1".parse().unwrap()),
            network("2001:db8::ffff:1".parse().unwrap())
        );
        assert_ne!(
            network("2001:db8::1".parse().unwrap()),
            network("2001:db8:0:1::1".parse().unwrap())
        );
    }

    #[test]
    fn the_number_of_clients_is_limited() {
        let arguments = "bats_iperf -s --directory /";
        let intake = Intake::new(&crate::cli::parse(arguments.split(' ')).unwrap().0);
        for number in 0..MAX_CLIENTS as u32 {
            assert!(intake.of(std::net::Ipv4Addr::from_bits(number).into()).is_some());
        }
        assert!(intake.of([255, 0, 0, 1].into()).is_none());
        assert!(intake.of([0, 0, 0, 1].into()).is_some(), "known clients stay");
    }
}
