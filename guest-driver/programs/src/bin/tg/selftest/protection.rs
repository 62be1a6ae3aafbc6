// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page tables, rights, files and users: what must not work, and how it fails.

use super::context::{Context, Verdict, must, refused, same, two_users};
use super::control::{by_handle, ioctl};
use super::trouble::REFUSED;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mprotect};
use std::ffi::c_void;
use telegraphos::{Error, Node, Rights, Status};
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::mapping::{Mapping, READ_WRITE};
use telegraphos_guest_tests::{raw, user};
use telegraphos_wire::uapi;

const PAGE: usize = 4096;

/// Maps and unmaps again.
pub(crate) fn try_mmap(
    node: &Node,
    offset: u64,
    length: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<(), Errno> {
    Mapping::with(node, offset, length, protection, flags).map(drop)
}

fn no_mmap(what: &str, errno: Errno, result: Result<(), Errno>) -> Verdict {
    same(format_args!("mmap {what}"), result, Err(errno))
}

pub(crate) fn unmapped(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let mut child = context.child_saying("ready", &["unmapped", &right.node().to_string(), &context.name("data")])?;
    child.must_end(End::SEGV)?;
    context.sync()?;
    same("the word it would have reached", mine.load::<u64>(0)?, 0)?;
    context.sync()
}

pub(crate) fn read_only_store(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let mut child =
        context.child_saying("ready", &["store", &right.node().to_string(), &context.name("data"), "r", "0", "1"])?;
    child.must_go_to(End::SEGV)?;
    let reader = context.node().import(right.node(), &context.name("data")).read_only().open()?;
    must(matches!(reader.put64(0, 1), Err(Error::Right { .. })), || "the library stores without the right".into())?;
    context.sync()?;
    same("the word it would have reached", mine.load::<u64>(0)?, 0)?;
    context.sync()
}

pub(crate) fn read_only_mapping(context: &mut Context<'_>) -> Verdict {
    let (_mine, right) = context.neighbour(4096)?;
    let node = context.node();
    let reader = node.import(right.node(), &context.name("data")).read_only().open()?;
    let offset = uapi::mmap_offset(uapi::MMAP_IMPORT, reader.handle());
    no_mmap("for writing", Errno::ACCESS, try_mmap(node, offset, PAGE, READ_WRITE, MapFlags::SHARED))?;
    // SAFETY: only this import's own mapping changes, and no reference into it exists.
    let raised =
        unsafe { mprotect(reader.as_ptr().cast::<c_void>(), PAGE, MprotectFlags::READ | MprotectFlags::WRITE) };
    same("mprotect to writable", raised, Err(Errno::ACCESS))?;
    // SAFETY: as above.
    let raised = unsafe { mprotect(right.as_ptr().cast::<c_void>(), PAGE, MprotectFlags::READ | MprotectFlags::EXEC) };
    same("mprotect to executable", raised, Err(Errno::ACCESS))?;
    context.sync()
}

pub(crate) fn mmap_beyond(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(5 * PAGE as u64)?;
    let node = context.node();
    for (kind, handle) in [(uapi::MMAP_IMPORT, right.handle()), (uapi::MMAP_EXPORT, mine.handle())] {
        let offset = uapi::mmap_offset(kind, handle);
        let at = |offset, length| try_mmap(node, offset, length, READ_WRITE, MapFlags::SHARED);
        same("mmap of all pages", at(offset, 5 * PAGE), Ok(()))?;
        same("mmap of the last page", at(offset + 4 * PAGE as u64, PAGE), Ok(()))?;
        no_mmap("of one page more", Errno::INVAL, at(offset, 6 * PAGE))?;
        no_mmap("across the end", Errno::INVAL, at(offset + 4 * PAGE as u64, 2 * PAGE))?;
        no_mmap("behind the end", Errno::INVAL, at(offset + 5 * PAGE as u64, PAGE))?;
        no_mmap("of 4 GiB behind", Errno::INVAL, at(offset + 0xffff_f000, PAGE))?;
        let private = try_mmap(node, offset, PAGE, READ_WRITE, MapFlags::PRIVATE);
        no_mmap("as private copy", Errno::INVAL, private)?;
    }
    let arguments = uapi::mmap_offset(uapi::MMAP_ARGUMENT, right.handle());
    let at = |offset, length, protection| try_mmap(node, offset, length, protection, MapFlags::SHARED);
    same("mmap of all arguments", at(arguments, 5 * PAGE, ProtFlags::WRITE), Ok(()))?;
    no_mmap("of arguments beyond the end", Errno::INVAL, at(arguments, 6 * PAGE, ProtFlags::WRITE))?;
    no_mmap("of arguments for reading", Errno::ACCESS, at(arguments, PAGE, ProtFlags::READ))?;
    no_mmap("of arguments as code", Errno::ACCESS, at(arguments, PAGE, ProtFlags::WRITE | ProtFlags::EXEC))?;
    let none = uapi::mmap_offset(uapi::MMAP_ARGUMENT, 0x7fff);
    no_mmap("of the arguments of no import", Errno::INVAL, at(none, PAGE, ProtFlags::WRITE))?;
    for kind in [0, 6, 0x7fff] {
        let result = try_mmap(node, uapi::mmap_offset(kind, 0), PAGE, ProtFlags::READ, MapFlags::SHARED);
        no_mmap(&format!("of kind {kind}"), Errno::INVAL, result)?;
    }
    context.sync()
}

pub(crate) fn foreign_handles(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let other = context.other_file()?;
    let handles = [
        (uapi::MMAP_IMPORT, right.handle()),
        (uapi::MMAP_ARGUMENT, right.handle()),
        (uapi::MMAP_EXPORT, mine.handle()),
    ];
    for (kind, handle) in handles {
        let offset = uapi::mmap_offset(kind, handle);
        let result = try_mmap(&other, offset, PAGE, ProtFlags::WRITE, MapFlags::SHARED);
        no_mmap("of another file's handle", Errno::INVAL, result)?;
    }
    let mut state = uapi::ImportState { handle: right.handle(), ..Default::default() };
    let bad = Err(libc::EBADF);
    same("the state of another file's import", ioctl(&other, 5, &mut state), bad)?;
    same("acknowledging another file's import", by_handle(&other, 6, right.handle(), 0), bad)?;
    same("closing another file's import", by_handle(&other, 4, right.handle(), 0), bad)?;
    same("withdrawing another file's export", by_handle(&other, 2, mine.handle(), 0), bad)?;
    right.put64(0, 1)?;
    context.sync_behind(&right)
}

pub(crate) fn own_pages(context: &mut Context<'_>) -> Verdict {
    let node = context.node();
    let at = |kind, handle, length, protection| {
        try_mmap(node, uapi::mmap_offset(kind, handle), length, protection, MapFlags::SHARED)
    };
    no_mmap("of the status page for writing", Errno::ACCESS, at(uapi::MMAP_STATUS, 0, PAGE, READ_WRITE))?;
    no_mmap("of two status pages", Errno::INVAL, at(uapi::MMAP_STATUS, 0, 2 * PAGE, ProtFlags::READ))?;
    no_mmap("of two context pages", Errno::INVAL, at(uapi::MMAP_CONTEXT, 0, 2 * PAGE, ProtFlags::WRITE))?;
    no_mmap("of another context", Errno::INVAL, at(uapi::MMAP_CONTEXT, 1, PAGE, ProtFlags::WRITE))?;
    no_mmap("as code", Errno::ACCESS, at(uapi::MMAP_CONTEXT, 0, PAGE, READ_WRITE | ProtFlags::EXEC))
}

pub(crate) fn load_without_right(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    mine.store(0, 0x1234u64)?;
    context.sync()?;
    let writer = context.node().import(right.node(), &context.name("data")).rights(Rights::WRITE).open()?;
    writer.put64(8, 5)?;
    writer.quiet()?;
    // SAFETY: the word lies in the mapping. x86 has no write-only pages, so the load reaches the board, which refuses
    // it; elsewhere the processor may refuse, and there this is left to the library's check.
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as above.
        let found = unsafe { raw::load::<u64>(writer.as_ptr(), 0) };
        same("the word loaded without the right", found, u64::MAX)?;
        context.state_becomes(&writer, "the error Rights", |s| s.error == Some(Status::Rights))?;
        refused("quiet", writer.quiet(), telegraphos::errno_of(Status::Rights))?;
        writer.acknowledge()?;
        context.state_becomes(&writer, "no error", |s| s.error.is_none())?;
        writer.quiet()?;
    }
    must(matches!(writer.get64(0), Err(Error::Right { .. })), || "the library loads without the right".into())?;
    same("the other import's error", right.state()?.error, None)?;
    context.sync()
}

