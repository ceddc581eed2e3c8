//! Messages of connections and channels as `Stream` and `Sink`.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{FutureExt, join, join3};
use futures_util::stream::{FusedStream, StreamExt, TryStreamExt};
use futures_util::{SinkExt, stream};
use openbats::{
    Channel, ChannelError, ClientOptions, Connection, Endpoint, Identity, MessageError, Mode,
    SendError, ServerOptions, TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(30);
const MESSAGE_LIMIT: usize = 1 << 20;

fn pair(mode: Mode, send_budget: Option<usize>) -> (Connection, Connection) {
    let default = TransportConfig::default();
    let transport = TransportConfig {
        mode,
        channels: matches!(mode, Mode::Brtp | Mode::Brctp).then_some(8),
        send_budget: send_budget.unwrap_or(default.send_budget),
        ..default
    };
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(trust).transport(transport);
    let near = client.connect(server.local_addr(), "localhost", options).wait_for(LIMIT).unwrap();
    (near.unwrap(), server.accept().wait_for(LIMIT).unwrap().unwrap())
}

fn channels(connections: &(Connection, Connection)) -> (Channel, Channel) {
    let near = connections.0.open_channel().wait_for(LIMIT).unwrap().unwrap();
    // The peer learns of a channel by its first byte or its end.
    near.write_all(b"x").wait_for(LIMIT).unwrap().unwrap();
    let far = connections.1.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(far.read(&mut [0]).wait_for(LIMIT).unwrap(), Ok(1));
    (near, far)
}

fn content(number: usize, size: usize) -> Bytes {
    (0..size).map(|at| (at * 31 + at / 251 + number * 7) as u8).collect()
}

fn some_messages() -> Vec<Bytes> {
    let sizes = [0, 1, 1_000, 0, 70_000, 3, 200_000];
    sizes.into_iter().enumerate().map(|(number, size)| content(number, size)).collect()
}

/// The client's messages go through a server that forwards its stream into its sink.
#[test]
fn messages_are_forwarded_from_a_stream_to_a_sink() {
    for mode in [Mode::Brtp, Mode::Brctp, Mode::Tcp, Mode::Quic] {
        let (near, far) = pair(mode, None);
        let (mut sink, stream) = near.messages().split();
        let (echo_sink, echo_stream) = far.messages().split();
        // Both have an error type of their own, so the stream's becomes the end.
        let echoed = echo_stream.map(|message| Ok(message.unwrap())).forward(echo_sink);
        let sent = some_messages();
        let mut all = stream::iter(sent.clone()).map(Ok);
        let send = async {
            sink.send_all(&mut all).await.unwrap();
            sink.close().await
        };
        let (received, sent_all, echoed) =
            join3(stream.try_collect::<Vec<_>>(), send, echoed).wait_for(LIMIT).unwrap();
        assert_eq!((sent_all, echoed), (Ok(()), Ok(())), "{mode:?}");
        assert!(received.unwrap() == sent, "{mode:?}");
    }
}

#[test]
fn a_stream_ends_with_its_error() {
    let (near, far) = pair(Mode::Brtp, None);
    let mut messages = near.messages();
    far.close(7, "gone");
    let error = messages.next().wait_for(LIMIT).unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("code 7, gone"), "{error}");
    assert!(messages.is_terminated());
    assert_eq!(messages.next().wait_for(LIMIT).unwrap(), None);
    let error = messages.send(Bytes::from_static(b"late")).wait_for(LIMIT).unwrap().unwrap_err();
    assert!(matches!(error, SendError::Closed(_)), "{error}");
}

#[test]
fn messages_that_are_too_long_are_refused_with_their_size() {
    let (near, _far) = pair(Mode::Brtp, None);
    let longest = near.longest_message().unwrap();
    let error = near.messages().send(vec![0; longest + 1].into()).wait_for(LIMIT).unwrap();
    assert_eq!(error, Err(SendError::TooLarge { size: longest + 1, limit: longest }));
}

/// Dropped futures of `send` and `next` neither lose nor repeat a message.
#[test]
fn cancelled_calls_lose_and_repeat_nothing() {
    let (near, far) = pair(Mode::Brtp, Some(128 << 10));
    let (mut sink, mut stream) = (near.messages(), far.messages());
    let sent: Vec<Bytes> = (0..200).map(|number| content(number, 10_000)).collect();
    let (mut pending, mut received) = (0, Vec::new());
    for message in &sent {
        // The first poll hands the message to the sink; the send buffer is soon full.
        let mut first = Box::pin(sink.send(message.clone()));
        let done = first.as_mut().now_or_never().is_some();
        drop(first);
        if !done {
            pending += 1;
            // Cancelled receptions, until there is room for the next message.
            while sink.flush().now_or_never().is_none() {
                if let Some(next) = stream.next().now_or_never() {
                    received.push(next.unwrap().unwrap());
                }
            }
        }
    }
    assert!(pending > 10, "the send buffer was never full: {pending}");
    sink.feed(Bytes::from_static(b"last")).wait_for(LIMIT).unwrap().unwrap();
    // The sink may keep the last message until the receiver has made room, and passes it on only in a call.
    let rest = async {
        while received.len() <= sent.len() {
            received.push(stream.next().await.unwrap().unwrap());
        }
    };
    let (flushed, ()) = join(sink.flush(), rest).wait_for(LIMIT).unwrap();
    assert_eq!(flushed, Ok(()));
    assert_eq!(received.pop().unwrap(), "last");
    assert!(received == sent);
    sink.close().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(stream.next().wait_for(LIMIT).unwrap(), None);
}

