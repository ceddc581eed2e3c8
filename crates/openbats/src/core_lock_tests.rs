//! Calls for one connection do not wait for the lock of the endpoint, and what they leave to do is done.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::identity::Identity;
use crate::options::{ClientOptions, ServerOptions, Trust};
use crate::wait::Wait;
use crate::{Connection, Mode, TransportConfig};

const LIMIT: Duration = Duration::from_secs(60);

struct Pairs {
    client: Endpoint,
    _server: Endpoint,
    ends: Vec<[Connection; 2]>,
}

/// Two endpoints with so many connections, which have channels.
fn pairs(count: usize) -> Pairs {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let transport =
        TransportConfig { mode: Mode::Brtp, channels: Some(100), ..TransportConfig::default() };
    let server = Endpoint::builder()
        .bind(([127, 0, 0, 1], 0).into())
        .server(ServerOptions::new(identity).transport(transport.clone()))
        .start()
        .unwrap();
    let client = Endpoint::builder().start().unwrap();
    let connect = |_| {
        let options = ClientOptions::new(trust.clone()).transport(transport.clone());
        let near = client.connect(server.local_addr(), "localhost", options);
        let near = near.wait_for(LIMIT).unwrap().unwrap();
        [near, server.accept().wait_for(LIMIT).unwrap().unwrap()]
    };
    let ends = (0..count).map(connect).collect();
    Pairs { client, _server: server, ends }
}

/// Runs a call, which must return, while this thread has the core of the endpoint.
fn while_locked<T: Send>(endpoint: &Endpoint, call: impl FnOnce() -> T + Send) -> T {
    let core = endpoint.shared().lock();
    thread::scope(|scope| {
        let (done, result) = mpsc::channel();
        scope.spawn(move || done.send(call()));
        let result = result.recv_timeout(LIMIT);
        // A call that waits for it goes on, so that the test ends.
        drop(core);
        result.expect("the call does not wait for the core")
    })
}

fn is_pending<T>(future: impl Future<Output = T>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(std::pin::pin!(future).poll(&mut context), Poll::Pending)
}

#[test]
fn calls_of_a_connection_do_not_wait_for_the_endpoint() {
    let Pairs { client, ends, .. } = pairs(1);
    let [near, far] = &ends[0];
    far.send(&b"to the client"[..]).wait_for(LIMIT).unwrap().unwrap();
    // The last message before it says that it has arrived.
    while near.stats().messages.bytes_received == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let received = while_locked(&client, || near.try_recv());
    assert_eq!(received.as_deref(), Some(&b"to the client"[..]));
    while_locked(&client, || {
        assert_eq!(near.try_recv(), None);
        assert!(is_pending(near.recv()));
        assert_eq!(near.close_reason(), None);
        assert_eq!((near.mode(), near.is_reliable()), (Mode::Brtp, true));
        assert_eq!(near.stats().messages.received, 1);
        assert!(near.longest_message().is_some() && near.peer_fingerprint().is_some());
        near.try_send(&b"one"[..]).unwrap();
        near.send(&b"two"[..]).wait().unwrap();
        near.writable().wait().unwrap();
        assert!(is_pending(near.flush()));
    });
    // The I/O thread slept: who had the core has woken it.
    for expected in ["one", "two"] {
        let message = far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert_eq!(message, expected.as_bytes());
    }
    let channel = while_locked(&client, || {
        let channel = near.open_channel().wait().unwrap();
        channel.set_weight(9).unwrap();
        assert_eq!(channel.write(b"three").wait(), Ok(5));
        assert!(channel.stats().is_ok());
        assert!(is_pending(channel.read(&mut [0; 10])));
        channel.finish().unwrap();
        channel
    });
    let other_end = far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    let mut bytes = [0; 10];
    assert_eq!(other_end.read(&mut bytes).wait_for(LIMIT).unwrap(), Ok(5));
    assert_eq!(&bytes[..5], b"three");
    while_locked(&client, || drop(channel));
    while_locked(&client, || near.close(7, "done"));
    assert!(far.recv().wait_for(LIMIT).unwrap().is_err());
    assert!(near.recv().wait_for(LIMIT).unwrap().is_err());
}

