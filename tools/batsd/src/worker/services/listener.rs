//! Accepts connections of programs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use super::super::Worker;
use super::relay::{carry, reset_on_drop};
use super::{forward, proxy};
use crate::config::{Listener, Service};
use crate::proxy::request::Request;

/// Starts a listener with its socket, which is bound.
pub(in super::super) fn start(
    worker: &Arc<Worker>,
    listener: Listener,
    socket: OwnedFd,
) -> std::io::Result<AbortHandle> {
    let worker = Arc::clone(worker);
    if let Service::Udp(target) = &listener.service {
        let socket = UdpSocket::from_std(socket.into())?;
        let serves = forward::serve(worker, socket, listener.exit, target.clone());
        return Ok(tokio::spawn(serves).abort_handle());
    }
    let socket = TcpListener::from_std(socket.into())?;
    Ok(tokio::spawn(accept(worker, Arc::new(listener), socket)).abort_handle())
}

async fn accept(worker: Arc<Worker>, listener: Arc<Listener>, socket: TcpListener) {
    loop {
        let (stream, from) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // Too many descriptors: not for ever.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        worker.services.counters.accepted.fetch_add(1, Relaxed);
        let (worker, listener) = (Arc::clone(&worker), Arc::clone(&listener));
        match &listener.service {
            Service::Proxy(_) => {
                let negotiations = Arc::clone(&worker.services.negotiations);
                negotiations.spawn(|negotiation| async move {
                    proxy::serve(&worker, &listener, stream, from, negotiation).await;
                });
            }
            Service::Tcp(_) | Service::Udp(_) => {
                // There is no protocol to say in why it is refused.
                let Some(permit) = worker.services.admit() else {
                    reset_on_drop(&stream);
                    continue;
                };
                tokio::spawn(async move {
                    forward_connection(&worker, &listener, stream).await;
                    drop(permit);
                });
            }
        }
    }
}

async fn forward_connection(worker: &Worker, listener: &Listener, stream: TcpStream) {
    let Service::Tcp(target) = &listener.service else { return };
    let request = Request::Tcp(target.clone());
    match super::open(worker, listener.exit, &request).await {
        Ok(channel) => carry(stream, &channel, Vec::new(), Vec::new()).await,
        Err(_) => reset_on_drop(&stream),
    }
}
