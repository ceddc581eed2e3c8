//! A relay cannot read the flows: its code uses no type of the ends.

use std::fs;
use std::path::Path;

/// Modules of this crate that the relay's code may use.
const ALLOWED: [&str; 2] = ["wire", "link"];
/// Names that it may not use even in an allowed module: the frames inside symbols.
const FORBIDDEN: [&str; 4] = ["wire::message", "session", "Session", "crypto"];

#[test]
fn relay_code_uses_only_wire_and_link() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/relay");
    let mut files = 0;
    for entry in fs::read_dir(directory).expect("the module") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a source file");
        files += 1;
        for (number, line) in text.lines().enumerate() {
            // Comments may name the ends.
            let code = line.split("//").next().unwrap_or("");
            let place = format!("{}:{}: {line}", path.display(), number + 1);
            for rest in code.split("crate::").skip(1) {
                let named = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                let is_allowed = named.is_some_and(|name| ALLOWED.contains(&name));
                assert!(is_allowed, "{place} names {named:?}");
            }
            assert!(!FORBIDDEN.iter().any(|word| code.contains(word)), "{place}");
            for word in ["bats_proto", "rustls", "super::super"] {
                assert!(!code.contains(word), "{place}");
            }
        }
    }
    assert!(files >= 5, "{files} files looked at");
}
