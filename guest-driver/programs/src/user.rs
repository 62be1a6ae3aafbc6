// SPDX-License-Identifier: MIT OR Apache-2.0
//! User and group of a program.

use crate::cli::{Failure, Outcome};
use std::os::unix::fs::MetadataExt;

/// The ordinary user of a guest.
pub const ORDINARY: u32 = 1000;

pub fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The group that may open the board, and the permission bits of its device file.
pub fn device_group() -> Outcome<(u32, u32)> {
    let path = "/dev/telegraphos0";
    let meta = std::fs::metadata(path)
        .map_err(|e| Failure::Refused(format!("{path}: {e}; is a HIB attached and telegraphos.ko loaded?")))?;
    Ok((meta.gid(), meta.mode() & 0o7777))
}

/// Root becomes the ordinary user, in no group but the device's; other users stay.
pub fn leave_root() -> Outcome<()> {
    if uid() != 0 {
        return Ok(());
    }
    let (gid, _) = device_group()?;
    let done = |what: &str, result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(Failure::Refused(format!("{what}: {}", std::io::Error::last_os_error()))),
    };
    // SAFETY: these take numbers and, with a count of 0, no memory.
    unsafe {
        done("setgroups", libc::setgroups(0, std::ptr::null()))?;
        done("setgid", libc::setgid(gid))?;
        done("setuid", libc::setuid(ORDINARY))
    }
}
