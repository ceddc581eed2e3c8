//! The module in the mutated crate that selects the active mutant at run time.

/// Environment variable with the number of the active mutant.
pub const ACTIVE: &str = "MUTANTS_ACTIVE";
/// Environment variable with the file to which the numbers of the reached places are appended.
pub const REACHED: &str = "MUTANTS_REACHED";

/// Source text of the module. Mutants have the numbers from 1 to `last`.
pub fn module(last: u32) -> String {
    include_str!("switch/module.rs.in").replace("LAST", &last.to_string())
}
