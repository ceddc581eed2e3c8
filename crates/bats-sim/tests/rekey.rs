//! New keys every 64 packets, through loss and reordering: nothing is lost to them.

mod common;

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use common::{at, capacity, goodput, link, transfer};

#[test]
fn keys_that_change_all_the_time_cost_nothing() {
    for loss in [0.0, 0.05] {
        let jitter = Jitter { amplitude: Duration::from_millis(2), reorder: true };
        let link = LinkConfig { loss: Loss::Iid(loss), jitter: Some(jitter), ..link(50, 20) };
        let share = |packets: u64| {
            let mut run = transfer(&link, 8);
            run.transport.key_update_packets = packets;
            let outcome = run.run();
            assert_eq!(outcome.receiver.packets_forged, 0, "a packet lost to a key update");
            let updates = at(&outcome, 8.0).sender.key_updates;
            (goodput(&outcome, 3.0, 8.0) / capacity(&link), updates)
        };
        let ((seldom, none), (often, many)) = (share(1 << 22), share(64));
        assert!(none == 0 && many >= 30, "{none} and {many} updates");
        assert!(often >= 0.97 * seldom, "loss {loss}: {often} of the rate, {seldom} without");
    }
}
