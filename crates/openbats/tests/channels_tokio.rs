//! Channels with tokio's traits and functions (feature `tokio`).

use openbats::{ClientOptions, Endpoint, Identity, ServerOptions, TransportConfig, Trust};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn tokio_copies_between_channels() {
    let transport = TransportConfig { channels: Some(2), ..TransportConfig::default() };
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(trust).transport(transport);
    let near = client.connect(server.local_addr(), "localhost", options).await.unwrap();
    let far = server.accept().await.unwrap();

    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at * 31 + at / 251) as u8).collect();
    let channel = near.open_channel().await.unwrap();
    let echo = async {
        let channel = far.accept_channel().await.unwrap();
        let (mut reader, mut writer) = (&channel, &channel);
        let copied = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        writer.shutdown().await.unwrap();
        copied
    };
    let send = async {
        let mut writer = &channel;
        writer.write_all(&data).await.unwrap();
        writer.flush().await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let receive = async {
        let (mut received, mut reader) = (Vec::new(), &channel);
        reader.read_to_end(&mut received).await.unwrap();
        received
    };
    let (copied, (), received) = tokio::join!(echo, send, receive);
    assert_eq!(copied, data.len() as u64);
    assert!(received == data);

    // An owned channel; the code of a reset is in the error.
    let owned = near.open_channel().await.unwrap();
    owned.write_all(b"lost").await.unwrap();
    let mut accepted = far.accept_channel().await.unwrap();
    owned.reset(9);
    let error = accepted.read_to_end(&mut Vec::new()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(error.to_string().contains("code 9"), "{error}");
}
