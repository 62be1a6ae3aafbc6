// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a program finds that was started, by `exec`, with connections of a program that was preloaded, too.

use crate::memory::{Shared, Use};
use crate::settings::say;
use crate::{kernel, table};
use libc::c_int;
use std::fs;

/// Looks among this program's descriptors for files with connections' state and for the sockets that they speak of.
/// What is of no use to this program is closed.
pub(crate) fn adopt() {
    let Ok(all) = fs::read_dir("/proc/self/fd") else { return };
    let (mut cells, mut rings, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    for entry in all.flatten() {
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<c_int>().ok()) else { continue };
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        match Use::of(&link) {
            Some(Use::Cells) => cells.push(fd),
            Some(Use::Ring) => rings.push(fd),
            None => sockets.extend(kernel::socket_inode(fd).map(|inode| (inode, fd))),
        }
    }
    let mut rings: Vec<Shared> = rings.into_iter().filter_map(found).collect();
    for memory in cells.into_iter().filter_map(found) {
        let ring = |inode| {
            let at = rings.iter().position(|ring| ring.inode() == inode)?;
            Some(rings.swap_remove(at))
        };
        let count = table::adopt(&memory, &sockets, ring);
        if count > 0 {
            say(format_args!("{count} connections of the program that was there before"));
            // For good: it has their state.
            std::mem::forget(memory);
        }
    }
}

fn found(fd: c_int) -> Option<Shared> {
    let memory = Shared::found(fd);
    if memory.is_none() {
        kernel::close(fd);
    }
    memory
}
