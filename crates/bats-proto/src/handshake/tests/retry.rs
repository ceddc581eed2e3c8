//! Proof of address, refusals and versions: the stateless side.

use core::net::SocketAddr;
use core::time::Duration;

use super::network::{Network, Pair};
use crate::config::{PeerTrust, Security};
use crate::handshake::{
    Blame, FirstPacket, HandshakeError, ServerStart, parse_first, write_version_negotiation,
};
use crate::wire::version::{VERSION, grease, is_grease};

fn pair(security: Security, network: Network, seed: u64) -> Pair {
    Pair::new(security, PeerTrust::DangerousAcceptAny, network, seed)
}

const BOTH: [Security; 2] = [Security::Tls, Security::DangerousPlain];

#[test]
fn a_retry_costs_one_round_trip_and_proves_the_address() {
    for security in BOTH {
        let mut pair = pair(security, Network::clean(10), 3);
        pair.ask = true;
        assert_eq!(pair.run(), Some(Duration::from_millis(50)));
        assert!(pair.retries >= 1);
        assert!(pair.server().is_address_validated());
        let parameters = pair.client.peer_parameters().unwrap();
        assert!(parameters.retry_source.is_some());
        assert_ne!(parameters.retry_source, parameters.original_destination);
    }
}

#[test]
fn retries_survive_loss_and_corruption() {
    for seed in 0..300 {
        let network = Network { loss: 0.3, corruption: 0.1, ..Network::clean(15) };
        let mut pair = pair(Security::DangerousPlain, network, seed);
        pair.ask = true;
        let done = pair.run().unwrap_or_else(|| panic!("seed {seed}: {:?}", pair.client_error));
        assert!(done < Duration::from_secs(6), "seed {seed}: {done:?}");
    }
}

/// Runs until the client has its token, and returns its next datagram, with the token in it.
fn with_token(security: Security) -> (Pair, Vec<u8>) {
    let mut pair = pair(security, Network::clean(10), 3);
    pair.ask = true;
    while pair.retries == 0 {
        assert!(pair.step());
    }
    let mut buffer = [0; 1_500];
    for _ in 0..20 {
        assert!(pair.server.is_none());
        pair.now += Duration::from_millis(5);
        let sent = pair.client.poll_datagram(pair.now, &mut buffer, usize::MAX);
        if let Some(len) = sent
            && let Some(FirstPacket::Initial(initial)) = parse_first(&buffer[..len])
            && !initial.token.is_empty()
        {
            return (pair, buffer[..len].to_vec());
        }
        pair.step();
    }
    panic!("no token")
}

fn start(pair: &Pair, remote: SocketAddr, after: Duration, datagram: &[u8]) -> ServerStart {
    let Some(FirstPacket::Initial(initial)) = parse_first(datagram) else { panic!("no Initial") };
    pair.crypto.start(pair.now + after, remote, &initial, false, true)
}

#[test]
fn tokens_are_good_once_here_and_now_only() {
    for security in BOTH {
        let (mut pair, datagram) = with_token(security);
        let good = start(&pair, pair.remote, Duration::ZERO, &datagram);
        assert!(matches!(good, ServerStart::Accept(_)), "{good:?}");
        let elsewhere = SocketAddr::from(([192, 0, 2, 99], 4_000));
        let other_port = SocketAddr::new(pair.remote.ip(), 4_001);
        for (remote, after) in [
            (elsewhere, Duration::ZERO),
            (other_port, Duration::ZERO),
            (pair.remote, Duration::from_secs(60)),
        ] {
            let refused = start(&pair, remote, after, &datagram);
            let ServerStart::Answer(mut answer) = refused else { panic!("{refused:?}") };
            // The client learns it, once.
            if after > Duration::ZERO {
                let told = pair.client.handle_datagram(pair.now, &mut answer);
                let expected = matches!(told, Err(HandshakeError::ClosedByPeer { code: 0xb, .. }));
                assert!(expected, "{told:?}");
            }
        }
        // Damage on the way, to the token (which begins behind 20 octets of header) or elsewhere,
        // is no reason to refuse anyone.
        for at in [30, 600] {
            let mut damaged = datagram.clone();
            damaged[at] ^= 1;
            let dropped = start(&pair, pair.remote, Duration::ZERO, &damaged);
            assert!(matches!(dropped, ServerStart::Drop), "{dropped:?}");
        }
    }
}

#[test]
fn a_full_server_says_so() {
    for security in BOTH {
        let mut pair = pair(security, Network::clean(10), 3);
        pair.full = true;
        assert_eq!(pair.run(), None);
        assert_eq!(pair.client_error, Some(HandshakeError::Refused));
        assert!(pair.server.is_none());
        // No answer to a refusal, and nothing else ever after.
        let mut answer = Vec::new();
        pair.client.write_close("never mind", &mut answer);
        assert!(answer.is_empty());
        assert_eq!(pair.client.next_timeout(), None);
        assert_eq!(pair.client.poll_datagram(pair.now, &mut [0; 1_500], usize::MAX), None);
    }
}

#[test]
fn unknown_versions_are_answered_and_only_the_first_answer_counts() {
    for security in BOTH {
        let mut pair = pair(security, Network::clean(10), 3);
        let mut buffer = [0; 1_500];
        let len = pair.client.poll_datagram(pair.now, &mut buffer, usize::MAX).unwrap();
        let mut unknown = buffer[..len].to_vec();
        unknown[1..5].copy_from_slice(&grease(77).to_be_bytes());
        let Some(FirstPacket::UnknownVersion(info)) = parse_first(&unknown) else {
            panic!("not recognized")
        };
        let answer = write_version_negotiation(&info, 5);
        assert!(answer.len() < unknown.len());
        // It offers our version, so it cannot be an answer to us.
        let mut copy = answer.clone();
        assert_eq!(pair.client.handle_datagram(pair.now, &mut copy), Ok(()));
        assert_eq!(pair.client.counters().ignored, 1);
        // Without it, the client gives up.
        let at = answer.windows(4).rposition(|w| w == VERSION.to_be_bytes()).unwrap();
        let mut other = answer.clone();
        other[at..at + 4].copy_from_slice(&0xdead_beef_u32.to_be_bytes());
        let mut wrong_cid = other.clone();
        wrong_cid[6] ^= 1;
        assert_eq!(pair.client.handle_datagram(pair.now, &mut wrong_cid), Ok(()));
        assert_eq!(
            pair.client.handle_datagram(pair.now, &mut other.clone()),
            Err(HandshakeError::Version)
        );
        // Too small a question is not answered.
        assert!(parse_first(&unknown[..1_199]).is_none());
        // Once the server was heard, negotiation is ignored.
        let mut pair = self::pair(security, Network::clean(10), 3);
        pair.run().unwrap();
        assert_eq!(pair.client.handle_datagram(pair.now, &mut other), Ok(()));
    }
    assert!(is_grease(grease(77)));
    assert_eq!(HandshakeError::Version.blame(), Blame::Declined);
}
