// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that goes from under a registration, also in the middle of copies: those end with an error, and reach no
//! memory but that which was registered.

use super::context::{Context, Stop, Verdict, must, same};
use super::memory::{Memory, PAGE, byte, file};
use super::registrations::{SIZE, nothing_is_pinned};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate};
use rustix::mm::{Advice, MprotectFlags};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telegraphos::Segment;

/// Where memory goes from under a registration.
fn gone(context: &Context<'_>, how: &str, mut memory: Memory, go: impl FnOnce(&mut Memory) -> Verdict) -> Verdict {
    let segment = context.node().export(&context.name(how), SIZE as u64).create()?;
    memory.fill(1);
    let registered = memory.register(context.node(), 0, SIZE)?;
    segment.remote()?.put_block(0, &registered, 0, SIZE as u64)?;
    must(registered.is_alive()?, || format!("{how}: it is dead before"))?;
    go(&mut memory)?;
    must(!registered.is_alive()?, || format!("{how}: it is alive without its memory"))?;
    // To where the memory is still there, too: a registration is whole, or it is dead.
    for at in [0, SIZE as u64 - 4096] {
        let put = segment.remote()?.put_block(0, &registered, at, 4096);
        must(put.is_err(), || format!("{how}: a copy from {at} of memory that has gone is performed"))?;
        let get = segment.remote()?.get_block(0, &registered, at, 4096);
        must(get.is_err(), || format!("{how}: a copy to {at} of memory that has gone is performed"))?;
    }
    Ok(registered.close()?)
}

pub(crate) fn unmapped(context: &mut Context<'_>) -> Verdict {
    gone(context, "munmap", Memory::anonymous(SIZE)?, |memory| memory.replace())?;
    gone(context, "mremap", Memory::anonymous(SIZE)?, |memory| {
        let stayed = memory.double()?;
        // There was room behind it: it goes in another way.
        if stayed { memory.advise(0, PAGE, Advice::LinuxDontNeed) } else { Ok(()) }
    })?;
    gone(context, "madvise", Memory::anonymous(SIZE)?, |memory| memory.advise(5 * PAGE, PAGE, Advice::LinuxDontNeed))?;
    nothing_is_pinned()
}

/// Holes in a file, by every way to make one.
pub(crate) fn punched(context: &mut Context<'_>) -> Verdict {
    let fd = file(SIZE, MemfdFlags::CLOEXEC)?;
    gone(context, "fallocate", Memory::of(&fd, SIZE)?, |memory| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fd, flags, 7 * PAGE as u64, PAGE as u64).map_err(std::io::Error::from)?;
        same("a byte of the hole", memory.byte(7 * PAGE), 0)?;
        same("a byte behind it", memory.byte(8 * PAGE), byte(1, 8 * PAGE))
    })?;
    gone(context, "remove", Memory::of(&fd, SIZE)?, |memory| memory.advise(SIZE - PAGE, PAGE, Advice::LinuxRemove))?;
    nothing_is_pinned()
}

/// What changes the page tables, and leaves the memory what it is.
pub(crate) fn advised(context: &mut Context<'_>) -> Verdict {
    let segment = context.node().export(&context.name("advised"), SIZE as u64).create()?;
    for (what, memory) in
        [("anonymous", Memory::anonymous(SIZE)?), ("of a file", Memory::of_file(SIZE, MemfdFlags::CLOEXEC)?)]
    {
        memory.fill(2);
        let registered = memory.register(context.node(), 0, SIZE)?;
        // Of a file, these two unmap the pages, which stay unmapped until they are accessed.
        let discarded = if what == "anonymous" { Advice::WillNeed } else { Advice::LinuxDontNeed };
        for advice in [Advice::LinuxCold, Advice::LinuxPageOut, Advice::WillNeed, discarded, Advice::LinuxDontFork] {
            memory.advise(0, SIZE, advice)?;
            must(registered.is_alive()?, || format!("memory {what} is dead after {advice:?}"))?;
            memory.set(17, memory.byte(17) + 1);
            segment.remote()?.put_block(0, &registered, 0, SIZE as u64)?;
            same(format!("a byte of memory {what} after {advice:?}"), segment.load::<u8>(17)?, memory.byte(17))?;
            same(
                format!("the last of memory {what} after {advice:?}"),
                segment.load(SIZE as u64 - 1)?,
                byte(2, SIZE - 1),
            )?;
        }
        registered.close()?;
    }
    nothing_is_pinned()
}

