// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports of outputs that were kept elsewhere: of machines that others have started.

use super::{Files, Outcome, Recorder, Test};
use crate::{Error, OutputLine, Result, Status};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use telegraphos_agent::Exit;

/// The output of one machine, as NAME=FILE.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    name: String,
    path: PathBuf,
}

impl FromStr for Saved {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Saved, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Saved { name: name.into(), path: path.into() })
            }
            _ => Err("expected NAME=FILE, as in node0=console0.log".into()),
        }
    }
}

/// Bytes of a line that are read at most: what is more is another line.
const LINE: u64 = 64 << 10;

/// Reads the outputs, shows how many tests passed, and writes the reports: 0, or 1 if a test has failed. An output
/// without KTAP is one test that could not be followed.
pub(crate) fn report(files: &Files, saved: &[Saved]) -> Result<u8> {
    files.check()?;
    let mut recorder = Recorder::new(saved.iter().map(|saved| saved.name.clone()), &["report".into()]);
    for (node, Saved { path, .. }) in saved.iter().enumerate() {
        let refuse = |e| Error::Usage(format!("cannot read {}: {e}", path.display()));
        let mut file = BufReader::new(File::open(path).map_err(refuse)?);
        let mut line = Vec::new();
        while file.by_ref().take(LINE).read_until(b'\n', &mut line).map_err(refuse)? > 0 {
            // Consoles end lines with both.
            let text = String::from_utf8_lossy(&line);
            recorder.line(node, &OutputLine::Stdout(text.trim_end_matches(['\r', '\n']).to_owned()));
            line.clear();
        }
        let Some(found) = recorder.nodes.get_mut(node) else { continue };
        let why = || format!("there is no KTAP in {}: expected a line \"KTAP version 1\"", path.display());
        let end = if found.ktap.has_begun() { Ok(Status::of(Exit::Code(0))) } else { Err((why(), 1)) };
        found.end = Some((end, Duration::ZERO));
    }
    let suites = recorder.suites(&Ok(0));
    let mut bad = false;
    for suite in &suites {
        let [mut passed, mut failed, mut skipped] = [0; 3];
        count(&suite.tests, &mut |test| match test.outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(_) | Outcome::Error { .. } => failed += 1,
            Outcome::Skipped(_) => skipped += 1,
        });
        bad |= failed > 0;
        eprintln!("{}: {passed} passed, {failed} failed, {skipped} skipped", suite.name);
    }
    files.write_suites(&suites)?;
    Ok(bad.into())
}

/// All tests that have no subtests.
fn count(tests: &[Test], each: &mut impl FnMut(&Test)) {
    for test in tests {
        if test.subtests.is_empty() { each(test) } else { count(&test.subtests, each) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        files: Files,
        saved: Vec<Saved>,
    }

    #[test]
    fn consoles_become_one_report() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let passed = "SeaBIOS\r\nKTAP version 1\r\n1..2\r\nok 1 a\r\n[   3.1] usb 1-1: new\r\nok 2 b # SKIP no\r\n";
        std::fs::write(path("0"), passed).unwrap();
        std::fs::write(path("1"), [b"KTAP version 1\n1..1\nnot ok 1 \xff\n", &[b'x'; 200_000][..]].concat()).unwrap();
        std::fs::write(path("2"), "Kernel panic\n").unwrap();
        let run = |names: &[&str]| {
            let saved = names.iter().map(|name| format!("node{name}={}", path(name)));
            let words = ["report".to_owned(), "--junit".into(), path("x.xml"), "--ktap".into(), path("x.ktap")];
            let line = Line::try_parse_from(words.into_iter().chain(saved)).unwrap();
            report(&line.files, &line.saved).unwrap()
        };
        assert_eq!((run(&["0"]), run(&["0", "1"]), run(&["0", "2"])), (0, 1, 1));
        let xml = std::fs::read_to_string(path("x.xml")).unwrap();
        assert!(xml.contains("tests=\"3\"") && xml.contains("there is no KTAP in "), "{xml}");
        let ktap = std::fs::read_to_string(path("x.ktap")).unwrap();
        assert!(ktap.starts_with("KTAP version 1\n1..2\n") && ktap.ends_with("not ok 2 node2\n"), "{ktap}");
        for wrong in ["node0", "=x", "node0="] {
            assert!(Line::try_parse_from(["report", wrong]).is_err(), "{wrong}");
        }
        let missing = Line::try_parse_from(["report", "a=/nowhere/at/all"]).unwrap();
        assert_eq!(report(&missing.files, &missing.saved).unwrap_err().exit_code(), 2);
    }
}
