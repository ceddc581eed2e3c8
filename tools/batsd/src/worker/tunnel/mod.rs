//! Packets of the TUN device in sessions, and back: as messages of BTP, and in channels of BRTP.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod filter;
pub(super) mod format;
mod intake;
mod lane;
mod links;
mod outgoing;
mod port;
mod receive;
mod send;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) use intake::read_packets;
pub(super) use lane::Lane;
pub(super) use links::LinkSession;
pub(super) use outgoing::MAX_CHANNELS;
pub(super) use port::Port;
pub(super) use receive::{READ_BUFFER, RECEIVE_BUDGET, receive_channel, receive_messages, refuse};
pub(super) use send::send_packets;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
