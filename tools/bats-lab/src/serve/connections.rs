//! Connections of clients: how many there are, and how long a client may take for a request.
//!
//! Other users of the machine can open connections, too. They must not use up the descriptors of the server, so
//! the oldest connection without the token makes room for a new one, which may be that of the token's holder.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// Connections on which no request has presented the token. A quarter of the usual 1,024 descriptors, and far more
/// than arrive between the connection of a client and its first request.
const MAX_WITHOUT_TOKEN: usize = 256;
/// Time for the head of a request, from the connection or the last response, and for its body. Long for the pages and
/// test files that are sent, short for a person who waits.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Maximum size of the head of a request in bytes, and of what is buffered of a connection.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pause after an error of the system, for example no free descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The connections without the token, by age.
#[derive(Default)]
struct Connections {
    without_token: Mutex<BTreeMap<u64, AbortHandle>>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, AbortHandle>> {
        self.without_token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection; each of its requests has it as an extension.
#[derive(Clone)]
pub(super) struct Connection {
    connections: Arc<Connections>,
    number: u64,
}

impl Connection {
    /// Closes it for no other connection any more: a request has presented the token, or the cookie for files.
    pub(super) fn keep(&self) {
        self.connections.lock().remove(&self.number);
    }
}

/// Serves clients until it is dropped.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let connections = Arc::new(Connections::default());
    let mut number = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_DELAY).await;
            continue;
        };
        number += 1;
        let connection = Connection { connections: Arc::clone(&connections), number };
        let mut without_token = connections.lock();
        // Its first request waits for the lock, so it is in the map before that.
        let task = tokio::spawn(serve_connection(stream, connection, router.clone()));
        without_token.insert(number, task.abort_handle());
        if without_token.len() > MAX_WITHOUT_TOKEN
            && let Some((_, oldest)) = without_token.pop_first()
        {
            oldest.abort();
        }
    }
}

async fn serve_connection(stream: TcpStream, connection: Connection, router: Router) {
    let handler = TowerToHyperService::new(router);
    let of_requests = connection.clone();
    let service = service_fn(move |mut request| {
        request.extensions_mut().insert(of_requests.clone());
        handler.call(request)
    });
    // An error is the client's: it has gone, took too long or sent no HTTP.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    // It has ended and closes by itself.
    connection.keep();
}
