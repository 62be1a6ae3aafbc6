// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives as a hostile guest writes them.

use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use telegraphos_testkit::Rng;

/// An archive under construction, by its headers: nothing about it need be right.
struct Hostile(Vec<u8>);

impl Hostile {
    /// With the directory itself, as each real one begins.
    fn new() -> Hostile {
        let mut archive = Hostile(Vec::new());
        archive.add("./", EntryType::Directory, "", b"");
        archive
    }

    fn add(&mut self, name: &str, kind: EntryType, target: &str, content: &[u8]) -> &mut Self {
        self.add_with(name, kind, target, content, |_| ())
    }

    fn add_with(
        &mut self,
        name: &str,
        kind: EntryType,
        target: &str,
        content: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> &mut Self {
        let mut header = Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        change(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(&mut self, name: &str) -> &mut Self {
        self.add(name, EntryType::Regular, "", b"content")
    }

    fn long_name(&mut self, name: &[u8]) -> &mut Self {
        self.add("././@LongLink", EntryType::GNULongName, "", &[name, b"\0"].concat())
    }

    fn bytes(&self) -> Vec<u8> {
        [&self.0[..], &[0; 1024]].concat()
    }
}

/// A directory with a copy in it, and something beside it that must not change.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("home")).unwrap();
        fs::create_dir_all(dir.path().join("outside/dir")).unwrap();
        fs::write(dir.path().join("outside/file"), "before").unwrap();
        Host { dir }
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("home/copy")
    }

    fn unpack_with(&self, bytes: &[u8], limits: &Limits) -> Result<LeftOut, Failure> {
        let home = directory(&self.dir.path().join("home")).unwrap();
        unpack(bytes, home.as_fd(), "copy".as_ref(), limits)
    }

    fn unpack(&self, archive: &Hostile) -> Result<LeftOut, Failure> {
        self.unpack_with(&archive.bytes(), &Limits::of(1 << 24))
    }

    fn refused(&self, archive: &Hostile, why: &str) {
        let text = self.unpack(archive).unwrap_err().to_string();
        assert!(text.contains(why), "{text}: expected {why:?}");
        self.check();
    }

    /// Nothing has changed outside the copy.
    fn check(&self) {
        let names = |path: &Path| {
            let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.dir.path()), ["home", "outside"]);
        assert_eq!(names(&self.outside()), ["dir", "file"]);
        assert!(names(&self.outside().join("dir")).is_empty());
        assert_eq!(fs::read_to_string(self.outside().join("file")).unwrap(), "before");
        assert_eq!(fs::metadata(self.outside().join("file")).unwrap().nlink(), 1);
        let home = names(&self.dir.path().join("home"));
        assert!(home.iter().all(|name| name == "copy"), "{home:?}");
    }
}

#[test]
fn a_tree_that_tar_has_packed_is_unpacked_as_it_is() {
    let from = tempfile::tempdir().unwrap();
    let long = "n".repeat(200);
    fs::create_dir_all(from.path().join("sub/empty").join(&long)).unwrap();
    fs::write(from.path().join("sub/program"), vec![5; 300_000]).unwrap();
    fs::set_permissions(from.path().join("sub/program"), fs::Permissions::from_mode(0o4750)).unwrap();
    fs::write(from.path().join("sub/empty").join(&long).join(&long), "deep").unwrap();
    symlink("sub/program", from.path().join("link")).unwrap();
    symlink("../program", from.path().join("sub/empty/up")).unwrap();
    for format in ["gnu", "posix", "ustar"] {
        let host = Host::new();
        let mut tar = std::process::Command::new("tar");
        tar.args(["-c", "-f", "-", &format!("--format={format}"), "-C"]).arg(from.path()).arg(".");
        if format == "ustar" {
            tar.arg(format!("--exclude={long}"));
        }
        let bytes = tar.output().unwrap().stdout;
        let left_out = host.unpack_with(&bytes, &Limits::of(1 << 24)).unwrap();
        assert_eq!(left_out.count, 0, "{left_out:?}");
        let copy = host.copy();
        let metadata = fs::metadata(copy.join("sub/program")).unwrap();
        assert_eq!((metadata.len(), metadata.permissions().mode() & 0o7777), (300_000, 0o750), "{format}");
        assert_eq!(metadata.mtime(), fs::metadata(from.path().join("sub/program")).unwrap().mtime());
        assert_eq!(fs::read(copy.join("link")).unwrap().len(), 300_000);
        assert_eq!(fs::read_link(copy.join("sub/empty/up")).unwrap(), Path::new("../program"));
        if format != "ustar" {
            assert_eq!(fs::read(copy.join("sub/empty").join(&long).join(&long)).unwrap(), b"deep");
        }
        // Once more, into what is there.
        host.unpack_with(&bytes, &Limits::of(1 << 24)).unwrap();
        host.check();
    }
}

