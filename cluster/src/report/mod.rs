// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a command did in every guest, as files for CI: JUnit XML and KTAP. A node whose command prints KTAP has its
//! tests; any other is one test.

mod junit;
mod ktap;
mod saved;

pub(crate) use saved::{Saved, report};

use crate::command::typed;
use crate::{Error, OutputLine, Result, Status, directory_of};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of what a command writes to each of its outputs, the end is kept.
const OUTPUT: usize = 64 << 10;
/// Of that, so many bytes are in the text of a command that fails and prints no KTAP.
const TAIL: usize = 4 << 10;

/// How a test of a report ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    #[default]
    Passed,
    /// With what its result says beside its notes.
    Failed(String),
    /// With the reason, also for a failure that is known (`XFAIL`, `TODO`).
    Skipped(String),
    /// It could not be followed to its end.
    Error { why: String, timeout: bool },
}

impl Outcome {
    fn why(&self) -> &str {
        match self {
            Outcome::Passed | Outcome::Skipped(_) => "",
            Outcome::Failed(why) | Outcome::Error { why, .. } => why,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Test {
    pub name: String,
    pub outcome: Outcome,
    /// The lines before its result.
    notes: String,
    /// Between its result and the one before, as they came.
    took: Duration,
    subtests: Vec<Test>,
}

impl Test {
    pub fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_) | Outcome::Error { .. })
    }
}

/// The top-level tests of a program's KTAP; `None` if it printed none. A report that is cut short, or of other length
/// than its plan, has a test `plan` that failed.
pub fn tests(output: &str) -> Option<Vec<Test>> {
    let mut reader = ktap::Reader::default();
    output.lines().for_each(|line| reader.line(line, Duration::ZERO));
    reader.end()
}

#[derive(Debug, Default)]
struct Suite {
    name: String,
    kernel: String,
    took: Duration,
    tests: Vec<Test>,
    out: String,
    err: String,
}

/// The end of a text that comes in lines.
#[derive(Debug, Default)]
struct End {
    lines: VecDeque<String>,
    bytes: usize,
}

impl End {
    fn push(&mut self, line: &str) {
        let skip = line.len().saturating_sub(OUTPUT / 2);
        let skip = (skip..=line.len()).find(|at| line.is_char_boundary(*at)).unwrap_or(line.len());
        let line = &line[skip..];
        self.bytes += line.len() + 1;
        self.lines.push_back(line.to_owned());
        while self.bytes > OUTPUT {
            let Some(first) = self.lines.pop_front() else { return };
            self.bytes -= first.len() + 1;
        }
    }

    fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [line, "\n"]).collect()
    }

    /// The last lines, of about so many bytes.
    fn last(&self, most: usize) -> String {
        let mut bytes = 0;
        let lines = self.lines.iter().rev().take_while(|line| {
            bytes += line.len() + 1;
            bytes <= most
        });
        let mut lines: Vec<&str> = lines.map(String::as_str).collect();
        lines.reverse();
        lines.join("\n")
    }
}

fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("")
}

/// How a command ended, or why it could not be followed, with the exit code of that.
type Ended = Result<Status, (String, u8)>;

#[derive(Debug, Default)]
struct Node {
    name: String,
    kernel: String,
    ktap: ktap::Reader,
    out: End,
    err: End,
    end: Option<(Ended, Duration)>,
}

/// Takes in what a command does in every guest.
#[derive(Debug)]
pub(crate) struct Recorder {
    command: String,
    nodes: Vec<Node>,
    begun: Option<Instant>,
}

impl Recorder {
    /// Of nodes with these names; nothing has been run.
    pub(crate) fn new(names: impl IntoIterator<Item = String>, argv: &[OsString]) -> Recorder {
        let nodes = names.into_iter().map(|name| Node { name, ..Node::default() }).collect();
        Recorder { command: typed(argv), nodes, begun: None }
    }

    /// The guests are up, with these kernels, and the command begins.
    pub(crate) fn begin(&mut self, kernels: impl IntoIterator<Item = String>) {
        self.begun = Some(Instant::now());
        self.nodes.iter_mut().zip(kernels).for_each(|(node, kernel)| node.kernel = kernel);
    }

