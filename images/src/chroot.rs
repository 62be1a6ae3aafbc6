// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs inside an unpacked root: as root directly, else in a user namespace of our own.

use crate::store::Store;
use crate::{Error, Result, exec, owners};
use std::path::Path;
use std::process::{Command, Stdio};

/// Mounts what kbuild's tools need (objtool of 7.x reads /proc), then becomes the command.
const ENTER: &str = r#"set -e
root="$1"; shift
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C "$@""#;

/// Without the right to mount, a copy of the one file of /proc that objtool insists on must do; it looks up
/// its stack there, for the message of a crash.
const ENTER_PLAIN: &str = r#"set -e
root="$1"; shift
mkdir -p "$root/proc/self" "$root/dev" "$root/tmp"
[ -e "$root/proc/self/maps" ] || cat /proc/self/maps >"$root/proc/self/maps"
[ -c "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C "$@""#;

/// Options of `unshare` for an ordinary user, who is root in a user namespace.
const USER: [&str; 2] = ["--user", "--map-root-user"];

/// To whom belongs what a program makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owners {
    /// To root, which is the user who runs this.
    Root,
    /// To those whom it names.
    Several,
}

/// A command line to run inside `root`.
pub(crate) fn run(store: &Store, root: &Path, owners: Owners, argv: &[&str]) -> Result<exec::Output> {
    let (mut command, script) = match options(store, owners)? {
        Some(options) => (unshare(options, "sh"), ENTER),
        None => (Command::new("sh"), ENTER_PLAIN),
    };
    command.args(["-c", script, "enter"]).arg(root).args(argv);
    exec::run(&mut command, &store.cancel, || ())
}

/// Whether [`run`] can be called on this host.
pub(crate) fn check(store: &Store, owners: Owners) -> Result<()> {
    options(store, owners).map(drop)
}

/// A program in a private mount namespace.
fn unshare(options: &[&str], program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(options).args(["--mount", "--propagation", "private", "--", program]);
    command
}

/// Options of `unshare` with which a root can be entered on this host; none for a root user that may not mount (in a
/// plain container) and has no /proc inside.
fn options(store: &Store, owners: Owners) -> Result<Option<&'static [&'static str]>> {
    let can = |options: &[&str]| {
        let mut trial = unshare(options, "true");
        trial.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        trial.status().map(|status| status.success()).map_err(|e| exec::spawn_error("unshare", e))
    };
    if rustix::process::geteuid().is_root() {
        return Ok(if can(&[])? { Some(&[]) } else { None });
    }
    if can(&USER)? {
        return match owners {
            Owners::Root => Ok(Some(&USER)),
            Owners::Several if can(&owners::NAMESPACE)? => Ok(Some(&owners::NAMESPACE)),
            Owners::Several => Err(owners::missing()),
        };
    }
    let setting =
        |name: &str| std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok().map(|s| s.trim().to_owned());
    Err(needs_root(setting, &same_command(store.path())))
}

/// This very command, for root, with the user's cache, programs and home.
fn same_command(cache: &Path) -> String {
    let quote = |text: String| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c));
        if plain && !text.is_empty() { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
    };
    let mut words = vec!["env".to_owned()];
    for name in ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "CARGO"] {
        words.extend(std::env::var(name).ok().map(|v| format!("{name}={}", quote(v))));
    }
    words.push(format!("TELEGRAPHOS_CACHE={}", quote(cache.display().to_string())));
    let this = std::env::current_exe().ok().map(|p| p.display().to_string());
    words.extend(this.map(quote));
    words.extend(std::env::args().skip(1).map(quote));
    words.join(" ")
}

/// Which one command makes user namespaces work here, or does the work without them.
fn needs_root(setting: impl Fn(&str) -> Option<String>, again: &str) -> Error {
    let knobs = [
        ("kernel/unprivileged_userns_clone", "0", "1"),
        ("user/max_user_namespaces", "0", "10000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
    ];
    for (knob, off, on) in knobs {
        if setting(knob).as_deref() == Some(off) {
            let reason = format!("building the guest driver needs root or user namespaces, and {knob} is {off} here");
            return Error::needs_root(reason, format!("sysctl -w {}={on}", knob.replace('/', ".")));
        }
    }
    Error::needs_root(
        "building the guest driver needs root or user namespaces, and this host refuses the latter",
        again,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_command_fits_the_host() {
        let with = |name: &'static str, value: &'static str| {
            needs_root(move |n| (n == name).then(|| value.to_owned()), "env X=1 /bin/telegraphos demo").to_string()
        };
        assert!(with("kernel/unprivileged_userns_clone", "0").contains("sysctl -w kernel.unprivileged_userns_clone=1"));
        assert!(with("user/max_user_namespaces", "0").contains("sysctl -w user.max_user_namespaces=10000"));
        assert!(with("kernel/apparmor_restrict_unprivileged_userns", "1").contains("apparmor_restrict"));
        let other = with("user/max_user_namespaces", "96343");
        assert!(other.contains("\n    env X=1 /bin/telegraphos demo\n"), "{other}");
    }
}
