// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of a test.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// A process that is killed and reaped when this is dropped.
#[derive(Debug)]
pub struct Daemon(Child);

impl Daemon {
    /// Starts it. Panics if it cannot be started.
    pub fn start(command: &mut Command) -> Daemon {
        Daemon(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
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
    fn it_ends_with_the_test() {
        let sleeper = Daemon::start(Command::new("sleep").arg("1000"));
        let process = std::path::PathBuf::from(format!("/proc/{}", sleeper.id()));
        assert!(process.exists());
        drop(sleeper);
        assert!(!process.exists());
    }
}
