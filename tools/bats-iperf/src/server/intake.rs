//! Limits of the files that the server stores for its clients, and of what it reads for them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use openbats::file::set::{ReadBudget, StorageBudget};

use crate::cli::Options;

/// Maximum number of client addresses with budgets of their own, in about 12 MB. It is not reached
/// by chance: an address counts once its client has been accepted.
const MAX_CLIENTS: usize = 65_536;

/// How often a day the server may read as much as a client may store, or all clients together: to
/// compare files that exist with offered ones. Chosen: a client can repeat the transfer of all that it
/// has stored.
const READS_PER_QUOTA: u64 = 10;
/// Bytes a day that may be read with any quota. Chosen: 200 comparisons that find other content.
const MIN_READS: u64 = 200_000_000_000;

/// The budgets of a client.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    pub(crate) storage: StorageBudget,
    pub(crate) reads: ReadBudget,
}

/// The quotas of `--quota` and `--client-quota`, and the budgets of reading that follow from them.
#[derive(Debug)]
pub(super) struct Intake {
    whole: Budgets,
    client_quota: u64,
    clients: Mutex<BTreeMap<IpAddr, Budgets>>,
}

/// Bytes that may be read in a day.
fn reads_per_day(quota: u64) -> u64 {
    quota.saturating_mul(READS_PER_QUOTA).max(MIN_READS)
}

impl Intake {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            whole: Budgets {
                storage: StorageBudget::new(options.service.incoming.quota),
                reads: ReadBudget::per_day(reads_per_day(options.service.incoming.quota)),
            },
            client_quota: options.service.incoming.client_quota,
            clients: Mutex::default(),
        }
    }

    /// The budgets of a client. `None` if there were too many clients.
    pub(super) fn of(&self, client: IpAddr) -> Option<Budgets> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let network = network(client);
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&network) {
            return None;
        }
        let budgets = clients.entry(network).or_insert_with(|| Budgets {
            storage: self.whole.storage.part(self.client_quota),
            reads: self.whole.reads.part(reads_per_day(self.client_quota)),
        });
        Some(budgets.clone())
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
        let of = |client: &str| intake.of(client.parse().unwrap()).unwrap();
        let left = |client: &str| of(client).storage.left();
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
    fn reads_follow_the_quotas_and_allow_comparisons_with_any() {
        for (options, client, all) in [
            ("", MIN_READS, 10 * 100_000_000_000),
            ("--quota 1M --client-quota 1k", MIN_READS, MIN_READS),
            ("--quota 2T --client-quota 100G", 1_000_000_000_000, 20_000_000_000_000),
        ] {
            let arguments = format!("bats_iperf -s --directory / {options}");
            let intake = Intake::new(&crate::cli::parse(arguments.split_whitespace()).unwrap().0);
            assert_eq!(intake.whole.reads.left(), all, "{options}");
            let of = |client: u8| intake.of([10, 0, 0, client].into()).unwrap().reads.left();
            assert_eq!(of(1), client, "{options}");
        }
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
