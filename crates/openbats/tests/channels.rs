//! Channels over real sockets on loopback.

use std::io;
use std::thread;
use std::time::Duration;

use futures_io::{AsyncRead, AsyncWrite};
use openbats::{
    Channel, ChannelError, ClientOptions, Connection, Endpoint, Identity, Mode, ServerOptions,
    TransportConfig, Trust, Wait,
};

const LIMIT: Duration = Duration::from_secs(20);

struct Pair {
    _endpoints: [Endpoint; 2],
    near: Connection,
    far: Connection,
}

fn pair(near: TransportConfig, far: TransportConfig) -> Pair {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind("127.0.0.1:0".parse().unwrap())
        .server(ServerOptions::new(identity).transport(far))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let options = ClientOptions::new(trust).transport(near);
    let to = server.local_addr();
    let near = client.connect(to, "localhost", options).wait_for(LIMIT).unwrap().unwrap();
    let far = server.accept().wait_for(LIMIT).unwrap().unwrap();
    Pair { _endpoints: [server, client], near, far }
}

fn with_channels(channels: u32) -> TransportConfig {
    TransportConfig { channels: Some(channels), ..TransportConfig::default() }
}

/// A pair whose ends allow so many channels, in each mode that has them.
fn pairs(channels: [u32; 2]) -> impl Iterator<Item = Pair> {
    [Mode::Brtp, Mode::Brctp].into_iter().map(move |mode| {
        let [near, far] =
            channels.map(|channels| TransportConfig { mode, ..with_channels(channels) });
        pair(near, far)
    })
}

fn content(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8 ^ number as u8).collect()
}

fn read_all(channel: &Channel) -> Result<Vec<u8>, ChannelError> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 70_000]);
    loop {
        match channel.read(&mut buffer).wait_for(LIMIT).expect("bytes or the end")? {
            0 => return Ok(all),
            len => all.extend_from_slice(&buffer[..len]),
        }
    }
}

#[test]
fn channels_of_both_ends_carry_bytes_in_both_directions() {
    for pair in pairs([10, 10]) {
        for (from, to) in [(&pair.near, &pair.far), (&pair.far, &pair.near)] {
            for len in [0, 1, 100_000, 5_000_000] {
                thread::scope(|scope| {
                    scope.spawn(move || {
                        let channel = to.accept_channel().wait_for(LIMIT).unwrap().unwrap();
                        let all = read_all(&channel).unwrap();
                        assert!(all == content(channel.id(), len), "{len} bytes");
                        channel.write_all(&all).wait_for(LIMIT).unwrap().unwrap();
                    });
                    let channel = from.open_channel().wait_for(LIMIT).unwrap().unwrap();
                    let data = content(channel.id(), len);
                    channel.write_all(&data).wait_for(LIMIT).unwrap().unwrap();
                    channel.finish().unwrap();
                    assert_eq!(channel.finish(), Err(ChannelError::Finished));
                    assert!(read_all(&channel).unwrap() == data, "{len} bytes come back");
                    // The end stays the end.
                    assert_eq!(read_all(&channel), Ok(Vec::new()));
                });
            }
        }
    }
}

#[test]
fn messages_and_other_channels_pass_a_channel_that_is_not_read() {
    pairs([10, 10]).for_each(|pair| check_stalled(&pair));
}

/// Writes to a channel until its credit is used up. Returns how much it has accepted.
fn fill(channel: &Channel) -> usize {
    let (mut written, mut waits) = (0, 0);
    loop {
        match channel.write(&[1; 60_000]).wait_for(Duration::from_millis(300)) {
            Ok(len) => written += len.unwrap(),
            // On a busy machine the threads of the endpoints may just not run.
            Err(_) => {
                let stats = channel.stats().unwrap();
                if stats.bytes_queued > 0 && stats.credit == 0 {
                    return written;
                }
                waits += 1;
                assert!(waits < 100, "{stats:?}");
            }
        }
    }
}

fn check_stalled(pair: &Pair) {
    let stalled = pair.near.open_channel().wait().unwrap();
    let written = fill(&stalled);
    assert!(written > 1_000_000, "{written} bytes until the writer waits");
    let stats = stalled.stats().unwrap();
    assert_eq!(stats.bytes_sent + stats.bytes_queued, written as u64, "{stats:?}");
    assert!(stats.bytes_queued > 0 && stats.credit == 0, "{stats:?}");
    let other = pair.near.open_channel().wait().unwrap();
    other.set_weight(200).unwrap();
    other.write_all(b"passes").wait_for(LIMIT).unwrap().unwrap();
    other.finish().unwrap();
    pair.near.send("passes, too").wait_for(LIMIT).unwrap().unwrap();
    let far_stalled = pair.far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    let far_other = pair.far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!((far_stalled.id(), far_other.id()), (stalled.id(), other.id()));
    assert_eq!(read_all(&far_other).unwrap(), b"passes");
    let message = pair.far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
    assert_eq!(&message[..], b"passes, too");
    let far_stats = far_stalled.stats().unwrap();
    assert_eq!(
        (far_stats.bytes_received, far_stats.bytes_unread),
        (stats.bytes_sent, stats.bytes_sent)
    );
    // There is room again when the peer reads.
    assert!(stalled.writable().wait_for(Duration::from_millis(50)).is_err());
    let mut part = vec![0; written];
    while stalled.writable().wait_for(Duration::from_millis(50)).is_err() {
        let read = far_stalled.read(&mut part).wait_for(LIMIT).unwrap().unwrap();
        assert!(read > 0 && part[..read].iter().all(|&byte| byte == 1));
    }
    assert!(stalled.write(&[1]).wait_for(LIMIT).unwrap().unwrap() > 0);
    // The peer's application reads no more: the writer learns the code.
    far_stalled.stop(7);
    let mut refused = Ok(0);
    while refused.is_ok() {
        refused = stalled.write(&[1; 60_000]).wait_for(LIMIT).unwrap();
    }
    assert_eq!(refused, Err(ChannelError::Stopped { code: 7 }));
    let refused = stalled.writable().wait_for(LIMIT).unwrap();
    assert_eq!(refused, Err(ChannelError::Stopped { code: 7 }));
}

