// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources of any Debian release follow from the host's own, in either form, whatever else the host has.

use std::path::Path;
use telegraphos_images::Error;
use telegraphos_images::sources::{Host, Release, derive, parse_deb822, parse_one_line};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

fn host(codename: &str, sources: Vec<telegraphos_images::sources::Source>) -> Host {
    let id = if codename == "noble" { "ubuntu" } else { "debian" };
    Host { id: id.into(), codename: codename.into(), sources, keyring: Some(KEYRING.into()), looked: "/etc/apt".into() }
}

const DEB822: &str = "\
# what Debian's installer writes
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
 non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

const ONE_LINE: &str = "\
# deb cdrom:[Debian]/ bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] http://mirror.example/debian bookworm main contrib # ours
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian bookworm-updates main
deb\thttp://mirror.example/debian-security bookworm-security main
";

#[test]
fn both_forms_give_the_same_mirror_and_another_suite() {
    for sources in [parse_deb822(DEB822), parse_one_line(ONE_LINE)] {
        let text = derive(&host("bookworm", sources), &Release::named("trixie-backports")).unwrap().text;
        let again = parse_deb822(&text);
        assert_eq!(again.len(), 2, "{text}");
        assert_eq!(again[0].uris, ["http://mirror.example/debian"]);
        assert_eq!(again[0].suites, ["trixie", "trixie-backports"]);
        assert_eq!(again[0].components, ["main"]);
        assert_eq!(again[0].signed_by.as_deref(), Some(KEYRING));
        assert_eq!(again[1].uris, ["http://mirror.example/debian-security"]);
        assert_eq!(again[1].suites, ["trixie-security"]);
    }
}

#[test]
fn host_options_that_do_not_weaken_signatures_are_kept() {
    let sources = parse_one_line("deb [trusted=yes check-valid-until=no] http://m/debian trixie main\n");
    let text = derive(&host("trixie", sources), &Release::named("bookworm")).unwrap().text;
    assert!(text.contains("check-valid-until: no"), "{text}");
    assert!(!text.to_lowercase().contains("trusted"), "{text}");
}

#[test]
fn testing_has_one_suite_and_no_security_archive() {
    let text = derive(&host("bookworm", parse_deb822(DEB822)), &Release::named("testing")).unwrap().text;
    let again = parse_deb822(&text);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].suites, ["testing"]);
}

#[test]
fn other_vendors_that_use_debians_suite_names_are_no_mirrors() {
    let vendors = "\
deb [signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/debian bookworm main
deb https://other.example/linux bookworm stable
deb https://third.example/apt bookworm main
";
    let mut sources = parse_one_line(vendors);
    sources.extend(parse_deb822(DEB822));
    let text = derive(&host("bookworm", sources), &Release::named("trixie")).unwrap().text;
    assert!(text.contains("http://mirror.example/debian\n"), "{text}");
    assert!(!text.contains("vendor") && !text.contains("other") && !text.contains("third"), "{text}");
}

#[test]
fn suites_named_by_their_role_and_disabled_sources() {
    let text = "\
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main
Enabled: no

Types: deb
URIs: mirror+file:///etc/apt/mirrors/debian.list
Suites: stable stable-updates
Components: main
";
    let derived = derive(&host("trixie", parse_deb822(text)), &Release::named("trixie")).unwrap();
    assert!(derived.text.contains("mirror+file:///etc/apt/mirrors/debian.list"), "{}", derived.text);
    // No security source at the host: the main archive alone.
    assert_eq!(parse_deb822(&derived.text).len(), 1);
}

#[test]
fn the_error_of_a_host_without_debian_says_what_to_add() {
    let sources = parse_one_line("deb http://archive.example/ubuntu noble main universe\n");
    let e = derive(&host("noble", sources), &Release::named("trixie")).unwrap_err();
    assert!(matches!(e, Error::NoDebianSource { .. }));
    let text = e.to_string();
    assert!(text.contains("/etc/apt") && text.contains("noble") && text.contains("debian.sources"), "{text}");
}

#[test]
fn a_host_is_read_from_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let etc = dir.path().join("apt");
    std::fs::create_dir_all(etc.join("sources.list.d")).unwrap();
    std::fs::write(dir.path().join("os-release"), "ID=debian\nVERSION_CODENAME=\"trixie\"\n").unwrap();
    std::fs::write(etc.join("sources.list.d/debian.sources"), DEB822.replace("bookworm", "trixie")).unwrap();
    std::fs::write(etc.join("sources.list.d/old.list.save"), "deb http://no.example/debian trixie main\n").unwrap();
    let host = Host::read(&dir.path().join("os-release"), &etc).unwrap();
    assert_eq!((host.codename.as_str(), host.sources.len()), ("trixie", 2));
    assert_eq!(host.release().name, "trixie");
    assert!(derive(&host, &host.release()).unwrap().text.contains("mirror.example"));
    let e = Host::read(Path::new("/nonexistent/os-release"), &etc).unwrap_err().to_string();
    assert!(e.contains("/nonexistent/os-release"), "{e}");
}

/// apt itself must take what is derived here; it needs no network to say so.
#[test]
fn the_hosts_apt_accepts_derived_sources() {
    let host = Host::read(Path::new("/etc/os-release"), Path::new("/etc/apt")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in ["bookworm", "trixie", "trixie-backports", "testing"] {
        let file = dir.path().join("x.sources");
        std::fs::write(&file, derive(&host, &Release::named(name)).unwrap().text).unwrap();
        let out = std::process::Command::new("apt-get")
            .args(["update", "--print-uris", "-o", "Dir::Etc::sourceparts=/dev/null"])
            .arg("-o")
            .arg(format!("Dir::State::lists={}", dir.path().join("lists").display()))
            .arg("-o")
            .arg(format!("Dir::Etc::sourcelist={}", file.display()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(text.contains(&format!("/dists/{name}/")), "{name} is not in {text}");
    }
}
