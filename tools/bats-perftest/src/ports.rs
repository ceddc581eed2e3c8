//! Ports of a domain, by the rule of the RTPS specification (OMG DDSI-RTPS 2.5, section 9.6.1):
//! they keep tests in different domains apart.

use anyhow::{Result, ensure};

/// Base of all ports.
const BASE: u32 = 7_400;
/// Ports of one domain.
const PER_DOMAIN: u32 = 250;
/// Offset of the unicast ports of participants, and ports of one participant.
const PARTICIPANTS: u32 = 10;
const PER_PARTICIPANT: u32 = 2;
/// Publisher 0 is participant 0 and listens for announcements on its second port. The further
/// publishers use the free ports between the multicast and the unicast ports.
const FURTHER_PUBLISHERS: u32 = 2;
/// Publishers with a port for announcements: with ids below this.
pub(crate) const LISTENING_PUBLISHERS: u32 = 8;
/// Subscribers of a domain: the next ports are those of the next domain.
pub(crate) const SUBSCRIBERS: u32 = (PER_DOMAIN - PARTICIPANTS) / PER_PARTICIPANT - 1;

fn port(domain: u32, offset: u32) -> Result<u16> {
    let port = BASE + PER_DOMAIN * domain + offset;
    ensure!(
        port <= u32::from(u16::MAX),
        "domain {domain} needs port {port}, above 65535: use a lower domain or id"
    );
    Ok(port as u16)
}

/// Port on which subscriber `id` receives: participant `id` + 1.
pub(crate) fn subscriber(domain: u32, id: u32) -> Result<u16> {
    ensure!(
        id < SUBSCRIBERS,
        "subscriber {id} would use a port of domain {}: ids are 0 to {}, or use other domains",
        domain + 1,
        SUBSCRIBERS - 1
    );
    port(domain, PARTICIPANTS + PER_PARTICIPANT * (id + 1))
}

/// Port on which publisher `id` receives announcements, if it has one.
pub(crate) fn publisher(domain: u32, id: u32) -> Result<Option<u16>> {
    match id {
        0 => port(domain, PARTICIPANTS + 1).map(Some),
        1..LISTENING_PUBLISHERS => port(domain, FURTHER_PUBLISHERS - 1 + id).map(Some),
        _ => Ok(None),
    }
}

/// Multicast port of announcements.
pub(crate) fn announcements(domain: u32) -> Result<u16> {
    port(domain, 0)
}

/// Multicast port of samples.
pub(crate) fn multicast_samples(domain: u32) -> Result<u16> {
    port(domain, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_the_rule_and_domains_do_not_overlap() {
        assert_eq!(subscriber(1, 0).unwrap(), 7_662);
        assert_eq!(subscriber(1, 1).unwrap(), 7_664);
        assert_eq!(publisher(1, 0).unwrap(), Some(7_661));
        assert_eq!(publisher(1, 1).unwrap(), Some(7_652));
        assert_eq!(publisher(1, 8).unwrap(), None);
        assert_eq!(announcements(1).unwrap(), 7_650);
        assert_eq!(multicast_samples(1).unwrap(), 7_651);
        assert_eq!(subscriber(0, 0).unwrap(), 7_412);
        let text = subscriber(250, 0).unwrap_err().to_string();
        assert!(text.contains("above 65535"), "{text}");
        assert_eq!(SUBSCRIBERS, 119);
        let text = subscriber(3, 119).unwrap_err().to_string();
        assert!(text.contains("a port of domain 4") && text.contains("0 to 118"), "{text}");
        assert!(subscriber(0, u32::MAX).is_err());
        let mut used: Vec<u16> = (0..LISTENING_PUBLISHERS)
            .filter_map(|id| publisher(1, id).unwrap())
            .chain((0..SUBSCRIBERS).map(|id| subscriber(1, id).unwrap()))
            .chain([announcements(1).unwrap(), multicast_samples(1).unwrap()])
            .collect();
        assert!(used.iter().all(|&port| (7_650..7_900).contains(&port)));
        used.sort_unstable();
        used.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1]));
    }
}
