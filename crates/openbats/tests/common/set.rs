//! Helpers for the tests of transfers of many files.

use std::time::Duration;

use openbats::{ClientOptions, Connection, Endpoint, Identity, ServerOptions, Trust, Wait};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn content(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

/// Opens `count` connections between two endpoints: the sender's ends and the receiver's.
pub(crate) fn connect(count: usize) -> (Vec<Connection>, Vec<Connection>) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let to = server.local_addr();
    (0..count)
        .map(|_| {
            let near = client.connect(to, "localhost", options.clone());
            let near = near.wait_for(LIMIT).unwrap().unwrap();
            (near, server.accept().wait_for(LIMIT).unwrap().unwrap())
        })
        .unzip()
}
