//! Mode QUIC with a peer that uses another QUIC implementation.

use std::sync::Arc;
use std::time::Duration;

use openbats::{Endpoint, Identity, Mode, ServerOptions};

/// The ALPN token of the framing, from docs/spec/streams.md.
const ALPN: &[u8] = b"openbats-quic/1";
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_quic_peer_may_open_one_stream() {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity.clone()).modes([Mode::Quic]))
        .start()
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.certificates()[0].clone().into()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        client.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
        let connection = client.connect(server.local_addr(), "localhost").unwrap();
        let connection = tokio::time::timeout(LIMIT, connection).await.unwrap().unwrap();
        // The handshake allows one stream. Further ones are never allowed while it is open.
        let first = tokio::time::timeout(LIMIT, connection.open_bi()).await;
        // Kept open: when it ends, another one may be opened.
        let _first = first.unwrap().unwrap();
        let short = Duration::from_millis(100);
        assert!(tokio::time::timeout(short, connection.open_bi()).await.is_err());
        assert!(tokio::time::timeout(short, connection.open_uni()).await.is_err());
        assert!(connection.close_reason().is_none());
    });
}
