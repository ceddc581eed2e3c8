//! SOCKS5 and HTTP CONNECT on one port: their first bytes differ.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use bats_node::NodeId;
use subtle::{Choice, ConstantTimeEq};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::Worker;
use super::super::tunnel::lock;
use super::negotiations::Negotiation;
use super::received::received;
use super::relay::{Datagrams, carry};
use super::{NEGOTIATION, UDP_IDLE};
use crate::config::{Listener, Service};
use crate::proxy::http_connect::{self, Refusal};
use crate::proxy::request::{MAX_PAYLOAD, Reply, Request, encode_datagram};
use crate::proxy::socks5::{self, Command, Declared};
use crate::proxy::{Parsed, target};

type Users = BTreeMap<String, String>;

/// Why there is no message: the connection ended or took too long, or it is another one.
enum Failure<E> {
    Connection,
    Message(E),
}

/// A program's connection while it says what it wants.
struct Program {
    stream: TcpStream,
    bytes: Vec<u8>,
    end: Instant,
}

impl Program {
    async fn read<T, E>(
        &mut self,
        limit: usize,
        parse: impl Fn(&[u8]) -> Result<Parsed<T>, E>,
    ) -> Result<T, Failure<E>> {
        loop {
            if let Parsed::Complete(value, length) = parse(&self.bytes).map_err(Failure::Message)? {
                self.bytes.drain(..length);
                return Ok(value);
            }
            if self.bytes.len() > limit {
                return Err(Failure::Connection);
            }
            let mut buffer = [0; 1024];
            let read = timeout_at(self.end, self.stream.read(&mut buffer)).await;
            match read.ok().and_then(Result::ok).and_then(|length| buffer.get(..length)) {
                None | Some([]) => return Err(Failure::Connection),
                Some(bytes) => self.bytes.extend(bytes),
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Option<()> {
        timeout(NEGOTIATION, self.stream.write_all(bytes)).await.ok()?.ok()
    }

    /// Says why a request is not served, and waits until the program has read it: a connection that
    /// is closed with unread bytes is reset, and the reset can overtake the answer.
    async fn refuse(mut self, answer: &[u8]) {
        if self.write(answer).await.is_some() && self.stream.shutdown().await.is_ok() {
            let drains = async {
                let mut buffer = [0; 1024];
                while matches!(self.stream.read(&mut buffer).await, Ok(1..)) {}
            };
            let _ = timeout(std::time::Duration::from_secs(1), drains).await;
        }
    }
}

/// Compares in a time that does not depend on the bytes.
fn is_user(users: &Users, (user, password): &(Vec<u8>, Vec<u8>)) -> bool {
    let is_known = users.iter().fold(Choice::from(0), |is_known, (known, secret)| {
        is_known | (known.as_bytes().ct_eq(user) & secret.as_bytes().ct_eq(password))
    });
    is_known.into()
}

pub(super) async fn serve(
    worker: &Worker,
    listener: &Listener,
    stream: TcpStream,
    from: SocketAddr,
    negotiation: Negotiation,
) {
    let Service::Proxy(users) = &listener.service else { return };
    let exit = listener.exit;
    let _ = stream.set_nodelay(true);
    let mut program = Program { stream, bytes: Vec::new(), end: Instant::now() + NEGOTIATION };
    let first = program
        .read(1, |bytes| match bytes.first() {
            Some(&first) => Ok::<_, ()>(Parsed::Complete(first, 0)),
            None => Ok(Parsed::Incomplete),
        })
        .await;
    match first {
        Ok(socks5::VERSION) => socks(worker, exit, users, program, from, negotiation).await,
        Ok(_) => http(worker, exit, users, program, negotiation).await,
        Err(_) => None,
    };
}

async fn http(
    worker: &Worker,
    exit: NodeId,
    users: &Users,
    mut program: Program,
    negotiation: Negotiation,
) -> Option<()> {
    let connect = match program.read(http_connect::MAX_HEAD, http_connect::parse).await {
        Ok(connect) => connect,
        Err(Failure::Connection) => return None,
        Err(Failure::Message(refusal)) => {
            program.refuse(http_connect::refuse(refusal).as_bytes()).await;
            return None;
        }
    };
    let is_known = connect.credentials.is_some_and(|given| is_user(users, &given));
    if !users.is_empty() && !is_known {
        program.refuse(http_connect::refuse(Refusal::Unauthenticated).as_bytes()).await;
        return None;
    }
    let Some(_permit) = worker.services.admit() else {
        let refusal = Refusal::Reply(Reply::Failed);
        program.refuse(http_connect::refuse(refusal).as_bytes()).await;
        return None;
    };
    drop(negotiation);
    let request = Request::Tcp(connect.target);
    match super::open(worker, exit, &request).await.map_err(Refusal::Reply) {
        Ok(channel) => {
            program.write(http_connect::ESTABLISHED).await?;
            carry(program.stream, &channel, Vec::new(), program.bytes).await;
        }
        Err(refusal) => program.refuse(http_connect::refuse(refusal).as_bytes()).await,
    }
    Some(())
}

async fn socks(
    worker: &Worker,
    exit: NodeId,
    users: &Users,
    mut program: Program,
    from: SocketAddr,
    negotiation: Negotiation,
) -> Option<()> {
    let methods = program.read(socks5::MAX_MESSAGE, socks5::greeting).await.ok()?;
    let method = match users.is_empty() {
        true => socks5::NO_AUTHENTICATION,
        false => socks5::USER_PASSWORD,
    };
    if !methods.contains(&method) {
        program.refuse(&[socks5::VERSION, socks5::NO_METHOD]).await;
        return None;
    }
    program.write(&[socks5::VERSION, method]).await?;
    if method == socks5::USER_PASSWORD {
        let given = program.read(socks5::MAX_MESSAGE, socks5::credentials).await.ok()?;
        if !is_user(users, &given) {
            program.refuse(&[1, 1]).await;
            return None;
        }
        program.write(&[1, 0]).await?;
    }
    let command = match program.read(socks5::MAX_MESSAGE, socks5::command).await {
        Ok(command) => command,
        Err(Failure::Message(reply)) => {
            program.refuse(&socks5::reply(reply, None)).await;
            return None;
        }
        Err(Failure::Connection) => return None,
    };
    let Some(_permit) = worker.services.admit() else {
        program.refuse(&socks5::reply(Reply::Failed, None)).await;
        return None;
    };
    drop(negotiation);
    let refused = match command {
        Command::Connect(target) => match super::open(worker, exit, &Request::Tcp(target)).await {
            Ok(channel) => {
                program.write(&socks5::reply(Reply::Succeeded, None)).await?;
                carry(program.stream, &channel, Vec::new(), program.bytes).await;
                return Some(());
            }
            Err(reply) => reply,
        },
        // Datagrams of another address than the program's are not taken.
        Command::UdpAssociate(declared) if !declared.has_ip(from.ip()) => Reply::NotAllowed,
        Command::UdpAssociate(declared) => match super::open(worker, exit, &Request::Udp).await {
            Ok(channel) => {
                let local = program.stream.local_addr().ok()?;
                let socket = UdpSocket::bind((local.ip(), 0)).await.ok()?;
                let bound = socket.local_addr().ok()?;
                program.write(&socks5::reply(Reply::Succeeded, Some(bound))).await?;
                associate(program, &channel, &socket, (from, declared)).await;
                return Some(());
            }
            Err(reply) => reply,
        },
    };
    program.refuse(&socks5::reply(refused, None)).await;
    None
}

/// Carries datagrams as long as the program's connection lasts. The program's socket is the one that it
/// declared; if it declared no port, the first source of its host.
async fn associate(
    mut program: Program,
    channel: &openbats::Channel,
    socket: &UdpSocket,
    (from, declared): (SocketAddr, Declared),
) {
    let client: Mutex<Option<SocketAddr>> = Mutex::new(None);
    let up = async {
        let mut buffer = vec![0; 3 + target::MAX_ENCODED + MAX_PAYLOAD];
        // A datagram of a host that is not the program's does not keep it alive.
        while let Ok(result) = timeout(UDP_IDLE, socket.recv_from(&mut buffer)).await {
            let Some((length, source)) = received(result).await else { continue };
            if source.ip() != from.ip() || !declared.is(source) {
                continue;
            }
            if *lock(&client).get_or_insert(source) != source {
                continue;
            }
            let datagram = socks5::datagram(buffer.get(..length).unwrap_or_default());
            let frame = datagram.and_then(|(target, payload)| encode_datagram(&target, payload));
            if let Some(frame) = frame {
                channel.write_all(&frame).await?;
            }
        }
        Ok::<(), std::io::Error>(())
    };
    let down = async {
        let mut datagrams = Datagrams::new(channel);
        while let Ok((source, payload)) = datagrams.next().await {
            let to = *lock(&client);
            if let Some(to) = to {
                let _ = socket.send_to(&socks5::encode_datagram(&source, &payload), to).await;
            }
        }
    };
    let connection = async {
        let mut buffer = [0; 256];
        while matches!(program.stream.read(&mut buffer).await, Ok(1..)) {}
    };
    tokio::select! {
        _ = up => {}
        _ = down => {}
        () = connection => {}
    }
}
