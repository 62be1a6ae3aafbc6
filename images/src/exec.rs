// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the host's programs so that a cancelled caller leaves none of them behind.

use crate::{Error, Result};
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A child that is terminated when it is dropped before its end.
pub(crate) struct Guarded(pub(crate) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // SIGTERM first: apt, make and cargo end their own children on it.
            if let Some(pid) = rustix::process::Pid::from_raw(self.0.id() as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
            for _ in 0..100 {
                if !matches!(self.0.try_wait(), Ok(None)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// What a program said and how it ended.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// The last lines of everything it said.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let all = format!("{}\n{}", self.stdout.trim_end(), self.stderr.trim_end());
        let all: Vec<_> = all.lines().filter(|l| !l.trim().is_empty()).collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// The error of a program that was to do `what`, with the last lines of everything it said.
    pub(crate) fn failed(&self, what: impl Display, lines: usize) -> Error {
        Error::build(what, self.status, self.tail(lines))
    }

    /// This, or that error if it does not say that it was successful.
    pub(crate) fn success(self, what: impl FnOnce() -> String, lines: usize) -> Result<Output> {
        if self.status.success() { Ok(self) } else { Err(self.failed(what(), lines)) }
    }
}

/// Runs `command` to its end, calling `tick` now and then. Its output goes through files, so no pipe can fill up.
pub(crate) fn run(command: &mut Command, cancel: &Arc<AtomicBool>, mut tick: impl FnMut()) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let scratch = || tempfile::tempfile().map_err(Error::io("cannot create a temporary file in", std::env::temp_dir()));
    let (mut out, mut err) = (scratch()?, scratch()?);
    let share = |f: &File| f.try_clone().map_err(Error::io("cannot use a temporary file in", std::env::temp_dir()));
    command.stdin(Stdio::null()).stdout(share(&out)?).stderr(share(&err)?);
    let mut child = Guarded(command.spawn().map_err(|source| spawn_error(&program, source))?);
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        match child.0.try_wait() {
            Ok(Some(status)) => {
                // Ctrl-C reaches the child too, and perhaps before the caller's handler has raised the flag.
                if !status.success() {
                    std::thread::sleep(Duration::from_millis(50));
                    if cancel.load(Ordering::Relaxed) {
                        return Err(Error::Interrupted);
                    }
                }
                break status;
            }
            Ok(None) => {}
            Err(source) => {
                return Err(Error::Spawn { program, source, remedy: "try again".into() });
            }
        }
        tick();
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let text = |f: &mut File| {
        let mut bytes = Vec::new();
        let _ = f.rewind();
        let _ = f.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Output { status, stdout: text(&mut out), stderr: text(&mut err) })
}

/// An error that says which package a missing program is in.
pub(crate) fn spawn_error(program: &str, source: std::io::Error) -> Error {
    let package = match program {
        "apt-get" | "apt-cache" => "apt (this needs a Debian host)",
        "dpkg-deb" | "dpkg" => "dpkg (this needs a Debian host)",
        "unshare" | "mount" => "util-linux",
        "chroot" => "coreutils",
        "tar" => "tar",
        _ => "",
    };
    let remedy =
        if package.is_empty() { "check that it is in PATH".into() } else { format!("it is in the package {package}") };
    Error::Spawn { program: program.into(), source, remedy }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    /// A program that is this script, and what `ask` makes of it.
    pub(crate) fn of_script<T>(path: &Path, script: &str, ask: impl Fn() -> Result<T>) -> Result<T> {
        std::fs::write(path, script).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        // Another test's fork may still hold the script open for writing.
        for _ in 0..50 {
            match ask() {
                Err(Error::Spawn { source, .. }) if source.raw_os_error() == Some(26) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => return other,
            }
        }
        panic!("the script stays busy");
    }

    #[test]
    fn output_and_status_come_back_whole() {
        let cancel = Arc::default();
        let script = "seq 100000; echo oops >&2; exit 3";
        let out = run(Command::new("sh").args(["-c", script]), &cancel, || ()).unwrap();
        assert_eq!(out.status.code(), Some(3));
        assert_eq!(out.stdout.lines().count(), 100_000);
        assert_eq!(out.tail(2), "100000\noops");
    }

    #[test]
    fn a_cancelled_caller_leaves_no_child() {
        let cancel = Arc::new(AtomicBool::new(false));
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!("echo $$ >{}; exec sleep 1000", pid_file.display());
        let result = run(Command::new("sh").args(["-c", &script]), &cancel, || {
            if std::fs::read_to_string(&pid_file).is_ok_and(|p| p.ends_with('\n')) {
                cancel.store(true, Ordering::Relaxed);
            }
        });
        assert!(matches!(result, Err(Error::Interrupted)));
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let e = spawn_error("dpkg-deb", std::io::ErrorKind::NotFound.into()).to_string();
        assert!(e.contains("dpkg-deb") && e.contains("package dpkg"), "{e}");
        let result = run(&mut Command::new("/nonexistent/x"), &Arc::default(), || ());
        assert!(matches!(result, Err(Error::Spawn { .. })));
    }
}