/// A file is truncated under an export of it, and gets its length again: what others do to the export ends with errors,
/// and does not reach the file's new pages. The process itself sees them, without SIGBUS.
pub(crate) fn truncated(context: &mut Context<'_>) -> Verdict {
    let source = context.node().export(&context.name("source"), PAGE as u64).create()?;
    (0..PAGE as u64).step_by(8).try_for_each(|at| source.store(at, u64::MAX))?;
    let fd = file(SIZE, MemfdFlags::CLOEXEC)?;
    let memory = Memory::of(&fd, SIZE)?;
    memory.fill_with(0x11);
    let registered = memory.named(context, &context.name("file"), 0, SIZE).create()?;
    let [right, other] =
        [context.import(context.peers.right(), "file")?, context.import(context.peers.right(), "file")?];
    right.put_block(SIZE as u64 - 8, &source, 0, 8)?;
    context.sync()?;
    same("what the left node has put", memory.byte(SIZE - 1), 0xff)?;
    for length in [SIZE / 2, SIZE] {
        ftruncate(&fd, length as u64).map_err(std::io::Error::from)?;
    }
    must(!registered.is_alive()?, || "it is alive although its file was truncated".into())?;
    context.sync()?;
    // An import that has failed is not touched again: that is SIGBUS.
    let put = right.put_block(SIZE as u64 / 2, &source, 0, 4096);
    must(put.is_err(), || "a put to a truncated file is performed".into())?;
    let get = other.get_block(0, &source, 0, 4096);
    must(get.is_err(), || "a get from where a truncated file still has its pages is performed".into())?;
    let own = registered.remote().fetch_add(SIZE as u64 - 8, 1u64);
    must(own.is_err(), || "an atomic on a truncated file is performed".into())?;
    context.sync()?;
    for at in 0..SIZE {
        let expected = if at < SIZE / 2 { 0x11 } else { 0 };
        same(format!("byte {at} of the file"), memory.byte(at), expected)?;
    }
    registered.close()?;
    nothing_is_pinned()
}

/// Memory is taken away while copies from it and to it are under way, and other memory takes its place.
pub(crate) fn unmapped_amid_copies(context: &mut Context<'_>) -> Verdict {
    const LENGTH: usize = 1 << 20;
    const OLD: u8 = 0x11;
    const NEW: u8 = 0xee;
    let (mine, right) = context.neighbour(LENGTH as u64)?;
    let mut performed = 0;
    for round in 0..6 {
        let memory = Memory::anonymous(LENGTH)?;
        memory.fill_with(OLD);
        let registered = memory.register(context.node(), 0, LENGTH)?;
        let count = AtomicU64::new(0);
        std::thread::scope(|scope| -> Verdict {
            let copier = scope.spawn(|| -> telegraphos::Result<()> {
                loop {
                    right.put_block(0, &registered, 0, LENGTH as u64)?;
                    right.get_block(0, &registered, 0, LENGTH as u64)?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
            while count.load(Ordering::Relaxed) < 2 && !copier.is_finished() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(700 * round));
            memory.replace()?;
            memory.fill_with(NEW);
            // More pages, for which the kernel would take those of the registration if it had them.
            let others = Memory::anonymous(8 * LENGTH)?;
            others.fill_with(NEW);
            let ended = copier.join().map_err(|_| Stop::Fail("the copying thread has panicked".into()))?;
            must(ended.is_err(), || "the copies end without an error".into())?;
            must(count.load(Ordering::Relaxed) >= 2, || {
                format!("round {round}: copies fail from the beginning: {ended:?}")
            })?;
            must(!registered.is_alive()?, || "it is alive without its memory".into())?;
            for (what, memory) in [("the same address", &memory), ("other addresses", &others)] {
                let changed = memory.other_than(NEW);
                must(changed.is_none(), || format!("round {round}: new memory at {what} was changed: {changed:?}"))?;
            }
            Ok(())
        })?;
        performed += count.into_inner();
        registered.close()?;
    }
    context.sync()?;
    foreign_bytes(&mine, &[0, OLD])?;
    context.note(format!("{performed} copies there and back before 6 unmappings"));
    nothing_is_pinned()
}

/// Fails if a segment has a byte that is none of these.
fn foreign_bytes(segment: &Segment, known: &[u8]) -> Verdict {
    for at in 0..segment.size() {
        let found: u8 = segment.load(at)?;
        must(known.contains(&found), || {
            format!("byte {at} is {found:#04x}: memory that was not registered was copied")
        })?;
    }
    Ok(())
}

/// The rights of an export are those that it was made with: protection is for the process's own accesses.
pub(crate) fn protected(context: &mut Context<'_>) -> Verdict {
    let source = context.node().export(&context.name("source"), PAGE as u64).create()?;
    let memory = Memory::anonymous(SIZE)?;
    let (at, length) = (PAGE as u64 - 3, 8);
    let registered = memory.named(context, &context.name("guarded"), 0, SIZE).create()?;
    let right = context.import(context.peers.right(), "guarded")?;
    for (round, flags) in [MprotectFlags::READ, MprotectFlags::empty()].into_iter().enumerate() {
        memory.protect(0, SIZE, flags)?;
        context.sync()?;
        source.store(0, u64::from_ne_bytes([round as u8 + 1; 8]))?;
        right.put_block(at, &source, 0, length)?;
        right.put_block(at, &source, 0, length)?;
        right.get_block(at, &source, 0, length)?;
        context.sync()?;
        must(registered.is_alive()?, || format!("it is dead after mprotect({flags:?})"))?;
        memory.protect(0, SIZE, MprotectFlags::READ)?;
        same(format!("what has come under {flags:?}"), memory.byte(PAGE + 4), round as u8 + 1)?;
        same("the byte behind", memory.byte(PAGE + 5), 0)?;
    }
    // What cannot be written cannot be registered anew.
    let again = memory.register(context.node(), 0, SIZE);
    must(again.is_err(), || "memory without the right to write is registered".into())?;
    context.sync()?;
    registered.close()?;
    nothing_is_pinned()
}
