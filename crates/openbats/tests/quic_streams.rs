//! Mode QUIC with a peer that uses another QUIC implementation.

use std::sync::Arc;
use std::time::Duration;

use openbats::{Endpoint, Identity, Mode, ServerOptions};

/// The ALPN token of the framing, from docs/spec/streams.md.
const ALPN: &[u8] = b"openbats-quic/1";
const LIMIT: Duration = Duration::from_secs(20);

fn server() -> (Endpoint, Identity) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity.clone()).modes([Mode::Quic]))
        .start()
        .unwrap();
    (server, identity)
}

/// A connection of the other implementation.
async fn connect(server: &Endpoint, identity: &Identity) -> (quinn::Endpoint, quinn::Connection) {
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
    let mut client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    client.set_default_client_config(quinn::ClientConfig::new(Arc::new(tls)));
    let connection = client.connect(server.local_addr(), "localhost").unwrap();
    let connection = tokio::time::timeout(LIMIT, connection).await.unwrap().unwrap();
    (client, connection)
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn a_quic_peer_may_open_one_stream() {
    let (server, identity) = server();
    run(async {
        let (_client, connection) = connect(&server, &identity).await;
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

#[test]
fn floods_of_key_updates_end_a_quic_connection() {
    /// The key updates that a peer may always make, as in docs/limits.md, without the keys of the handshake.
    const ALLOWED: usize = 63;
    /// Updates follow each other after three probe time-outs.
    const FLOOD: Duration = Duration::from_secs(60);
    let (server, identity) = server();
    run(async {
        let (_client, connection) = connect(&server, &identity).await;
        let (mut stream, _answers) = connection.open_bi().await.unwrap();
        // The first frame of the session: it has limits of messages, credit and idle time.
        let limits: [u64; 3] = [1 << 20, 1 << 20, 60_000];
        let numbers = limits.iter().flat_map(|number| number.to_be_bytes());
        let hello: Vec<u8> = [0, 0, 0, 25, 1].into_iter().chain(numbers).collect();
        stream.write_all(&hello).await.unwrap();
        let flood = async {
            let mut updates = 0;
            while connection.close_reason().is_none() {
                // Has an effect once the keys before the last update are discarded.
                connection.force_key_update();
                let before = connection.stats().frame_rx.acks;
                // An empty message.
                if stream.write_all(&[2, 0, 0, 0]).await.is_err() {
                    break;
                }
                while connection.stats().frame_rx.acks == before
                    && connection.close_reason().is_none()
                {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                updates += 1;
            }
            updates
        };
        let updates = tokio::time::timeout(FLOOD, flood).await.expect("the flood is ended");
        let reason = connection.close_reason().unwrap().to_string();
        assert!(reason.contains("key updates"), "{reason}");
        // Many come too early and change nothing.
        assert!(updates >= ALLOWED, "{updates}");
    });
}
