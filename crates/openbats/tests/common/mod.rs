//! Helpers for the tests of file transfers.

use std::fs;
use std::path::PathBuf;

/// A temporary directory with a subdirectory for received files; removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("openbats-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("in")).unwrap();
        Self(path)
    }

    pub(crate) fn incoming(&self) -> PathBuf {
        self.0.join("in")
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// All files below the receiver's directory, including temporary ones.
    pub(crate) fn received(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut waiting = vec![self.incoming()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(self.incoming()).unwrap().to_str().unwrap();
                names.push(name.to_owned());
                if path.is_dir() {
                    waiting.push(path);
                }
            }
        }
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
