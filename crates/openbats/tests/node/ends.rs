//! How nodes end, and callbacks.

use std::sync::mpsc;

use bytes::Bytes;
use futures_util::future::join;
use futures_util::{SinkExt, StreamExt, TryStreamExt, stream};
use openbats::node::{Event, LinkPolicy, Node, RouteSet};
use openbats::{CloseReason, ConnectError, Mode, RecvError, Wait};

use crate::world::{LIMIT, World, eventually, id, wait_event};

fn pair(world: &World) -> (Node, Node) {
    let far = world.node(1).neighbour(world.print(0), LinkPolicy::end()).start().unwrap();
    let near = world.node(0).start().unwrap();
    let link = world.link(&near, &far, None);
    near.routes().replace(RouteSet::new().to(id(1), link.id())).unwrap();
    far.routes().replace(RouteSet::new().to(id(0), world.print(0))).unwrap();
    (near, far)
}

#[test]
fn shutdown_closes_sessions_then_links_and_sends_the_reason() {
    let world = World::new(2);
    let (near, far) = pair(&world);
    let (_from, to) = world.session(&near, &far, Mode::Brtp);
    near.shut_down(7, "done");
    near.idle().wait_for(LIMIT).unwrap();
    let error = to.recv().wait_for(LIMIT).unwrap().unwrap_err();
    let RecvError::Closed(reason) = error else { panic!("{error}") };
    assert_eq!(reason, CloseReason::Peer { code: 7, reason: "done".to_owned() });
    let mut ended = (false, false);
    wait_event(&far.events(), |event| {
        match event {
            Event::SessionClosed { node, .. } => ended.0 = *node == id(0),
            Event::LinkDown { .. } => ended.1 = true,
            _ => {}
        }
        (ended == (true, true)).then_some(())
    });
    assert!(far.links().list().is_empty());
    let error = near.accept().wait_for(LIMIT).unwrap().unwrap_err();
    assert_eq!(error, ConnectError::EndpointClosed);
    assert!(near.routes().replace(RouteSet::new()).is_err());
}

#[test]
fn terminated_node_notifies_its_peers_and_frees_its_address() {
    let world = World::new(2);
    let (near, far) = pair(&world);
    let (from, _to) = world.session(&near, &far, Mode::Brtp);
    let address = far.local_addrs()[0];
    far.terminate(3, "over").wait_for(LIMIT).unwrap();
    std::net::UdpSocket::bind(address).unwrap();
    let RecvError::Closed(reason) = from.recv().wait_for(LIMIT).unwrap().unwrap_err() else {
        panic!("it is closed")
    };
    assert_eq!(reason, CloseReason::Peer { code: 3, reason: "over".to_owned() });
}

#[test]
fn sessions_keep_a_dropped_node_and_its_links_open() {
    let world = World::new(2);
    let (near, far) = pair(&world);
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    drop(near);
    from.send("still here").wait_for(LIMIT).unwrap().unwrap();
    from.finish().wait_for(LIMIT).unwrap().unwrap();
    let got = to.recv().wait_for(LIMIT).unwrap().unwrap();
    assert_eq!(got.as_deref(), Some(&b"still here"[..]));
    assert_eq!(far.links().list().len(), 1);
    drop(from);
    eventually("the link has ended", || far.links().list().is_empty());
}

#[test]
fn callbacks_get_messages_and_events() {
    let world = World::new(2);
    let (near, far) = pair(&world);
    let (event_sender, events) = mpsc::channel();
    far.events().for_each(move |event| drop(event_sender.send(event))).unwrap();
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let (sender, messages) = mpsc::channel();
    to.on_message(move |message| drop(sender.send(message))).unwrap();
    for text in ["one", "two"] {
        from.send(text).wait_for(LIMIT).unwrap().unwrap();
    }
    from.finish().wait_for(LIMIT).unwrap().unwrap();
    for expected in [Some("one"), Some("two"), None] {
        let got = messages.recv_timeout(LIMIT).unwrap().unwrap();
        assert_eq!(got.as_deref(), expected.map(str::as_bytes));
    }
    let opened = |event: Event| matches!(event, Event::SessionOpened { node, .. } if node == id(0));
    assert!(events.iter().any(opened));
}

#[test]
fn messages_of_a_session_are_a_stream_and_a_sink() {
    let world = World::new(2);
    let (near, far) = pair(&world);
    let (from, to) = world.session(&near, &far, Mode::Brtp);
    let sent = ["one", "two"].map(Bytes::from);
    let mut sink = from.messages();
    let mut all = stream::iter(sent.clone()).map(Ok);
    let send = async {
        sink.send_all(&mut all).await?;
        sink.close().await
    };
    let receive = to.messages().try_collect::<Vec<_>>();
    let (closed, received) = join(send, receive).wait_for(LIMIT).unwrap();
    assert_eq!((closed, received.unwrap()), (Ok(()), sent.to_vec()));
}
