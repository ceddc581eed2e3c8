//! Trust on first use over real connections.

#[allow(dead_code, reason = "the tests of file transfers use all of it")]
mod common;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use common::Scratch;
use openbats::{
    ClientOptions, ConnectError, Connection, Endpoint, Identity, KnownHosts, Mode, ServerOptions,
    SessionStore, Trust, TrustError, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const MODES: [Mode; 6] =
    [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];

fn serve(identity: &Identity, address: SocketAddr) -> Endpoint {
    let options = ServerOptions::new(identity.clone()).modes(MODES);
    Endpoint::builder().bind(address).server(options).start().unwrap()
}

fn connect(
    client: &Endpoint,
    to: SocketAddr,
    options: ClientOptions,
) -> Result<Connection, ConnectError> {
    client.connect(to, "localhost", options).wait_for(LIMIT).unwrap()
}

#[test]
fn a_changed_certificate_is_refused_in_every_mode() {
    let scratch = Scratch::new("known-hosts");
    let hosts = KnownHosts::new(scratch.0.join("known_hosts")).name("server");
    let [first, second] = [0, 1].map(|_| Identity::generate(&["localhost"]).unwrap());
    let servers = [&first, &second].map(|identity| serve(identity, ([127, 0, 0, 1], 0).into()));
    let client = Endpoint::builder().start().unwrap();
    for (round, mode) in MODES.into_iter().enumerate() {
        let options = |hosts: KnownHosts| ClientOptions::new(Trust::known_hosts(hosts)).mode(mode);
        if round == 0 {
            let unknown =
                connect(&client, servers[0].local_addr(), options(hosts.clone().only_known()));
            assert!(matches!(unknown, Err(ConnectError::Trust(TrustError::Unknown { .. }))));
            assert!(!hosts.path().exists());
        }
        connect(&client, servers[0].local_addr(), options(hosts.clone())).unwrap();
        connect(&client, servers[0].local_addr(), options(hosts.clone().only_known())).unwrap();
        let error = connect(&client, servers[1].local_addr(), options(hosts.clone())).unwrap_err();
        let ConnectError::Trust(TrustError::Changed { known, found, .. }) = error else {
            panic!("{mode:?}: {error}");
        };
        assert_eq!((known, found), (first.fingerprint(), second.fingerprint()), "{mode:?}");
    }
    assert_eq!(fs::read_to_string(hosts.path()).unwrap().lines().count(), 1);
}

#[test]
fn sessions_are_resumed_only_with_the_recorded_certificate() {
    let scratch = Scratch::new("known-hosts-sessions");
    let hosts = KnownHosts::new(scratch.0.join("known_hosts")).name("server");
    let [first, second] = [0, 1].map(|_| Identity::generate(&["localhost"]).unwrap());
    let servers = [&first, &second].map(|identity| serve(identity, ([127, 0, 0, 1], 0).into()));
    let client = Endpoint::builder().start().unwrap();
    let store = SessionStore::new(16);
    let options = || ClientOptions::new(Trust::known_hosts(hosts.clone())).sessions(&store);
    let mut resumed = Vec::new();
    for _ in 0..4 {
        let connection = connect(&client, servers[0].local_addr(), options()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(connection.peer_fingerprint(), Some(first.fingerprint()));
        resumed.push(connection.stats().resumed);
        connection.close(0, "");
    }
    assert!(!resumed[0]);
    assert!(resumed.contains(&true), "{resumed:?}");
    assert!(connect(&client, servers[1].local_addr(), options()).is_err());
}

#[test]
fn a_name_and_port_identify_a_server() {
    let scratch = Scratch::new("known-hosts-names");
    let hosts = KnownHosts::new(scratch.0.join("known_hosts"));
    let client = Endpoint::builder().start().unwrap();
    for _ in 0..2 {
        let identity = Identity::generate(&["localhost"]).unwrap();
        let server = serve(&identity, ([127, 0, 0, 1], 0).into());
        let options = ClientOptions::new(Trust::known_hosts(hosts.clone()));
        connect(&client, server.local_addr(), options).unwrap();
        let name = format!("localhost:{}", server.local_addr().port());
        assert_eq!(hosts.fingerprints(&name).unwrap(), [identity.fingerprint()]);
    }
}
