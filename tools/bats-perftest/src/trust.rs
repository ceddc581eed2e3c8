//! How a publisher recognizes its subscribers, and the certificate by which they are recognized.

use std::net::SocketAddr;

use anyhow::Result;
use openbats::{Connection, Fingerprint, Identity, KnownHosts, Trust};

use crate::cli::TrustOption;
use crate::console::print;

/// The identity that all subscribers of this user share, with those of `bats_iperf`.
///
/// # Errors
/// The file of the identity exists and cannot be used.
pub(crate) fn identity() -> Result<Identity> {
    let (identity, why) = Identity::of_user(&["localhost"])?;
    if let Some(why) = why {
        print(&format!(
            "Note: the next subscriber here has another certificate, which publishers that know this \
             one will refuse: {why}."
        ));
    }
    print(&format!("Certificate fingerprint: {}", identity.fingerprint()));
    Ok(identity)
}

/// Whom a publisher trusts.
#[derive(Clone, Debug)]
pub(crate) enum SubscriberTrust {
    Any,
    Fingerprints(Vec<Fingerprint>),
    KnownHosts(KnownHosts),
}

impl SubscriberTrust {
    pub(crate) fn new(option: &TrustOption) -> Self {
        let known_hosts = match option {
            TrustOption::Fingerprints(accepted) => return Self::Fingerprints(accepted.clone()),
            TrustOption::Any => {
                print("Note: the subscribers are not authenticated (-noKnownHosts).");
                return Self::Any;
            }
            TrustOption::KnownHosts(path) => path.clone().map(KnownHosts::new),
        };
        match known_hosts.or_else(KnownHosts::of_user) {
            Some(known_hosts) => Self::KnownHosts(known_hosts),
            None => {
                print(
                    "Note: the subscribers are not authenticated: there is no home directory for \
                     known ones (use -knownHosts FILE or -fingerprint HEX).",
                );
                Self::Any
            }
        }
    }

    /// The trust for a connection to the subscriber at this address.
    pub(crate) fn of(&self, address: SocketAddr) -> Trust {
        match self {
            Self::Any => Trust::dangerous_any(),
            Self::Fingerprints(accepted) => Trust::fingerprints(accepted.iter().copied()),
            Self::KnownHosts(hosts) => Trust::known_hosts(hosts.clone().name(address.to_string())),
        }
    }

    /// Whether a connection to this address records a subscriber.
    pub(crate) fn is_new(&self, address: SocketAddr) -> bool {
        match self {
            Self::KnownHosts(known_hosts) => known_hosts
                .fingerprints(&address.to_string())
                .is_ok_and(|fingerprints| fingerprints.is_empty()),
            _ => false,
        }
    }

    /// Reports a subscriber that was recorded with this connection.
    pub(crate) fn report(&self, connection: &Connection, address: SocketAddr) {
        if let (Self::KnownHosts(known_hosts), Some(fingerprint)) =
            (self, connection.peer_fingerprint())
        {
            print(&format!(
                "Note: recorded the new subscriber {address} in {}, fingerprint {fingerprint}; \
                 compare it with the one that the subscriber prints.",
                known_hosts.path().display()
            ));
        }
    }
}
