//! Limits of a session, from its configuration: memory, messages, credit and channels.

use bats_code::rows::padded_length;
use bats_code::stream::MAX_WINDOW;

use super::channel::ChannelLimits;
use crate::config::TransportConfig;
use crate::flow::initial_credit;
use crate::wire::parameters::{TransportParameters, symbol_size_for};

/// Symbols that one repair can combine.
pub(super) const WINDOW_CAP: u16 = 256;
/// Upper limit of the message size in bytes: messages must fit the memory that both ends grant.
const MAX_MESSAGE: usize = 64 << 20;

/// Memory that is charged for the received data of a connection before use. More is charged with use;
/// see `docs/adr/0022-memory-is-charged-when-data-arrive.md`.
pub(crate) const BASE_MEMORY: usize = 256 << 10;

/// Bytes of the longest coding window: with a smaller budget a repair could not be made or used.
fn window_bytes(config: &TransportConfig) -> usize {
    usize::from(MAX_WINDOW) * padded_length(symbol_size_for(config.max_udp_payload))
}

/// The receive budget, raised to the least that makes progress: a decoding window, a message under
/// reassembly and a window of credit.
pub(crate) fn receive_budget(config: &TransportConfig) -> usize {
    config.receive_budget.max(min_receive_budget(config))
}

/// The least receive budget that makes progress.
///
/// With channels the flow gets at least a fifth of the budget.
pub(crate) fn min_receive_budget(config: &TransportConfig) -> usize {
    let windows = if config.channels.is_some() { 16 } else { 4 };
    windows * window_bytes(config)
}

/// The limits of a connection with channels.
pub(super) fn channel_limits(
    config: &TransportConfig,
    receive_budget: usize,
) -> Option<ChannelLimits> {
    let channels = u64::from(config.channels?);
    Some(ChannelLimits::new(channels, receive_budget, config.send_budget))
}

/// The part of the receive budget that bounds the initial credit.
pub(super) fn flow_budget(config: &TransportConfig) -> usize {
    let budget = receive_budget(config);
    channel_limits(config, budget).map_or(budget, |limits| limits.flow_budget)
}

/// The send budget of the flow, raised to the longest coding window with the symbols cut ahead.
pub(super) fn send_budget(config: &TransportConfig) -> usize {
    config.send_budget.max(window_bytes(config))
}

/// The longest message accepted. One longer than half of the budget would leave no room for credit
/// and could never be completed.
pub(crate) fn max_message(config: &TransportConfig) -> usize {
    let budget = receive_budget(config);
    let most = channel_limits(config, budget).map_or(budget / 2, |limits| limits.max_message());
    config.max_message_size.min(MAX_MESSAGE).min(most)
}

/// This end's transport parameters.
pub(crate) fn local_parameters(config: &TransportConfig, code_seed: u64) -> TransportParameters {
    TransportParameters {
        mode: config.mode as u8,
        max_message_size: max_message(config) as u64,
        max_symbol_size: symbol_size_for(config.max_udp_payload) as u16,
        initial_credit: initial_credit(
            symbol_size_for(config.max_udp_payload),
            flow_budget(config),
        ),
        idle_timeout: config.idle_timeout,
        window_cap: WINDOW_CAP,
        code_seed,
        max_udp_payload: config.max_udp_payload,
        application: config.application,
        channels: channel_limits(config, receive_budget(config)).map(|own| own.parameters()),
        ..TransportParameters::default()
    }
}
