//! Who the ends of a handshake without TLS are: in simulations those that they name, in direct sessions those of the
//! links.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use super::fingerprint;
use crate::config::{Identity, PeerTrust};

/// Who the ends of a handshake without TLS are.
#[derive(Clone, Debug)]
pub enum PlainIdentity {
    /// In simulations: certificates, by their fingerprints. They prove nothing: an end may name any certificate. So
    /// simulations see what nodes do with the certificates of their peers.
    Named {
        /// Fingerprint of the own certificate.
        own: Option<[u8; 32]>,
        /// Fingerprints that the peer may name; `None` for any and for none.
        accepted: Option<Vec<[u8; 32]>>,
    },
    /// In direct sessions: the peer is the neighbour, whose certificate has this fingerprint. The handshakes of the
    /// links have authenticated it, so nothing that the handshake says counts.
    OfLinks(Option<[u8; 32]>),
}

impl PlainIdentity {
    pub(super) fn new(own: Option<&Identity>, trust: Option<&PeerTrust>) -> Self {
        let own = own.and_then(|own| own.certificate_chain.first());
        let accepted = match trust {
            Some(PeerTrust::Fingerprints(accepted)) => Some(accepted.clone()),
            _ => None,
        };
        Self::Named { own: own.map(|certificate| fingerprint(certificate)), accepted }
    }

    /// Appends the own fingerprint, if there is one, to a flight. Zeros follow.
    pub(super) fn write(&self, flight: &mut Vec<u8>) {
        if let Self::Named { own: Some(own), .. } = self {
            flight.push(1);
            flight.extend_from_slice(own);
        }
    }

    /// Reads what the peer has written: its fingerprint, if it names one.
    ///
    /// # Errors
    /// This end does not accept it.
    pub(super) fn read(&self, flight: &[u8]) -> Result<Option<[u8; 32]>, String> {
        let accepted = match self {
            Self::Named { accepted, .. } => accepted,
            Self::OfLinks(neighbour) => return Ok(*neighbour),
        };
        let named = match flight.split_first_chunk::<33>() {
            Some(([1, print @ ..], _)) => Some(*print),
            _ => None,
        };
        let is_accepted =
            |accepted: &Vec<[u8; 32]>| named.is_some_and(|print| accepted.contains(&print));
        match accepted.as_ref().is_none_or(is_accepted) {
            true => Ok(named),
            false => Err("the certificate is not trusted".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_certificate_decides() {
        let own = |byte| Identity { certificate_chain: vec![vec![byte]], private_key: Vec::new() };
        let written = |identity: &PlainIdentity| {
            let mut flight = Vec::new();
            identity.write(&mut flight);
            flight.resize(40, 0);
            flight
        };
        let print = fingerprint(&[7]);
        let named = written(&PlainIdentity::new(Some(&own(7)), None));
        let unnamed = written(&PlainIdentity::new(None, None));
        let trust = |print| PlainIdentity::new(None, Some(&PeerTrust::Fingerprints(vec![print])));
        assert_eq!(trust(print).read(&named), Ok(Some(print)));
        assert!(trust([1; 32]).read(&named).is_err());
        assert!(trust(print).read(&unnamed).is_err(), "it must name one");
        let any = PlainIdentity::new(None, Some(&PeerTrust::DangerousAcceptAny));
        assert_eq!((any.read(&named), any.read(&unnamed)), (Ok(Some(print)), Ok(None)));
    }

    #[test]
    fn the_peer_of_a_direct_session_is_that_of_the_links_whatever_it_names() {
        let other = Identity { certificate_chain: vec![vec![9]], private_key: Vec::new() };
        let mut named = Vec::new();
        PlainIdentity::new(Some(&other), None).write(&mut named);
        for neighbour in [Some([4; 32]), None] {
            let identity = PlainIdentity::OfLinks(neighbour);
            assert_eq!((identity.read(&named), identity.read(&[])), (Ok(neighbour), Ok(neighbour)));
            let mut flight = Vec::new();
            identity.write(&mut flight);
            assert!(flight.is_empty(), "it names none");
        }
    }
}