#[test]
fn names_that_lead_outside_are_refused() {
    for name in ["/etc/x", "./../x", "a/../../x", "..", "./a/.."] {
        Host::new().refused(Hostile::new().file(name), &format!("{name:?}"));
    }
    // A name may also come in a header before, of either kind.
    Host::new().refused(Hostile::new().long_name(b"../../outside/x").file("x"), "leads outside");
    let pax = b"23 path=../outside/new\n";
    Host::new().refused(Hostile::new().add("p", EntryType::XHeader, "", pax).file("x"), "leads outside");
    Host::new().refused(Hostile::new().long_name(b"a\0b").file("x"), "a byte of value 0");
}

#[test]
fn links_are_made_only_if_they_stay_and_followed_never() {
    let host = Host::new();
    let outside = host.outside();
    let absolute = outside.to_str().unwrap();
    let mut archive = Hostile::new();
    archive.add("./d", EntryType::Directory, "", b"").file("./d/f");
    for (n, target) in ["d/f", "./d", "nothing"].iter().enumerate() {
        archive.add(&format!("./in{n}"), EntryType::Symlink, target, b"");
    }
    archive.add("./d/in3", EntryType::Symlink, "../d/f", b"");
    let leaving = [absolute, "..", "../outside", "d/../../outside", "d/..", ""];
    for (n, target) in leaving.iter().enumerate() {
        archive.add(&format!("./out{n}"), EntryType::Symlink, target, b"");
    }
    archive.add("./d/out", EntryType::Symlink, "../../outside/file", b"");
    let left_out = host.unpack(&archive).unwrap();
    assert_eq!(left_out.count, leaving.len() as u64 + 1, "{left_out:?}");
    assert!(left_out.named[0].contains("out0") && left_out.named[0].contains("absolute"), "{left_out:?}");
    for name in ["in0", "in1", "in2", "d/in3"] {
        assert!(host.copy().join(name).symlink_metadata().unwrap().is_symlink(), "{name}");
    }
    for name in ["out0", "out5", "d/out"] {
        assert!(host.copy().join(name).symlink_metadata().is_err(), "{name}");
    }
    // Not even one that stays.
    host.refused(Hostile::new().file("./in1/through"), "a link is in this path");
    host.refused(Hostile::new().add("./in1", EntryType::Directory, "", b""), "a link is in its place");
    // A file in place of a link replaces it.
    host.unpack(Hostile::new().file("./in0")).unwrap();
    assert!(host.copy().join("in0").symlink_metadata().unwrap().is_file());
    host.check();
}

/// The claim: a first archive brings a link, a second one files below its name. Here the link is there already.
#[test]
fn a_link_that_is_there_is_not_followed_whatever_it_leads_to() {
    let host = Host::new();
    host.unpack(&Hostile::new()).unwrap();
    for (name, to) in [("a", "outside"), ("b", "outside/dir"), ("c", "outside/file"), ("e", "home")] {
        symlink(host.dir.path().join(to), host.copy().join(name)).unwrap();
    }
    for name in ["./a/stolen", "./b/deep/stolen", "./a/dir/stolen", "./e/stolen", "./a/file"] {
        host.refused(Hostile::new().file(name), "a link is in this path");
    }
    host.refused(Hostile::new().add("./a/new", EntryType::Symlink, "x", b""), "a link is in this path");
    host.refused(Hostile::new().add("./a/new", EntryType::Directory, "", b""), "a link is in this path");
    // The link itself is replaced, not what it leads to.
    host.unpack(Hostile::new().file("./c")).unwrap();
    host.check();
    // A file with a second name outside the copy keeps its content there.
    fs::hard_link(host.outside().join("file"), host.copy().join("h")).unwrap();
    host.unpack(Hostile::new().file("./h")).unwrap();
    host.check();
    // And the copy itself.
    fs::remove_dir_all(host.copy()).unwrap();
    symlink(host.outside(), host.copy()).unwrap();
    host.refused(&Hostile::new(), "a link is in its place");
    host.refused(Hostile(Vec::new()).file("x"), "a link is in this path");
}

