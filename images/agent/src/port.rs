// SPDX-License-Identifier: MIT OR Apache-2.0
//! The port of virtio that carries much data ([`crate::PORT`]): looked for when it is needed, since its modules take an
//! emulated processor a tenth of a second, and most commands say little.

use crate::modules::{VIRTIO, load_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The kernel's list of ports.
const PORTS: &str = "/sys/class/virtio-ports";

/// Loads what a kernel without it built in needs.
pub fn load() -> io::Result<()> {
    load_all(&VIRTIO)?;
    load_all(&["virtio_console"])
}

/// Opens it, if it is there and the host has its end: the kernel makes it some time after the module is loaded, and
/// what is written without the other end is lost.
pub fn find() -> io::Result<Option<File>> {
    let Some(device) = named(PORTS.as_ref(), crate::PORT) else { return Ok(None) };
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(Path::new("/dev").join(device), flags, Mode::empty()) {
        Ok(file) => {
            let mut end = [PollFd::new(&file, PollFlags::empty())];
            poll(&mut end, Some(&Timespec::default()))?;
            let connected = !end[0].revents().contains(PollFlags::HUP);
            Ok(connected.then_some(file.into()))
        }
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The device of the port of this name.
fn named(ports: &Path, name: &str) -> Option<String> {
    let ports = fs::read_dir(ports).ok()?.flatten();
    let mut named = ports.filter(|port| fs::read_to_string(port.path().join("name")).is_ok_and(|n| n.trim() == name));
    named.next()?.file_name().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_known_by_its_name() {
        let ports = tempfile::tempdir().unwrap();
        let named = |name| super::named(ports.path(), name);
        for (device, name) in [("vport1p1", "org.qemu.guest_agent.0\n"), ("vport0p1", "telegraphos.agent\n")] {
            fs::create_dir(ports.path().join(device)).unwrap();
            fs::write(ports.path().join(device).join("name"), name).unwrap();
        }
        fs::create_dir(ports.path().join("vport2p0")).unwrap();
        assert_eq!(named(crate::PORT), Some("vport0p1".into()));
        assert_eq!(named("telegraphos"), None);
        assert_eq!(super::named(&ports.path().join("none"), "x"), None);
    }
}
