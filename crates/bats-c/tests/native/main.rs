//! The library as C and C++ programs get it: installed to a prefix, compiled against, run.
//!
//! With `OPENBATS_TEST_LONG=1` the random calls run for a minute and 10,000 connections are made.

mod debian;
mod installed;
mod kit;
mod programs;
