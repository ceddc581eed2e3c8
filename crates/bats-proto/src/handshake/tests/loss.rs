//! The figures that the early copies are for (docs/adr/0002).

use core::time::Duration;

use super::network::{Network, Pair};
use crate::config::{PeerTrust, Security};

const ANY: PeerTrust = PeerTrust::DangerousAcceptAny;

/// Times until both ends are complete, sorted.
fn times(security: Security, network: Network, seeds: u64) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..seeds)
        .map(|seed| {
            let mut pair = Pair::new(security, ANY, network, seed);
            let time = pair.run();
            assert_eq!((&pair.client_error, &pair.server_error), (&None, &None), "seed {seed}");
            time.unwrap_or_else(|| panic!("seed {seed} did not finish"))
        })
        .collect();
    times.sort();
    times
}

fn check(name: &str, times: &[Duration], limits: [u64; 3]) {
    let at = |share: usize| times[(times.len() * share).div_ceil(1000).max(1) - 1];
    let got = [at(500), at(990), at(1000)];
    println!("{name}: p50 {:?}, p99 {:?}, max {:?}", got[0], got[1], got[2]);
    for (got, limit) in got.into_iter().zip(limits) {
        assert!(got <= Duration::from_millis(limit), "{name}: {got:?} over {limit} ms");
    }
}

fn lossy(loss: f64) -> Network {
    Network { loss, ..Network::clean(15) }
}

#[test]
fn thirty_per_cent_loss() {
    let times = times(Security::DangerousPlain, lossy(0.3), 1_000);
    check("30/30 % loss", &times, [100, 1_000, 5_000]);
}

#[test]
fn thirty_per_cent_loss_with_tls() {
    check("30/30 % loss, TLS", &times(Security::Tls, lossy(0.3), 50), [120, 1_000, 5_000]);
}

#[test]
fn half_of_everything_lost() {
    let times = times(Security::DangerousPlain, lossy(0.5), 1_000);
    check("50/50 % loss", &times, [500, 3_500, 10_000]);
}

#[test]
fn thirty_per_cent_corrupted() {
    let network = Network { corruption: 0.3, ..Network::clean(15) };
    check(
        "30/30 % corrupted",
        &times(Security::DangerousPlain, network, 1_000),
        [100, 1_000, 5_000],
    );
    check("30/30 % corrupted, TLS", &times(Security::Tls, network, 30), [120, 1_000, 5_000]);
}

#[test]
fn everything_at_once() {
    let network = Network {
        loss: 0.2,
        corruption: 0.1,
        duplication: 0.3,
        reordering: 0.3,
        ..Network::clean(50)
    };
    check("all at once", &times(Security::DangerousPlain, network, 500), [400, 2_000, 6_000]);
    check("all at once, TLS", &times(Security::Tls, network, 20), [400, 2_000, 6_000]);
}

#[test]
fn one_round_trip_and_a_half_without_loss() {
    for security in [Security::DangerousPlain, Security::Tls] {
        for one_way in [1, 5, 15, 100, 300] {
            let mut pair = Pair::new(security, ANY, Network::clean(one_way), 1);
            let done = pair.run().unwrap();
            assert_eq!(done, Duration::from_millis(3 * one_way), "{security:?}");
            assert_eq!(pair.client.rtt_sample(), Some(Duration::from_millis(2 * one_way)));
            assert_eq!(pair.server().rtt_sample(), Some(Duration::from_millis(2 * one_way)));
            // What the early copies cost.
            let most = if one_way <= 5 { 2 } else { 14 };
            assert!(pair.sent_by_client.len() <= most, "{:?}", pair.sent_by_client);
            assert!(pair.sent_by_server.len() <= most, "{:?}", pair.sent_by_server);
        }
    }
}

#[test]
fn flights_are_single_datagrams_of_the_promised_sizes() {
    for security in [Security::DangerousPlain, Security::Tls] {
        let mut pair = Pair::new(security, ANY, Network::clean(1), 1);
        pair.run().unwrap();
        assert_eq!(pair.sent_by_client[0], 1_200);
        assert!((600..1_200).contains(&pair.sent_by_server[0]), "{:?}", pair.sent_by_server);
        assert!((60..200).contains(&pair.sent_by_client[1]), "{:?}", pair.sent_by_client);
    }
}

#[test]
fn a_dead_peer_costs_ten_seconds_and_few_datagrams() {
    let mut pair = Pair::new(Security::DangerousPlain, ANY, lossy(1.0), 1);
    assert_eq!(pair.run(), None);
    assert!(pair.client.has_timed_out(pair.now));
    assert_eq!(pair.now.as_micros(), 10_000_000);
    assert!((20..30).contains(&pair.sent_by_client.len()), "{}", pair.sent_by_client.len());
}
