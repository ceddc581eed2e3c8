//! The published JSON schema of test files.

use serde_json::Value;

use super::model::TestFile;

/// The schema derived from the model.
pub(crate) fn of_test_files() -> Value {
    schemars::schema_for!(TestFile).to_value()
}

/// Fails unless the published schema of this name is `current`. `BATSLAB_WRITE_SCHEMA=1 cargo test
/// -p bats-lab schema` rewrites it.
#[cfg(test)]
pub(crate) fn compare(name: &str, current: &Value) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schema").join(name);
    if std::env::var_os("BATSLAB_WRITE_SCHEMA").is_some() {
        let text = serde_json::to_string_pretty(current).unwrap() + "\n";
        std::fs::write(&path, text).unwrap();
    }
    let published: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(published == *current, "{} differs from the model", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_schema_of_test_files_is_current() {
        compare("test-file.schema.json", &of_test_files());
    }
}
