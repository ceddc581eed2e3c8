//! Memory of channels: a session may have 2^20 of them.

use bats_proto::session::channel::{CHANNEL_COST, ChannelLimits, Channels, MAX_CHANNELS};
use bats_proto::wire::channel::ChannelFrame;

/// The peer opens as many channels as there may be and sends a byte on each, which is not read. The
/// tree is worst when the numbers rise.
#[test]
fn a_million_channels_fit_their_part_of_the_budget() {
    let budget = 2 * MAX_CHANNELS as usize * CHANNEL_COST;
    let limits = ChannelLimits::new(u64::from(u32::MAX), budget, 1 << 20);
    assert_eq!(limits.channels, MAX_CHANNELS);
    let mut channels = Channels::new(true, limits, limits.parameters());
    let held = allocation_counter::measure(|| {
        for index in 0..MAX_CHANNELS {
            let id = index * 2 + 2;
            let frame = ChannelFrame::Data { id, offset: 0, data: &[7], end: false };
            channels.feed(frame).unwrap();
        }
    });
    assert_eq!(channels.open() as u64, MAX_CHANNELS);
    let each = held.bytes_max as f64 / MAX_CHANNELS as f64;
    println!("{each:.0} bytes for a channel with an unread byte, {} in all", held.bytes_max);
    assert!(each <= CHANNEL_COST as f64, "{each} bytes for each channel");
    // One more is refused.
    let id = MAX_CHANNELS * 2 + 2;
    assert!(channels.feed(ChannelFrame::Data { id, offset: 0, data: &[7], end: false }).is_err());
}
