// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the parts of a test that share booted guests, which are expensive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use telegraphos_testkit::{Scale, panic_message};

/// A line of a plan: `NAME`, or `NAME: WHY` for a part that does not run for each change.
#[derive(Debug)]
struct Planned {
    name: String,
    /// The names of what shows the same for each change, or `long`.
    instead: Option<String>,
}

impl Planned {
    fn new(line: String) -> Planned {
        match line.split_once(':') {
            Some((name, instead)) => Planned { name: name.to_owned(), instead: Some(instead.trim().to_owned()) },
            None => Planned { name: line, instead: None },
        }
    }
}

/// The parts that have run.
#[derive(Debug, Default)]
struct Done {
    /// Names of parts that were reached, selected or not.
    came: Vec<String>,
    skipped: usize,
    parts: Vec<(String, Duration, Option<String>)>,
}

/// Parts that run one after the other, since they share a cluster or depend on their order.
pub type Group<'a> = &'a (dyn Fn(&Suite) + Sync);

/// The parts that are to run, and those that have. The plan lists all of them: a part that is missing or not in the
/// plan fails the suite.
#[derive(Debug)]
pub struct Suite {
    plan: Vec<Planned>,
    /// Whether parts run that are not for each change.
    scale: Scale,
    filter: Vec<String>,
    list: bool,
    done: Mutex<Done>,
    begun: Instant,
}

impl Suite {
    /// Takes the plan, one name a line (`#` begins a comment, a colon what a part that is not for each change has in
    /// its place), and the arguments of `cargo test`: words of which a part's name must contain one; `--list` runs
    /// nothing. Other options are ignored. Without words all parts run at [`Scale::Full`], at [`Scale::Ci`] those for
    /// each change. Prints how many parts are to run, as TAP does.
    pub fn new(plan: &str, scale: Scale, args: impl IntoIterator<Item = String>) -> Suite {
        let mut suite = Suite {
            plan: crate::plan(plan).map(Planned::new).collect(),
            scale,
            filter: Vec::new(),
            list: false,
            done: Mutex::default(),
            begun: Instant::now(),
        };
        for arg in args {
            match arg.as_str() {
                "--list" => suite.list = true,
                option if option.starts_with('-') => {}
                word => suite.filter.push(word.to_owned()),
            }
        }
        if !suite.list {
            println!("1..{}", suite.plan.iter().filter(|planned| suite.selected(&planned.name)).count());
        }
        suite
    }

    /// Whether parts only say their names.
    pub fn lists(&self) -> bool {
        self.list
    }

    /// Runs these groups, so many of them at a time, each as soon as one before it has ended.
    pub fn groups(&self, at_a_time: usize, groups: &[Group<'_>]) {
        let next = AtomicUsize::new(0);
        let run = || {
            while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                group(self);
            }
        };
        // Names are listed in one order.
        let threads = if self.list { 1 } else { at_a_time };
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    }

    /// A part that panics does so outside.
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any of these parts is to be run; avoids booting guests for none.
    pub fn selects(&self, names: &[&str]) -> bool {
        !self.list && names.iter().any(|name| self.selected(name))
    }

    fn selected(&self, name: &str) -> bool {
        let is_long = || self.plan.iter().any(|planned| planned.name == name && planned.instead.is_some());
        match self.filter.as_slice() {
            [] => self.scale == Scale::Full || !is_long(),
            words => words.iter().any(|word| name.contains(word.as_str())),
        }
    }

