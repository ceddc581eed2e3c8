//! Plans the order of elimination from the structure of the batches alone: belief propagation, with
//! inactivation of single packets whenever it stalls.

use alloc::vec;
use alloc::vec::Vec;

/// Equations over the same packets: a received batch or a constraint of the precode.
pub(super) struct Group<'a> {
    /// The packets, by number.
    pub(super) indices: &'a [u32],
    /// Number of equations.
    pub(super) equations: usize,
}

/// A plan of elimination. It assumes that all matrices have full rank.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// All groups, in the order of elimination.
    pub(super) order: Vec<u32>,
    /// The inactive packets.
    pub(super) inactive: Vec<u32>,
}

struct Planner<'a> {
    groups: &'a [Group<'a>],
    /// Groups of packet p: `members[offsets[p]..offsets[p + 1]]`.
    offsets: Vec<usize>,
    members: Vec<u32>,
    /// Whether each packet is neither solved nor inactive.
    active: Vec<bool>,
    /// Number of active packets of each group.
    remaining: Vec<u32>,
    used: Vec<bool>,
    /// Number of unused groups that each packet is in.
    occurrences: Vec<u32>,
    /// Buckets of unused groups by the number of packets that must become inactive before a group
    /// is solvable: heads of doubly linked lists, most recently changed first.
    heads: Vec<u32>,
    links: Vec<Link>,
    lowest: usize,
}

/// No group.
const NONE: u32 = u32::MAX;

/// Position of a group in the list of `bucket`, which is [`NONE`] if it is in no list.
#[derive(Clone, Copy)]
struct Link {
    bucket: u32,
    previous: u32,
    next: u32,
}

