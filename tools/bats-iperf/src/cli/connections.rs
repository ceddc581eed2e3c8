//! Settings of the connections that the options ask for.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use openbats::{Goal, IdentityError, PresharedKey, TransportConfig};

use super::Options;
use super::sender::GoalName;
use crate::sender_settings::SenderSettings;
use crate::transport_mode::{Transport, TransportMode};

/// Minimum receive budget in bytes of a server with a bitrate limit.
const MIN_RECEIVE_BUDGET: usize = 4 << 20;

impl Options {
    /// The pre-shared key of `--closed-key`.
    ///
    /// # Errors
    /// The file cannot be read, or contains no key.
    pub(crate) fn read_preshared_key(&self) -> Result<Option<PresharedKey>, IdentityError> {
        self.credentials.closed_key.as_deref().map(openbats::read_preshared_key).transpose()
    }

    /// The sender settings of this side in a test of this mode over this transport.
    pub(crate) fn sender_settings(
        &self,
        mode: TransportMode,
        transport: Transport,
    ) -> SenderSettings {
        let congestion = self.sender.congestion.map(|congestion| congestion.0);
        let goal = self.sender.goal.map(GoalName::to_library);
        SenderSettings::of(congestion, goal, mode, transport)
    }

    /// Configuration of the data connections of this side.
    pub(crate) fn transport_config(&self) -> TransportConfig {
        let default = TransportConfig::default();
        // The buffer of a server with a bitrate limit must not hold more than about one second of
        // it.
        let receive_budget = match self.service.server_bitrate_limit {
            Some(limit) => usize::try_from(limit / 8)
                .unwrap_or(usize::MAX)
                .clamp(MIN_RECEIVE_BUDGET, default.receive_budget),
            None => default.receive_budget,
        };
        TransportConfig {
            receive_budget,
            mode: self.mode.to_library(),
            goal: self.sender.goal.map_or(Goal::Balanced, GoalName::to_library),
            congestion: self
                .sender
                .congestion
                .map_or(default.congestion, |congestion| congestion.0),
            // Neither the receiver of a slow stream nor a server that reads a partial file sends
            // anything for a while.
            keep_alive: Some(Duration::from_secs(5)),
            ..default
        }
    }
}
