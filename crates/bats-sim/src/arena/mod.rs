//! The arena: cells in virtual time that judge congestion controllers against the optimum and
//! against other controllers in the same cell.

pub mod cell;
pub mod cells;
pub mod contest;
pub mod draw;
pub mod file;
pub mod goal;
pub mod html;
pub mod measure;
pub mod optimum;
mod outcome;
mod relayed;
pub mod report;
mod run;
pub mod table;
mod traffic;
pub mod world;
