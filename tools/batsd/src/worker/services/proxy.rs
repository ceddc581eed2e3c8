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

/// The datagrams of the program of an association.
struct Uploads<'a> {
    socket: &'a UdpSocket,
    from: SocketAddr,
    declared: Declared,
    /// The program's socket, once it is known.
    client: &'a Mutex<Option<SocketAddr>>,
    buffer: Vec<u8>,
}

impl<'a> Uploads<'a> {
    fn new(
        socket: &'a UdpSocket,
        (from, declared): (SocketAddr, Declared),
        client: &'a Mutex<Option<SocketAddr>>,
    ) -> Self {
        let buffer = vec![0; 3 + target::MAX_ENCODED + MAX_PAYLOAD];
        Self { socket, from, declared, client, buffer }
    }

    /// The next datagram of the program, as the exit takes it; none if it sent none for [`UDP_IDLE`].
    async fn next(&mut self) -> Option<Vec<u8>> {
        // What is not taken, such as a datagram of another host, does not move the end. It is looked at before each call,
        // too, because a call that finds a datagram succeeds at any time.
        let end = Instant::now() + UDP_IDLE;
        while Instant::now() < end {
            let receives = self.socket.recv_from(&mut self.buffer);
            let result = timeout_at(end, receives).await.ok()?;
            let Some((length, source)) = received(result).await else { continue };
            if let Some(frame) = self.take(length, source) {
                return Some(frame);
            }
        }
        None
    }

    /// The datagram in the buffer, if it is one of the program.
    fn take(&self, length: usize, source: SocketAddr) -> Option<Vec<u8>> {
        if source.ip() != self.from.ip() || !self.declared.is(source) {
            return None;
        }
        if *lock(self.client).get_or_insert(source) != source {
            return None;
        }
        let (target, payload) = socks5::datagram(self.buffer.get(..length)?)?;
        encode_datagram(&target, payload)
    }
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
        let mut uploads = Uploads::new(socket, (from, declared), &client);
        while let Some(frame) = uploads.next().await {
            channel.write_all(&frame).await?;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::proxy::target::{Host, Target};

    /// The association has ended this long after its start. The program sends after the times of `accepted`; another
    /// host, another socket of the program's host, and the program with something that is no datagram of SOCKS5 send
    /// every 30 s, for half an hour.
    async fn ends_after(accepted: &[u64]) -> Duration {
        let bind = |ip: [u8; 4]| UdpSocket::bind((Ipv4Addr::from(ip), 0));
        let socket = bind([127, 0, 0, 1]).await.unwrap();
        let at = socket.local_addr().unwrap();
        let program = bind([127, 0, 0, 1]).await.unwrap();
        let (other_host, other_socket) = (bind([127, 0, 0, 2]).await, bind([127, 0, 0, 1]).await);
        let others = [other_host.unwrap(), other_socket.unwrap()];
        let target = Target { host: Host::Ip([192, 0, 2, 1].into()), port: 53 };
        let datagram = socks5::encode_datagram(&target, b"question");
        let start = Instant::now();
        let taken = Cell::new(0);
        let sends_accepted = async {
            for (before, after) in accepted.iter().enumerate() {
                tokio::time::sleep_until(start + Duration::from_secs(*after)).await;
                program.send_to(&datagram, at).await.unwrap();
                // A paused clock goes on as soon as nothing runs, also if the kernel delivers later.
                while taken.get() == before {
                    tokio::task::yield_now().await;
                }
            }
        };
        let sends_others = async {
            for _ in 0..60 {
                sleep(Duration::from_secs(30)).await;
                for socket in &others {
                    socket.send_to(&datagram, at).await.unwrap();
                }
                program.send_to(b"no datagram", at).await.unwrap();
            }
        };
        let declared = Declared { ip: None, port: Some(program.local_addr().unwrap().port()) };
        let client = Mutex::new(None);
        let from = program.local_addr().unwrap();
        let takes = async {
            let mut uploads = Uploads::new(&socket, (from, declared), &client);
            while uploads.next().await.is_some() {
                taken.set(taken.get() + 1);
            }
            assert_eq!(taken.replace(usize::MAX), accepted.len());
            start.elapsed()
        };
        tokio::join!(takes, sends_accepted, sends_others).0
    }

    #[test]
    fn only_datagrams_of_the_program_keep_an_association() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        for (accepted, last) in [(&[][..], 0), (&[100, 215, 330], 330)] {
            let ended = runtime.block_on(ends_after(accepted));
            let idle = ended.saturating_sub(Duration::from_secs(last));
            // A timer of tokio has a resolution of a millisecond.
            assert!(
                (UDP_IDLE..UDP_IDLE + Duration::from_millis(10)).contains(&idle),
                "it ended {idle:?} after the last datagram of the program"
            );
        }
    }
}
