//! Accepts connections of programs.

use std::net::SocketAddr;
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
        let services = &worker.services;
        services.counters.accepted.fetch_add(1, Relaxed);
        let permit = Arc::clone(&services.connections).try_acquire_owned();
        let is_over_limit = permit.is_err();
        if is_over_limit {
            services.counters.over_limit.fetch_add(1, Relaxed);
        }
        let Ok(permit) = permit.or_else(|_| Arc::clone(&services.refusals).try_acquire_owned())
        else {
            reset_on_drop(&stream);
            continue;
        };
        let (worker, listener) = (Arc::clone(&worker), Arc::clone(&listener));
        tokio::spawn(async move {
            serve(&worker, &listener, stream, from, is_over_limit).await;
            drop(permit);
        });
    }
}

async fn serve(
    worker: &Worker,
    listener: &Listener,
    stream: TcpStream,
    from: SocketAddr,
    is_over_limit: bool,
) {
    match &listener.service {
        Service::Proxy(users) => {
            proxy::serve(worker, listener.exit, users, stream, from, is_over_limit).await;
        }
        Service::Tcp(target) if !is_over_limit => {
            let request = Request::Tcp(target.clone());
            match super::open(worker, listener.exit, &request).await {
                Ok(channel) => carry(stream, &channel, Vec::new(), Vec::new()).await,
                // There is no protocol to say why in.
                Err(_) => reset_on_drop(&stream),
            }
        }
        Service::Tcp(_) | Service::Udp(_) => reset_on_drop(&stream),
    }
}
