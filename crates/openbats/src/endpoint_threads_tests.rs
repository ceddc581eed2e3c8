//! Endpoints with several I/O threads, seen from inside.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::Endpoint;
use crate::identity::Identity;
use crate::options::{ClientOptions, ServerOptions, Trust};
use crate::shared::Shared;
use crate::wait::Wait;
use crate::{ConnectError, Connection};

const LIMIT: Duration = Duration::from_secs(60);

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

fn server(count: usize, max_connections: usize) -> (Endpoint, Trust) {
    let identity = Identity::generate(&["localhost"]).unwrap();
    let trust = Trust::fingerprint(identity.fingerprint());
    let server = Endpoint::builder()
        .bind(([127, 0, 0, 1], 0).into())
        .server(ServerOptions::new(identity).max_connections(max_connections))
        .threads(threads(count));
    (server.start().unwrap(), trust)
}

fn connect(client: &Endpoint, server: &Endpoint, trust: &Trust) -> [Connection; 2] {
    let near = client.connect(server.local_addr(), "localhost", ClientOptions::new(trust.clone()));
    let near = near.wait_for(LIMIT).unwrap().unwrap();
    [near, server.accept().wait_for(LIMIT).unwrap().unwrap()]
}

fn exchange([near, far]: &[Connection; 2]) {
    for (from, to) in [(near, far), (far, near)] {
        from.send(vec![7; 20_000]).wait_for(LIMIT).unwrap().unwrap();
        let message = to.recv().wait_for(LIMIT).unwrap().unwrap().unwrap();
        assert_eq!(message, vec![7; 20_000]);
    }
}

/// Connections that the application holds, by threads.
fn held(endpoint: &Endpoint) -> Vec<usize> {
    endpoint.parts().iter().map(|part| part.lock().slots.len()).collect()
}

#[test]
fn connections_are_spread_over_the_threads() {
    let (server, trust) = server(3, 100);
    let client = Endpoint::builder().threads(threads(2)).start().unwrap();
    let pairs: Vec<_> = (0..40).map(|_| connect(&client, &server, &trust)).collect();
    assert_eq!(held(&client), [20, 20]);
    // By the client's random connection IDs: a thread has none of them with a probability below 1e-6.
    assert!(held(&server).into_iter().all(|count| count > 0), "{:?}", held(&server));
    pairs.iter().for_each(exchange);
    assert_eq!(server.stats().handshakes_started, 40);
}

/// The kernel hands all packets to the first socket: each is passed to the thread of its connection.
#[test]
fn packets_that_reach_another_thread_are_passed_on() {
    let (server, trust) = server(3, 100);
    let client = Endpoint::builder().threads(threads(3)).start().unwrap();
    for endpoint in [&server, &client] {
        endpoint.parts()[1].lock_socket().as_ref().unwrap().steer_to_first();
    }
    let pairs: Vec<_> = (0..20).map(|_| connect(&client, &server, &trust)).collect();
    for endpoint in [&server, &client] {
        assert!(held(endpoint).into_iter().all(|count| count > 0), "{:?}", held(endpoint));
    }
    pairs.iter().for_each(exchange);
}

#[test]
fn the_others_go_on_when_one_thread_ends() {
    let (server, trust) = server(3, 100);
    let client = Endpoint::builder().threads(threads(3)).start().unwrap();
    for endpoint in [&server, &client] {
        end(&endpoint.parts()[0]);
    }
    // Packets that name the thread that has ended get no answer.
    let mut connected = 0;
    for _ in 0..30 {
        let options = ClientOptions::new(trust.clone());
        let near = client.connect(server.local_addr(), "localhost", options);
        let Ok(Ok(near)) = near.wait_for(Duration::from_millis(300)) else { continue };
        exchange(&[near, server.accept().wait_for(LIMIT).unwrap().unwrap()]);
        connected += 1;
    }
    assert!(connected > 5, "{connected}");
    end(&server.parts()[1]);
    end(&server.parts()[2]);
    let accepted = server.accept().wait_for(LIMIT).unwrap();
    assert_eq!(accepted.unwrap_err(), ConnectError::EndpointClosed);
}

fn end(part: &Arc<Shared>) {
    part.terminate();
    for _ in 0..10_000 {
        if part.lock().ended.is_some() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the thread does not end");
}

#[test]
fn limits_are_divided_and_calls_reach_all_threads() {
    let (server, trust) = server(4, 8);
    let client = Endpoint::builder().start().unwrap();
    let mut pairs = Vec::new();
    for _ in 0..200 {
        let options = ClientOptions::new(trust.clone());
        let near = client.connect(server.local_addr(), "localhost", options);
        if let Ok(Ok(near)) = near.wait_for(Duration::from_millis(300)) {
            pairs.push((near, server.accept().wait_for(LIMIT).unwrap().unwrap()));
        }
        assert!(held(&server).into_iter().all(|count| count <= 2), "{:?}", held(&server));
        if held(&server) == [2; 4] {
            break;
        }
    }
    assert_eq!(held(&server), [2; 4]);
    server.stop_accepting();
    assert!(server.parts().iter().all(|part| part.lock().refuses_new));
    server.shut_down(0, "");
    server.idle().wait_for(LIMIT).unwrap();
    assert!(server.parts().iter().all(|part| part.lock().is_idle()));
}

#[test]
fn an_accepting_task_leaves_no_waker_behind() {
    let (server, trust) = server(3, 100);
    let client = Endpoint::builder().start().unwrap();
    for _ in 0..6 {
        std::thread::scope(|scope| {
            let accepted = scope.spawn(|| server.accept().wait_for(LIMIT).unwrap().unwrap());
            while server.parts().iter().any(|part| part.lock().accepting.is_empty()) {
                std::thread::yield_now();
            }
            let near =
                client.connect(server.local_addr(), "localhost", ClientOptions::new(trust.clone()));
            near.wait_for(LIMIT).unwrap().unwrap();
            accepted.join().unwrap();
        });
        assert!(server.parts().iter().all(|part| part.lock().accepting.is_empty()));
    }
}
