// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the parts of a test that share what is expensive: booted guests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the tests of endurance last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Short, for every change.
    Ci,
    /// As long as promised (`TELEGRAPHOS_SCALE=full`).
    Full,
}

impl Scale {
    /// What the environment asks for.
    pub fn from_env() -> Scale {
        match std::env::var("TELEGRAPHOS_SCALE").as_deref() {
            Ok("full") => Scale::Full,
            _ => Scale::Ci,
        }
    }

    /// One of two.
    pub fn pick<T>(self, ci: T, full: T) -> T {
        match self {
            Scale::Ci => ci,
            Scale::Full => full,
        }
    }
}

/// The parts run so far.
#[derive(Debug)]
pub struct Suite {
    filter: Vec<String>,
    list: bool,
    skipped: usize,
    parts: Vec<(String, Duration, Option<String>)>,
    begun: Instant,
}

impl Suite {
    /// Takes the arguments `cargo test` passes on: words of which a part's name must contain one; `--list` runs
    /// nothing. Other options are ignored.
    pub fn new(args: impl IntoIterator<Item = String>) -> Suite {
        let mut suite = Suite { filter: Vec::new(), list: false, skipped: 0, parts: Vec::new(), begun: Instant::now() };
        for arg in args {
            match arg.as_str() {
                "--list" => suite.list = true,
                option if option.starts_with('-') => {}
                word => suite.filter.push(word.to_owned()),
            }
        }
        suite
    }

    /// Whether any of these parts is to be run; so that nothing is booted in vain.
    pub fn wants(&self, names: &[&str]) -> bool {
        !self.list && names.iter().any(|name| self.selected(name))
    }

    fn selected(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|word| name.contains(word.as_str()))
    }

    /// Runs one part if it is wanted. An error or a panic fails it, and with it the suite.
    pub fn part(&mut self, name: &str, body: impl FnOnce() -> anyhow::Result<()>) {
        if self.list {
            println!("{name}: test");
            return;
        }
        if !self.selected(name) {
            self.skipped += 1;
            return;
        }
        println!("part {name} ...");
        let begun = Instant::now();
        let failure = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!("{e:#}")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                Some(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
            }
        };
        let took = begun.elapsed();
        match &failure {
            None => println!("part {name} ok ({:.1} s)", took.as_secs_f64()),
            Some(why) => println!("part {name} FAILED ({:.1} s)\n{why}\n", took.as_secs_f64()),
        }
        self.parts.push((name.to_owned(), took, failure));
    }

    /// Prints the table of times; the exit code for `main`.
    pub fn finish(self) -> ExitCode {
        if self.list {
            return ExitCode::SUCCESS;
        }
        println!("\n{:>8}  part", "seconds");
        for (name, took, failure) in &self.parts {
            println!("{:8.1}  {name}{}", took.as_secs_f64(), if failure.is_some() { "  FAILED" } else { "" });
        }
        let failed = self.parts.iter().filter(|(_, _, failure)| failure.is_some()).count();
        println!(
            "{:8.1}  {} parts, {failed} failed{}",
            self.begun.elapsed().as_secs_f64(),
            self.parts.len(),
            if self.skipped > 0 { format!(", {} not selected", self.skipped) } else { String::new() }
        );
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(args: &[&str]) -> Suite {
        Suite::new(args.iter().map(|a| (*a).to_owned()))
    }

    #[test]
    fn errors_and_panics_fail_the_suite_and_the_rest_still_runs() {
        let mut s = suite(&[]);
        s.part("a", || anyhow::bail!("no"));
        s.part("b", || panic!("oh"));
        s.part("c", || Ok(()));
        let failures: Vec<_> = s.parts.iter().map(|(_, _, f)| f.as_deref()).collect();
        assert_eq!(failures, [Some("no"), Some("oh"), None]);
        assert_eq!(format!("{:?}", s.finish()), format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn only_what_is_selected_runs() {
        let mut s = suite(&["set", "--nocapture"]);
        assert!(s.wants(&["flood", "reset"]) && !s.wants(&["flood"]));
        let mut ran = Vec::new();
        for name in ["flood", "reset"] {
            s.part(name, || {
                ran.push(name);
                Ok(())
            });
        }
        assert_eq!(ran, ["reset"]);
        assert!(!suite(&["--list"]).wants(&["reset"]));
    }
}
