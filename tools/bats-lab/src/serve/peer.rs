//! Who is at the other end of a connection within this machine: other users of it can reach loopback, too.

use std::net::{IpAddr, SocketAddr};

/// The user who has the other end of a connection from `peer` to `own`; nothing where the kernel does not
/// tell (proc_pid_net(5), `tcp` and `tcp6`).
pub(super) fn user(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let file = if peer.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    find(&std::fs::read_to_string(file).ok()?, peer, own)
}

fn find(table: &str, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let (peer, own) = (written(peer), written(own));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_it = words.next()? == peer && words.next()? == own;
        // State, queues, timer, retransmissions, user.
        let user = words.nth(4)?;
        is_it.then(|| user.parse().ok()).flatten()
    })
}

/// An address as the kernel writes it: words of four bytes in the machine's order.
fn written(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| {
        let word = word.try_into().map_or(0, u32::from_ne_bytes);
        format!("{word:08X}")
    });
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_knows_whose_a_connection_is() {
        let own = nix::unistd::geteuid().as_raw();
        let mut tried = 0;
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine without IPv6 has one of the two.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().unwrap();
            let stream = TcpStream::connect(here).unwrap();
            let peer = stream.local_addr().unwrap();
            assert_eq!(user(peer, here), Some(own), "{address}");
            let stranger = SocketAddr::new(peer.ip(), 1);
            assert_eq!(user(stranger, here), None);
            tried += 1;
        }
        assert!(tried > 0);
    }
}
