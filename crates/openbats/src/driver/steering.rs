//! Steers packets to the sockets of an endpoint with several threads, by a program that the kernel runs for each packet
//! (`SO_ATTACH_REUSEPORT_CBPF` of socket(7); its instructions are those of `linux/filter.h`).

use std::io;
use std::net::UdpSocket;

use bats_proto::Steering;
use nix::libc::{self, sock_filter, sock_fprog};
use nix::sys::socket::{setsockopt, sockopt};

const fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Returns the number of the socket. A load beyond the end of the packet ends the program with 0, the first socket.
fn program(count: u32) -> [sock_filter; 6] {
    let load = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    let mut if_long = statement(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0x80);
    // Skips the load of the other header and nothing else.
    if_long.jf = 2;
    [
        statement(load, 0),
        if_long,
        statement(load, Steering::LONG.into()),
        // Skips the load for short headers.
        statement(libc::BPF_JMP | libc::BPF_JA, 1),
        statement(load, Steering::SHORT.into()),
        statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count),
    ]
}

/// Attaches the program to all sockets that are bound to the address of this one.
pub(super) fn attach(socket: &UdpSocket, count: usize) -> io::Result<()> {
    let count = u32::try_from(count).ok().filter(|&count| count > 0);
    let count = count.ok_or(io::ErrorKind::InvalidInput)?;
    let end = statement(libc::BPF_RET | libc::BPF_A, 0);
    let mut program: Vec<sock_filter> = program(count).into_iter().chain([end]).collect();
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let attached = sock_fprog { len, filter: program.as_mut_ptr() };
    Ok(setsockopt(socket, sockopt::AttachReusePortCbpf, &attached)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::driver::{Socket, SocketOptions};

    #[test]
    fn packets_reach_the_socket_that_their_connection_id_names() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let options = SocketOptions { shares_port: true, ..SocketOptions::default() };
            let first = Socket::bind(address.parse().unwrap(), &options).unwrap();
            let local = first.local_addr().unwrap();
            let more = (1..5).map(|_| Socket::bind(local, &options).unwrap());
            let sockets: Vec<Socket> = std::iter::once(first).chain(more).collect();
            sockets[4].steer(5).unwrap();
            let sender = UdpSocket::bind(if local.is_ipv6() { "[::1]:0" } else { "127.0.0.1:0" });
            let sender = sender.unwrap();
            let to: std::net::SocketAddr = match local.is_ipv6() {
                true => (std::net::Ipv6Addr::LOCALHOST, local.port()).into(),
                false => local,
            };
            for first in 0..=u8::MAX {
                let short = [0x40, first, 0, 0, 0, 9, 9];
                let long = [0xc0, 0, 0, 0, 1, 8, first, 9, 9, 9];
                for packet in [&short[..], &long] {
                    sender.send_to(packet, to).unwrap();
                    let number = usize::from(first) % 5;
                    assert_eq!(receive(&sockets[number]), packet, "{address} {first}");
                }
            }
            // Packets without a whole header go to the first socket.
            for packet in [&[][..], &[0x40], &[0xc0, 0, 0, 0, 1, 8]] {
                sender.send_to(packet, to).unwrap();
                assert_eq!(receive(&sockets[0]), packet, "{address}");
            }
        }
    }

    fn receive(socket: &Socket) -> Vec<u8> {
        use crate::driver::socket::ReceiveBuffers;
        let mut buffers = ReceiveBuffers::new(1);
        for _ in 0..1_000 {
            if socket.receive(&mut buffers).unwrap() {
                return buffers.drain().next().unwrap().payload.to_vec();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("the packet reached another socket");
    }
}
