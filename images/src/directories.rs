// SPDX-License-Identifier: MIT OR Apache-2.0
//! How guests reach directories of the host: by virtio-fs, with the host's virtiofsd or Debian's, or else by the 9p
//! server inside QEMU.

use crate::config::Config;
use crate::prefix::{self, Packaged, Program};
use crate::store::Store;
use crate::{Error, Result, exec, owners};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that guests mount by its tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Its name between QEMU and the guest.
    pub tag: String,
    pub host: PathBuf,
    /// Guests cannot change it.
    pub read_only: bool,
    /// It does not change while guests have it, so that they keep what they have read.
    pub constant: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// A process for each directory and guest.
    Virtiofs(Program),
    Plan9,
}

const DEBIANS: Packaged = Packaged {
    name: "virtiofsd",
    package: "virtiofsd",
    release: "trixie",
    place: "virtiofsd",
    program: "usr/libexec/virtiofsd",
    env: None,
    remedy: "install virtiofsd, or set TELEGRAPHOS_VIRTIOFSD to one",
};
/// Where distributions have it, which is in no one's `PATH`.
const PLACES: [&str; 3] = ["/usr/libexec/virtiofsd", "/usr/lib/virtiofsd", "/usr/lib/qemu/virtiofsd"];

impl Transport {
    /// The type of the file system in the guest.
    pub(crate) fn file_system(&self) -> &'static str {
        match self {
            Transport::Virtiofs(_) => "virtiofs",
            Transport::Plan9 => "9p",
        }
    }
}

impl Directory {
    /// The command of the server that this directory needs at `socket`, if it needs one.
    pub(crate) fn server(&self, transport: &Transport, socket: &Path) -> Option<Command> {
        let Transport::Virtiofs(program) = transport else { return None };
        let mut command = program.command();
        command.arg("--shared-dir").arg(&self.host).arg("--socket-path").arg(socket);
        // What others write to it guests see at once: whenever they open a file, they forget what they have read of it,
        // and a program's libraries are read anew by each process.
        let cache = if self.constant { "always" } else { "auto" };
        command.args(["--cache", cache, "--log-level", "error"]);
        // An overlay has no way to cross what is announced to a guest as a mount point.
        command.arg("--no-announce-submounts");
        if self.read_only {
            command.arg("--readonly");
        }
        // Made by this user, with owners whom only such a server can tell apart.
        let several = owners::are_foreign() && self.host.with_file_name(owners::MARK).exists();
        command.arg("--xattr");
        if owners::are_foreign() && !several {
            // Rights of files that root has given are an error to its namespace of users: no such file could be
            // executed.
            command.args(["--xattrmap", ":unsupported:all:security.::/:ok:all:::/"]);
        }
        // It cannot shut itself into the directory that it is in already.
        if self.host == Path::new("/") {
            command.args(["--sandbox", "none"]);
        }
        Some(if several { owners::among(&command) } else { command })
    }

    pub(crate) fn qemu_args(&self, transport: &Transport, socket: &Path) -> Vec<OsString> {
        let tag = &self.tag;
        let escaped = |path: &Path| path.display().to_string().replace(',', ",,");
        let args = match transport {
            Transport::Virtiofs(_) => [
                "-chardev".to_owned(),
                format!("socket,id=fs-{tag},path={}", escaped(socket)),
                "-device".to_owned(),
                format!("vhost-user-fs-pci,chardev=fs-{tag},tag={tag}"),
            ],
            Transport::Plan9 => {
                let read_only = if self.read_only { "on" } else { "off" };
                [
                    "-fsdev".to_owned(),
                    format!(
                        "local,id=fs-{tag},path={},security_model=none,readonly={read_only},multidevs=remap",
                        escaped(&self.host)
                    ),
                    "-device".to_owned(),
                    format!("virtio-9p-pci,fsdev=fs-{tag},mount_tag={tag}"),
                ]
            }
        };
        args.map(OsString::from).to_vec()
    }
}

/// What carries directories to a guest with this configuration. Virtio-fs where the kernel has it and a virtiofsd
/// can be had.
pub(crate) fn transport(store: &Store, config: Option<&Config>) -> Result<Transport> {
    let has = |name: &str| config.is_none_or(|config| config.has(name));
    if !has("VIRTIO_FS") {
        return Ok(Transport::Plan9);
    }
    match virtiofsd(store) {
        Ok(program) => Ok(Transport::Virtiofs(program)),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        // Without a configuration that says so, 9p is no more than a hope.
        Err(e) if config.is_some_and(|config| config.has("9P_FS")) => {
            log::warn!("no virtiofsd ({e}); directories go by 9p");
            Ok(Transport::Plan9)
        }
        Err(e) => Err(e),
    }
}

/// The host's virtiofsd if it will do, else Debian's.
fn virtiofsd(store: &Store) -> Result<Program> {
    let check = |path: PathBuf| -> Result<Program> {
        let out = exec::run(Command::new(&path).arg("--help"), &store.cancel, || ())?;
        // The older one, in C, and the first releases of this one lack it.
        let fits = out.stdout.contains("--readonly") && out.stdout.contains("--no-announce-submounts");
        if !fits {
            let path = path.display();
            return Err(Error::Failed(format!(
                "{path} lacks the options --readonly and --no-announce-submounts; install virtiofsd 1.11 or newer, or unset \
                 TELEGRAPHOS_VIRTIOFSD to use Debian's"
            )));
        }
        Ok(Program::of_host(path))
    };
    if let Some(program) = prefix::find("virtiofsd", "TELEGRAPHOS_VIRTIOFSD", "virtiofsd", check)? {
        return Ok(program);
    }
    let usual = PLACES.iter().map(PathBuf::from).filter(|path| path.is_file());
    if let Some(program) = usual.filter_map(|path| check(path).ok()).next() {
        return Ok(program);
    }
    Ok(DEBIANS.fetched(store, |_, _| Ok(()))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        Directory { tag: "share0".into(), host: "/a,b".into(), read_only: true, constant: false }
    }

    #[test]
    fn both_transports_have_their_options() {
        let text = |transport: &Transport| {
            let args = directory().qemu_args(transport, Path::new("/run/fs0"));
            args.join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        let nine = text(&Transport::Plan9);
        assert!(nine.contains("path=/a,,b") && nine.contains("readonly=on") && nine.contains("mount_tag=share0"));
        let virtiofs = Transport::Virtiofs(Program::of_host("/x/virtiofsd".into()));
        assert!(text(&virtiofs).contains("path=/run/fs0") && text(&virtiofs).contains("tag=share0"));
        let server = |directory: Directory| directory.server(&virtiofs, Path::new("/run/fs0")).unwrap();
        assert!(server(directory()).get_args().any(|arg| arg == "--readonly"));
        let caches = |directory| server(directory).get_args().any(|arg| arg == "always");
        assert!(!caches(directory()) && caches(Directory { constant: true, ..directory() }));
        assert!(directory().server(&Transport::Plan9, Path::new("/run/fs0")).is_none());
    }
}
