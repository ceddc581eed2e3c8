//! What memory is taken from the heap, and what it costs: by a counter that every allocation of the
//! program goes through.

mod allocations;
mod idle_memory;
mod relay_memory;
mod scan;
