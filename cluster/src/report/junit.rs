// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as JUnit XML: a suite for each node, a case for each test without subtests.

use super::{Outcome, Suite, Test, first_line};
use crate::{Error, Result};
use quick_junit::{NonSuccessKind, Property, Report, TestCase, TestCaseStatus, TestSuite, XmlString};

pub(super) fn report(suites: &[Suite]) -> Result<Vec<u8>> {
    let mut report = Report::new("telegraphos");
    report.set_time(suites.iter().map(|suite| suite.took).max().unwrap_or_default());
    for suite in suites {
        let mut to = TestSuite::new(text(&suite.name));
        to.set_time(suite.took);
        to.extra.insert("hostname".into(), text(&suite.name));
        to.add_property(Property::new("hostname", text(&suite.name)));
        if !suite.kernel.is_empty() {
            to.add_property(Property::new("kernel", text(&suite.kernel)));
        }
        to.set_system_out(text(&suite.out)).set_system_err(text(&suite.err));
        cases(&mut to, &suite.name, &suite.tests);
        report.add_test_suite(to);
    }
    let mut bytes = Vec::new();
    let fail = |e| Error::io("cannot write", "JUnit XML")(std::io::Error::other(e));
    report.serialize(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

/// What XML may have: no control characters and no "non-characters", which the library leaves in.
fn text(text: &str) -> XmlString {
    XmlString::new(text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}"))
}

fn cases(to: &mut TestSuite, class: &str, tests: &[Test]) {
    for test in tests {
        cases(to, &format!("{class}.{}", test.name), &test.subtests);
        // That of subtests is the outcome of one of these, unless it is of its own.
        if test.subtests.is_empty() || (test.has_failed() && !test.subtests.iter().any(Test::has_failed)) {
            let mut case = TestCase::new(text(&test.name), status(test));
            case.set_classname(text(class)).set_time(test.took);
            to.add_test_case(case);
        }
    }
}

fn status(test: &Test) -> TestCaseStatus {
    let (kind, why) = match &test.outcome {
        Outcome::Passed => return TestCaseStatus::success(),
        Outcome::Skipped(why) => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(text(why));
            return status;
        }
        Outcome::Failed(why) => (NonSuccessKind::Failure, why),
        Outcome::Error { why, .. } => (NonSuccessKind::Error, why),
    };
    let mut status = TestCaseStatus::non_success(kind);
    let all = [why.as_str(), &test.notes].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n");
    let message = first_line(&all);
    status.set_message(text(if message.is_empty() { "not ok" } else { message }));
    status.set_type(if kind == NonSuccessKind::Error { "error" } else { "failure" }).set_description(text(&all));
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str, outcome: Outcome, subtests: Vec<Test>) -> Test {
        Test { name: name.into(), outcome, subtests, notes: "left: 1\nright: 2\n".into(), ..Test::default() }
    }

    #[test]
    fn cases_are_the_tests_without_subtests_and_what_fails_by_itself() {
        let failed = || Outcome::Failed(String::new());
        let error = Outcome::Error { why: "node 0: the kernel has panicked\n--- stack".into(), timeout: false };
        let suite = Suite {
            name: "node0".into(),
            kernel: "6.12".into(),
            out: "out".into(),
            tests: vec![
                test("a", Outcome::Passed, vec![]),
                test(
                    "b",
                    failed(),
                    vec![test("c", failed(), vec![]), test("d", Outcome::Skipped("no".into()), vec![])],
                ),
                test("e", failed(), vec![test("f", Outcome::Passed, vec![])]),
                test("g", error, vec![]),
            ],
            ..Suite::default()
        };
        let xml =
            String::from_utf8(report(&[suite, Suite { name: "node1".into(), ..Suite::default() }]).unwrap()).unwrap();
        let document = roxmltree::Document::parse(&xml).unwrap();
        let all: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testcase")).collect();
        let names: Vec<_> = all.iter().map(|case| (case.attribute("classname"), case.attribute("name"))).collect();
        let wanted =
            [("node0", "a"), ("node0.b", "c"), ("node0.b", "d"), ("node0.e", "f"), ("node0", "e"), ("node0", "g")];
        assert_eq!(names, wanted.map(|(class, name)| (Some(class), Some(name))));
        let suites: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testsuite")).collect();
        let count = |name| suites[0].attribute(name).unwrap().to_owned();
        assert_eq!([count("tests"), count("failures"), count("errors"), count("skipped")], ["6", "2", "1", "1"]);
        assert_eq!(
            (suites.len(), suites[1].attribute("name"), suites[0].attribute("hostname")),
            (2, Some("node1"), Some("node0"))
        );
        let failure = all[1].children().find(|node| node.has_tag_name("failure")).unwrap();
        assert_eq!((failure.attribute("message"), failure.text()), (Some("left: 1"), Some("left: 1\nright: 2\n")));
        let error = all[5].children().find(|node| node.has_tag_name("error")).unwrap();
        assert_eq!(error.attribute("message"), Some("node 0: the kernel has panicked"));
    }

    /// Every character below 256 and those at the edges of what XML has.
    #[test]
    fn whatever_a_guest_prints_is_xml() {
        let mut odd: String = (0..=255u8).map(char::from).collect();
        odd.extend(['\u{2028}', '\u{d7ff}', '\u{e000}', '\u{fffd}', '\u{fffe}', '\u{ffff}', '\u{10ffff}']);
        odd += "]]><![CDATA[&amp;<a b='\">--> \u{1b}[31mred\u{1b}[0m \u{1b}]0;title";
        for skip in 0..odd.chars().count() {
            let odd: String = odd.chars().skip(skip).collect();
            let outcomes = [Outcome::Failed(odd.clone()), Outcome::Skipped(odd.clone()), Outcome::Passed];
            let mut tests: Vec<Test> = outcomes.map(|outcome| test(&odd, outcome, Vec::new())).into();
            tests[0].notes = odd.clone();
            let suite = Suite {
                name: odd.clone(),
                kernel: odd.clone(),
                out: odd.clone(),
                err: odd.clone(),
                tests,
                took: Default::default(),
            };
            let xml = String::from_utf8(report(&[suite]).unwrap()).unwrap();
            if let Err(e) = roxmltree::Document::parse(&xml) {
                panic!("from character {skip} on: {e}");
            }
        }
    }
}
