// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attacks by one thread: sizes, flags, pointers, fields, handles, request numbers, read() and poll().

use super::held::guesses;
use super::tables::others_continue;
use super::watch::step;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_guest_tests::interface::call::{Answer, BOARD, PAGE, Pages, expect, known, raw, sized};
use telegraphos_guest_tests::interface::rows::{self, Row, World, handle};
use telegraphos_wire::CField;
use telegraphos_wire::uapi::{self, Direction, Ioctl};

/// The largest size that a request number has room for.
const LARGEST: usize = (1 << 14) - 1;

/// The request number of an ioctl with its own size.
fn request(ioctl: &Ioctl) -> u32 {
    ioctl.request()
}

/// A call of a structure that was made for it, after a change; undone.
fn changed(
    world: &World,
    (ioctl, row): (&Ioctl, &Row),
    what: impl std::fmt::Display,
    change: impl FnOnce(&mut Vec<u8>),
) -> Outcome<Answer> {
    let made = row.make(world)?;
    let mut bytes = made.clone();
    change(&mut bytes);
    let what = step(format!("{} with {what}", ioctl.name));
    let answer = known(what, sized(&world.file, ioctl, &mut bytes))?;
    row.undo(world, &made, &bytes, answer)?;
    Ok(answer)
}

fn set_size(bytes: &mut [u8], size: u32) {
    bytes[..4].copy_from_slice(&size.to_ne_bytes());
}

/// Whether this ioctl is there: those for comparisons are in a module of their own.
fn is_there(world: &World, pair: (&Ioctl, &Row)) -> Outcome<bool> {
    Ok(changed(world, pair, "what it takes", |_| ())? != Err(libc::ENOTTY))
}

/// Structures that are shorter and longer, and whose size is another than the request number's.
pub(crate) fn sizes(world: &World) -> Outcome<u64> {
    let mut calls = 0;
    for pair @ (ioctl, row) in rows::all()? {
        let answer = changed(world, pair, "what it takes", |_| ())?;
        expect(format_args!("{} as it should be", ioctl.name), answer, row.answers)?;
        if !is_there(world, pair)? {
            continue;
        }
        let own = ioctl.structure.size;
        for size in (8..own).step_by(4).chain([own + 4, own + 8, own + 4 * PAGE, LARGEST & !3]) {
            let size = size.min(LARGEST & !3);
            // Longer by zeros is as if it were not; shorter by what later versions have added, too.
            let _any = changed(world, pair, format_args!("{size} bytes"), |bytes| {
                bytes.resize(size, 0);
                set_size(bytes, size as u32);
            })?;
            calls += 1;
        }
        for (what, size, said) in [
            ("an end that is not zero", own + 4, own + 4),
            ("a last byte that is not zero", LARGEST & !3, LARGEST & !3),
        ] {
            let answer = changed(world, pair, what, |bytes| {
                bytes.resize(size, 0);
                set_size(bytes, said as u32);
                bytes[size - 1] = 1;
            })?;
            expect(format_args!("{} with {what}", ioctl.name), answer, &[libc::E2BIG])?;
        }
        for said in [0, 1, 4, own as u32 - 1, own as u32 + 4, LARGEST as u32, 1 << 31, u32::MAX] {
            let answer = changed(world, pair, format_args!("{said} as its size"), |bytes| set_size(bytes, said))?;
            expect(format_args!("{} that says it has {said} bytes", ioctl.name), answer, &[libc::EINVAL])?;
            calls += 1;
        }
    }
    Ok(calls)
}

pub(crate) fn flags(world: &World) -> Outcome<u64> {
    let mut calls = 0;
    for pair @ (ioctl, row) in rows::all()? {
        if !is_there(world, pair)? {
            continue;
        }
        for bit in 0..32 {
            let flag = 1u32 << bit;
            let answer = changed(world, pair, format_args!("flag {flag:#x}"), |bytes| {
                bytes[4..8].copy_from_slice(&flag.to_ne_bytes());
            })?;
            let expected = if row.flags & flag == 0 { &[libc::EINVAL][..] } else { row.answers };
            expect(format_args!("{} with flag {flag:#x}", ioctl.name), answer, expected)?;
            calls += 1;
        }
    }
    Ok(calls)
}

