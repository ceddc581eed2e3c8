//! bats-sim
