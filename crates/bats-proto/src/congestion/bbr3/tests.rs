//! The test cases of draft-ietf-ccwg-bbr-06 appendix A, over a simulated path without a protocol.

use super::constants::{DOWN_PACING_GAIN, DRAIN_PACING_GAIN, PROBE_RTT_CWND_GAIN};
use super::state::Phase;
use super::*;
use crate::congestion::testing::{PACKET, Path};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A bulk transfer over 20 Mbit/s, 20 ms one-way delay, a buffer of 2 BDP.
fn path() -> Path<Bbr3> {
    Path::new(Bbr3::new(40 * MS, PACKET as u16, 1), 20.0, 20 * MS, 2.0)
}

/// Runs until the controller is in `state`, for at most 30 s.
fn run_to(path: &mut Path<Bbr3>, state: State) {
    assert!(
        path.run_until(30 * SECOND, |path| path.controller.state == state),
        "{state:?} was not reached; {:?}",
        path.controller.state
    );
}

fn run_past(path: &mut Path<Bbr3>, state: State) {
    assert!(path.run_until(30 * SECOND, |path| path.controller.state != state), "stays {state:?}");
}

const DOWN: State = State::ProbeBw(Phase::Down);
const CRUISE: State = State::ProbeBw(Phase::Cruise);
const REFILL: State = State::ProbeBw(Phase::Refill);
const UP: State = State::ProbeBw(Phase::Up);

#[test]
fn a1_startup_ends_on_a_plateau_with_the_bandwidth_known() {
    let mut path = path();
    run_past(&mut path, State::Startup);
    assert_eq!(path.controller.state, State::Drain);
    assert!(path.controller.full_pipe.is_now && path.controller.full_pipe.is_reached);
    let ratio = path.controller.max_bw.get() as f64 / path.rate;
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
    assert_eq!(path.dropped, 0);
}

#[test]
fn a2_startup_ends_on_loss_when_app_limited() {
    let mut path = path();
    path.app_rate = Some(path.rate / 2.0);
    path.is_lost = |number| number > 50 && number % 8 == 0;
    run_past(&mut path, State::Startup);
    assert!(path.controller.full_pipe.is_now && path.controller.full_pipe.is_reached);
}

#[test]
fn a3_drain_ends_when_inflight_is_the_bdp() {
    let mut path = path();
    run_to(&mut path, State::Drain);
    assert_eq!(path.controller.pacing_gain(), DRAIN_PACING_GAIN);
    let round = path.controller.round.count;
    run_past(&mut path, State::Drain);
    assert!(matches!(path.controller.state, State::ProbeBw(_)));
    assert!(path.controller.round.count <= round + 3);
    assert!(path.bytes_in_flight() as f64 <= path.bdp() * 1.05, "{}", path.bytes_in_flight());
}

#[test]
fn a4_drain_ends_after_three_rounds() {
    let mut path = path();
    run_to(&mut path, State::Drain);
    let round = path.controller.round.count;
    path.rate *= 0.2;
    run_past(&mut path, State::Drain);
    assert!(matches!(path.controller.state, State::ProbeBw(_)));
    assert!(path.controller.round.count <= round + 5, "{}", path.controller.round.count - round);
}

#[test]
fn a5_up_ends_on_a_plateau() {
    let mut path = path();
    run_to(&mut path, UP);
    run_past(&mut path, UP);
    assert_eq!(path.controller.state, DOWN);
    assert!(path.controller.full_pipe.is_now);
    assert!(!path.controller.probe_bw.prev_probe_too_high);
}

#[test]
fn a6_up_ends_on_loss_when_app_limited() {
    let mut path = path();
    run_to(&mut path, UP);
    path.app_rate = Some(path.rate / 2.0);
    path.is_lost = |number| number % 8 == 0;
    run_past(&mut path, UP);
    // Inflight is so small that the acknowledgement that begins DOWN also ends it.
    assert!(matches!(path.controller.state, DOWN | CRUISE));
    assert!(path.controller.probe_bw.prev_probe_too_high);
}

#[test]
fn a7_startup_goes_on_while_app_limited_without_loss() {
    let mut path = path();
    path.app_rate = Some(path.rate / 20.0);
    path.run(4 * SECOND);
    assert_eq!(path.controller.state, State::Startup);
}