/// Plans the elimination of `groups` over packets 0 to `packets` - 1. Packets from `inactive_from`
/// on are inactive from the start.
///
/// # Errors
/// More than `max_inactive` packets are inactive; the value is their number at that time. Planning
/// stops there, so that the limit also bounds its work.
pub(super) fn plan(
    groups: &[Group<'_>],
    packets: usize,
    inactive_from: usize,
    max_inactive: usize,
) -> Result<Plan, usize> {
    let always = packets - inactive_from;
    if always > max_inactive {
        return Err(always);
    }
    let mut planner = Planner::new(groups, packets, inactive_from);
    let mut plan = Plan {
        order: Vec::with_capacity(groups.len()),
        inactive: (inactive_from as u32..packets as u32).collect(),
    };
    while let Some((group, missing)) = planner.cheapest() {
        if missing > 0 {
            planner.inactivate(group, missing, &mut plan.inactive);
            if plan.inactive.len() > max_inactive {
                return Err(plan.inactive.len());
            }
            continue;
        }
        plan.order.push(group);
        planner.used[group as usize] = true;
        let indices = planner.groups[group as usize].indices;
        for &packet in indices {
            planner.occurrences[packet as usize] -= 1;
            if planner.active[packet as usize] {
                planner.deactivate(packet);
            }
        }
    }
    // Packets in no group need a later batch.
    plan.inactive.extend((0..packets as u32).filter(|&packet| planner.active[packet as usize]));
    if plan.inactive.len() > max_inactive {
        return Err(plan.inactive.len());
    }
    Ok(plan)
}

/// Upper bound of the memory for planning, in bytes. `members` is the sum of the groups' packets.
pub(super) fn plan_bytes(groups: usize, members: usize, packets: usize) -> usize {
    let per_group = size_of::<Group<'_>>() + size_of::<Link>() + 2 * size_of::<usize>();
    // Two offsets, the active flag, the occurrences, and an entry as candidate or inactive packet.
    let per_packet = 2 * size_of::<usize>() + 1 + 4 + 12;
    [
        groups.saturating_mul(per_group),
        packets.saturating_add(1).saturating_mul(per_packet + size_of::<u32>()),
        members.saturating_mul(size_of::<u32>()),
    ]
    .into_iter()
    .fold(0, usize::saturating_add)
}

impl<'a> Planner<'a> {
    fn new(groups: &'a [Group<'a>], packets: usize, inactive_from: usize) -> Self {
        let mut offsets = vec![0usize; packets + 1];
        for group in groups {
            for &packet in group.indices {
                offsets[packet as usize + 1] += 1;
            }
        }
        for packet in 0..packets {
            offsets[packet + 1] += offsets[packet];
        }
        let mut members = vec![0; offsets[packets]];
        let mut next = offsets.clone();
        for (number, group) in groups.iter().enumerate() {
            for &packet in group.indices {
                members[next[packet as usize]] = number as u32;
                next[packet as usize] += 1;
            }
        }
        let mut active = vec![true; packets];
        active[inactive_from..].fill(false);
        let remaining: Vec<u32> = groups
            .iter()
            .map(|group| group.indices.iter().filter(|&&p| active[p as usize]).count() as u32)
            .collect();
        let mut planner = Self {
            groups,
            occurrences: (0..packets).map(|p| (offsets[p + 1] - offsets[p]) as u32).collect(),
            offsets,
            members,
            active,
            remaining,
            used: vec![false; groups.len()],
            heads: vec![],
            links: vec![Link { bucket: NONE, previous: NONE, next: NONE }; groups.len()],
            lowest: 0,
        };
        let most = (0..groups.len() as u32).map(|group| planner.missing(group)).max();
        planner.heads = vec![NONE; most.map_or(0, |most| most + 1)];
        for group in 0..groups.len() as u32 {
            planner.enqueue(group);
        }
        planner
    }

    /// Number of packets of a group that must become inactive before it is solvable.
    fn missing(&self, group: u32) -> usize {
        let group = group as usize;
        (self.remaining[group] as usize).saturating_sub(self.groups[group].equations)
    }

    /// Moves a group to the front of its current bucket.
    fn enqueue(&mut self, group: u32) {
        self.unlink(group);
        let missing = self.missing(group);
        let next = core::mem::replace(&mut self.heads[missing], group);
        if next != NONE {
            self.links[next as usize].previous = group;
        }
        self.links[group as usize] = Link { bucket: missing as u32, previous: NONE, next };
        self.lowest = self.lowest.min(missing);
    }

    fn unlink(&mut self, group: u32) {
        let none = Link { bucket: NONE, previous: NONE, next: NONE };
        let link = core::mem::replace(&mut self.links[group as usize], none);
        if link.bucket == NONE {
            return;
        }
        match link.previous {
            NONE => self.heads[link.bucket as usize] = link.next,
            previous => self.links[previous as usize].next = link.next,
        }
        if link.next != NONE {
            self.links[link.next as usize].previous = link.previous;
        }
    }

    /// Removes an unused group that needs the fewest inactive packets from its list. Returns it
    /// with that number.
    fn cheapest(&mut self) -> Option<(u32, usize)> {
        while let Some(&group) = self.heads.get(self.lowest) {
            if group != NONE {
                self.unlink(group);
                return Some((group, self.lowest));
            }
            self.lowest += 1;
        }
        None
    }

    /// Makes packets of a group inactive: those that occur in the most unused groups. It takes only
    /// an eighth of the missing ones at a time, because another group may become cheaper.
    fn inactivate(&mut self, group: u32, missing: usize, inactive: &mut Vec<u32>) {
        let mut candidates: Vec<(u32, u32)> = self.groups[group as usize]
            .indices
            .iter()
            .filter(|&&packet| self.active[packet as usize])
            .map(|&packet| (self.occurrences[packet as usize], packet))
            .collect();
        let count = missing.div_ceil(8).min(candidates.len());
        if count == 0 {
            return;
        }
        candidates.select_nth_unstable_by_key(count - 1, |&(occurrences, packet)| {
            (core::cmp::Reverse(occurrences), packet)
        });
        for &(_, packet) in &candidates[..count] {
            inactive.push(packet);
            self.deactivate(packet);
        }
    }

    /// Marks a packet as solved or inactive.
    fn deactivate(&mut self, packet: u32) {
        self.active[packet as usize] = false;
        let range = self.offsets[packet as usize]..self.offsets[packet as usize + 1];
        for member in range {
            let group = self.members[member];
            self.remaining[group as usize] -= 1;
            if !self.used[group as usize] {
                self.enqueue(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(groups: &[(&[u32], usize)], packets: usize) -> Plan {
        let groups: Vec<Group<'_>> =
            groups.iter().map(|&(indices, equations)| Group { indices, equations }).collect();
        plan(&groups, packets, packets, packets).unwrap()
    }

    #[test]
    fn planning_stops_at_the_limit_on_inactive_packets() {
        // 80 packets in groups of 40 with one equation each need far more than 10 inactive ones.
        let indices: Vec<Vec<u32>> =
            (0..80).map(|i| (i..i + 40).map(|x| x % 80).collect()).collect();
        let groups: Vec<Group<'_>> =
            indices.iter().map(|indices| Group { indices, equations: 1 }).collect();
        let needed = plan(&groups, 80, 80, 80).unwrap().inactive.len();
        assert!(needed > 20, "{needed}");
        assert!(plan(&groups, 80, 80, needed).is_ok());
        // The limit is exceeded by at most one step: an eighth of the packets missing in a group.
        for limit in 0..needed {
            let stopped = plan(&groups, 80, 80, limit).unwrap_err();
            assert!(limit < stopped && stopped <= limit + 5, "{stopped} with limit {limit}");
        }
        // Packets that are inactive from the start count.
        assert_eq!(plan(&groups, 80, 70, 9).err(), Some(10));
    }

    #[test]
    fn belief_propagation_needs_no_inactive_packet() {
        let plan = run(&[(&[0, 1, 2, 3], 1), (&[1, 2], 1), (&[2], 1), (&[1, 3], 1)], 4);
        assert_eq!(plan.inactive, []);
        assert_eq!(plan.order[0], 2);
        assert_eq!(plan.order.len(), 4);
    }

    #[test]
    fn a_stall_inactivates_only_what_the_cheapest_group_needs() {
        let plan = run(&[(&[0, 1, 2, 3], 2), (&[0, 1], 1), (&[1, 2], 1)], 4);
        assert_eq!(plan.inactive, [1], "packet 1 is in the most groups");
        assert_eq!(plan.order.len(), 3);
    }

    #[test]
    fn packets_in_no_group_are_inactive() {
        assert_eq!(run(&[(&[1], 1), (&[3], 1)], 5).inactive, [0, 2, 4]);
        let groups = [Group { indices: &[1], equations: 1 }];
        assert_eq!(plan(&groups, 4, 4, 2).err(), Some(3));
    }

    #[test]
    fn packets_may_be_inactive_from_the_start() {
        let groups = [Group { indices: &[0, 2], equations: 1 }];
        let plan = plan(&groups, 3, 2, 3).unwrap();
        assert_eq!((plan.inactive, plan.order), (vec![2, 1], vec![0]));
    }

    #[test]
    fn memory_bound_counts_groups_packets_and_members() {
        let (word, number) = (size_of::<usize>(), size_of::<u32>());
        let per_group = size_of::<Group<'_>>() + size_of::<Link>() + 2 * word;
        let per_packet = 2 * word + 1 + 4 + 12 + number;
        assert_eq!(plan_bytes(0, 0, 0), per_packet);
        assert_eq!(plan_bytes(7, 100, 30), 7 * per_group + 31 * per_packet + 100 * number);
    }
}
