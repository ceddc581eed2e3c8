//! Assignment of symbols to links if several links transport one flow. A link takes the remainder
//! of a batch at a time, so that a batch stays on one link and each link can repair its own losses.

/// Consecutive unsent symbols that are assigned to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Assignment {
    /// `None` if the link is gone.
    link: Option<u64>,
    next: u64,
    end: u64,
}

/// All current assignments: at most one for each link, and those of links that are gone.
#[derive(Debug, Default)]
pub(super) struct LinkAssignments {
    /// The current link, if there are several.
    link: Option<u64>,
    assignments: Vec<Assignment>,
}

impl LinkAssignments {
    pub(super) fn set_link(&mut self, link: Option<u64>) {
        self.link = link;
    }

    /// Whether symbols are sent by assignment: several links transport the flow, or did so and left
    /// symbols.
    pub(super) fn is_in_use(&self) -> bool {
        self.link.is_some() || !self.assignments.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.assignments.is_empty()
    }

    /// Number of symbols in all assignments.
    pub(super) fn symbols(&self) -> u64 {
        self.assignments.iter().map(|assignment| assignment.end - assignment.next).sum()
    }

    pub(super) fn has_assigned(&self, link: u64) -> bool {
        self.assignments.iter().any(|assignment| assignment.link == Some(link))
    }

    /// Whether there is an assignment that the current link may send.
    pub(super) fn has_next(&self) -> bool {
        self.find().is_some()
    }

    /// The assignment of the current link, or one of a link that is gone. If there is only one
    /// link, it may send all of them.
    fn find(&self) -> Option<usize> {
        let own = |assignment: &Assignment| self.link.is_none() || assignment.link == self.link;
        let assignments = &self.assignments;
        assignments
            .iter()
            .position(own)
            .or_else(|| assignments.iter().position(|s| s.link.is_none()))
    }

    /// The next symbol for the current link.
    pub(super) fn next(&mut self) -> Option<u64> {
        let index = self.find()?;
        let assignment = &mut self.assignments[index];
        assignment.link = self.link;
        let number = assignment.next;
        assignment.next += 1;
        if assignment.next == assignment.end {
            self.assignments.remove(index);
        }
        Some(number)
    }

    /// Assigns symbols to the current link, at least one.
    pub(super) fn assign(&mut self, next: u64, end: u64) {
        if next < end {
            self.assignments.push(Assignment { link: self.link, next, end });
        }
    }

    /// Makes the symbols assigned to this link available to any link.
    pub(super) fn release(&mut self, link: u64) {
        for assignment in
            self.assignments.iter_mut().filter(|assignment| assignment.link == Some(link))
        {
            assignment.link = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(assignments: &mut LinkAssignments) -> Vec<u64> {
        core::iter::from_fn(|| assignments.next()).collect()
    }

    #[test]
    fn symbols_of_a_removed_link_go_to_any_link() {
        let mut assignments = LinkAssignments::default();
        assert!(!assignments.is_in_use());
        assignments.set_link(Some(1));
        assignments.assign(0, 3);
        assert_eq!(assignments.next(), Some(0));
        assignments.set_link(Some(2));
        assert!(!assignments.has_next(), "symbols of one link are not sent over another");
        assignments.assign(16, 18);
        assert_eq!((assignments.symbols(), assignments.has_assigned(1)), (4, true));
        assert_eq!(all(&mut assignments), [16, 17]);
        assignments.release(1);
        assert_eq!(all(&mut assignments), [1, 2]);
        assert!(assignments.is_empty());
    }

    #[test]
    fn a_single_link_sends_all_assigned_symbols() {
        let mut assignments = LinkAssignments::default();
        for link in [1, 2] {
            assignments.set_link(Some(link));
            assignments.assign(16 * link, 16 * link + 2);
        }
        assignments.set_link(None);
        assert!(assignments.is_in_use());
        assert_eq!(all(&mut assignments), [16, 17, 32, 33]);
        assert!(!assignments.is_in_use());
    }
}
