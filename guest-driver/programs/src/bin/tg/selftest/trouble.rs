// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes of a child's action that does not succeed.

use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use telegraphos::Error;

/// Exit code of a child whose action was refused; the errno is its last line.
pub(crate) const REFUSED: i32 = 10;
/// Exit code of a child that found something wrong.
pub(crate) const WRONG: i32 = 11;

pub(crate) enum Trouble {
    Refused(Error),
    Wrong(String),
}

impl From<String> for Trouble {
    fn from(text: String) -> Trouble {
        Trouble::Wrong(text)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Refused(error)
    }
}

pub(crate) fn number(text: &str) -> Result<u64, Trouble> {
    text.parse().map_err(|_| Trouble::Wrong(format!("{text:?} is no number")))
}

/// Access rights, in octal.
pub(crate) fn mode(text: &str) -> Result<u32, Trouble> {
    u32::from_str_radix(text, 8).map_err(|_| Trouble::Wrong(format!("{text:?} is no mode")))
}

/// Runs in a child of this process, which has one thread: how that ended.
pub(crate) fn in_child(run: impl FnOnce() -> i32) -> Result<ExitStatus, Trouble> {
    // SAFETY: this process has one thread, so the child has all that it needs.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = run();
        // SAFETY: nothing of the parent's is to be cleaned up here.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    if pid < 0 || unsafe { libc::waitpid(pid, &mut status, 0) } != pid {
        return Err(Trouble::Wrong(format!("fork: {}", std::io::Error::last_os_error())));
    }
    Ok(ExitStatus::from_raw(status))
}

/// This process may lock so much memory from now on.
pub(crate) fn limit_locked_memory(limit: &str) -> Result<(), Trouble> {
    let limit = Some(number(limit)?);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })
        .map_err(|e| Trouble::Wrong(format!("setrlimit: {e}")))
}
