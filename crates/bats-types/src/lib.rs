//! Types that all layers share: points in time that do not depend on a clock, budgets of reports that
//! are counted in such time, and the check that timers make progress.
#![forbid(unsafe_code)]

mod report_budget;
mod stuck_timers;
mod timestamp;

pub use report_budget::ReportBudget;
pub use stuck_timers::{STUCK_TIMER, StuckTimers};
pub use timestamp::Timestamp;