pub(crate) fn load_past_end(context: &mut Context<'_>) -> Verdict {
    // The page is mapped, but the segment ends within it.
    let (_mine, right) = context.neighbour(100)?;
    must(matches!(right.get64(104), Err(Error::Bounds { .. })), || "the library loads past the end".into())?;
    // SAFETY: the words lie in the mapped page; the board refuses them, one because it begins behind the end, one
    // because it ends there.
    let (behind, across) = unsafe { (raw::load::<u64>(right.as_ptr(), 104), raw::load::<u64>(right.as_ptr(), 96)) };
    same("the word behind the end", behind, u64::MAX)?;
    same("the word across the end", across, u64::MAX)?;
    context.state_becomes(&right, "the error Bounds", |s| s.error == Some(Status::Bounds))?;
    right.acknowledge()?;
    context.state_becomes(&right, "no error", |s| s.error.is_none())?;
    same("the last word", right.get32(96)?, 0)?;
    context.sync_behind(&right)
}

pub(crate) fn store_past_end(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(100)?;
    right.put64(0, 1)?;
    right.quiet()?;
    // SAFETY: the word lies in the mapped page.
    unsafe { raw::store::<u64>(right.as_ptr(), 104, 2) };
    // No later store ever passes a lost one.
    right.put64(8, 3)?;
    refused("quiet", right.quiet(), telegraphos::errno_of(Status::Bounds))?;
    context.state_becomes(&right, "cut with the error Bounds", |s| s.cut && s.error == Some(Status::Bounds))?;
    context.sync()?;
    same("the word stored before", mine.load::<u64>(0)?, 1)?;
    same("the word stored after the lost one", mine.load::<u64>(8)?, 0)?;
    context.sync()?;
    right.acknowledge()?;
    context.state_becomes(&right, "neither cut nor error", |s| !s.cut && s.error.is_none())?;
    right.put64(8, 4)?;
    context.sync_behind(&right)?;
    same("the word stored after the acknowledgement", mine.load::<u64>(8)?, 4)?;
    context.sync()
}