/// Structures where there is no memory, or where it ends midway, to be read or to be written back.
pub(crate) fn pointers(world: &World) -> Outcome<u64> {
    let mut calls = 0;
    let fault = &[libc::EFAULT];
    let pages = Pages::new(2)?;
    for pair @ (ioctl, row) in rows::all()? {
        if !is_there(world, pair)? {
            continue;
        }
        for at in [0, 8, pages.at(2 * PAGE) as usize, 0xffff_8880_0000_0000, 0xffff_ffff_8100_0000, usize::MAX - 7] {
            let what = step(format!("{} at {at:#x}", ioctl.name));
            // SAFETY: none of these addresses is memory of this process.
            let answer = unsafe { raw(&world.file, request(ioctl), at as *mut u8) };
            expect(what, answer, fault)?;
            calls += 1;
        }
        let size = ioctl.structure.size;
        for there in (4..size).step_by(4) {
            let made = row.make(world)?;
            pages.put(2 * PAGE - there, &made);
            let what = step(format!("{} of which {there} of {size} bytes are there", ioctl.name));
            // SAFETY: the pages are used by nothing else.
            let answer = unsafe { raw(&world.file, request(ioctl), pages.at(2 * PAGE - there)) };
            row.undo(world, &made, &[], answer)?;
            expect(what, answer, fault)?;
            calls += 1;
        }
        // What cannot be written back, or not all of it, is undone.
        for there in [0, 8, size / 8 * 4] {
            let made = row.make(world)?;
            let at = PAGE - there;
            pages.put(at, &made);
            pages.protect(1, 1, libc::PROT_READ)?;
            let what = step(format!("{} of which {there} bytes may be written", ioctl.name));
            // SAFETY: as above.
            let answer = unsafe { raw(&world.file, request(ioctl), pages.at(at)) };
            pages.protect(1, 1, libc::PROT_READ | libc::PROT_WRITE)?;
            // SAFETY: the pages are there, and nothing writes to them.
            let bytes = unsafe { std::slice::from_raw_parts(pages.at(at), size) }.to_vec();
            row.undo(world, &made, &bytes, answer)?;
            let succeeds = row.answers.contains(&0);
            let expected = if ioctl.direction == Direction::InOut && succeeds { fault } else { row.answers };
            expect(what, answer, expected)?;
            calls += 1;
        }
    }
    Ok(calls)
}

/// Whether a field has the number of something that is there.
fn names_something(field: &CField) -> bool {
    ["handle", "target", "source", "counter"].contains(&field.name)
}

/// Values for a number of that many bytes.
fn values(field: &CField, bytes: usize) -> Vec<u64> {
    let top = u64::MAX >> (64 - 8 * bytes);
    if names_something(field) {
        return vec![top, top - 1, (top >> 1) + 1, 0xf_ffff & top, 0xffff & top, 0x7fff & top];
    }
    let mut values = vec![0, 1, 2, 3, 7, 8, 0xff, 0x100 & top, top >> 1, (top >> 1) + 1, top - 1, top];
    if bytes == 8 {
        values.extend([
            PAGE as u64 + 1,
            1 << 32,
            1 << 47,
            (1 << 47) - 4096,
            0xffff_8880_0000_0000,
            0xffff_ffff_ffff_f000,
        ]);
    }
    values
}

fn width(field: &CField) -> Outcome<usize> {
    match field.ctype {
        "__u8" => Ok(1),
        "__u16" => Ok(2),
        "__u32" | "__s32" => Ok(4),
        "__u64" => Ok(8),
        other => Err(Failure::Check(format!("field {} is a {other}: expected a number", field.name))),
    }
}

