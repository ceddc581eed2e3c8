//! The published JSON schema of test files.

use serde_json::Value;

use super::model::TestFile;

/// The schema as it follows from the model.
pub(crate) fn of_test_files() -> Value {
    schemars::schema_for!(TestFile).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `BATSLAB_WRITE_SCHEMA=1 cargo test -p bats-lab schema` writes it anew.
    #[test]
    fn the_published_schema_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/test-file.schema.json");
        let current = of_test_files();
        if std::env::var_os("BATSLAB_WRITE_SCHEMA").is_some() {
            let text = serde_json::to_string_pretty(&current).unwrap() + "\n";
            std::fs::write(path, text).unwrap();
        }
        let published = std::fs::read(path).unwrap();
        let published: serde_json::Value = serde_json::from_slice(&published).unwrap();
        assert!(published == current, "{path} is not what the model says");
    }
}
