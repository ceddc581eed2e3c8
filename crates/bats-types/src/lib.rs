//! Types that all layers share: points in time that do not depend on a clock, and budgets of reports
//! that are counted in such time.
#![forbid(unsafe_code)]

mod report_budget;
mod timestamp;

pub use report_budget::ReportBudget;
pub use timestamp::Timestamp;