/// Every field with values at its limits, one at a time.
pub(crate) fn fields(world: &World) -> Outcome<u64> {
    // What sleeps for as long as the field says is interrupted.
    let _interrupts = Interrupts::begin();
    let mut calls = 0;
    for pair @ (ioctl, _) in rows::all()? {
        if !is_there(world, pair)? {
            continue;
        }
        for field in ioctl.structure.fields.iter().filter(|field| !["size", "flags"].contains(&field.name)) {
            let width = width(field)?;
            let count = field.count.max(1);
            // So much a board may have, and a guest has not.
            let too_much = |value: &u64| field.name == "length" && *value == 1 << 32;
            for value in values(field, width).into_iter().filter(|value| !too_much(value)) {
                // Of an array the first, the last, and all.
                for places in [0..1, count - 1..count, 0..count].iter().take(if field.count == 0 { 1 } else { 3 }) {
                    let _any = changed(world, pair, format_args!("{} {places:?} = {value:#x}", field.name), |bytes| {
                        for place in places.clone() {
                            let at = field.offset + place * width;
                            bytes[at..at + width].copy_from_slice(&value.to_ne_bytes()[..width]);
                        }
                    })?;
                    calls += 1;
                }
            }
        }
    }
    Ok(calls)
}

/// A signal every 50 ms, which has no other effect.
struct Interrupts;

impl Interrupts {
    fn begin() -> Interrupts {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, and all of the structure is set.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        }
        Interrupts::every(50_000);
        Interrupts
    }

    fn every(tv_usec: libc::suseconds_t) {
        let time = libc::timeval { tv_sec: 0, tv_usec };
        let timer = libc::itimerval { it_interval: time, it_value: time };
        // SAFETY: the structure is whole.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    }
}

impl Drop for Interrupts {
    fn drop(&mut self) {
        Interrupts::every(0);
    }
}

/// Handles of other kinds, of other files, that were closed, and that never were.
pub(crate) fn handles(world: &World) -> Outcome<u64> {
    let mut calls = 0;
    // Imports that belong to other objects of the file; the other file, made alike, has the same numbers for its own.
    let kept: Vec<u32> = guesses(world, "TG_IOCTL_UNIMPORT")?
        .into_iter()
        .filter_map(|(number, answer)| (answer == Err(libc::EBUSY)).then_some(number))
        .collect();
    let other = World::new()?;
    let bad = &[libc::EBADF];
    let ours = |ioctl: &Ioctl| ioctl.structure.fields.get(2).is_some_and(|field| field.name == "handle");
    for (ioctl, row) in rows::all()?.into_iter().filter(|(ioctl, _)| ours(ioctl)) {
        if !is_there(world, (ioctl, row))? || ioctl.name.starts_with("TG_IOCTL_COUNTER") {
            continue;
        }
        let send = |file: &File, number: u32, what: &str| -> Outcome<()> {
            let mut bytes = vec![0; ioctl.structure.size];
            set_size(&mut bytes, ioctl.structure.size as u32);
            bytes[8..12].copy_from_slice(&number.to_ne_bytes());
            let what = step(format!("{} for {what}, {number}", ioctl.name));
            expect(what, sized(file, ioctl, &mut bytes), bad)
        };
        let mine = world.objects().map(|(_, number)| number);
        for (_, number) in other.objects() {
            // Numbers are of a kind: another kind may have the same.
            if !mine.contains(&number) && !kept.contains(&number) {
                send(&world.file, number, "what another file has")?;
                calls += 1;
            }
        }
        for number in mine {
            if !other.objects().iter().any(|(_, has)| *has == number) && !kept.contains(&number) {
                send(&other.file, number, "what another file has")?;
                calls += 1;
            }
        }
        for number in [u32::MAX, 1 << 31, 1 << 20, 0xffff] {
            send(&world.file, number, "nothing")?;
            calls += 1;
        }
    }
    // Each is closed once.
    for (end, _) in world.objects() {
        let (ioctl, row) = rows::row(end)?;
        let mut bytes = row.make(world)?;
        expect(end, sized(&world.file, ioctl, &mut bytes), &[0])?;
        for _ in 0..2 {
            let what = step(format!("{end} once more"));
            expect(what, sized(&world.file, ioctl, &mut bytes), bad)?;
            calls += 1;
        }
        let closed = rows::field(ioctl, &bytes, "handle")?;
        // Another kind has the same number: it is not closed.
        if kept.contains(&closed) || world.objects().iter().any(|(_, has)| *has == closed) {
            continue;
        }
        for (ioctl, _) in rows::all()?.into_iter().filter(|(ioctl, _)| ioctl.structure.name == "tg_handle") {
            if is_there(world, rows::row(ioctl.name)?)? {
                expect(
                    format_args!("{} for what was closed", ioctl.name),
                    sized(&world.file, ioctl, &mut handle(closed)),
                    bad,
                )?;
                calls += 1;
            }
        }
    }
    Ok(calls)
}

