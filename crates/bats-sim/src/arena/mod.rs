//! The arena: cells in virtual time that judge congestion controllers against the optimum and
//! against other controllers in the same cell.

pub mod cell;
pub mod cells;
pub mod draw;
pub mod measure;
pub mod optimum;
mod packet;
mod traffic;
pub mod world;
