//! With the lines of a key log, others can decrypt.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::Version;
use rustls::{ClientConfig as TlsClient, Side};

use super::plain_session::plain_keys;
use super::session::{InitialSecrets, initial_keys, tls_client, tls_server};
use super::{KeyLog, Keys, PacketKey, PskSecrets, TAG_LEN, generate_identity};
use crate::config::{
    ClientConfig, PeerTrust, PresharedKey, Security, ServerConfig, TransportConfig,
};

type Lines = Arc<Mutex<Vec<String>>>;

fn log() -> (KeyLog, Lines) {
    let lines = Lines::default();
    let kept = lines.clone();
    (KeyLog::new(move |line| kept.lock().unwrap().push(line.to_owned())), lines)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|two| core::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

/// Label, identifier and secret.
fn fields(line: &str) -> (String, Vec<u8>, Vec<u8>) {
    let parts: Vec<&str> = line.split(' ').collect();
    let [label, identifier, secret] = parts[..] else { panic!("{line}") };
    (label.to_owned(), bytes(identifier), bytes(secret))
}

fn opens(seal: &PacketKey, open: &PacketKey) -> bool {
    let mut packet = b"payload".to_vec();
    packet.resize(7 + TAG_LEN, 0);
    seal.seal_in_place(1, b"header", &mut packet, 7);
    open.open_in_place(1, b"header", &mut packet) == Some(7)
}

/// The Initial keys that a reader of the log computes: those of RFC 9001 with the material in place of
/// the connection ID, or the stand-in's.
fn keys_of(security: Security, material: &[u8], is_client: bool) -> Keys {
    match security {
        Security::Tls => {
            let side = if is_client { Side::Client } else { Side::Server };
            let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap().quic_suite().unwrap();
            Keys::from_tls(suite.keys(material, side, Version::V1))
        }
        Security::DangerousPlain => {
            let label = u64::from_be_bytes(material[..8].try_into().unwrap());
            plain_keys(label / 2, is_client)
        }
    }
}

#[test]
fn logged_material_gives_the_initial_keys_of_psk_mode() {
    let (key_log, lines) = log();
    let config = TransportConfig {
        psk: Some(PresharedKey::new([1; 32])),
        also_accepted_psks: vec![PresharedKey::new([2; 32])],
        key_log: Some(key_log),
        ..TransportConfig::default()
    };
    let (destination, source, salt) = (&[3; 8], &[4; 4], &[5; 16][..]);
    let accepted = PskSecrets::accepted(&config);
    assert_eq!(accepted.len(), 2);
    for psk in accepted.iter().chain(&PskSecrets::of(&config)) {
        let secrets = InitialSecrets { psk: Some(psk), destination, source, salt };
        secrets.log_client();
        secrets.log_server();
        let logged: Vec<_> = lines.lock().unwrap().drain(..).map(|line| fields(&line)).collect();
        let [(clients, of_client, material), (servers, of_server, servers_material)] = &logged[..]
        else {
            panic!("two lines: {logged:?}")
        };
        assert_eq!(
            (&**clients, &**servers),
            ("OPENBATS_CLIENT_INITIAL", "OPENBATS_SERVER_INITIAL")
        );
        assert_eq!((&**of_client, &**of_server), (&destination[..], salt));
        for security in [Security::Tls, Security::DangerousPlain] {
            let client = initial_keys(security, &secrets, true).unwrap();
            let server = initial_keys(security, &secrets, false).unwrap();
            let open = keys_of(security, material, false).remote.packet;
            assert!(opens(&client.local.packet, &open) && !opens(&server.local.packet, &open));
            let open = keys_of(security, servers_material, true).remote.packet;
            assert!(opens(&server.local.packet, &open) && !opens(&client.local.packet, &open));
        }
    }
    assert_eq!(PskSecrets::of(&TransportConfig::default()).map(|_| ()), None);
}

/// Without a pre-shared key everyone can compute the Initial keys, so there is nothing to log; and
/// nothing is logged without a log.
#[test]
fn initial_keys_are_logged_only_if_configured() {
    let (key_log, lines) = log();
    let psk = Some(PresharedKey::new([1; 32]));
    for (psk, key_log) in [(None, Some(key_log)), (psk, None)] {
        let config = TransportConfig { psk, key_log, ..TransportConfig::default() };
        let secrets = PskSecrets::of(&config);
        let (destination, source, salt) = (&[3; 8], &[4; 4], &[5; 16][..]);
        let secrets = InitialSecrets { psk: secrets.as_ref(), destination, source, salt };
        secrets.log_client();
        secrets.log_server();
    }
    assert!(lines.lock().unwrap().is_empty());
}

/// The secrets of a handshake by label, as each end logs them.
#[test]
fn both_ends_log_the_same_secrets_of_tls() {
    let ((client_log, client_lines), (server_log, server_lines)) = (log(), log());
    let transport =
        |key_log| TransportConfig { key_log: Some(key_log), ..TransportConfig::default() }.into();
    let server = ServerConfig {
        identity: generate_identity(&["server".to_owned()]).unwrap(),
        transport: transport(server_log),
        client_trust: None,
        retry_threshold: 1,
        max_connections: 1,
    };
    let client = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: transport(client_log),
    };
    let (client, name): (TlsClient, _) = tls_client(&client, "server", b"test").unwrap();
    let mut client = rustls::ClientConnection::new(client.into(), name).unwrap();
    let server = tls_server(&server, b"test").unwrap();
    let mut server = rustls::ServerConnection::new(server.into()).unwrap();
    let mut bytes = Vec::new();
    for _ in 0..3 {
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets().unwrap();
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets().unwrap();
        bytes.clear();
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    let by_label = |lines: &Lines| -> BTreeMap<String, (Vec<u8>, Vec<u8>)> {
        let lines = lines.lock().unwrap();
        let fields = lines.iter().map(|line| fields(line));
        fields.map(|(label, random, secret)| (label, (random, secret))).collect()
    };
    let (clients, servers) = (by_label(&client_lines), by_label(&server_lines));
    for label in ["HANDSHAKE_TRAFFIC_SECRET", "TRAFFIC_SECRET_0"] {
        for side in ["CLIENT", "SERVER"] {
            let label = format!("{side}_{label}");
            let logged = clients.get(&label);
            assert!(logged.is_some_and(|(random, _)| random.len() == 32), "{label}");
            assert_eq!(logged, servers.get(&label), "{label}");
        }
    }
}
