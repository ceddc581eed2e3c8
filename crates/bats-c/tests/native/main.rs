//! Tests of the installed library with C and C++ programs: install to a prefix, compile, run.
//!
//! With `OPENBATS_TEST_LONG=1` the random calls run for one minute, and 10,000 connections are
//! opened.

mod debian;
mod installed;
#[path = "../../../openbats/tests/common/lab.rs"]
mod lab;
mod programs;
mod quick_start;
mod support;