#[test]
fn messages_on_a_channel_keep_their_boundaries() {
    let connections = pair(Mode::Brtp, None);
    let (near, far) = channels(&connections);
    let (mut sink, stream) = near.into_messages(MESSAGE_LIMIT).split();
    let (echo_sink, echo_stream) = far.into_messages(MESSAGE_LIMIT).split();
    let sent: Vec<Bytes> =
        some_messages().into_iter().chain([content(9, MESSAGE_LIMIT), Bytes::new()]).collect();
    let mut all = stream::iter(sent.clone()).map(Ok);
    let send = async {
        sink.send_all(&mut all).await?;
        sink.close().await
    };
    let (received, sent_all, echoed) =
        join3(stream.try_collect::<Vec<_>>(), send, echo_stream.forward(echo_sink))
            .wait_for(LIMIT)
            .unwrap();
    assert_eq!((sent_all, echoed), (Ok(()), Ok(())));
    assert!(received.unwrap() == sent);
}

#[test]
fn channel_messages_survive_cancelled_calls() {
    // A sixteenth of a message, so that each waits for room many times, however rarely this thread runs.
    let connections = pair(Mode::Brtp, Some(64 << 10));
    let (near, far) = channels(&connections);
    let (mut sink, mut stream) =
        (near.into_messages(MESSAGE_LIMIT), far.into_messages(MESSAGE_LIMIT));
    let sent: Vec<Bytes> = (0..8).map(|number| content(number, MESSAGE_LIMIT - number)).collect();
    let mut received = Vec::new();
    let mut pending = 0;
    for message in &sent {
        let mut first = Box::pin(sink.send(message.clone()));
        let mut done = first.as_mut().now_or_never().is_some();
        drop(first);
        while !done {
            pending += 1;
            if let Some(next) = stream.next().now_or_never() {
                received.push(next.unwrap().unwrap());
            }
            done = sink.flush().now_or_never().is_some();
        }
    }
    assert!(pending > 10, "{pending}");
    while received.len() < sent.len() {
        received.push(stream.next().wait_for(LIMIT).unwrap().unwrap().unwrap());
    }
    assert!(received == sent);
}

#[test]
fn longer_channel_messages_are_refused_at_both_ends() {
    let connections = pair(Mode::Brtp, None);
    let (near, far) = channels(&connections);
    let (mut sink, mut stream) = (near.into_messages(1_000), far.into_messages(999));
    let too_long = |size, limit| MessageError::TooLong { size, limit };
    let sent = sink.send(content(0, 1_001)).wait_for(LIMIT).unwrap();
    assert_eq!(sent, Err(too_long(1_001, 1_000)));
    sink.send(content(0, 999)).wait_for(LIMIT).unwrap().unwrap();
    sink.send(content(1, 1_000)).wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(stream.next().wait_for(LIMIT).unwrap(), Some(Ok(content(0, 999))));
    assert_eq!(stream.next().wait_for(LIMIT).unwrap(), Some(Err(too_long(1_000, 999))));
    assert_eq!(stream.next().wait_for(LIMIT).unwrap(), None);
    // The sender learns that nothing more is read.
    let stopped = async {
        loop {
            if let Err(error) = sink.send(content(2, 500)).await {
                break error;
            }
        }
    };
    let error = stopped.wait_for(LIMIT).unwrap();
    assert_eq!(error, MessageError::Channel(ChannelError::Stopped { code: 0 }));
}

#[test]
fn a_channel_that_ends_within_a_message_is_an_error() {
    let connections = pair(Mode::Brtp, None);
    for bytes in [&[0, 0][..], &[0, 0, 0, 9, 1, 2]] {
        let (near, far) = channels(&connections);
        near.write_all(bytes).wait_for(LIMIT).unwrap().unwrap();
        near.finish().unwrap();
        let mut stream = far.into_messages(MESSAGE_LIMIT);
        assert_eq!(stream.next().wait_for(LIMIT).unwrap(), Some(Err(MessageError::Truncated)));
        assert_eq!(stream.next().wait_for(LIMIT).unwrap(), None);
    }
    let (near, far) = channels(&connections);
    near.reset(5);
    let error = far.into_messages(1).next().wait_for(LIMIT).unwrap().unwrap().unwrap_err();
    assert_eq!(error, MessageError::Channel(ChannelError::Reset { code: 5 }));
}
