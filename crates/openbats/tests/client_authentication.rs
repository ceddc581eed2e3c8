//! Servers that authenticate their clients, over real connections in every mode that has a handshake.

#[allow(dead_code, reason = "the tests of file transfers use all of it")]
mod common;

use std::fs;
use std::time::Duration;

use common::Scratch;
use openbats::{
    ClientOptions, CloseReason, ConnectError, Connection, Endpoint, Fingerprint, Identity,
    KnownHosts, Mode, ServerOptions, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);
const MODES: [Mode; 6] =
    [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];

fn identity() -> Identity {
    Identity::generate(&["localhost"]).unwrap()
}

fn serve(identity: &Identity, trust: Option<Trust>) -> Endpoint {
    let mut options = ServerOptions::new(identity.clone()).modes(MODES);
    if let Some(trust) = trust {
        options = options.client_trust(trust);
    }
    let address = ([127, 0, 0, 1], 0).into();
    Endpoint::builder().bind(address).server(options).start().unwrap()
}

fn connect(
    server: &Endpoint,
    trust: &Trust,
    mode: Mode,
    identity: Option<&Identity>,
) -> Result<Connection, ConnectError> {
    let mut options = ClientOptions::new(trust.clone()).mode(mode);
    if let Some(identity) = identity {
        options = options.identity(identity.clone());
    }
    let client = Endpoint::builder().start().unwrap();
    client.connect(server.local_addr(), "localhost", options).wait_for(LIMIT).unwrap()
}

/// Both ends know the certificate of the other; messages arrive.
fn is_accepted(
    server: &Endpoint,
    own: &Identity,
    mode: Mode,
    client: Option<&Identity>,
    expected: Option<Fingerprint>,
) {
    let trust = Trust::fingerprint(own.fingerprint());
    let near = connect(server, &trust, mode, client).unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(near.peer_fingerprint(), Some(own.fingerprint()), "{mode:?}");
    assert_eq!(far.peer_fingerprint(), expected, "{mode:?}");
    near.send("identified").wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "identified", "{mode:?}");
}

/// The server accepts nothing, and the client learns why.
fn is_refused(
    server: &Endpoint,
    own: &Identity,
    mode: Mode,
    client: Option<&Identity>,
    words: &str,
) {
    let trust = Trust::fingerprint(own.fingerprint());
    let error = connect(server, &trust, mode, client).unwrap_err();
    let ConnectError::Closed(CloseReason::Handshake(text)) = &error else {
        panic!("{mode:?}: {error:?}");
    };
    assert!(text.contains(words), "{mode:?}: {text}");
    assert!(server.accept().wait_for(Duration::from_millis(50)).is_err(), "{mode:?}");
}

#[test]
fn only_clients_with_a_trusted_fingerprint_are_accepted() {
    let [own, first, second, other] = [(); 4].map(|()| identity());
    let trust = Trust::fingerprints([first.fingerprint(), second.fingerprint()]);
    let server = serve(&own, Some(trust));
    for mode in MODES {
        is_accepted(&server, &own, mode, Some(&first), Some(first.fingerprint()));
        is_accepted(&server, &own, mode, Some(&second), Some(second.fingerprint()));
        is_refused(&server, &own, mode, Some(&other), "does not trust the certificate");
        is_refused(&server, &own, mode, None, "requires a certificate");
    }
}

#[test]
fn only_clients_of_a_trusted_authority_are_accepted() {
    let scratch = Scratch::new("client-authority");
    let [own, other] = [(); 2].map(|()| identity());
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = parameters.self_signed(&key).unwrap();
    let path = scratch.0.join("authority.pem");
    fs::write(&path, authority.pem()).unwrap();
    let issuer = rcgen::Issuer::new(parameters, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
    let issued = parameters.signed_by(&key, &issuer).unwrap();
    let pem = issued.pem() + &key.serialize_pem();
    let member = Identity::from_pem("client", pem.as_bytes()).unwrap();
    let server = serve(&own, Some(Trust::authorities(&path).unwrap()));
    for mode in MODES {
        is_accepted(&server, &own, mode, Some(&member), Some(member.fingerprint()));
        is_refused(&server, &own, mode, Some(&other), "does not trust the certificate");
        is_refused(&server, &own, mode, None, "requires a certificate");
    }
}

#[test]
fn servers_without_client_trust_ask_for_no_certificates() {
    let [own, client] = [(); 2].map(|()| identity());
    let (silent, any) = (serve(&own, None), serve(&own, Some(Trust::dangerous_any())));
    for mode in MODES {
        is_accepted(&silent, &own, mode, Some(&client), None);
        is_accepted(&silent, &own, mode, None, None);
        is_accepted(&any, &own, mode, Some(&client), Some(client.fingerprint()));
        is_accepted(&any, &own, mode, None, None);
    }
}

/// Trust on first use would let the first client choose, and mode 11 has no handshake.
#[test]
fn servers_that_cannot_authenticate_clients_do_not_start() {
    let scratch = Scratch::new("client-known-hosts");
    let hosts = Trust::known_hosts(KnownHosts::new(scratch.0.join("known_hosts")));
    let print = identity().fingerprint();
    for (trust, mode, words) in [
        (hosts, Mode::Brtp, "a file of known servers"),
        (Trust::fingerprint(print), Mode::Udp, "mode 11 (UDP) has no handshake"),
    ] {
        let options = ServerOptions::new(identity()).client_trust(trust).modes([mode]);
        let error = Endpoint::builder().server(options).start().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
