//! The tests, what they reach and how long they take.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::compile::Program;
use crate::jobs::in_parallel;
use crate::process::{Limits, Outcome, run};
use crate::switch;

pub struct Test {
    /// Index of its program.
    pub program: usize,
    pub name: String,
    /// Processor time without a mutant.
    pub duration: Duration,
}

pub struct Suite {
    pub programs: Vec<Program>,
    pub tests: Vec<Test>,
    /// For each reached site, by the number of its first mutant: the tests that reach it.
    pub reaching: HashMap<u32, Vec<usize>>,
}

/// Limits of a test without a mutant.
const LONGEST: Limits =
    Limits { processor: Duration::from_secs(600), wall: Duration::from_secs(7200) };

impl Suite {
    /// Runs each test alone without a mutant. `skip` are names of tests that are left out.
    pub fn measure(
        programs: Vec<Program>,
        skip: &[String],
        jobs: usize,
        out: &Path,
    ) -> Result<Self> {
        let mut tests = Vec::new();
        for (program, Program { path, directory, .. }) in programs.iter().enumerate() {
            let names = |arguments: &[&str]| -> Result<Vec<String>> {
                let mut command = Command::new(path);
                let output = command.args(arguments).current_dir(directory).output();
                let output = output.with_context(|| format!("cannot run {}", path.display()))?;
                ensure!(output.status.success(), "{} does not list its tests", path.display());
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
                Ok(names.map(str::to_owned).collect())
            };
            let ignored = names(&["--list", "--format", "terse", "--ignored"])?;
            for name in names(&["--list", "--format", "terse"])? {
                if !ignored.contains(&name) && !skip.iter().any(|part| name.contains(part)) {
                    tests.push(Test { program, name, duration: Duration::ZERO });
                }
            }
        }
        let mut suite = Self { programs, tests, reaching: HashMap::new() };
        suite.run_each(jobs, out)?;
        Ok(suite)
    }

    fn run_each(&mut self, jobs: usize, out: &Path) -> Result<()> {
        let directory = out.join(format!("reached-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let results = Mutex::new(Vec::new());
        in_parallel(jobs, self.tests.len(), |index| {
            let test = &self.tests[index];
            let file = directory.join(index.to_string());
            let path = file.to_str().context("the path is not text")?;
            let program = &self.programs[test.program];
            let (outcome, duration) =
                run(program, &[&test.name], &[(switch::REACHED, path)], LONGEST)?;
            if outcome != Outcome::Passed {
                bail!("{} of {} fails without a mutant", test.name, program.path.display());
            }
            let reached = std::fs::read_to_string(&file).unwrap_or_default();
            let reached: Result<Vec<u32>, _> = reached.lines().map(str::parse).collect();
            let _ = std::fs::remove_file(&file);
            results.lock().expect("no panic").push((index, duration, reached?));
            Ok(())
        })?;
        std::fs::remove_dir(&directory)?;
        for (index, duration, reached) in results.into_inner().expect("no panic") {
            self.tests[index].duration = duration;
            for site in reached {
                self.reaching.entry(site).or_default().push(index);
            }
        }
        for tests in self.reaching.values_mut() {
            tests.sort_unstable_by_key(|&test| self.tests[test].duration);
        }
        Ok(())
    }
}