    /// Runs one part if it is selected. An error or a panic fails it, and with it the suite.
    pub fn part(&self, name: &str, body: impl FnOnce() -> anyhow::Result<()>) {
        self.done().came.push(name.to_owned());
        if self.list {
            println!("{name}: test");
            return;
        }
        if !self.selected(name) {
            self.done().skipped += 1;
            return;
        }
        println!("part {name} ...");
        let begun = Instant::now();
        let failure = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!("{e:#}")),
            Err(panic) => Some(panic_message(panic.as_ref())),
        };
        let took = begun.elapsed();
        match &failure {
            None => println!("part {name} ok ({:.1} s)", took.as_secs_f64()),
            Some(why) => println!("part {name} FAILED ({:.1} s)\n{why}\n", took.as_secs_f64()),
        }
        self.done().parts.push((name.to_owned(), took, failure));
    }

    /// The differences between the reached parts and the plan, which has each once.
    fn strays(&self) -> Vec<String> {
        let came = &self.done().came;
        let plan: Vec<String> = self.plan.iter().map(|planned| planned.name.clone()).collect();
        let times = |list: &[String], name: &String| list.iter().filter(|other| *other == name).count();
        let mut strays = Vec::new();
        for name in &plan {
            match times(came, name) {
                0 => strays.push(format!("{name} is in the plan and did not come")),
                1 => {}
                n => strays.push(format!("{name} came {n} times")),
            }
        }
        strays.extend(
            came.iter()
                .filter(|name| times(&plan, name) != 1)
                .map(|name| format!("{name} is {} times in the plan: expected once", times(&plan, name))),
        );
        strays
    }

    /// Prints the table of times; the exit code for `main`.
    pub fn finish(&self) -> ExitCode {
        let strays = self.strays();
        for stray in &strays {
            println!("NOT AS PLANNED: {stray}");
        }
        if self.list {
            return if strays.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        let Done { parts, skipped, .. } = &*self.done();
        println!("\n{:>8}  part", "seconds");
        for (name, took, failure) in parts {
            println!("{:8.1}  {name}{}", took.as_secs_f64(), if failure.is_some() { "  FAILED" } else { "" });
        }
        let failed = parts.iter().filter(|(_, _, failure)| failure.is_some()).count();
        println!(
            "{:8.1}  {} of {} parts, {failed} failed{}",
            self.begun.elapsed().as_secs_f64(),
            parts.len(),
            self.plan.len(),
            if *skipped > 0 { format!(", {skipped} not selected") } else { String::new() }
        );
        // A word that selects no part is an error: nothing was tested.
        let empty = parts.is_empty();
        if empty {
            println!("no part's name contains any of {:?}", self.filter);
        }
        if failed == 0 && strays.is_empty() && !empty { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::process::Command;

    fn suite(plan: &str, args: &[&str]) -> Suite {
        Suite::new(plan, Scale::Ci, args.iter().map(|a| (*a).to_owned()))
    }

    fn code(suite: &Suite) -> String {
        format!("{:?}", suite.finish())
    }

    fn failure() -> String {
        format!("{:?}", ExitCode::FAILURE)
    }

    #[test]
    fn errors_and_panics_fail_the_suite_and_the_rest_still_runs() {
        let s = suite("a\nb\nc", &[]);
        s.part("a", || anyhow::bail!("no"));
        s.part("b", || panic!("oh"));
        s.part("c", || Ok(()));
        let failures: Vec<_> = s.done().parts.iter().map(|(_, _, f)| f.clone()).collect();
        assert_eq!(failures, [Some("no".to_owned()), Some("oh".to_owned()), None]);
        assert_eq!(code(&s), failure());
    }

    #[test]
    fn groups_run_beside_each_other_and_the_parts_of_each_in_order() {
        let names = ["a1", "a2", "b1", "b2", "c1"];
        let s = suite(&names.join("\n"), &[]);
        let both = std::sync::Barrier::new(2);
        let meet = || {
            both.wait();
            Ok(())
        };
        let a = |s: &Suite| ["a1", "a2"].iter().for_each(|name| s.part(name, meet));
        let b = |s: &Suite| ["b1", "b2"].iter().for_each(|name| s.part(name, meet));
        let c = |s: &Suite| s.part("c1", || Ok(()));
        s.groups(2, &[&a, &b, &c]);
        let came = s.done().came.clone();
        let place = |name: &str| came.iter().position(|other| other == name);
        assert!(place("a1") < place("a2") && place("b1") < place("b2"), "{came:?}");
        assert_eq!(code(&s), format!("{:?}", ExitCode::SUCCESS));
        let listed = suite(&names.join("\n"), &["--list"]);
        listed.groups(2, &[&a, &b, &c]);
        assert_eq!(listed.done().came, names);
    }

    #[test]
    fn only_what_is_selected_runs() {
        let s = suite("flood\nreset", &["set", "--nocapture"]);
        assert!(s.selects(&["flood", "reset"]) && !s.selects(&["flood"]));
        let mut ran = Vec::new();
        for name in ["flood", "reset"] {
            s.part(name, || {
                ran.push(name);
                Ok(())
            });
        }
        assert_eq!(ran, ["reset"]);
        assert_eq!(code(&s), format!("{:?}", ExitCode::SUCCESS));
        assert!(!suite("", &["--list"]).selects(&["reset"]));
    }

    #[test]
    fn long_parts_run_at_full_scale_or_by_their_names() {
        let selected = |scale, args: &[&str]| {
            let s = Suite::new("short\nflood: short", scale, args.iter().map(|a| (*a).to_owned()));
            ["short", "flood"].map(|name| s.selects(&[name]))
        };
        assert_eq!(selected(Scale::Ci, &[]), [true, false]);
        assert_eq!(selected(Scale::Full, &[]), [true, true]);
        assert_eq!(selected(Scale::Ci, &["flood"]), [false, true]);
    }

    /// Behind a long part is `long`, or the names of what shows the same for each change: parts that do, or tests.
    #[test]
    fn what_shows_the_same_for_each_change_is_there() {
        let plan = suite(include_str!("../parts/plan.txt"), &[]).plan;
        let each: BTreeSet<&str> = plan.iter().filter(|p| p.instead.is_none()).map(|p| p.name.as_str()).collect();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tests =
            Command::new("git").args(["grep", "-hoE", "fn [a-z0-9_]+\\(", "--", "*.rs"]).current_dir(root).output();
        let tests = String::from_utf8(tests.unwrap().stdout).unwrap();
        let tests: BTreeSet<&str> = tests.lines().map(|line| line["fn ".len()..].trim_end_matches('(')).collect();
        let (mut long, mut seen) = (0, 0);
        for part in &plan {
            let Some(instead) = &part.instead else { continue };
            if instead == "long" {
                long += 1;
                continue;
            }
            for name in instead.split_whitespace() {
                assert!(each.contains(name) || tests.contains(name), "{}: there is no {name:?}", part.name);
                seen += 1;
            }
        }
        assert!(each.len() > 80 && seen > 30, "{} parts for each change, {seen} tests of others", each.len());
        assert!(long <= 12, "{long} long parts that nothing else shows");
    }

    #[test]
    fn a_part_that_is_missing_or_new_or_comes_twice_fails_the_suite_though_each_one_passes() {
        let run = |plan: &str, args: &[&str], came: &[&str]| {
            let s = suite(plan, args);
            came.iter().for_each(|name| s.part(name, || Ok(())));
            (s.strays(), code(&s) == failure())
        };
        assert_eq!(run("a\nb", &[], &["b", "a"]), (vec![], false));
        for (plan, came, why) in [
            ("a\nb", &["a"][..], "b is in the plan and did not come"),
            ("a", &["a", "b"], "b is 0 times in the plan: expected once"),
            ("a", &["a", "a"], "a came 2 times"),
            ("a\na", &["a"], "a is 2 times in the plan: expected once"),
        ] {
            // Independent of the selection.
            for args in [&[][..], &["a"], &["--list"]] {
                assert_eq!(run(plan, args, came), (vec![why.to_owned()], true), "{plan:?} {args:?}");
            }
        }
        assert_eq!(run("a", &["z"], &["a"]), (vec![], true), "a word that selects nothing passes");
    }
}
