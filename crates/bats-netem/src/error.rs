use core::fmt;

/// A setting that no link can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// What it was set to.
    pub value: String,
    /// What is allowed.
    pub allowed: &'static str,
}

impl ConfigError {
    pub(crate) fn new(field: &'static str, value: impl fmt::Debug, allowed: &'static str) -> Self {
        Self { field, value: format!("{value:?}"), allowed }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; allowed: {}", self.field, self.value, self.allowed)
    }
}

impl core::error::Error for ConfigError {}