pub(crate) fn right_not_offered(context: &mut Context<'_>) -> Verdict {
    let name = context.name("readable");
    let mine = context.node().export(&name, 4096).mode(0o404).create()?;
    context.sync()?;
    let right = context.peers.right();
    refused("an import for writing", context.node().import(right, &name).open(), libc::EACCES)?;
    let reader = context.node().import(right, &name).read_only().open()?;
    same("a word", reader.get64(0)?, 0)?;
    context.sync()?;
    drop(mine);
    Ok(())
}

pub(crate) fn other_users(context: &mut Context<'_>) -> Verdict {
    let (one, two) = two_users()?;
    let (private, readable) = (context.name("private"), context.name("readable"));
    let mut exporters = Vec::new();
    // Skips on every node, or on none.
    for (name, mode) in [(&private, "600"), (&readable, "604")] {
        let mut child = context.child_of(one, &["export", name, "4096", mode])?;
        child.expect("exported")?;
        exporters.push(child);
    }
    context.sync()?;
    let right = context.peers.right().to_string();
    let attempt = |ids, name: &str, rights| -> Verdict<End> {
        Ok(context.child_of(ids, &["import", &right, name, rights])?.end()?)
    };
    same("0600 for its owner", attempt(one, &private, "rw")?, End::WELL)?;
    same("0600 for another", attempt(two, &private, "r")?, End::Code(REFUSED))?;
    same("0604 for its owner", attempt(one, &readable, "rw")?, End::WELL)?;
    same("0604 for another, reading", attempt(two, &readable, "r")?, End::WELL)?;
    same("0604 for another, writing", attempt(two, &readable, "rw")?, End::Code(REFUSED))?;
    context.sync()
}

pub(crate) fn ordinary_user(context: &mut Context<'_>) -> Verdict {
    let (mine, right) = context.neighbour(4096)?;
    let name = context.name("data");
    let mut child = context.ordinary_child(&["store", &right.node().to_string(), &name, "rw", "16", "4711"])?;
    child.expect("ready")?;
    child.go()?;
    child.must_end_saying("stored")?;
    context.sync()?;
    same("the word that an ordinary user has stored", mine.load::<u64>(16)?, 4711)?;
    context.sync()
}

pub(crate) fn outsider(context: &mut Context<'_>) -> Verdict {
    let (gid, mode) = user::device_group().map_err(|e| e.to_string())?;
    same("the mode of the device file", format!("{mode:#o}"), "0o660".to_owned())?;
    must(gid != 0, || "the device file belongs to root's group: expected another group".into())?;
    let (line, end) = context.child_of((user::ORDINARY + 1, user::ORDINARY + 1), &["open"])?.last()?;
    same("what the outsider got", line, Some(format!("errno {}", libc::EACCES)))?;
    same("how it ended", end, End::Code(REFUSED))
}
