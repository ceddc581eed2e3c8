//! Finds the local user of a connection: all users of a machine can reach its loopback interface.

use std::net::{IpAddr, SocketAddr};

/// The user of the remote end of a connection from `peer` to `own`; `None` if the kernel does not
/// list it (proc_pid_net(5), `tcp` and `tcp6`).
pub(super) fn user(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let file = if peer.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    find(&std::fs::read_to_string(file).ok()?, peer, own)
}

fn find(table: &str, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let (peer, own) = (kernel_format(peer), kernel_format(own));
    table.lines().skip(1).find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let matches = words.next()? == peer && words.next()? == own;
        // Skip state, queues, timer, retransmissions.
        let user = words.nth(4)?;
        matches.then(|| user.parse().ok()).flatten()
    })
}

/// An address in the format of the kernel: words of four bytes in native byte order.
fn kernel_format(address: SocketAddr) -> String {
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
    fn user_of_a_local_connection_is_found() {
        let own = nix::unistd::geteuid().as_raw();
        let mut tried = 0;
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // One of the two fails on a machine without IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().unwrap();
            let stream = TcpStream::connect(here).unwrap();
            let peer = stream.local_addr().unwrap();
            assert_eq!(user(peer, here), Some(own), "{address}");
            let unconnected = SocketAddr::new(peer.ip(), 1);
            assert_eq!(user(unconnected, here), None);
            tried += 1;
        }
        assert!(tried > 0);
    }
}