#[test]
fn what_is_neither_file_directory_nor_link_is_left_out_by_name() {
    let host = Host::new();
    let mut archive = Hostile::new();
    let outside = host.outside().join("file");
    archive
        .add("./null", EntryType::Char, "", b"")
        .add("./disk", EntryType::Block, "", b"")
        .add("./pipe", EntryType::Fifo, "", b"")
        .add("./hard", EntryType::Link, outside.to_str().unwrap(), b"")
        .add("./relative", EntryType::Link, "./kept", b"")
        .add("./sparse", EntryType::GNUSparse, "", b"xx")
        .add("./odd", EntryType::new(b'V'), "", b"volume")
        .file("./kept");
    let left_out = host.unpack(&archive).unwrap();
    assert_eq!(left_out.count, 7);
    for (named, (name, why)) in left_out.named.iter().zip([
        ("null", "device node"),
        ("disk", "device node"),
        ("pipe", "named pipe"),
        ("hard", "hard link"),
        ("relative", "hard link"),
        ("sparse", "holes"),
        ("odd", "unknown type"),
    ]) {
        assert!(named.contains(name) && named.contains(why), "{named}");
    }
    assert_eq!(fs::read_dir(host.copy()).unwrap().count(), 1);
    host.check();
    // However many there are, so many are named; and what hides in a name is shown escaped.
    let mut many = Hostile::new();
    for _ in 0..1000 {
        many.add("\x1b[2J", EntryType::Fifo, "", b"");
    }
    let left_out = host.unpack(&many).unwrap();
    assert_eq!((left_out.count, left_out.named.len()), (1000, NAMED));
    assert!(left_out.named.iter().all(|line| !line.contains('\x1b')), "{left_out:?}");
}

#[test]
fn rights_are_those_of_a_plain_file() {
    let host = Host::new();
    let mut archive = Hostile::new();
    archive.add_with("./d", EntryType::Directory, "", b"", |header| header.set_mode(0o7000));
    archive.add_with("./d/f", EntryType::Regular, "", b"x", |header| header.set_mode(0o7777));
    host.unpack(&archive).unwrap();
    let mode = |name: &str| fs::metadata(host.copy().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("d"), 0o700, "a directory can be filled");
    assert_eq!(mode("d/f") & 0o7000, 0);
}

#[test]
fn sizes_counts_and_depths_are_bounded() {
    let limits = Limits { bytes: 100_000, entries: 20, depth: 4 };
    let refused = |archive: &[u8], why: &str| {
        let host = Host::new();
        let text = host.unpack_with(archive, &limits).unwrap_err().to_string();
        assert!(text.contains(why), "{text}: expected {why:?}");
        host.check();
    };
    refused(&Hostile::new().add("./f", EntryType::Regular, "", &[1; 100_000]).bytes(), "more than 100000 bytes");
    let mut many = Hostile::new();
    for n in 0..20 {
        many.file(&format!("./{n}"));
    }
    refused(&many.bytes(), "more than 20 entries");
    // Headers that only prolong names count, too.
    let mut names = Hostile::new();
    for _ in 0..20 {
        names.long_name(b"x");
    }
    refused(&names.bytes(), "more than 20 entries");
    refused(&Hostile::new().file("./1/2/3/4/5").bytes(), "more than 4 directories deep");
    refused(&Hostile::new().long_name(&[b'a'; 4097]).file("x").bytes(), "longer than 4096 bytes");
    refused(&Hostile::new().long_name(&[b'a'; 256]).file("x").bytes(), "longer than 255 bytes");
    // A size is a claim: what is held in memory is bounded before it is read.
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader] {
        let mut long = Hostile::new();
        long.add_with("x", kind, "", b"", |header| header.set_size(1 << 40));
        refused(&long.bytes(), "expected 65536 at most");
    }
    let mut huge = Hostile::new();
    huge.add_with("./f", EntryType::Regular, "", b"", |header| header.set_size(u64::MAX));
    assert!(Host::new().unpack_with(&huge.bytes(), &limits).is_err());
    let mut pax = Hostile::new();
    pax.add("p", EntryType::XHeader, "", b"19 size=8589934592\n").file("./f");
    refused(&pax.bytes(), "--format=gnu");
    // More behind its end than tar ever fills a record with.
    let limits = Limits::of(1 << 30);
    let text = Host::new().unpack_with(&[&Hostile::new().bytes()[..], &[7; 2 << 20]].concat(), &limits);
    assert!(text.unwrap_err().to_string().contains("behind the end"));
}

#[test]
fn what_is_no_archive_is_refused_and_leaves_nothing_outside() {
    let good = [&Hostile::new().file("./a").add("./l", EntryType::Symlink, "a", b"").bytes()[..], &[0; 512]].concat();
    let mut random = Rng::new(40);
    for _ in 0..500 {
        let host = Host::new();
        let mut bytes = good.clone();
        for _ in 0..random.below(4) + 1 {
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
        }
        bytes.truncate(random.below(bytes.len()) + 1);
        // Any answer will do.
        let _ = host.unpack_with(&bytes, &Limits::of(1 << 16));
        host.check();
    }
}
