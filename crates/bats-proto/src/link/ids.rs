//! The connection IDs of a link.

use crate::wire::long_header::CID_LEN;

/// The connection IDs that both ends have chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionIds {
    pub(super) local: [u8; CID_LEN],
    /// Zero until the peer's is known.
    pub(super) remote: [u8; CID_LEN],
}

impl ConnectionIds {
    /// Whether an ICMP error that quotes this UDP payload answers a packet with these IDs. A
    /// sender that does not see the packets would have to guess a connection ID. Short headers count
    /// once the link is established.
    pub(super) fn are_quoted(&self, payload: &[u8], is_established: bool) -> bool {
        // The quotation may end anywhere behind the connection IDs.
        match payload {
            [first, after @ ..] if first & 0x80 == 0 => {
                is_established && after.starts_with(&self.remote)
            }
            [_, _, _, _, _, length, after @ ..] => {
                let source = after.get(usize::from(*length)..).unwrap_or_default();
                source.first() == Some(&(CID_LEN as u8)) && source[1..].starts_with(&self.local)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotation_must_have_the_destination_id_or_the_source_id_of_a_long_header() {
        let ids = ConnectionIds { local: [1; 4], remote: [2; 4] };
        let long = [&[0xc0, 0, 0, 0, 0, 2, 7, 7, 4][..], &[1; 4], &[9]].concat();
        assert!(ids.are_quoted(&long, false));
        assert!(!ids.are_quoted(&long[..12], false), "it ends within the ID");
        let short = [0x40, 2, 2, 2, 2, 5];
        assert!(ids.are_quoted(&short, true) && !ids.are_quoted(&short, false));
        assert!(!ids.are_quoted(&[0x40, 1, 1, 1, 1], true));
        assert!(!ids.are_quoted(&[], true) && !ids.are_quoted(&[0xc0], true));
    }
}
