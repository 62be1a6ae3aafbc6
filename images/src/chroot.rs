// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs inside an unpacked root: as root directly, else in a user namespace of our own.

use crate::exec;
use crate::store::Store;
use crate::{Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};

/// How a root can be entered on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Root, with a private mount namespace.
    RootMounts,
    /// Root that may not mount (a plain container): no /proc inside.
    RootPlain,
    /// An ordinary user in a user namespace.
    UserNamespace,
}

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

/// A command line to run inside `root`.
pub(crate) fn run(store: &Store, root: &Path, argv: &[&str]) -> Result<exec::Output> {
    let way = way(store)?;
    let mut command = Command::new(if way == Way::RootPlain { "sh" } else { "unshare" });
    match way {
        Way::RootMounts => command.args(["--mount", "--propagation", "private", "--", "sh"]),
        Way::UserNamespace => {
            command.args(["--user", "--map-root-user", "--mount", "--propagation", "private", "--", "sh"])
        }
        Way::RootPlain => &mut command,
    };
    command.arg("-c").arg(if way == Way::RootPlain { ENTER_PLAIN } else { ENTER }).arg("enter").arg(root).args(argv);
    exec::run(&mut command, &store.cancel, || ())
}

fn way(store: &Store) -> Result<Way> {
    let can = |args: &[&str]| {
        Command::new("unshare")
            .args(args)
            .args(["--mount", "--propagation", "private", "--", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map(|s| s.success())
            .map_err(|e| exec::spawn_error("unshare", e))
    };
    if rustix::process::geteuid().is_root() {
        return Ok(if can(&[])? { Way::RootMounts } else { Way::RootPlain });
    }
    if can(&["--user", "--map-root-user"])? {
        return Ok(Way::UserNamespace);
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
            return Error::NeedsRoot {
                reason: format!("building the guest driver needs root or user namespaces, and {knob} is {off} here",),
                command: format!("sysctl -w {}={on}", knob.replace('/', ".")),
            };
        }
    }
    Error::NeedsRoot {
        reason: "building the guest driver needs root or user namespaces, and this host refuses the latter".into(),
        command: again.into(),
    }
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
