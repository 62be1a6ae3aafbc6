// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything once more when the board has gone.

use super::watch::{step, watch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::ProtFlags;
use std::io::Read;
use telegraphos_guest_tests::child::say;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::interface::call::{PAGE, expect, sized};
use telegraphos_guest_tests::interface::rows::{self, World};
use telegraphos_guest_tests::mapping::Mapping;
use telegraphos_wire::uapi;

pub(crate) fn run() -> Outcome<()> {
    let mut world = World::new()?;
    // Those that end or read something take what was made for them while there was a board.
    let mut made = Vec::new();
    for (ioctl, row) in rows::all()? {
        made.push((ioctl, row, row.make(&world)?));
    }
    say("ready");
    loop {
        let mut polled = [PollFd::new(&world.file, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) if polled[0].revents().contains(PollFlags::HUP) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => std::thread::sleep(std::time::Duration::from_millis(5)),
            Err(e) => return Err(Failure::Refused(format!("poll(): {e}"))),
        }
    }
    watch();
    for (ioctl, row, mut bytes) in made {
        let what = step(format!("{} without a board", ioctl.name));
        expect(what, sized(&world.file, ioctl, &mut bytes), row.gone)?;
    }
    let read = world.file.read(&mut [0; 8]).map(drop).map_err(|e| e.raw_os_error().unwrap_or(0));
    expect("read() without a board", read, &[0, libc::ENODEV])?;
    for kind in uapi::MMAP_CONTEXT..=uapi::MMAP_REGISTRATION {
        let mapping = Mapping::of(&world.file, uapi::mmap_offset(kind, 0), PAGE, ProtFlags::WRITE);
        let answer = mapping.map(drop).map_err(|e| e.raw_os_error());
        expect(format_args!("mmap() of kind {kind} without a board"), answer, &[libc::ENODEV])?;
    }
    say("done");
    Ok(())
}
