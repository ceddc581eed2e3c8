//! bats-code
