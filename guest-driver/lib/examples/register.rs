// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory: a file that the process has mapped is exported as it is, and what lies on the heap is copied to
//! another node's file and back, without a copy into a segment before.

mod common;
mod word;

use common::Failure;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::{Error, Node, NodeId, RegistrationCache, Remote};
use word::wait_for;

pub(crate) const USAGE: &str = "\
Copies from memory that a process has to another node's file, and back

Usage: tg-register PEER [KIB]      (on both nodes at once; KIB is 1 to 65536, or 1024)

Exit codes: 0 done, 1 a byte came wrong, 2 usage, 3 the board, the driver or the peer refused.

Example: telegraphos run --nodes 2 --user root -- sh -c 'tg-register $((1 - $(hostname | tr -cd 0-9)))'
";

/// Bytes before the message in the file: nothing has to be aligned.
const HEADER: usize = 13;
/// Words by which the nodes wait for each other: the message is there, it was checked.
const SENT: u64 = 0;
const CHECKED: u64 = 8;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(1024)], |[peer, kib]| run(peer as NodeId, (kib.clamp(1, 64 << 10) << 10) as usize))
}

/// The message of a node.
fn message(node: NodeId, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ node as u8).collect()
}

fn run(peer: NodeId, length: usize) -> Result<(), Failure> {
    let node = Node::open()?;
    let mapping = Mapping::new(HEADER + length)?;
    // SAFETY: this process reads the file by system calls only while others may write to it.
    let shared = unsafe { node.register(mapping.bytes()) }.name("file").mode(0o606).create()?;
    let mail = node.export("mail", 64).mode(0o606).create()?;
    let far = common::patiently(|| node.import(peer, "file").open())?;
    let far_mail = common::patiently(|| node.import(peer, "mail").open())?;

    // The first copy registers the memory, the next ones find it registered.
    let mut cache = RegistrationCache::new(&node, 4 * length as u64);
    let sent = message(node.id(), length);
    let first = timed(|| cache.put(&far, HEADER as u64, &sent))?;
    let again = timed(|| cache.put(&far, HEADER as u64, &sent))?;
    tell(&far_mail, SENT)?;

    wait_for(&mail, SENT, 1)?;
    let mut came = vec![0; length];
    mapping
        .file
        .read_exact_at(&mut came, HEADER as u64)
        .map_err(|e| Failure::Wrong(format!("reading the file: {e}")))?;
    same("in the file", &came, &message(peer, length))?;
    let back = timed(|| cache.get(&far, HEADER as u64, &mut came))?;
    same("that came back", &came, &sent)?;
    println!(
        "node {}: {} KiB of the heap to node {peer}'s file in {first:.1?}, again in {again:.1?}, back in {back:.1?}; \
         {} of 3 copies registered memory, the file is in {} runs",
        node.id(),
        length >> 10,
        cache.misses(),
        shared.runs(),
    );
    // Neither leaves while the other still copies.
    tell(&far_mail, CHECKED)?;
    wait_for(&mail, CHECKED, 1)?;
    Ok(shared.close()?)
}

/// A file in memory, and where it is mapped.
struct Mapping {
    file: File,
    at: *mut u8,
    size: usize,
}

impl Mapping {
    fn new(size: usize) -> Result<Mapping, Failure> {
        let failed = |e: rustix::io::Errno| Failure::Wrong(format!("a file of {size} bytes in memory: {e}"));
        let file = memfd_create("register", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, size as u64).map_err(failed)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), size, protection, flags, &file, 0) }.map_err(failed)?;
        Ok(Mapping { file: file.into(), at: at.cast(), size })
    }

    fn bytes(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.at, self.size)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more; a registration of it would end with an error, and no more than that.
        let _ = unsafe { munmap(self.at.cast(), self.size) };
    }
}

fn timed(f: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
    let begun = Instant::now();
    f().map(|()| begun.elapsed())
}

fn same(what: &str, found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            Err(Failure::Wrong(format!("byte {at} {what} is {:#04x}: expected {:#04x}", found[at], expected[at])))
        }
    }
}

fn tell(mail: &Remote, word: u64) -> Result<(), Failure> {
    mail.put64(word, 1)?;
    Ok(mail.quiet()?)
}
