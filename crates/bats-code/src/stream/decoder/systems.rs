//! The linear systems of a decoder: how they are merged, solved and dropped.

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;

use super::super::linear_system::{Equation, LinearSystem, Removal};
use super::super::solve::Solution;
use super::{Slot, StreamDecoder};

impl StreamDecoder {
    /// Merges the linked systems into one, or creates one if there is none. Returns its ID.
    pub(super) fn merge_systems(&mut self, linked: &[u32]) -> u32 {
        let Some((&target, others)) = linked.split_first() else {
            let id = self.free_ids.pop().unwrap_or_else(|| {
                self.systems.push(None);
                (self.systems.len() - 1) as u32
            });
            self.put_system(id, Box::default());
            return id;
        };
        for &other in others {
            let Some(absorbed) = self.take_system(other) else { continue };
            self.free_ids.push(other);
            let Some(mut system) = self.take_system(target) else { continue };
            let from = system.columns().len();
            system.absorb(*absorbed);
            for (column, &number) in system.columns().iter().enumerate().skip(from) {
                self.slots[(number - self.base) as usize] =
                    Slot::Linked { system_id: target, column: column as u32 };
            }
            self.put_system(target, system);
        }
        target
    }

    pub(super) fn take_system(&mut self, system_id: u32) -> Option<Box<LinearSystem>> {
        let system = self.systems[system_id as usize].take()?;
        self.matrix_bytes -= system.bytes();
        Some(system)
    }

    pub(super) fn put_system(&mut self, system_id: u32, system: Box<LinearSystem>) {
        self.matrix_bytes += system.bytes();
        self.systems[system_id as usize] = Some(system);
    }

    /// Removes the column of a symbol that has become known.
    pub(super) fn remove_column(&mut self, system_id: u32, column: u32) {
        let Some(mut system) = self.take_system(system_id) else { return };
        let Removal { moved, equation } = system.remove_column(self.kernel, column as usize);
        self.put_system(system_id, system);
        if let Some(number) = moved {
            self.slots[(number - self.base) as usize] = Slot::Linked { system_id, column };
        }
        if let Some(equation) = equation {
            self.drop_equation(equation);
        }
    }

    /// Stores the symbols that a system determines, and removes the system if none is left unknown.
    pub(super) fn solve_system(&mut self, system_id: u32) {
        let Some(system) = &mut self.systems[system_id as usize] else { return };
        let rows = system.solved_rows();
        let work = system.take_work();
        self.spend(work);
        if !rows.is_empty() {
            self.solve_rows(system_id, &rows);
        }
        self.drop_if_released(system_id);
    }

    /// Stores the symbols that these rows of a system determine.
    fn solve_rows(&mut self, system_id: u32, rows: &[usize]) {
        let Some(system) = &self.systems[system_id as usize] else { return };
        let solution = Solution::new(system, rows);
        let all = rows.len() == system.columns().len();
        let work = solution.work();
        let (slots, base) = (&self.slots, self.base);
        let known_row = |number: u64| match &slots[(number - base) as usize] {
            Slot::Known(row) => row.padded(),
            _ => &[],
        };
        let payloads = solution.payloads(self.kernel, &self.known, known_row, &mut self.pool);
        self.solved.extend(rows.iter().map(|&row| system.pivot_symbol(row)));
        for (index, payload) in payloads.into_iter().enumerate() {
            let number = self.solved[index];
            if let Slot::Linked { column, .. } = self.set_known(number, payload)
                && !all
            {
                self.remove_column(system_id, column);
            }
        }
        self.solved.sort_unstable();
        self.stats.decoded += rows.len() as u64;
        let removals = match &mut self.systems[system_id as usize] {
            Some(system) if !all => system.take_work(),
            _ => 0,
        };
        self.spend(work + removals);
        if all {
            self.remove_system(system_id);
        }
    }

    /// Removes a system that no slot refers to any more. Returns the number of its equations.
    pub(super) fn remove_system(&mut self, system_id: u32) -> usize {
        let Some(system) = self.take_system(system_id) else { return 0 };
        self.free_ids.push(system_id);
        let equations = system.into_equations();
        let count = equations.len();
        for equation in equations {
            self.drop_equation(equation);
        }
        count
    }

    /// Drops a system whose unknowns are all released, or that has none.
    pub(super) fn drop_if_released(&mut self, system_id: u32) {
        let Some(system) = &self.systems[system_id as usize] else { return };
        if system.extent().is_some_and(|(_, last)| last >= self.released) {
            return;
        }
        for &number in system.columns() {
            self.slots[(number - self.base) as usize] = Slot::Missing;
        }
        self.stats.equations_dropped += self.remove_system(system_id) as u64;
    }

    /// Removes an equation from the totals and keeps its rows for reuse.
    fn drop_equation(&mut self, equation: Equation) {
        self.equations -= 1;
        self.row_bytes -= equation.bytes();
        if let Entry::Occupied(mut starts) = self.window_starts.entry(equation.window.first) {
            *starts.get_mut() -= 1;
            if *starts.get() == 0 {
                starts.remove();
            }
        }
        self.recycle(equation);
    }

    pub(super) fn recycle(&mut self, equation: Equation) {
        self.coefficient_pool.give(equation.coefficients);
        self.pool.give(equation.payload);
    }
}
