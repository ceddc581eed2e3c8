//! Tests of the arena: its report, its files of cells, and a fast subset of its cells as a guard.

mod commands;
mod fast_subset;
mod files;
mod reports;