/// The connection is idle otherwise, so no timer or packet would send the credit later.
#[test]
fn one_call_that_reads_gives_the_writer_credit() {
    for pair in pairs([1, 1]) {
        let near = pair.near.open_channel().wait().unwrap();
        let mut part = vec![0; fill(&near)];
        let far = pair.far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
        let sent = near.stats().unwrap().bytes_sent;
        while far.stats().unwrap().bytes_unread < sent {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(far.read(&mut part).wait_for(LIMIT).unwrap(), Ok(sent as usize));
        near.writable().wait_for(LIMIT).expect("room again").unwrap();
    }
}

#[test]
fn resets_reach_the_reader_and_limits_delay_new_channels() {
    for pair in pairs([0, 2]) {
        let first = pair.near.open_channel().wait().unwrap();
        let second = pair.near.open_channel().wait().unwrap();
        assert!(
            pair.near.open_channel().wait_for(Duration::from_millis(50)).is_err(),
            "two are open"
        );
        assert!(
            pair.far.open_channel().wait_for(Duration::from_millis(50)).is_err(),
            "none allowed"
        );
        first.write_all(b"x").wait_for(LIMIT).unwrap().unwrap();
        first.reset(5);
        let far = pair.far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
        assert_eq!(read_all(&far), Err(ChannelError::Reset { code: 5 }));
        assert_eq!(first.write(b"x").wait(), Err(ChannelError::Finished));
        // When both directions have ended, another may be opened.
        drop((first, far));
        let third = pair.near.open_channel().wait_for(LIMIT).unwrap().unwrap();
        assert!(third.id() > second.id());
        pair.near.close(3, "done");
        let closed = pair.far.accept_channel().wait_for(LIMIT).unwrap();
        assert!(matches!(closed, Err(ChannelError::ConnectionClosed(_))), "{closed:?}");
        let closed = third.write(b"x").wait_for(LIMIT).unwrap();
        assert!(matches!(closed, Err(ChannelError::ConnectionClosed(_))), "{closed:?}");
    }
}

#[test]
fn opening_a_channel_fails_unless_both_ends_enable_channels() {
    let btp = TransportConfig { mode: Mode::Btp, ..with_channels(1) };
    let brctp =
        |channels| TransportConfig { mode: Mode::Brctp, channels, ..TransportConfig::default() };
    for (near, far) in [
        (with_channels(1), TransportConfig::default()),
        (TransportConfig::default(), with_channels(1)),
        (brctp(Some(1)), brctp(None)),
        (btp.clone(), btp),
    ] {
        let pair = pair(near, far);
        for connection in [&pair.near, &pair.far] {
            let opened = connection.open_channel().wait_for(LIMIT).unwrap();
            assert_eq!(opened.unwrap_err(), ChannelError::Unsupported);
        }
        pair.near.send("messages").wait_for(LIMIT).unwrap().unwrap();
        assert!(pair.far.recv().wait_for(LIMIT).unwrap().unwrap().is_some());
    }
}

/// The traits of `futures-io`, which most asynchronous code knows.
#[test]
fn a_channel_is_an_async_reader_and_writer() {
    async fn echo(channel: impl AsyncRead + AsyncWrite) -> io::Result<usize> {
        let mut channel = std::pin::pin!(channel);
        let (mut buffer, mut total) = ([0; 1_000], 0);
        loop {
            let read =
                std::future::poll_fn(|context| channel.as_mut().poll_read(context, &mut buffer));
            let len = read.await?;
            if len == 0 {
                let close = std::future::poll_fn(|context| channel.as_mut().poll_close(context));
                close.await?;
                return Ok(total);
            }
            let mut rest = &buffer[..len];
            while !rest.is_empty() {
                let write =
                    std::future::poll_fn(|context| channel.as_mut().poll_write(context, rest));
                rest = &rest[write.await?..];
            }
            total += len;
        }
    }
    let pair = pair(with_channels(1), with_channels(1));
    let channel = pair.near.open_channel().wait().unwrap();
    channel.write_all(&content(1, 20_000)).wait_for(LIMIT).unwrap().unwrap();
    channel.finish().unwrap();
    let far = pair.far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(echo(far).wait_for(LIMIT).unwrap().unwrap(), 20_000);
    assert!(read_all(&channel).unwrap() == content(1, 20_000));
}
