//! bats-netem