    fn now(&self) -> Duration {
        self.begun.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// The next line of a node.
    pub(crate) fn line(&mut self, node: usize, line: &OutputLine) {
        let now = self.now();
        let Some(node) = self.nodes.get_mut(node) else { return };
        match line {
            OutputLine::Stdout(text) => {
                node.ktap.line(text, now);
                node.out.push(text);
            }
            OutputLine::Stderr(text) => node.err.push(text),
        }
    }

    /// The command has ended in a node, or could not be followed.
    pub(crate) fn ended(&mut self, node: usize, result: &Result<Status>) {
        let now = self.now();
        if let Some(node) = self.nodes.get_mut(node) {
            let result = result.as_ref().copied().map_err(|e| (e.to_string(), e.exit_code()));
            node.end = Some((result, now));
        }
    }

    /// The tests of all nodes; `result` is that of the whole command, and says why some could not be followed.
    fn suites(self, result: &Result<u8>) -> Vec<Suite> {
        let (now, command) = (self.now(), self.command.as_str());
        let began = self.begun.is_some();
        let suite = |(n, node): (usize, Node)| {
            let (end, took) = node.end.map_or((None, now), |(end, took)| (Some(end), took));
            let mut tests = node.ktap.end().unwrap_or_default();
            let outcome = match (end, result) {
                (Some(Ok(status)), _) if status.success() || tests.iter().any(Test::has_failed) => Outcome::Passed,
                (Some(Ok(status)), _) => {
                    let text = [status.to_string(), node.out.last(TAIL), node.err.last(TAIL)];
                    Outcome::Failed(text.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
                }
                // What ended the cluster is the reason of this node, or of another.
                (_, Err(e)) if e.node() == Some(n) => error(e.to_string(), e.exit_code()),
                (Some(Err((why, code @ 124))), _) => error(why, code),
                (_, Err(e)) if began || e.node().is_none() => {
                    let what =
                        if began { "the cluster ended before the command did" } else { "the command was not run" };
                    error(format!("{what}: {e}"), e.exit_code())
                }
                (_, Err(e)) => Outcome::Skipped(format!("the command was not run: {}", first_line(&e.to_string()))),
                (Some(Err((why, code))), Ok(_)) => error(why, code),
                (None, Ok(_)) => error("the command was not followed to its end".into(), 1),
            };
            if tests.is_empty() || outcome != Outcome::Passed {
                let own = Test { name: command.to_owned(), outcome, took, ..Test::default() };
                tests.push(own);
            }
            let (out, err) = (node.out.text(), node.err.text());
            Suite { name: node.name, kernel: node.kernel, took, tests, out, err }
        };
        self.nodes.into_iter().enumerate().map(suite).collect()
    }
}

fn error(why: String, code: u8) -> Outcome {
    Outcome::Error { why, timeout: code == 124 }
}

/// Where reports go.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Files {
    /// Writes the results of all nodes into this file as JUnit XML, however the command ends
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Writes the results of all nodes into this file as one KTAP report; - is standard output, which then has nothing
    /// else
    #[arg(long, value_name = "FILE")]
    ktap: Option<PathBuf>,
}

impl Files {
    /// Whether anything is to be reported.
    pub(crate) fn wanted(&self) -> bool {
        self.junit.is_some() || self.ktap.is_some()
    }

    /// Whether standard output is for the report alone.
    pub(crate) fn take_stdout(&self) -> bool {
        self.ktap.as_deref() == Some(Path::new("-"))
    }

    /// Refuses files that cannot be written.
    pub(crate) fn check(&self) -> Result<()> {
        for (option, path) in [("--junit", &self.junit), ("--ktap", &self.ktap)] {
            let Some(path) = path else { continue };
            if path == Path::new("-") {
                if option == "--junit" {
                    return Err(Error::Usage("--junit - is not possible: give the name of a file".into()));
                }
                continue;
            }
            let refuse = |e: std::io::Error| {
                let path = path.display();
                Error::Usage(format!(
                    "{option}: cannot write {path}: {e}; name a file in a directory that you may write"
                ))
            };
            match Target::of(path).map_err(refuse)? {
                Target::Whole(path) => drop(beside(&path).map_err(refuse)?),
                Target::Special => {
                    fs::OpenOptions::new().write(true).open(path).map_err(refuse)?;
                }
            }
        }
        Ok(())
    }

    /// Writes them, each at once and whole.
    pub(crate) fn write(&self, recorder: Recorder, result: &Result<u8>) -> Result<()> {
        if !self.wanted() {
            return Ok(());
        }
        self.write_suites(&recorder.suites(result))
    }