#[test]
fn a8_down_ends_when_inflight_leaves_headroom() {
    let mut path = path();
    run_to(&mut path, UP);
    run_to(&mut path, DOWN);
    assert_eq!(path.controller.pacing_gain(), DOWN_PACING_GAIN);
    run_past(&mut path, DOWN);
    assert_eq!(path.controller.state, CRUISE);
    let controller = &path.controller;
    assert!(controller.in_flight <= controller.inflight().of(controller.max_bw.get(), 1.0));
    assert!(controller.in_flight <= controller.inflight().with_headroom());
}

#[test]
fn a9_down_ends_when_it_is_time_to_probe() {
    let mut path = path();
    run_to(&mut path, UP);
    // A new minimum postpones ProbeRTT.
    path.one_way -= MS / 10;
    run_to(&mut path, DOWN);
    // The path becomes longer: more than the estimated BDP stays in flight.
    path.one_way += 15 * MS;
    let start = path.now;
    run_past(&mut path, DOWN);
    assert_eq!(path.controller.state, REFILL);
    let waited = path.now - start;
    assert!(waited >= SECOND && waited <= 3 * SECOND + 100 * MS, "{waited:?}");
}

#[test]
fn a10_probe_rtt_is_entered_after_five_seconds_and_left() {
    let mut path = path();
    // A competing flow's queue hides the minimum RTT.
    path.run(SECOND);
    path.one_way = 22 * MS;
    run_to(&mut path, State::ProbeRtt);
    assert_eq!(path.controller.state.gains().1, PROBE_RTT_CWND_GAIN);
    let start = path.now;
    run_past(&mut path, State::ProbeRtt);
    assert!(path.now - start >= 200 * MS && path.now - start < 400 * MS);
    assert!(matches!(path.controller.state, State::ProbeBw(_)));
    assert!(path.run(SECOND) > 0.8 * path.rate);
}

#[test]
fn a11_idle_time_stands_in_for_probe_rtt() {
    let mut path = path();
    path.run(2 * SECOND);
    path.app_rate = Some(1e-3);
    path.run(6 * SECOND);
    assert_eq!(path.bytes_in_flight(), 0);
    path.app_rate = None;
    path.run_until(SECOND, |path| path.controller.idle_restart);
    assert!(path.controller.idle_restart);
    let visits = |path: &Path<Bbr3>| path.controller.state == State::ProbeRtt;
    assert!(!path.run_until(2 * SECOND, visits));
}

#[test]
fn a12_startup_finds_the_bandwidth_of_a_link_with_aggregation() {
    let mut path = path();
    path.slot = Some(20 * MS);
    run_past(&mut path, State::Startup);
    let ratio = path.controller.max_bw.get() as f64 / path.rate;
    assert!((0.9..1.3).contains(&ratio), "{ratio}");
    assert!(path.controller.cwnd.get() as f64 > 2.0 * path.bdp());
}

#[test]
fn a13_extra_acked_keeps_a_link_with_aggregation_busy() {
    let mut path = path();
    path.slot = Some(30 * MS);
    path.run(3 * SECOND);
    assert!(path.controller.extra_acked.get() > 0);
    let goodput = path.run(5 * SECOND);
    assert!(goodput > 0.9 * path.rate, "{}", goodput / path.rate);
}

#[test]
fn a14_the_window_has_a_floor_below_a_packet_of_bdp() {
    let mut path = Path::new(Bbr3::new(10 * MS, PACKET as u16, 1), 0.2, 5 * MS, 40.0);
    path.run(20 * SECOND);
    assert!(path.controller.cwnd.get() >= 4 * PACKET);
    let goodput = path.run(10 * SECOND);
    assert!(goodput > 0.9 * path.rate, "{}", goodput / path.rate);
}

#[test]
fn a15_ten_times_the_bandwidth_is_found() {
    let mut path = Path::new(Bbr3::new(40 * MS, PACKET as u16, 1), 10.0, 20 * MS, 2.0);
    path.run(5 * SECOND);
    path.rate *= 10.0;
    path.buffer *= 10.0;
    let found = |path: &Path<Bbr3>| path.controller.max_bw.get() as f64 > 0.9 * path.rate;
    // Each probe finds at least a quarter more; twelve probes of three seconds suffice.
    assert!(path.run_until(40 * SECOND, found), "{}", path.controller.max_bw.get());
}

