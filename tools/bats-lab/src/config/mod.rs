//! Test files in YAML or JSON: parsed, checked and expanded.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod attribute;
mod attributes;
mod correct;
pub(crate) mod expand;
mod link;
mod link_set;
pub(crate) mod load;
pub(crate) mod model;
pub(crate) mod network;
pub(crate) mod protocols;
pub(crate) mod schema;
pub(crate) mod shipped;
pub(crate) mod source;
pub(crate) mod suggest;
pub(crate) mod tools;
pub(crate) mod values;
mod words;

#[cfg(test)]
mod oasis_tests;