    fn write_suites(&self, suites: &[Suite]) -> Result<()> {
        if let Some(path) = &self.junit {
            write(path, &junit::report(suites)?)?;
        }
        let Some(path) = &self.ktap else { return Ok(()) };
        let text = ktap::merged(suites);
        if self.take_stdout() {
            return std::io::stdout()
                .write_all(text.as_bytes())
                .map_err(Error::io("cannot write to", "standard output"));
        }
        write(path, text.as_bytes())
    }
}

/// What a name stands for.
enum Target {
    /// A file, or nothing yet, at this path; a link is followed.
    Whole(PathBuf),
    /// A pipe or a device, which is not replaced.
    Special,
}

impl Target {
    fn of(path: &Path) -> std::io::Result<Target> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
            Ok(metadata) if metadata.is_file() => path.canonicalize().map(Target::Whole),
            Ok(_) => Ok(Target::Special),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Target::Whole(path.to_path_buf())),
            Err(e) => Err(e),
        }
    }
}

/// A file in the same directory, which goes unless it gets the name.
fn beside(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    // With the user's mask, as any other file.
    tempfile::Builder::new()
        .prefix(".telegraphos-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory_of(path))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let fail = || Error::io("cannot write the report", path);
    match Target::of(path).map_err(fail())? {
        Target::Special => fs::write(path, bytes).map_err(fail()),
        Target::Whole(to) => {
            let mut file = beside(&to).map_err(fail())?;
            file.write_all(bytes).map_err(fail())?;
            file.persist(&to).map(drop).map_err(|e| fail()(e.error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_agent::Exit;

    fn recorder(nodes: usize) -> Recorder {
        Recorder::new((0..nodes).map(|n| format!("node{n}")), &["sh".into(), "test.sh".into()])
    }

    fn status(code: i32) -> Result<Status> {
        Ok(Status::of(Exit::Code(code)))
    }

    fn dead(node: usize) -> Error {
        Error::Dead {
            node: node.into(),
            what: "the kernel has panicked: x".into(),
            tail: "\n--- end of the console\nlast".into(),
        }
    }

    fn lost(node: usize) -> Error {
        Error::Command { node: node.into(), command: "sh".into(), why: "the guest's agent line was closed".into() }
    }

    /// Node, name of the test, and the beginning of its outcome.
    fn outcomes(recorder: Recorder, result: &Result<u8>) -> Vec<String> {
        let suites = recorder.suites(result);
        let one = |suite: &Suite, test: &Test| {
            let (word, why) = match &test.outcome {
                Outcome::Passed => ("passed", String::new()),
                Outcome::Failed(why) => ("failed", why.replace('\n', "|")),
                Outcome::Skipped(why) => ("skipped", why.clone()),
                Outcome::Error { why, timeout: false } => ("error", why.replace('\n', "|")),
                Outcome::Error { why, timeout: true } => ("timeout", why.replace('\n', "|")),
            };
            format!("{} {}: {word} {why}", suite.name, test.name).trim().to_owned()
        };
        suites.iter().flat_map(|suite| suite.tests.iter().map(move |test| one(suite, test))).collect()
    }

    #[test]
    fn a_command_is_one_test_unless_it_prints_ktap() {
        let mut record = recorder(4);
        record.begin((0..4).map(|_| "6.12".to_owned()));
        record.line(1, &OutputLine::Stdout("some".into()));
        record.line(1, &OutputLine::Stderr("cannot open".into()));
        for line in ["KTAP version 1", "1..1", "ok 1 a"] {
            record.line(2, &OutputLine::Stdout(line.into()));
            record.line(3, &OutputLine::Stdout(line.replace("ok", "not ok")));
        }
        for (node, code) in [0, 2, 3, 1].into_iter().enumerate() {
            record.ended(node, &status(code));
        }
        let all = outcomes(record, &Ok(2));
        let wanted = [
            "node0 sh test.sh: passed",
            "node1 sh test.sh: failed exit code 2|some|cannot open",
            "node2 a: passed",
            "node2 sh test.sh: failed exit code 3",
            "node3 a: failed",
        ];
        for (line, wanted) in all.iter().zip(wanted) {
            assert!(line.starts_with(wanted), "{line}: expected {wanted}");
        }
        assert_eq!(all.len(), wanted.len(), "{all:?}");
    }

    #[test]
    fn every_node_is_there_however_the_cluster_ends() {
        // One kernel panics while two commands run; another has ended before.
        let mut record = recorder(3);
        record.begin([]);
        record.ended(0, &status(0));
        record.line(1, &OutputLine::Stdout("KTAP version 1".into()));
        record.line(1, &OutputLine::Stdout("ok 1 a".into()));
        record.ended(1, &Err(lost(1)));
        record.ended(2, &Err(lost(2)));
        let all = outcomes(record, &Err(dead(1)));
        let wanted = [
            "node0 sh test.sh: passed",
            "node1 a: passed",
            "node1 sh test.sh: error node 1: the kernel has panicked: x|--- end of the console|last",
            "node2 sh test.sh: error the cluster ended before the command did: node 1: the kernel has panicked: x|--- end of the \
             console|last",
        ];
        assert_eq!(all, wanted);
        // One does not boot: the others have not been run.
        let all = outcomes(recorder(2), &Err(dead(1)));
        assert_eq!(all[0], "node0 sh test.sh: skipped the command was not run: node 1: the kernel has panicked: x");
        assert!(all[1].starts_with("node1 sh test.sh: error node 1: the kernel"), "{all:?}");
        // The cluster cannot be made, or the user interrupts.
        let all = outcomes(recorder(1), &Err(Error::Interrupted));
        assert_eq!(all, ["node0 sh test.sh: error the command was not run: interrupted"]);
        // The command takes too long in one.
        let mut record = recorder(2);
        record.begin([]);
        let late = |node: usize| Error::Late {
            node: node.into(),
            command: "x".into(),
            limit: Duration::from_secs(2),
            output: String::new(),
        };
        record.ended(0, &Err(late(0)));
        record.ended(1, &Err(late(1)));
        let all = outcomes(record, &Err(late(0)));
        assert_eq!(all[0], "node0 sh test.sh: timeout node 0: x: did not end within 2s");
        assert_eq!(all[1], "node1 sh test.sh: timeout node 1: x: did not end within 2s");
    }

    #[test]
    fn output_is_bounded_at_its_beginning() {
        let mut end = End::default();
        (0..100_000).for_each(|n| end.push(&format!("line {n}")));
        end.push(&"ä".repeat(OUTPUT));
        end.push("last");
        let text = end.text();
        assert!(text.len() <= OUTPUT && text.ends_with("ä\nlast\n") && text.contains("line 99999\n"), "{}", text.len());
        assert_eq!(end.last(10), "last");
    }

    fn files(junit: Option<&Path>, ktap: Option<&Path>) -> Files {
        Files { junit: junit.map(Path::to_path_buf), ktap: ktap.map(Path::to_path_buf) }
    }

    #[test]
    fn files_are_written_whole_and_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (real, link, ktap) = (dir.path().join("real"), dir.path().join("link"), dir.path().join("report.ktap"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let files = files(Some(&link), Some(&ktap));
        files.check().unwrap();
        assert_eq!(fs::read_to_string(&real).unwrap(), "old", "nothing is written before the end");
        files.write(recorder(2), &Err(dead(0))).unwrap();
        let xml = fs::read_to_string(&real).unwrap();
        assert_eq!(roxmltree::Document::parse(&xml).unwrap().root_element().attribute("errors"), Some("1"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&ktap).unwrap().contains("not ok 1 node0\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "something is left");
        // A device is written to and stays.
        let null = Path::new("/dev/null");
        let devices = super::tests::files(None, Some(null));
        devices.check().unwrap();
        devices.write(recorder(1), &Ok(0)).unwrap();
        assert!(!fs::metadata(null).unwrap().is_file());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_refused_first() {
        let dir = tempfile::tempdir().unwrap();
        for (path, why) in [
            (dir.path().join("none/report"), "No such file"),
            (dir.path().to_path_buf(), "directory"),
            ("/proc/report".into(), "/proc/report"),
        ] {
            let e = files(None, Some(&path)).check().unwrap_err();
            let text = e.to_string();
            assert!(e.exit_code() == 2 && text.contains("--ktap") && text.contains(why), "{text}");
        }
        assert!(files(Some(Path::new("-")), None).check().unwrap_err().to_string().contains("--junit"));
        assert!(files(None, Some(Path::new("-"))).check().is_ok() && !files(None, None).wanted());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
