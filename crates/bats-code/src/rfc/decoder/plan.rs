//! The order of elimination, from the structure of the batches alone: belief propagation, and
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

/// What to do, if matrices have the rank that their shape allows.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// All groups, in the order in which they are to be used.
    pub(super) order: Vec<u32>,
    /// The inactive packets.
    pub(super) inactive: Vec<u32>,
}

struct Planner<'a> {
    groups: &'a [Group<'a>],
    /// Groups of packet p: `members[offsets[p]..offsets[p + 1]]`.
    offsets: Vec<usize>,
    members: Vec<u32>,
    /// Neither solved nor inactive.
    active: Vec<bool>,
    /// Active packets of each group.
    remaining: Vec<u32>,
    used: Vec<bool>,
    /// Unused groups that each packet is in.
    occurrences: Vec<u32>,
    /// For each number of packets that must become inactive before a group is solvable, the first
    /// of a doubly linked list of the unused groups with this number; what changed last stands in
    /// front.
    heads: Vec<u32>,
    links: Vec<Link>,
    lowest: usize,
}

/// No group.
const NONE: u32 = u32::MAX;

/// Where a group stands in the list of `bucket`, which is [`NONE`] for a group in no list.
#[derive(Clone, Copy)]
struct Link {
    bucket: u32,
    before: u32,
    behind: u32,
}

/// Plans the elimination of `groups` over packets 0 to `packets` - 1, of which those from
/// `inactive_from` on are inactive at once.
///
/// # Errors
/// More than `max_inactive` packets would be inactive: as many as were when that was seen. Nothing
/// is planned further then, so that the limit bounds the work of planning as well.
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
                planner.settle(packet);
            }
        }
    }
    // Packets in no group: they wait for a batch that comes later.
    plan.inactive.extend((0..packets as u32).filter(|&packet| planner.active[packet as usize]));
    if plan.inactive.len() > max_inactive {
        return Err(plan.inactive.len());
    }
    Ok(plan)
}

/// An upper bound for what planning takes, in bytes, for so many groups with so many packets in
/// all of them together.
pub(super) fn plan_bytes(groups: usize, members: usize, packets: usize) -> usize {
    let per_group = size_of::<Group<'_>>() + size_of::<Link>() + 2 * size_of::<usize>();
    // Offsets twice, whether active, occurrences, and as candidate or inactive.
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
            links: vec![Link { bucket: NONE, before: NONE, behind: NONE }; groups.len()],
            lowest: 0,
        };
        let most = (0..groups.len() as u32).map(|group| planner.missing(group)).max();
        planner.heads = vec![NONE; most.map_or(0, |most| most + 1)];
        for group in 0..groups.len() as u32 {
            planner.enqueue(group);
        }
        planner
    }

    /// Packets of a group that must become inactive before it can be solved.
    fn missing(&self, group: u32) -> usize {
        let group = group as usize;
        (self.remaining[group] as usize).saturating_sub(self.groups[group].equations)
    }

    /// Puts a group in front of the list that it belongs to now.
    fn enqueue(&mut self, group: u32) {
        self.unlink(group);
        let missing = self.missing(group);
        let behind = core::mem::replace(&mut self.heads[missing], group);
        if behind != NONE {
            self.links[behind as usize].before = group;
        }
        self.links[group as usize] = Link { bucket: missing as u32, before: NONE, behind };
        self.lowest = self.lowest.min(missing);
    }

    fn unlink(&mut self, group: u32) {
        let none = Link { bucket: NONE, before: NONE, behind: NONE };
        let link = core::mem::replace(&mut self.links[group as usize], none);
        if link.bucket == NONE {
            return;
        }
        match link.before {
            NONE => self.heads[link.bucket as usize] = link.behind,
            before => self.links[before as usize].behind = link.behind,
        }
        if link.behind != NONE {
            self.links[link.behind as usize].before = link.before;
        }
    }

    /// Takes an unused group for which the fewest packets must become inactive out of its list;
    /// returns it with their number.
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

    /// Makes packets of a group inactive: those that occur in most of the groups that are left. Few
    /// at a time, because another group may be cheaper soon.
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
            self.settle(packet);
        }
    }

    /// The packet is solved or inactive from now on.
    fn settle(&mut self, packet: u32) {
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
    fn a_plan_stops_at_the_limit_on_inactive_packets() {
        // 80 packets in groups of 40 with one equation each: far more than 10 inactive ones.
        let indices: Vec<Vec<u32>> =
            (0..80).map(|i| (i..i + 40).map(|x| x % 80).collect()).collect();
        let groups: Vec<Group<'_>> =
            indices.iter().map(|indices| Group { indices, equations: 1 }).collect();
        let needed = plan(&groups, 80, 80, 80).unwrap().inactive.len();
        assert!(needed > 20, "{needed}");
        assert!(plan(&groups, 80, 80, needed).is_ok());
        // An eighth of the packets missing in a group, at most, is one step beyond the limit.
        for limit in 0..needed {
            let stopped = plan(&groups, 80, 80, limit).unwrap_err();
            assert!(limit < stopped && stopped <= limit + 5, "{stopped} with limit {limit}");
        }
        // Those inactive from the start count.
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
    fn a_stall_makes_as_few_inactive_as_the_cheapest_group_needs() {
        let plan = run(&[(&[0, 1, 2, 3], 2), (&[0, 1], 1), (&[1, 2], 1)], 4);
        assert_eq!(plan.inactive, [1], "it is in most groups");
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
}
