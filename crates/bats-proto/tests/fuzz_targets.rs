//! Checks that each fuzz target of `fuzz/Cargo.toml` has a corpus with its name, where `.ci/nightly` looks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of the programs of `fuzz/Cargo.toml`.
fn targets() -> BTreeSet<String> {
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("fuzz/Cargo.toml");
    let name_of = |program: &str| {
        let name = program.lines().find_map(|line| line.strip_prefix("name = "));
        name.expect("a program has a name").trim_matches('"').to_owned()
    };
    let targets: Vec<String> = manifest.split("[[bin]]").skip(1).map(name_of).collect();
    let names: BTreeSet<String> = targets.iter().cloned().collect();
    assert_eq!(names.len(), targets.len(), "two targets with the same name");
    names
}

/// The folders `tests/corpus/NAME` of all crates: name, path and number of files.
fn corpora() -> BTreeMap<String, Vec<(PathBuf, usize)>> {
    let mut corpora = BTreeMap::<_, Vec<_>>::new();
    let entries = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    for parent in ["crates", "tools"] {
        let packages = entries(&root().join(parent));
        for corpus in packages.iter().flat_map(|package| entries(&package.join("tests/corpus"))) {
            let name = corpus.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
            let files = entries(&corpus).iter().filter(|path| path.is_file()).count();
            corpora.entry(name.to_owned()).or_default().push((corpus.clone(), files));
        }
    }
    corpora
}

#[test]
fn every_fuzz_target_has_a_corpus_with_its_name() {
    let (targets, corpora) = (targets(), corpora());
    assert!(targets.len() >= 21, "only {} targets are found", targets.len());
    for target in &targets {
        let folders = corpora.get(target).map_or(&[][..], Vec::as_slice);
        let [(folder, files)] = folders else {
            panic!("{target}: {} folders tests/corpus/{target} instead of one", folders.len());
        };
        assert!(*files > 0, "{}: no inputs", folder.display());
        let source = root().join("fuzz/fuzz_targets").join(format!("{target}.rs"));
        assert!(source.is_file(), "{}: no such file", source.display());
    }
    let unused: Vec<_> = corpora.keys().filter(|name| !targets.contains(*name)).collect();
    assert!(unused.is_empty(), "corpora that no target has the name of: {unused:?}");
}