/// A call that finds the connection closed, before the turn that has closed it has said why, waits to learn it.
#[test]
fn refused_calls_state_the_reason_of_the_end() {
    let Pairs { client, ends, .. } = pairs(1);
    let [near, far] = &ends[0];
    let channel = near.open_channel().wait_for(LIMIT).unwrap().unwrap();
    channel.write_all(b"open").wait_for(LIMIT).unwrap().unwrap();
    far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
    let shared = client.shared().clone();
    let mut core = shared.lock();
    let handle = *core.slots.keys().next().unwrap();
    // As a turn does when the peer's CLOSE arrives: the connection is closed at once, the event follows.
    core.endpoint.close(shared.clock.now(), handle, 0, "");
    assert!(core.slots[&handle].lock().end_reason().is_none());
    let (calling, is_calling) = mpsc::channel();
    thread::scope(|scope| {
        let call = |call: Box<dyn FnOnce() -> String + Send>| {
            let calling = calling.clone();
            scope.spawn(move || {
                calling.send(()).unwrap();
                call()
            })
        };
        let (one, two, three, four) = (near.clone(), near.clone(), &channel, &channel);
        let calls = [
            call(Box::new(move || format!("{:?}", one.try_send(&b"late"[..]).unwrap_err()))),
            call(Box::new(move || format!("{:?}", two.send(&b"late"[..]).wait().unwrap_err()))),
            call(Box::new(move || format!("{:?}", three.write(b"late").wait().unwrap_err()))),
            call(Box::new(move || format!("{:?}", four.finish().unwrap_err()))),
        ];
        for _ in 0..calls.len() {
            is_calling.recv_timeout(LIMIT).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
        let why = crate::CloseReason::Lost("the reason".to_owned());
        let mut due = Vec::new();
        core.end_for(shared.clock.now(), handle, &why, &mut due);
        drop(core);
        due.into_iter().for_each(Waker::wake);
        for call in calls {
            let error = call.join().unwrap();
            assert!(error.contains("the reason"), "{error}");
        }
    });
}

/// The application may keep the handle of an ended connection for long.
#[test]
fn ended_connections_are_not_kept_by_their_handles() {
    let Pairs { client, ends, .. } = pairs(1);
    let [near, _] = &ends[0];
    let shared = client.shared();
    {
        let mut core = shared.lock();
        let handle = *core.slots.keys().next().unwrap();
        assert!(core.slots[&handle].lock().calls.is_some());
        core.close_for_violation(&shared.clock, handle, "undecodable");
        assert!(core.slots[&handle].lock().calls.is_none());
    }
    let reason = near.recv().wait_for(LIMIT).unwrap().unwrap_err();
    assert!(reason.to_string().contains("undecodable"), "{reason}");
    assert!(near.peer_fingerprint().is_some(), "it is known for longer");
    assert_eq!(near.longest_message(), None);
}

/// Neither a turn nor a sleep of the I/O thread ends because an application looks for messages all the time.
#[test]
fn looking_for_messages_leaves_no_work() {
    let Pairs { client, ends, .. } = pairs(1);
    let [near, far] = &ends[0];
    let is_due = |call: &(dyn Fn() + Sync)| {
        let mut core = client.shared().lock();
        core.custody.taken = (0, 0);
        thread::scope(|scope| scope.spawn(call).join().unwrap());
        client.shared().left().apply(&mut core)
    };
    assert!(!is_due(&|| assert_eq!(near.try_recv(), None)));
    assert!(!is_due(&|| assert!(is_pending(near.recv()))));
    assert!(!is_due(&|| drop(near.stats())));
    assert!(is_due(&|| near.try_send(&b"question"[..]).unwrap()));
    far.send(&b"answer"[..]).wait_for(LIMIT).unwrap().unwrap();
    while near.stats().messages.bytes_received == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!is_due(&|| assert!(near.try_recv().is_some())), "credit for one can wait");
}

/// Threads that send, receive and use channels of connections of one endpoint, while another one takes its core again
/// and again: each message arrives, so none of them misses the wakeup that it waits for.
#[test]
fn tasks_that_share_connections_miss_no_wakeup() {
    const MESSAGES: usize = 2_000;
    const TURNS: usize = 200;
    let Pairs { client, ends, .. } = pairs(3);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let core = client.shared().lock();
                thread::sleep(Duration::from_micros(50));
                drop(core);
                thread::yield_now();
            }
        });
        let mut work = Vec::new();
        for [near, far] in &ends {
            for [from, to] in [[near, far], [far, near]] {
                work.push(scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let message = vec![number as u8; 1 + number % 300];
                        from.send(message).wait_for(LIMIT).unwrap().unwrap();
                    }
                }));
                work.push(scope.spawn(move || {
                    for number in 0..MESSAGES {
                        let message = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
                        assert_eq!(message, vec![number as u8; 1 + number % 300]);
                    }
                }));
            }
            // A question and an answer at a time: a missed wakeup would end it.
            work.push(scope.spawn(move || {
                let channel = near.open_channel().wait_for(LIMIT).unwrap().unwrap();
                let mut answer = [0; 4];
                for number in 0..TURNS {
                    let question = (number as u32).to_be_bytes();
                    channel.write_all(&question).wait_for(LIMIT).unwrap().unwrap();
                    let mut read = 0;
                    while read < 4 {
                        let part = channel.read(&mut answer[read..]);
                        read += part.wait_for(LIMIT).unwrap().unwrap();
                    }
                    assert_eq!(answer, question);
                }
            }));
            work.push(scope.spawn(move || {
                let channel = far.accept_channel().wait_for(LIMIT).unwrap().unwrap();
                let mut buffer = [0; 100];
                loop {
                    match channel.read(&mut buffer).wait_for(LIMIT).unwrap().unwrap() {
                        0 => break,
                        read => {
                            channel.write_all(&buffer[..read]).wait_for(LIMIT).unwrap().unwrap();
                        }
                    }
                }
            }));
        }
        let results: Vec<_> = work.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
}
