//! State of TCP sockets from the kernel: sock_diag(7), `struct tcp_info` of
//! `include/uapi/linux/tcp.h`.

use std::io::Result;

use super::{Socket, find_attribute, read_u32, take};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const TCP_ESTABLISHED: u32 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// `struct inet_diag_msg`.
const ANSWER: usize = 72;

/// State of one TCP socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpState {
    /// The remote port.
    pub(crate) remote_port: u16,
    /// Congestion window in bytes.
    pub(crate) cwnd: u64,
    /// Smoothed round-trip time in microseconds.
    pub(crate) rtt_us: u32,
    /// Pacing rate in bytes per second.
    pub(crate) pacing_rate: u64,
    /// Last delivery rate sample in bytes per second.
    pub(crate) delivery_rate: u64,
    /// Segments retransmitted since the start.
    pub(crate) retransmissions: u32,
    /// Bytes acknowledged since the start.
    pub(crate) acknowledged: u64,
}

/// Queries the TCP sockets of a network namespace.
pub(crate) struct TcpStates {
    socket: Socket,
}

impl TcpStates {
    /// Opens a query socket in the namespace of the calling thread.
    pub(crate) fn open() -> Result<Self> {
        Socket::diagnostic().map(|socket| Self { socket })
    }

    /// All established IPv4 connections.
    pub(crate) fn all(&mut self) -> Result<Vec<TcpState>> {
        let mut request = [0; REQUEST];
        request[0] = AF_INET;
        request[1] = IPPROTO_TCP;
        request[2] = 1 << (INET_DIAG_INFO - 1);
        request[4..8].copy_from_slice(&(1u32 << TCP_ESTABLISHED).to_ne_bytes());
        let answers = self.socket.dump(SOCK_DIAG_BY_FAMILY, &request)?;
        Ok(answers.iter().filter_map(|answer| state(answer)).collect())
    }
}

fn state(answer: &[u8]) -> Option<TcpState> {
    let attributes = answer.get(ANSWER..)?;
    // The ports, in network byte order, follow four bytes of family, state, timer and
    // retransmissions.
    let remote_port = u16::from_be_bytes([*answer.get(6)?, *answer.get(7)?]);
    let info = find_attribute(attributes, INET_DIAG_INFO)?;
    let long = |at: usize| {
        // An older kernel's structure is shorter: missing fields are 0.
        take(info, at).map_or(0, u64::from_ne_bytes)
    };
    let number = |at: usize| read_u32(info, at).ok();
    Some(TcpState {
        remote_port,
        cwnd: u64::from(number(80)?).saturating_mul(u64::from(number(16)?)),
        rtt_us: number(68)?,
        pacing_rate: long(104),
        delivery_rate: long(160),
        retransmissions: number(100)?,
        acknowledged: long(120),
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn kernel_reports_acknowledged_bytes_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut near = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 100_000]).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        // The near end leaves the established state when the far end has read everything.
        let mut bytes = Vec::new();
        far.write_all(&[1; 5_000]).unwrap();
        far.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 100_000);
        let mut states = TcpStates::open().unwrap();
        let near_port = near.local_addr().unwrap().port();
        let all = states.all().unwrap();
        // Both ends are half closed now; the machine may have other connections.
        assert!(all.iter().all(|state| state.remote_port != near_port || state.cwnd > 0));
        let again = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        other.write_all(&[1; 50_000]).unwrap();
        let mut rest = vec![0; 50_000];
        (&again).read_exact(&mut rest).unwrap();
        let port = again.local_addr().unwrap().port();
        let mine = |states: &mut TcpStates| {
            let all = states.all().unwrap();
            all.into_iter().find(|state| state.remote_port == port)
        };
        let mut tries = 0;
        let state = loop {
            let state = mine(&mut states).expect("the connection is established");
            tries += 1;
            if state.acknowledged >= 50_000 || tries > 1000 {
                break state;
            }
        };
        assert!(state.acknowledged >= 50_000 && state.cwnd > 1000 && state.rtt_us > 0, "{state:?}");
    }
}