#[test]
fn a16_a_tenth_of_the_bandwidth_is_adapted_to() {
    let mut path = Path::new(Bbr3::new(40 * MS, PACKET as u16, 1), 100.0, 20 * MS, 1.0);
    path.run(5 * SECOND);
    path.rate /= 10.0;
    path.buffer /= 10.0;
    path.run(SECOND);
    assert!(path.controller.bounds.bw_shortterm < path.controller.max_bw.get());
    path.run(9 * SECOND);
    let ratio = path.controller.max_bw.get() as f64 / path.rate;
    assert!((0.8..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn a17_a_policer_is_conformed_to() {
    let mut path = path();
    path.policer = Some((path.rate / 4.0, 30_000.0));
    path.run(10 * SECOND);
    let (sent, dropped) = (path.sent, path.dropped);
    let goodput = path.run(20 * SECOND);
    assert!(goodput > 0.6 * path.rate / 4.0, "{}", goodput / path.rate * 4.0);
    let drops = (path.dropped - dropped) as f64 / (path.sent - sent) as f64;
    assert!(drops < 0.30, "{drops}");
}

#[test]
fn a18_spurious_losses_are_undone() {
    let mut path = path();
    run_to(&mut path, UP);
    let (cwnd, longterm) = (path.controller.cwnd.get(), path.controller.bounds.inflight_longterm);
    // Packets are overtaken and arrive 15 ms late.
    path.extra_delay = |number| if number % 50 < 20 { 15 * MS } else { Duration::ZERO };
    assert!(path.run_until(SECOND, |path| path.controller.state == DOWN), "no response");
    path.extra_delay = |_| Duration::ZERO;
    assert!(path.run_until(100 * MS, |path| path.controller.state == REFILL), "no undo");
    assert!(
        path.controller.cwnd.get() * 10 >= cwnd * 8,
        "{} of {cwnd}",
        path.controller.cwnd.get()
    );
    assert_eq!(path.controller.bounds.inflight_longterm, longterm);
    assert_eq!(path.controller.bounds.bw_shortterm, bounds::INFINITY);
}

#[test]
fn a19_a_spurious_timeout_is_undone() {
    let mut path = path();
    run_to(&mut path, CRUISE);
    let cwnd = path.controller.cwnd.get();
    path.extra_delay = |_| 400 * MS;
    assert!(path.run_until(SECOND, |path| path.controller.cwnd.get() == PACKET), "no timeout");
    path.extra_delay = |_| Duration::ZERO;
    path.run(SECOND);
    assert!(
        path.controller.cwnd.get() * 10 >= cwnd * 7,
        "{} of {cwnd}",
        path.controller.cwnd.get()
    );
}

#[test]
fn a20_probe_rtt_within_startup_returns_to_startup() {
    let mut path = path();
    path.app_rate = Some(path.rate / 20.0);
    path.run(SECOND);
    path.one_way = 22 * MS;
    run_to(&mut path, State::ProbeRtt);
    run_past(&mut path, State::ProbeRtt);
    assert_eq!(path.controller.state, State::Startup);
}

#[test]
fn a21_loss_in_up_lowers_the_long_term_bound() {
    let mut path = path();
    run_to(&mut path, UP);
    path.controller.bounds.inflight_longterm = (path.bdp() * 1.5) as u64;
    path.is_lost = |number| number % 20 == 0;
    let before = path.controller.bounds.inflight_longterm;
    run_past(&mut path, UP);
    assert_eq!(path.controller.state, DOWN);
    assert!(path.controller.probe_bw.prev_probe_too_high);
    assert!(path.controller.bounds.inflight_longterm <= before);
}

#[test]
fn a22_app_limited_refill_does_not_lower_the_bandwidth() {
    let mut path = path();
    run_to(&mut path, REFILL);
    let max_bw = path.controller.max_bw.get();
    path.app_rate = Some(path.rate / 10.0);
    run_past(&mut path, REFILL);
    assert_eq!(path.controller.state, UP);
    path.run(500 * MS);
    assert!(path.controller.max_bw.get() >= max_bw);
}

#[test]
fn random_loss_above_the_threshold_brings_the_rate_down() {
    let mut path = path();
    path.is_lost = |number| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 20 == 0;
    path.run(10 * SECOND);
    let goodput = path.run(20 * SECOND);
    assert!(goodput < 0.8 * path.rate, "{}", goodput / path.rate);
}
