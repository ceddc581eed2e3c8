//! Body of a fuzz target; `tests/replay.rs` replays its corpus. Not part of the API.

use core::time::Duration;

use crate::{OPPORTUNITY_BYTES, Trace};

/// Longest text that is written again, in bytes: a trace can repeat one number a million times.
const MAX_TEXT: u64 = 1 << 20;

/// Parses `data` as a recorded trace. A trace that parses is written and parses to the same one, and
/// its rate has the trace's capacity. Returns the number of opportunities.
///
/// # Panics
/// A property is violated.
pub fn rate_trace_run(data: &[u8]) -> u64 {
    let Ok(trace) = Trace::parse(data) else { return 0 };
    let opportunities = trace.opportunities();
    assert!(opportunities > 0 && trace.length() > Duration::ZERO);
    if opportunities * 9 <= MAX_TEXT {
        assert_eq!(Trace::parse(trace.to_text()), Ok(trace.clone()));
    }
    let bits = opportunities * OPPORTUNITY_BYTES * 8;
    let mean = trace.pieces().mean_bps() as f64;
    let expected = bits as f64 / trace.length().as_secs_f64();
    assert!((mean - expected).abs() <= 1.0 + expected * 1e-9, "{mean} instead of {expected}");
    opportunities
}
