// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads KTAP, the kernel's test protocol, strictly: a truncated report is an error.

use anyhow::{Result, bail, ensure};
use std::collections::BTreeSet;

/// One top-level test of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its name.
    pub name: String,
    /// Whether it was `ok`.
    pub ok: bool,
    /// The reason after `# SKIP`.
    pub skipped: Option<String>,
}

/// The top-level tests of a whole report: version line, plan, and as many results as planned. Indented lines (subtests)
/// and diagnostics are ignored.
pub fn parse(text: &str) -> Result<Vec<Test>> {
    let mut lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with([' ', '#']));
    let first = lines.next().unwrap_or_default();
    ensure!(first == "KTAP version 1", "the report begins with {first:?}: expected KTAP version 1");
    let plan = lines.next().unwrap_or_default();
    let planned: usize = match plan.strip_prefix("1..").map(str::parse) {
        Some(Ok(n)) => n,
        _ => bail!("after the version comes {plan:?}: expected a plan such as 1..10"),
    };
    let mut tests = Vec::new();
    for line in lines {
        if let Some(why) = line.strip_prefix("Bail out!") {
            bail!("the tests stopped:{why}");
        }
        let (ok, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => continue,
        };
        let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let number: usize = number.parse().map_err(|_| anyhow::anyhow!("a result without number: {line:?}"))?;
        ensure!(number == tests.len() + 1, "result {number} comes where {} was expected", tests.len() + 1);
        let (name, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
        let name = name.trim_start_matches("- ").trim().to_owned();
        let skipped = directive.strip_prefix("SKIP").map(|why| why.trim().to_owned());
        tests.push(Test { name, ok, skipped });
    }
    ensure!(tests.len() == planned, "{} results for a plan of {planned}", tests.len());
    Ok(tests)
}

/// Names in a plan file: one a line, `#` begins a comment.
pub fn plan(text: &str) -> BTreeSet<String> {
    plan_in_order(text).into_iter().collect()
}

/// The same in the file's order, duplicates included.
pub fn plan_in_order(text: &str) -> Vec<String> {
    text.lines()
        .map(|l| l.split('#').next().unwrap_or("").trim())
        .filter(|l| !l.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_report() {
        let text = "KTAP version 1\n1..3\n# hello\n    ok 1 inner\nok 1 - a_b\nnot ok 2 c # diagnostics\nok 3 d # SKIP one node\n";
        let tests = parse(text).unwrap();
        let flat: Vec<_> = tests.iter().map(|t| (t.name.as_str(), t.ok, t.skipped.as_deref())).collect();
        assert_eq!(flat, [("a_b", true, None), ("c", false, None), ("d", true, Some("one node"))]);
    }

    #[test]
    fn what_is_cut_short_or_out_of_order_is_refused() {
        for (text, why) in [
            ("", "begins with"),
            ("KTAP version 1\nok 1 a\n", "expected a plan"),
            ("KTAP version 1\n1..2\nok 1 a\n", "1 results for a plan of 2"),
            ("KTAP version 1\n1..2\nok 2 a\n", "result 2 comes where 1"),
            ("KTAP version 1\n1..2\nok 1 a\nBail out! no device\n", "stopped: no device"),
        ] {
            let e = parse(text).unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn a_plan_has_comments() {
        let names: Vec<_> = plan("# all\na # first\n\n b\n").into_iter().collect();
        assert_eq!(names, ["a", "b"]);
    }
}
