//! A server that forwards the messages of a channel back with the combinators of `futures`, and a client
//! that sends numbers and adds up the answers.
//!
//!     cargo run --release -p openbats --example message_streams

use bytes::Bytes;
use futures_util::future::try_join;
use futures_util::{SinkExt, StreamExt, TryStreamExt, stream};
use openbats::{
    ClientOptions, Endpoint, Identity, MessageError, ServerOptions, TransportConfig, Trust, Wait,
};

/// Longest message in bytes.
const LIMIT: usize = 64;

pub(crate) fn main() -> anyhow::Result<()> {
    let transport = TransportConfig { channels: Some(16), ..TransportConfig::default() };
    let identity = Identity::generate(&["localhost"])?;
    let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse()?)
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()?;
    let address = server.local_addr();

    let doubling = std::thread::spawn(move || -> anyhow::Result<()> {
        let connection = server.accept().wait()?;
        let channel = connection.accept_channel().wait()?;
        let (sink, stream) = channel.into_messages(LIMIT).split();
        let doubled = stream.map_ok(|message| text(2 * number(&message)));
        doubled.forward(sink).wait()?;
        // Unread bytes of channels end with the connection: the client ends it.
        anyhow::ensure!(connection.recv().wait()?.is_none(), "the client sends no messages");
        Ok(())
    });

    let client = Endpoint::builder().start()?;
    let connection = client.connect(address, "localhost", options.transport(transport)).wait()?;
    let channel = connection.open_channel().wait()?;
    let (mut sink, stream) = channel.into_messages(LIMIT).split();
    let numbers = async {
        sink.send_all(&mut stream::iter(1..=1_000).map(text).map(Ok)).await?;
        sink.close().await
    };
    let sum = stream.try_fold(0, |sum, message| async move { Ok(sum + number(&message)) });
    let ((), sum) = try_join(numbers, sum).wait().map_err(|error: MessageError| error)?;
    println!("the sum of the doubled numbers is {sum}");
    anyhow::ensure!(sum == 1_001_000, "the server doubled other numbers");
    connection.finish().wait()?;
    doubling.join().expect("the server does not panic")
}

fn text(number: u64) -> Bytes {
    number.to_string().into()
}

/// 0 for what is no number.
fn number(message: &[u8]) -> u64 {
    str::from_utf8(message).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}
