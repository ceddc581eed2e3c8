use core::fmt;

/// An invalid setting of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Name of the setting.
    pub field: &'static str,
    /// The invalid value.
    pub value: String,
    /// The values that are allowed.
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
