//! Row 30 of the goals, the outsider: whoever sees every packet of a connection and has none of its keys
//! gets nothing into it, not by a million forgeries, and it goes on as if they were not there. Real TLS.

#[allow(dead_code, unused_imports, reason = "shared by several tests, each needs a part")]
#[path = "resumption/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::short_header::{PacketKind, SHORT_HEADER_LEN, ShortHeader};
use bats_proto::wire::varint::Writer;
use bats_proto::{ClientConfig, ConnectionHandle, Event, Mode, PeerTrust};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use world::{CLIENT, SERVER, World, address, identity, server, transport};

const FORGERIES: u64 = 1_000_000;
/// Bytes of a message: some symbols.
const SIZE: usize = 3_000;
/// Packets seen that forgeries are made from.
const SEEN: usize = 64;

/// What makes forgeries from the packets of the client.
struct Outsider {
    rng: ChaCha8Rng,
    seen: Vec<Vec<u8>>,
}

impl Outsider {
    fn below(&mut self, end: usize) -> usize {
        self.rng.next_u32() as usize % end
    }

    /// A header as the client writes it, in clear or as it was seen, and a payload that looks coded.
    fn forge(&mut self) -> Vec<u8> {
        let index = self.below(self.seen.len());
        let mut packet = self.seen[index].clone();
        match self.rng.next_u32() % 4 {
            // A packet of another content.
            0 => {
                let at = SHORT_HEADER_LEN + self.below(packet.len() - SHORT_HEADER_LEN);
                packet[at] ^= 1 << self.below(8);
            }
            // The same content under another header.
            1 => {
                let at = [0, 5, 6, 7, 8][self.below(5)];
                packet[at] ^= 1 << self.below(if at == 0 { 7 } else { 8 });
            }
            // The seal of one on the head of another, or what was cut off.
            2 => {
                let other = self.below(self.seen.len());
                let tail = self.seen[other].len().min(packet.len()) - 16;
                let cut = SHORT_HEADER_LEN + 16 + self.below(tail - SHORT_HEADER_LEN - 15);
                packet.truncate(cut);
                let seal = self.seen[other].len() - 16;
                packet.extend_from_slice(&self.seen[other][seal..]);
                // Which may be what it was: then something else is wrong with it.
                packet[SHORT_HEADER_LEN] ^= 1;
            }
            // A coded packet whose fields are right, without any protection.
            _ => {
                let destination = packet[1..5].try_into().expect("an ID");
                let number = self.rng.next_u32() % 100_000;
                let is_repair = self.rng.next_u32().is_multiple_of(2);
                let header = ShortHeader {
                    kind: if is_repair { PacketKind::Repair } else { PacketKind::Source },
                    carried: false,
                    key_phase: false,
                    destination,
                    packet_number: number,
                };
                let mut bytes = vec![0; 1_460];
                let mut short = [0; SHORT_HEADER_LEN];
                header.encode(0, &mut short);
                bytes[..SHORT_HEADER_LEN].copy_from_slice(&short);
                let mut writer = Writer::new(&mut bytes[SHORT_HEADER_LEN..]);
                let written = if is_repair {
                    RepairHeader { batch: number, column: 0, first: number, count: 64 }
                        .encode(&mut writer)
                } else {
                    SourceHeader::new(u64::from(number)).encode(&mut writer)
                };
                written.expect("room");
                packet = bytes;
            }
        }
        packet
    }
}

/// The client says `message` number so much.
fn say(world: &mut World, client: ConnectionHandle, number: u64) {
    let mut message = vec![number as u8; SIZE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    world.endpoints[CLIENT].send(world.now, client, Bytes::from(message)).expect("room");
}

#[test]
fn a_million_forgeries_are_refused_and_a_transfer_goes_on() {
    let (identity, print) = identity();
    let mut world = World::new(server(&identity, false));
    let trust = PeerTrust::Fingerprints(vec![print]);
    let transport = Arc::new(transport(Mode::Brtp));
    let client = world.connect(ClientConfig { trust, identity: None, transport });
    world.run(Duration::from_millis(200));
    let accepted = world.all(SERVER, &Event::Accepted)[0];
    let mut outsider = Outsider { rng: ChaCha8Rng::seed_from_u64(5), seen: Vec::new() };
    let elsewhere: SocketAddr = "192.0.2.9:4433".parse().expect("an address");
    let (mut forged, mut sent, mut got) = (0, 0, 0);
    while forged < FORGERIES {
        world.sent.clear();
        for _ in 0..8 {
            say(&mut world, client, sent);
            sent += 1;
        }
        // Its packets are under way, and others arrive before them.
        world.run(Duration::from_micros(2_500));
        let own = world.sent.iter().filter(|(who, ..)| *who == CLIENT);
        outsider.seen.extend(own.map(|(_, _, bytes)| bytes.clone()).filter(|o| o.len() > 100));
        let old = outsider.seen.len().saturating_sub(SEEN);
        outsider.seen.drain(..old);
        for _ in 0..10_000 {
            let packet = outsider.forge();
            let from = if forged % 2 == 0 { address(CLIENT) } else { elsewhere };
            world.inject(SERVER, from, packet);
            forged += 1;
        }
        world.run(Duration::from_millis(20));
        while let Some(message) = world.endpoints[SERVER].recv(world.now, accepted) {
            let number = u64::from_le_bytes(*message.first_chunk().expect("8 bytes"));
            let is_right = message[8..].iter().all(|&byte| byte == number as u8);
            assert!(number == got && message.len() == SIZE && is_right, "message {got}");
            got += 1;
        }
    }
    world.run(Duration::from_secs(1));
    let [told, heard] = [(CLIENT, client), (SERVER, accepted)].map(|(who, h)| world.stats(who, h));
    let dropped = world.endpoints[SERVER].endpoint_stats().datagrams_dropped;
    assert_eq!(heard.packets_forged + dropped, forged, "each is counted");
    assert!(dropped < forged / 100, "{dropped} did not reach the connection");
    assert!(heard.packets_received <= told.packets_sent, "no more than were sent");
    assert_eq!((got, heard.messages_received), (sent, sent), "all arrived");
    assert_eq!((heard.path_changes, heard.packets_malformed, heard.packets_replayed), (0, 0, 0));
    assert!(world.events.iter().all(|(_, _, event)| !matches!(event, Event::Closed(_))));
}
