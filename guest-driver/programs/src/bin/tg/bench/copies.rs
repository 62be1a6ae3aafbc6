// SPDX-License-Identifier: MIT OR Apache-2.0
//! Block copies, and what the processor and the host's kernel take for as many bytes.

use super::bare::Bare;
use super::{Options, Round, nanoseconds, timed};
use rustix::mm::{Advice, MapFlags, madvise};
use std::mem::ManuallyDrop;
use std::time::Instant;
use telegraphos::{Node, Registration, Remote, Segment};
use telegraphos_agent::bench::command;
use telegraphos_guest_tests::cli::{Outcome, failed};
use telegraphos_guest_tests::mapping::Mapping;
use telegraphos_guest_tests::raw;

/// Bytes of the segment: the longest copy.
pub(crate) const DATA: u64 = 16 << 20;
/// The longest copy that is also tried as a loop of loads.
const LOADS: u64 = 4 << 10;

/// Bytes, name, and the names of a memcpy in the guest and on the host and of `process_vm_writev` where those are
/// measured, too; so are copies from registered memory there.
type Size = (u64, &'static str, Option<[&'static str; 3]>);

pub(crate) struct Sources<'a> {
    /// The driver's memory, adjacent in pieces of 64 KiB at least.
    segment: &'a Segment,
    /// The process's own, in pages of 4 KiB.
    small: Registration,
    /// The same in pages of 2 MiB, as far as the kernel has them.
    huge: Registration,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(node: &Node, segment: &'a Segment) -> Outcome<Sources<'a>> {
        Ok(Sources { segment, small: own(node, Advice::LinuxNoHugepage)?, huge: own(node, Advice::LinuxHugepage)? })
    }

    /// Entries of the board's table that each of the two takes.
    pub(crate) fn runs(&self) -> String {
        format!("{} and {} runs", self.small.runs(), self.huge.runs())
    }
}

/// Memory of this process, which ends with it, registered.
fn own(node: &Node, pages: Advice) -> Outcome<Registration> {
    let length = DATA as usize;
    let mapping = Mapping::anonymous(length, MapFlags::PRIVATE);
    let mapping = ManuallyDrop::new(mapping.map_err(failed(format_args!("{DATA} bytes of memory for copies")))?);
    // A kernel without huge pages has small ones.
    // SAFETY: the mapping that was just made.
    let _ = unsafe { madvise(mapping.at().cast(), length, pages) };
    // SAFETY: as above.
    unsafe { mapping.at().write_bytes(0x5a, length) };
    // SAFETY: copies from it and to it are all that accesses it from now on.
    Ok(unsafe { node.register(mapping.range(0, length)) }.create()?)
}

const SIZES: [Size; 10] = [
    (64, "64", None),
    (256, "256", None),
    (1 << 10, "1k", None),
    (4 << 10, "4k", Some(["guest_memcpy_4k", "host_memcpy_4k", "host_writev_4k"])),
    (16 << 10, "16k", None),
    (64 << 10, "64k", None),
    (256 << 10, "256k", None),
    (1 << 20, "1m", Some(["guest_memcpy_1m", "host_memcpy_1m", "host_writev_1m"])),
    (4 << 20, "4m", None),
    (DATA, "16m", Some(["guest_memcpy_16m", "host_memcpy_16m", "host_writev_16m"])),
];

pub(crate) fn round(
    options: &Options,
    remote: &Remote,
    sources: &Sources<'_>,
    bare: &mut Bare,
    values: &mut Round<'_>,
) -> Outcome<()> {
    let segment = sources.segment;
    for (size, label, memcpy) in SIZES {
        if options.few_copies && memcpy.is_none() {
            continue;
        }
        // Short copies are repeated, since one alone is mostly a wake-up.
        let count = (64 << 10 >> size.ilog2()).clamp(1, 16);
        let put = timed(count, || remote.put_block(0, segment, 0, size))?;
        values.ns.insert(format!("put_{label}"), put);
        if let Some([guest, host, writev]) = memcpy {
            for (kind, registered) in [("registered", &sources.small), ("huge", &sources.huge)] {
                let put = timed(count, || remote.put_block(0, registered, 0, size))?;
                values.ns.insert(format!("put_{label}_{kind}"), put);
            }
            for (name, command) in [(host, command::MEMCPY), (writev, command::WRITEV)] {
                values.part(name, |ns| Ok(_ = ns.insert(name.into(), bare.on_host(command, size)?)));
            }
            let source = vec![0x5a_u8; size as usize];
            let mut target = vec![0_u8; size as usize];
            let begun = Instant::now();
            target.copy_from_slice(std::hint::black_box(&source));
            values.ns.insert(guest.into(), nanoseconds(begun, 1));
            std::hint::black_box(target);
        }
        let get = timed(count, || remote.get_block(0, segment, 0, size))?;
        values.ns.insert(format!("get_{label}"), get);
        if size <= LOADS && !options.few_copies {
            let begun = Instant::now();
            for at in (0..size).step_by(8) {
                // SAFETY: the offset is aligned and within the segment.
                unsafe { raw::load::<u64>(remote.as_ptr(), at) };
            }
            values.ns.insert(format!("loads_{label}"), nanoseconds(begun, 1));
        }
    }
    Ok(())
}
