//! The copied sources with the switches of all mutants.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::list::Mutant;
use crate::rewrite::{Rewritten, rewrite};
use crate::sites::{Found, Listed, Refusal, find};
use crate::switch;

/// What is known of a mutant before tests run.
#[derive(Clone, Copy, PartialEq)]
pub enum State {
    /// It is in the sources.
    Switched,
    /// The compiler rejects it.
    Unviable,
    /// It cannot be switched at run time.
    Unmeasured(&'static str),
}

pub struct Tree {
    pub root: PathBuf,
    files: Vec<File>,
    pub states: Vec<State>,
    /// Number of each mutant at run time; 0 for those without a switch.
    pub numbers: Vec<u32>,
    /// Number of the first mutant at each mutant's site, which stands for the site.
    pub sites: Vec<u32>,
}

struct File {
    path: PathBuf,
    source: String,
    found: Found,
    written: Rewritten,
}

/// An error of the compiler: the places in the files, the primary ones first.
pub struct Diagnostic {
    pub primary: Vec<Place>,
    pub secondary: Vec<Place>,
    pub rendered: String,
}

pub struct Place {
    pub file: PathBuf,
    pub range: Range<usize>,
}

impl Tree {
    /// Finds the sites of all mutants in the files below `root`, and writes the switches. `library` is
    /// the root of the crate.
    pub fn new(root: &Path, library: &Path, mutants: &[Mutant]) -> Result<Self> {
        let mut tree = Self {
            root: root.to_owned(),
            files: Vec::new(),
            states: vec![State::Switched; mutants.len()],
            numbers: vec![0; mutants.len()],
            sites: vec![0; mutants.len()],
        };
        let mut paths: Vec<&Path> = mutants.iter().map(|mutant| mutant.file.as_path()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut next = 1;
        for path in paths {
            let source = read(&root.join(path))?;
            let indices: Vec<usize> =
                (0..mutants.len()).filter(|&index| mutants[index].file == path).collect();
            let listed = |&index: &usize| {
                let Mutant { genre, start, replacement, .. } = &mutants[index];
                Listed { genre: *genre, start: *start, replacement }
            };
            let listed: Vec<Listed> = indices.iter().map(listed).collect();
            let mut found = find(&source, &listed).with_context(|| path.display().to_string())?;
            for (mutant, refusal) in &mut found.refused {
                tree.states[indices[*mutant]] = match refusal {
                    Refusal::Unviable => State::Unviable,
                    Refusal::Const => State::Unmeasured("evaluated by the compiler"),
                    Refusal::OpaqueType => State::Unmeasured("returns an opaque type"),
                    Refusal::NoWildcard => State::Unmeasured("no wildcard without a guard"),
                    Refusal::Unknown => State::Unmeasured("not found in the syntax tree"),
                };
            }
            for site in &mut found.sites {
                let first = next;
                for variant in &mut site.variants {
                    variant.mutant = indices[variant.mutant];
                    tree.numbers[variant.mutant] = next;
                    tree.sites[variant.mutant] = first;
                    next += 1;
                }
            }
            let written = Rewritten::default();
            tree.files.push(File { path: path.to_owned(), source, found, written });
        }
        tree.add_module(library, next - 1)?;
        Ok(tree)
    }

    /// Appends the switch's module to the root of the crate, which may have mutants itself.
    fn add_module(&mut self, library: &Path, last: u32) -> Result<()> {
        let module = switch::module(last);
        match self.files.iter_mut().find(|file| file.path == library) {
            Some(file) => file.source.push_str(&module),
            None => {
                let path = self.root.join(library);
                let source = read(&path)? + &module;
                std::fs::write(&path, source).context("cannot write the crate's root")?;
            }
        }
        Ok(())
    }

    /// Writes the files whose text changes.
    pub fn write(&mut self) -> Result<()> {
        let Self { root, files, states, numbers, .. } = self;
        for file in files {
            let kept = |mutant: usize| states[mutant] == State::Switched;
            let written = rewrite(&file.source, &file.found, kept, |mutant| numbers[mutant]);
            if written.text != file.written.text {
                let path = root.join(&file.path);
                std::fs::write(&path, &written.text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            file.written = written;
        }
        Ok(())
    }

    /// Removes the mutants that cause errors of the compiler.
    pub fn remove(&mut self, diagnostics: &[Diagnostic]) -> Result<()> {
        let mut unviable = HashSet::new();
        let mut unmeasured = HashSet::new();
        for diagnostic in diagnostics {
            let primary = self.variants(&diagnostic.primary);
            let any =
                if primary.is_empty() { self.variants(&diagnostic.secondary) } else { primary };
            if any.is_empty() {
                let around = self.around(&diagnostic.primary);
                ensure!(
                    !around.is_empty(),
                    "the copy does not compile, not because of a mutant:\n{}",
                    diagnostic.rendered
                );
                unmeasured.extend(around);
            } else {
                unviable.extend(any);
            }
        }
        for mutant in unmeasured {
            self.states[mutant] = State::Unmeasured("its switch does not compile");
        }
        for mutant in unviable {
            self.states[mutant] = State::Unviable;
        }
        Ok(())
    }

    /// The mutants whose text contains one of the places.
    fn variants(&self, places: &[Place]) -> Vec<usize> {
        let mutants = |place: &Place| {
            let file = self.file(place)?;
            let enclosing =
                file.written.variants.iter().filter(|(range, _)| contains(range, &place.range));
            Some(enclosing.min_by_key(|(range, _)| range.len())?.1)
        };
        places.iter().filter_map(mutants).collect()
    }

    /// The mutants of the innermost site around one of the places, or else those inside it, or else
    /// those in the function around it.
    fn around(&self, places: &[Place]) -> Vec<usize> {
        let mut mutants = Vec::new();
        for place in places {
            let Some(file) = self.file(place) else { continue };
            let Rewritten { sites, functions, .. } = &file.written;
            let switched = |index: usize| {
                let variants = file.found.sites[index].variants.iter();
                variants
                    .map(|variant| variant.mutant)
                    .filter(|&m| self.states[m] == State::Switched)
            };
            let enclosing = sites.iter().filter(|(range, _)| contains(range, &place.range));
            let enclosing = enclosing.filter(|&&(_, index)| switched(index).next().is_some());
            if let Some(&(_, index)) = enclosing.min_by_key(|(range, _)| range.len()) {
                mutants.extend(switched(index));
                continue;
            }
            let function = functions.iter().filter(|range| contains(range, &place.range));
            let function = function.min_by_key(|range| range.len());
            for range in [Some(&place.range), function].into_iter().flatten() {
                let inside = sites.iter().filter(|(site, _)| contains(range, site));
                let inside: Vec<usize> = inside.flat_map(|&(_, index)| switched(index)).collect();
                if !inside.is_empty() {
                    mutants.extend(inside);
                    break;
                }
            }
        }
        mutants
    }

    fn file(&self, place: &Place) -> Option<&File> {
        self.files.iter().find(|file| file.path == place.file)
    }
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
