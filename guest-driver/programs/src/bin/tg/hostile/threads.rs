// SPDX-License-Identifier: MIT OR Apache-2.0
//! One object, used by several threads at once while others close it.

use super::tables::Tables;
use super::watch::step;
use rustix::mm::ProtFlags;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_guest_tests::interface::call::{PAGE, expect, sane, sized};
use telegraphos_guest_tests::interface::rows::{self, World, handle};
use telegraphos_guest_tests::mapping::Mapping;
use telegraphos_wire::uapi;

/// What makes an object, what ends it, what uses it, and its kinds of mappings.
const OBJECTS: &[(&str, &str, &[&str], &[u64])] = &[
    ("TG_IOCTL_EXPORT", "TG_IOCTL_UNEXPORT", &[], &[uapi::MMAP_EXPORT]),
    (
        "TG_IOCTL_IMPORT",
        "TG_IOCTL_UNIMPORT",
        &["TG_IOCTL_STATE", "TG_IOCTL_ACK", "TG_IOCTL_COUNTER_ARM"],
        &[uapi::MMAP_IMPORT, uapi::MMAP_ARGUMENT],
    ),
    (
        "TG_IOCTL_QUEUE_CREATE",
        "TG_IOCTL_QUEUE_DESTROY",
        &["TG_IOCTL_QUEUE_ATTACH", "TG_IOCTL_QUEUE_SERVICE", "TG_IOCTL_QUEUE_STATE", "TG_IOCTL_QUEUE_POP"],
        &[uapi::MMAP_QUEUE],
    ),
    (
        "TG_IOCTL_REPLICATE",
        "TG_IOCTL_REPLICA_LEAVE",
        &["TG_IOCTL_REPLICA_STATE", "TG_IOCTL_REPLICA_ADOPT", "TG_IOCTL_REPLICA_MOVE"],
        &[uapi::MMAP_REPLICA],
    ),
    ("TG_IOCTL_REGISTER", "TG_IOCTL_UNREGISTER", &["TG_IOCTL_REGISTRATION_STATE"], &[]),
];

/// The offset of the field with the handle in the structures of the ioctls above.
fn place(name: &str) -> Outcome<usize> {
    let (ioctl, _) = rows::row(name)?;
    let field = ioctl.structure.fields.iter().find(|field| field.name == "handle");
    field.map(|field| field.offset).ok_or_else(|| Failure::Check(format!("{name} has no field handle")))
}

/// Uses the object until it has ended.
fn uses(world: &World, name: &str, number: u32, over: &AtomicBool) -> Outcome<u64> {
    let (ioctl, row) = rows::row(name)?;
    let (place, mut calls) = (place(name)?, 0);
    let mut bytes = row.make(world)?;
    while !over.load(Ordering::Relaxed) {
        bytes[place..place + 4].copy_from_slice(&number.to_ne_bytes());
        sane(name, sized(&world.file, ioctl, &mut bytes))?;
        calls += 1;
    }
    Ok(calls)
}

fn maps(world: &World, kind: u64, number: u32, over: &AtomicBool) -> Outcome<u64> {
    let mut calls = 0;
    while !over.load(Ordering::Relaxed) {
        if let Ok(mapping) = Mapping::of(&world.file, uapi::mmap_offset(kind, number), PAGE, ProtFlags::WRITE) {
            // SAFETY: the mapping just made, to whose bytes no reference exists.
            unsafe { libc::madvise(mapping.at().cast(), PAGE, libc::MADV_POPULATE_WRITE) };
        }
        calls += 2;
    }
    Ok(calls)
}

pub(crate) fn close(world: &World, rounds: usize) -> Outcome<u64> {
    let before = Tables::now()?;
    let calls = AtomicU64::new(0);
    for (make, end, users, kinds) in OBJECTS {
        for round in 0..rounds {
            step(format_args!("{end} beside others, round {round}"));
            let (maker, row) = rows::row(make)?;
            let mut bytes = row.make(world)?;
            expect(make, sized(&world.file, maker, &mut bytes), &[0])?;
            let number = rows::field(maker, &bytes, "handle")?;
            let over = AtomicBool::new(false);
            // Two threads end it, at once with each other.
            let start = Barrier::new(2);
            let ended = std::thread::scope(|scope| -> Outcome<usize> {
                let mut threads = Vec::new();
                let over = &over;
                for name in *users {
                    threads.push(scope.spawn(move || uses(world, name, number, over)));
                }
                for kind in *kinds {
                    threads.push(scope.spawn(move || maps(world, *kind, number, over)));
                }
                let ends = || -> Outcome<bool> {
                    start.wait();
                    let answer = sized(&world.file, rows::row(end)?.0, &mut handle(number));
                    expect(end, answer, &[0, libc::EBADF])?;
                    Ok(answer == Ok(()))
                };
                let closers = [scope.spawn(ends), scope.spawn(ends)];
                let ended = closers.map(|thread| thread.join());
                over.store(true, Ordering::Relaxed);
                let panicked = |_| Failure::Check("a thread panicked".into());
                for thread in threads {
                    calls.fetch_add(thread.join().map_err(panicked)??, Ordering::Relaxed);
                }
                let mut count = 0;
                for ended in ended {
                    count += usize::from(ended.map_err(panicked)??);
                }
                Ok(count)
            })?;
            cli::check(ended == 1, || format!("{end} by two threads has succeeded {ended} times: expected once"))?;
        }
        before.come_back()?;
    }
    Ok(calls.into_inner())
}
