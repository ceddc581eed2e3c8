//! Datagrams for a server of the mode UDP whose application reads none.

use std::net::SocketAddr;

use bats_proto::{Input, Mode, Received};

use crate::{Attacked, polled, server};

pub(crate) const NAMES: &[&str] = &[
    "udp-unread-empty-datagrams",
    "udp-unread-one-byte-datagrams",
    "udp-unread-datagrams",
    "udp-unread-longest-datagrams",
];

/// Peers, each of which has more bytes than a queue holds: more than there is for all together.
const PEERS: u8 = 10;
const BYTES: usize = 9 << 20;

pub(crate) fn run(case: &str) -> Attacked {
    let len = match case {
        "udp-unread-empty-datagrams" => 0,
        "udp-unread-one-byte-datagrams" => 1,
        "udp-unread-datagrams" => 1_400,
        _ => 65_507,
    };
    let mut server = server(Mode::Udp, false)?;
    let (now, mut buffer) = (server.start(), Vec::with_capacity(65_536));
    let mut payload = vec![7; len];
    let each = BYTES / (len + 64);
    for number in 0..each {
        for peer in 0..PEERS {
            let remote = SocketAddr::from(([10, 0, 0, peer], 4_433));
            let payload = &mut payload[..];
            server
                .handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
        }
        if number % 100 == 0 {
            polled(&mut server, now, &mut buffer);
        }
    }
    Ok((each as u64 * u64::from(PEERS), false))
}