/// Request numbers that no ioctl has.
pub(crate) fn numbers(world: &World) -> Outcome<u64> {
    let mut calls = 0;
    let mut bytes = vec![0; LARGEST];
    for number in 0..=u8::MAX {
        for (direction, bits) in [("none", 0u32), ("in", 1), ("out", 2), ("in and out", 3)] {
            let known = uapi::IOCTLS.iter().any(|ioctl| ioctl.number == number && ioctl.request() >> 30 == bits);
            if known {
                continue;
            }
            let what = step(format!("ioctl {number:#x}, {direction}"));
            let request = bits << 30 | 16 << 16 | (uapi::IOCTL_TYPE as u32) << 8 | u32::from(number);
            // SAFETY: the bytes are more than any request number says.
            expect(what, unsafe { raw(&world.file, request, bytes.as_mut_ptr()) }, &[libc::ENOTTY])?;
            calls += 1;
        }
    }
    Ok(calls)
}

/// read() and poll(), and what else a program can do with an open file.
pub(crate) fn reads() -> Outcome<u64> {
    let mut calls = 0;
    let mut open = File::options();
    let mut file =
        open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(BOARD).map_err(cli::failed(BOARD))?;
    let answer = |result: std::io::Result<usize>| result.map(drop).map_err(|e| e.raw_os_error().unwrap_or(0));
    for size in (0..8).chain([8, 9, 1 << 20]) {
        let errno = if size < 8 { libc::EINVAL } else { libc::EAGAIN };
        let what = step(format!("read() of {size} bytes"));
        expect(what, answer(file.read(&mut vec![0; size])), &[errno])?;
        calls += 1;
    }
    expect("write()", answer(file.write(&[0; 8])), &[libc::EINVAL])?;
    let fd = file.as_raw_fd();
    let result = |result: libc::ssize_t| match result {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => Ok(()),
    };
    // SAFETY: they take numbers, or an address at which nothing is.
    let (seek, allocate, truncate, wild) = unsafe {
        (
            result(libc::lseek(fd, 1 << 40, libc::SEEK_SET) as libc::ssize_t),
            result(libc::fallocate(fd, 0, 0, 1 << 40) as libc::ssize_t),
            result(libc::ftruncate(fd, 1 << 40) as libc::ssize_t),
            result(libc::read(fd, std::ptr::without_provenance_mut(8), 8)),
        )
    };
    expect("lseek()", seek, &[libc::ESPIPE])?;
    expect("fallocate()", allocate, &[libc::ENODEV, libc::EOPNOTSUPP, libc::ESPIPE])?;
    expect("ftruncate()", truncate, &[libc::EINVAL])?;
    expect("read() to nowhere without an event", wild, &[libc::EAGAIN, libc::EFAULT])?;
    let mut polled = libc::pollfd { fd, events: !0, revents: 0 };
    // SAFETY: one structure, which is whole.
    let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
    cli::check(ready == 0, || format!("poll() finds {:#x} without an event", polled.revents))?;
    others_continue()?;
    Ok(calls + 6)
}
