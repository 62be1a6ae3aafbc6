// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether KVM will really run a guest.

use std::fs;
use std::io;

/// The state of KVM on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvmState {
    /// `/dev/kvm` opens and the processor offers virtualisation.
    Usable,
    /// `/dev/kvm` is there and would fail.
    PresentButUnusable {
        /// Why, with what to do.
        reason: String,
    },
    /// No `/dev/kvm`.
    Absent,
}

/// Tries KVM on this host. The device alone proves nothing: on some hosts it opens but emulates guest kernels and
/// fails, and then `/proc/cpuinfo` shows neither `vmx` nor `svm`.
pub fn kvm_usable() -> KvmState {
    let open = fs::File::options().read(true).write(true).open("/dev/kvm").map(drop);
    kvm_state(open, &fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// The rule behind [`kvm_usable`], as a function of what the host answered.
pub fn kvm_state(open: io::Result<()>, cpuinfo: &str) -> KvmState {
    let unusable = |reason: String| KvmState::PresentButUnusable { reason };
    match open {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return KvmState::Absent,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return unusable(format!("/dev/kvm cannot be opened ({e}); add yourself to the group kvm"));
        }
        Err(e) => return unusable(format!("/dev/kvm cannot be opened ({e})")),
        Ok(()) => {}
    }
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let virtualises = |flags: &str| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    if fields.any(|(key, value)| key.trim() == "flags" && virtualises(value)) {
        return KvmState::Usable;
    }
    unusable("/dev/kvm opens, but /proc/cpuinfo shows neither vmx nor svm, so it cannot run a guest kernel".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITH: &str = "processor\t: 0\nflags\t\t: fpu vme svm sse\n";
    const WITHOUT: &str = "processor\t: 0\nflags\t\t: fpu vme sse\nvmx flags\t: vnmi\nbugs\t: svm\n";

    #[test]
    fn device_and_flag_are_both_needed() {
        assert_eq!(kvm_state(Ok(()), WITH), KvmState::Usable);
        assert_eq!(kvm_state(Ok(()), &WITH.replace("svm", "vmx")), KvmState::Usable);
        let KvmState::PresentButUnusable { reason } = kvm_state(Ok(()), WITHOUT) else { panic!() };
        assert!(reason.contains("vmx") && reason.contains("/dev/kvm"), "{reason}");
    }

    #[test]
    fn absent_is_not_unusable() {
        assert_eq!(kvm_state(Err(io::ErrorKind::NotFound.into()), WITH), KvmState::Absent);
        let KvmState::PresentButUnusable { reason } = kvm_state(Err(io::ErrorKind::PermissionDenied.into()), WITH)
        else {
            panic!()
        };
        assert!(reason.contains("group kvm"), "{reason}");
    }
}
