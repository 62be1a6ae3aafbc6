// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a test.

use crate::eventually;
use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A process that is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Daemon(Child);

/// How a program ended, and what it wrote, as far as that was piped.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Runs a program to its end without input, both outputs piped. Panics if it cannot be started or does not end.
    pub fn of(command: &mut Command) -> Ended {
        Daemon::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())).finish()
    }

    /// Its exit code; none if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> impl FnOnce() -> String {
    let reader = pipe.map(|mut pipe| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes).unwrap_or_else(|e| panic!("cannot read a pipe: {e}"))
        })
    });
    let bytes = move || reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    move || String::from_utf8(bytes()).unwrap_or_else(|e| panic!("the output is not UTF-8: {e}"))
}

impl Daemon {
    /// Starts it. Panics if it cannot be started.
    pub fn start(command: &mut Command) -> Daemon {
        Daemon(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// Waits until it ends by itself. Panics if it does not.
    pub fn finish(mut self) -> Ended {
        let (stdout, stderr) = (drain(self.stdout.take()), drain(self.stderr.take()));
        let status = eventually("the end of the process", || {
            self.try_wait().unwrap_or_else(|e| panic!("cannot wait for the process: {e}"))
        });
        Ended { status, stdout: stdout(), stderr: stderr() }
    }
}

impl Deref for Daemon {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Daemon {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail if it has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_wrote_and_returned_is_kept() {
        // More than a pipe holds.
        let script = "head -c 100000 /dev/zero | tr '\\0' x; echo wrong >&2; exit 3";
        let ended = Ended::of(Command::new("sh").args(["-c", script]));
        assert_eq!((ended.code(), ended.stdout.len(), ended.stderr.as_str()), (Some(3), 100_000, "wrong\n"));
    }

    #[test]
    fn it_ends_with_the_test() {
        let sleeper = Daemon::start(Command::new("sleep").arg("1000"));
        let process = std::path::PathBuf::from(format!("/proc/{}", sleeper.id()));
        assert!(process.exists());
        drop(sleeper);
        assert!(!process.exists());
    }
}
