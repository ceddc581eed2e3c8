//! A relay cannot read what it carries: its code names nothing of the ends.

use std::fs;
use std::path::Path;

/// What the code of a relay may name of this crate.
const ALLOWED: [&str; 2] = ["wire", "link"];
/// What it may not even though it is in an allowed place: the frames inside symbols.
const FORBIDDEN: [&str; 4] = ["wire::message", "session", "Session", "crypto"];

#[test]
fn relays_name_wire_and_link_alone() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/relay");
    let mut files = 0;
    for entry in fs::read_dir(folder).expect("the module") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a source file");
        files += 1;
        for (number, line) in text.lines().enumerate() {
            // Comments may say what the code is for.
            let code = line.split("//").next().unwrap_or("");
            let place = format!("{}:{}: {line}", path.display(), number + 1);
            for rest in code.split("crate::").skip(1) {
                let named = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                let fine = named.is_some_and(|name| ALLOWED.contains(&name));
                assert!(fine, "{place} names {named:?}");
            }
            assert!(!FORBIDDEN.iter().any(|word| code.contains(word)), "{place}");
            for word in ["bats_proto", "rustls", "super::super"] {
                assert!(!code.contains(word), "{place}");
            }
        }
    }
    assert!(files >= 5, "{files} files looked at");
}
