//! A connection with a timer that stays due is closed and does not block the endpoint.

use core::net::SocketAddr;
use std::sync::Arc;

use bats_types::Timestamp;

use super::{Endpoint, Input, Output};
use crate::config::{ClientConfig, EndpointConfig, PeerTrust, Security, TransportConfig};
use crate::error::CloseReason;
use crate::event::Event;

/// Polls until the endpoint waits for a timer; returns its time and the reason if a connection was
/// closed.
fn drain(endpoint: &mut Endpoint, now: Timestamp) -> (Option<Timestamp>, Option<CloseReason>) {
    let mut buffer = Vec::with_capacity(65_536);
    let mut closed = None;
    loop {
        match endpoint.poll(now, &mut buffer) {
            Output::Event(_, Event::Closed(reason)) => closed = Some(reason),
            Output::Timeout(at) => return (at, closed),
            _ => {}
        }
    }
}

#[test]
fn connection_with_a_stuck_timer_is_closed_with_an_internal_error() {
    let config = EndpointConfig { security: Security::DangerousPlain, ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(config, [1; 32]).expect("a configuration");
    let now = Timestamp::from_millis(1_000);
    let connect = |endpoint: &mut Endpoint| {
        let client = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(TransportConfig::default()),
        };
        let to = SocketAddr::from(([10, 0, 1, 1], 4_000));
        endpoint.connect(now, to, "server", client).expect("a configuration")
    };
    let (stuck, other) = (connect(&mut endpoint), connect(&mut endpoint));
    assert!(drain(&mut endpoint, now).0.is_some_and(|at| at > now));
    endpoint.connections.get_mut(stuck).expect("it is open").link_mut().arm_stuck_timer(now);
    endpoint.connections.mark_dirty(stuck);
    let (mut next, mut reason) = drain(&mut endpoint, now);
    let mut handled = 0;
    while next.is_some_and(|at| at <= now) {
        handled += 1;
        assert!(handled < 100, "the endpoint spins");
        endpoint.handle(now, Input::Timeout);
        (next, reason) = drain(&mut endpoint, now);
    }
    assert!(handled > 0);
    assert!(matches!(reason, Some(CloseReason::Internal(_))), "{reason:?}");
    assert_eq!(endpoint.endpoint_stats().timers_stuck, 1);
    assert!(endpoint.connections.get(other).is_some_and(|other| !other.is_dead()));
}
