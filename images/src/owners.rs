// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files with several owners, as packages have them. Root makes them as they are; an ordinary user in a user namespace
//! with the subordinate ids that the system has set aside for them (subuid(5)), from which they keep their owners: what
//! is root's there is the user's here, and other owners have numbers that are nobody's.

use crate::Error;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

/// Options of `unshare` for such a namespace.
pub(crate) const NAMESPACE: [&str; 3] = ["--user", "--map-root-user", "--map-auto"];

/// The file beside a root that says that its files have such owners.
pub(crate) const MARK: &str = ".telegraphos-owners";

/// Whether an ordinary user runs this, to whom all owners but one are foreign.
pub(crate) fn are_foreign() -> bool {
    !geteuid().is_root()
}

/// The same command, run where files have their owners.
pub(crate) fn among(command: &Command) -> Command {
    let mut all = Command::new("unshare");
    all.args(NAMESPACE).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => all.env(name, value),
            None => all.env_remove(name),
        };
    }
    all
}

/// What to do where this user has no subordinate ids, or no program that may hand them out.
pub(crate) fn missing() -> Error {
    let user = geteuid().as_raw();
    Error::needs_root(
        "a root of Debian's packages has files of several owners, for which an ordinary user needs subordinate ids \
         (/etc/subuid, /etc/subgid) and newuidmap",
        format!(
            "apt-get install --yes uidmap; \
             usermod --add-subuids 100000-165535 --add-subgids 100000-165535 \"$(id -un {user})\""
        ),
    )
}

/// Removes a directory with all that is in it, whoever owns that.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && are_foreign() => {
            let mut command = Command::new("rm");
            command.args(["-rf".as_ref(), "--".as_ref(), path.as_os_str()] as [&OsStr; 3]);
            let mut command = among(&command);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if command.status()?.success() { Ok(()) } else { Err(e) }
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_keeps_its_arguments_and_environment() {
        let mut inner = Command::new("/x/virtiofsd");
        inner.args(["--socket-path", "/run/fs0"]).env("A", "1").env_remove("B");
        let all = among(&inner);
        let words: Vec<_> = all.get_args().filter_map(OsStr::to_str).collect();
        let expected = ["--user", "--map-root-user", "--map-auto", "--", "/x/virtiofsd", "--socket-path", "/run/fs0"];
        assert_eq!((all.get_program(), &words[..]), ("unshare".as_ref(), &expected[..]));
        assert_eq!(all.get_envs().count(), 2);
    }

    #[test]
    fn what_is_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a");
        std::fs::create_dir_all(place.join("b/c")).unwrap();
        remove(&place).unwrap();
        assert!(!place.exists());
        assert_eq!(remove(&place).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
