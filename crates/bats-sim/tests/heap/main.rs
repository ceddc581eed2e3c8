//! Heap memory and allocations, counted by the allocator of the test program.

mod allocations;
mod channels;
mod hostile_memory;
mod relay_memory;
mod scan;
