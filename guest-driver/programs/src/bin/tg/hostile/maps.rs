// SPDX-License-Identifier: MIT OR Apache-2.0
//! mmap() of every kind, with wrong offsets, sizes, rights and flags; and what can be done to a mapping.

use super::watch::step;
use std::os::fd::AsRawFd;
use telegraphos_guest_tests::cli::{self, Outcome};
use telegraphos_guest_tests::interface::call::{PAGE, sane};
use telegraphos_guest_tests::interface::rows::World;
use telegraphos_wire::uapi;

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

fn answer(result: libc::c_int) -> Result<(), i32> {
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// What a process does to a mapping that it has, up to its end.
fn abuse(at: *mut libc::c_void, length: usize, what: &str) -> Outcome<u64> {
    // SAFETY: a mapping of this function's caller, to which no reference exists, and which it uses no more.
    unsafe {
        for protection in 0..8 {
            sane(format_args!("mprotect() of {what}"), answer(libc::mprotect(at, length, protection)))?;
        }
        for advice in [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_REMOVE,
            libc::MADV_HUGEPAGE,
            libc::MADV_DOFORK,
            libc::MADV_MERGEABLE,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
        ] {
            sane(format_args!("madvise({advice}) of {what}"), answer(libc::madvise(at, length, advice)))?;
        }
        sane(format_args!("mlock() of {what}"), answer(libc::mlock(at, length)))?;
        sane(format_args!("msync() of {what}"), answer(libc::msync(at, length, libc::MS_SYNC)))?;
        let grown = libc::mremap(at, length, 2 * length, libc::MREMAP_MAYMOVE);
        cli::check(grown == libc::MAP_FAILED, || format!("{what} has grown by mremap(): expected a refusal"))?;
        sane(format_args!("munmap() of {what}"), answer(libc::munmap(at, length)))?;
    }
    Ok(22)
}

/// Loads and stores of a mapping, made by the kernel for a pipe: what would be a signal is EFAULT.
fn touch(at: *mut libc::c_void, length: usize, what: &str) -> Outcome<u64> {
    let mut pipe = [0; 2];
    // SAFETY: two numbers fit.
    sane("pipe()", answer(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_NONBLOCK) }))?;
    let [from, to] = pipe;
    for at in [at, at.wrapping_byte_add(length - 8)] {
        // SAFETY: the caller's mapping, to whose bytes no reference exists.
        let (load, store) = unsafe {
            let load = libc::write(to, at, 8);
            // So that there is something to store.
            libc::write(to, [0u64].as_ptr().cast(), 8);
            (load, libc::read(from, at, 8))
        };
        for result in [load, store] {
            sane(format_args!("a touch of {what}"), answer(if result < 0 { -1 } else { 0 }))?;
        }
        let mut rest = [0u64; 4];
        // SAFETY: as many bytes as there are.
        unsafe { libc::read(from, rest.as_mut_ptr().cast(), size_of_val(&rest)) };
    }
    // SAFETY: both are open, and of this function.
    unsafe { (libc::close(from), libc::close(to)) };
    Ok(4)
}

pub(crate) fn every(world: &World) -> Outcome<u64> {
    let mut calls = 0;
    let own = world.mappings();
    let kinds = (0..=0x10).chain([0x7f, 0x7fff]);
    for kind in kinds {
        let handle = own.iter().find(|(known, _)| *known == kind).map_or(0, |(_, handle)| *handle);
        for handle in [handle, handle ^ 0x4000, 0xffff, 0x7fff] {
            for first in [0, 1, 2, 0x3ff, 0xf_ffff] {
                let offset = uapi::mmap_offset(kind, handle).wrapping_add(first * PAGE as u64);
                for length in [1, PAGE, 2 * PAGE, 1 << 32, 1 << 46] {
                    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC] {
                        for protection in
                            [0, libc::PROT_READ, libc::PROT_WRITE, READ_WRITE, READ_WRITE | libc::PROT_EXEC]
                        {
                            let what = step(format!(
                                "kind {kind}, handle {handle:#x}, page {first:#x}, {length:#x} bytes, protection \
                                 {protection}, flags {flags:#x}"
                            ));
                            calls += 1;
                            let (at, fd) = (std::ptr::null_mut(), world.file.as_raw_fd());
                            // SAFETY: a new mapping at an address of the kernel's choice.
                            let at = unsafe { libc::mmap(at, length, protection, flags, fd, offset as libc::off_t) };
                            if at == libc::MAP_FAILED {
                                sane(&what, answer(-1))?;
                                continue;
                            }
                            if protection & READ_WRITE != 0 {
                                calls += touch(at, length.next_multiple_of(PAGE), &what)?;
                                calls += abuse(at, length.next_multiple_of(PAGE), &what)?;
                                continue;
                            }
                            // SAFETY: the mapping just made, to which nothing refers.
                            unsafe { libc::munmap(at, length) };
                        }
                    }
                }
            }
        }
    }
    Ok(calls)
}
