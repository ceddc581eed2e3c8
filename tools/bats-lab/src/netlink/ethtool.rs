//! Offloads of an interface: the `ethtool` family of generic netlink.

use std::io::{Error, ErrorKind, Result};

use super::{Message, Socket, find_attribute};

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Offloads that would invalidate the emulation of loss or corruption: frames larger than the MTU
/// between the hosts, and checksums that are not computed. The kernel still segments in software,
/// at the last moment.
const REQUIRED_OFF: [&str; 3] =
    ["tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-tcp6-segmentation"];

/// The same for rarer traffic, or with names that not all kernels know.
const OPTIONAL_OFF: [&str; 13] = [
    "tx-udp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-tcp-accecn-segmentation",
    "tx-gso-list",
    "tx-checksum-sctp",
    "tx-sctp-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
    "tx-ipxip4-segmentation",
    "tx-ipxip6-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
];

/// Disables the offloads of `interface` that would invalidate the emulation.
///
/// # Errors
/// The kernel's error if a required offload cannot be disabled.
pub(crate) fn disable_offloads(interface: &str) -> Result<()> {
    let mut socket = Socket::generic()?;
    let mut question = Message::new(GENL_ID_CTRL, 0);
    question.fixed(&[CTRL_CMD_GETFAMILY, 1, 0, 0]).text(CTRL_ATTR_FAMILY_NAME, "ethtool");
    let family = socket
        .request(&question)?
        .first()
        .and_then(|body| body.get(4..))
        .and_then(|attributes| find_attribute(attributes, CTRL_ATTR_FAMILY_ID))
        .and_then(|value| value.try_into().ok())
        .map(u16::from_ne_bytes)
        .ok_or_else(|| Error::new(ErrorKind::Unsupported, "this kernel has no ethtool netlink"))?;
    for name in REQUIRED_OFF.into_iter().chain(OPTIONAL_OFF) {
        let mut message = Message::new(family, 0);
        message
            .fixed(&[ETHTOOL_MSG_FEATURES_SET, 1, 0, 0])
            .nested(ETHTOOL_A_FEATURES_HEADER, |header| {
                header.text(ETHTOOL_A_HEADER_DEV_NAME, interface);
            })
            .nested(ETHTOOL_A_FEATURES_WANTED, |bitset| {
                bitset.nested(ETHTOOL_A_BITSET_BITS, |bits| {
                    bits.nested(ETHTOOL_A_BITSET_BITS_BIT, |bit| {
                        bit.text(ETHTOOL_A_BITSET_BIT_NAME, name);
                    });
                });
            });
        match socket.request(&message) {
            Ok(_) => {}
            Err(error) if REQUIRED_OFF.contains(&name) => {
                return Err(Error::new(error.kind(), format!("offload {name}: {error}")));
            }
            // An offload unknown to the kernel is not active.
            Err(_) => {}
        }
    }
    Ok(())
}
