// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos doctor` on the machine that runs the tests.

use super::{ran, telegraphos};

#[test]
fn a_machine_is_described_without_what_is_private() {
    let home = tempfile::tempdir().unwrap();
    let private = home.path().join("of-alice");
    std::fs::create_dir_all(private.join("cache/guest")).unwrap();
    let mut doctor = telegraphos();
    doctor.arg("doctor").env("HOME", &private).env("TELEGRAPHOS_CACHE", private.join("cache"));
    doctor.env("TELEGRAPHOS_SECRET", "of-alice").env_remove("TELEGRAPHOS_QEMU");
    let (code, said, errors) = ran(&mut doctor);
    assert!(matches!(code, Some(0 | 1)) && errors.is_empty(), "{code:?} {errors}");
    assert_eq!(code == Some(0), said.ends_with("\nNothing is missing.\n"), "{said}");
    let names =
        "telegraphos system processors memory KVM privileges cgroups limits sockets QEMU cache programs variables";
    for name in names.split(' ') {
        assert!(
            said.lines().any(|line| line.starts_with(&format!("{name:<16}")) && line.len() > 16),
            "{name}:\n{said}"
        );
    }
    assert!(said.contains("TELEGRAPHOS_SECRET") && said.contains("has guest\n"), "{said}");
    for secret in ["alice", home.path().to_str().unwrap()] {
        assert!(!said.contains(secret), "{secret:?} is in:\n{said}");
    }
    // Of a short word it would say nothing.
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    assert!(host.len() < 8 || !said.contains(&*host), "{host:?} is in:\n{said}");
}

#[test]
fn a_cache_that_cannot_be_made_and_a_qemu_that_will_not_do_are_named() {
    let (code, said, _) = ran(telegraphos().args(["doctor", "--cache", "/proc/none"]).env("TELEGRAPHOS_QEMU", "/none"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("\nMissing:\n") && said.contains("- cache: its directory cannot be made"), "{said}");
    let cache = tempfile::tempdir().unwrap();
    let mut doctor = telegraphos();
    doctor.args(["doctor", "--cache"]).arg(cache.path()).env("TELEGRAPHOS_QEMU", "/none");
    let (code, said, _) = ran(&mut doctor);
    assert!(code == Some(1) && said.contains("- QEMU: expected QEMU 10.1.1 or newer"), "{said}");
}
