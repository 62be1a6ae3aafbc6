// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the C headers of the guest driver from the tables of this crate: what user space sees, and what the driver
//! and the board say to each other, which user space never sees.
//!
//! ```sh
//! cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h
//! cargo run -p telegraphos-wire --example hw_header > guest-driver/module/telegraphos_hw.h
//! ```

use crate::{CStruct, admin, context, event, ids, packet::Rights, queue, regs, uapi};
use core::fmt::{self, Write};

fn table(out: &mut dyn Write, title: &str, rows: &[(&str, u64, &str)]) -> fmt::Result {
    writeln!(out, "\n/* {title} */")?;
    for (name, value, doc) in rows {
        let suffix = if *value > u64::from(u32::MAX) { "ULL" } else { "" };
        writeln!(out, "/* {} */\n#define {name} 0x{value:x}{suffix}", doc.trim())?;
    }
    Ok(())
}

fn comment(out: &mut dyn Write, indent: &str, doc: &[&str]) -> fmt::Result {
    match doc {
        [] => Ok(()),
        [one] => writeln!(out, "{indent}/* {} */", one.trim()),
        many => {
            writeln!(out, "{indent}/*")?;
            for line in many {
                writeln!(out, "{indent} * {}", line.trim())?;
            }
            writeln!(out, "{indent} */")
        }
    }
}

fn structure(out: &mut dyn Write, s: &CStruct) -> fmt::Result {
    writeln!(out)?;
    comment(out, "", s.doc)?;
    writeln!(out, "struct {} {{", s.name)?;
    for f in s.fields {
        comment(out, "\t", f.doc)?;
        let (ty, dim) = match f.ctype.find('[') {
            Some(at) => f.ctype.split_at(at),
            None => (f.ctype, ""),
        };
        writeln!(out, "\t{ty} {}{dim};", f.name)?;
    }
    writeln!(out, "}};")?;
    writeln!(out, "_Static_assert(sizeof(struct {}) == {}, \"{}\");", s.name, s.size, s.name)
}

/// Writes `telegraphos.h`: the user interface, and what processes read and write of the board's by themselves.
///
/// # Errors
/// Those of `out`.
pub fn generate(out: &mut dyn Write) -> fmt::Result {
    writeln!(
        out,
        "/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT OR Apache-2.0 */
/*
 * Telegraphos HIB: the interface of its driver to user space.
 *
 * Each ioctl has a structure that begins with its size, as the caller knows it, and flags.
 * It may grow at its end. The driver takes what is missing for zero, and refuses what it
 * does not know unless it is zero: E2BIG for bytes behind the end of its own structure,
 * EINVAL for a flag, and for less than the first version of the structure had. It writes
 * no more than that size back.
 *
 * Generated from the wire crate; do not edit. Renew with
 *   cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h
 */
#ifndef _UAPI_TELEGRAPHOS_H
#define _UAPI_TELEGRAPHOS_H

#include <linux/ioctl.h>
#include <linux/types.h>"
    )?;
    table(out, "Status codes", crate::Status::ALL)?;
    table(out, "Rights", Rights::NAMES)?;
    table(out, "Modes of replicated pages", admin::MODES)?;
    table(
        out,
        "COUNTER bits",
        &[
            ("TG_COUNTER_READS", event::COUNTER_READS, "The reads counter went to 0"),
            ("TG_COUNTER_WRITES", event::COUNTER_WRITES, "The writes counter went to 0"),
        ],
    )?;
    table(out, "Contexts", context::ALL)?;
    table(out, "Operations", context::OPERATIONS)?;
    table(out, "Launch flags", context::FLAGS)?;
    structure(out, &context::StatusPage::C)?;
    table(out, "Notification queues", queue::ALL)?;
    structure(out, &queue::Control::C)?;
    table(out, "User interface", uapi::ALL)?;
    for s in [
        &uapi::Info::C,
        &uapi::Export::C,
        &uapi::Import::C,
        &uapi::Handle::C,
        &uapi::ImportState::C,
        &uapi::Launch::C,
        &uapi::Counter::C,
        &uapi::Notify::C,
        &uapi::Queue::C,
        &uapi::QueueState::C,
        &uapi::QueuePop::C,
        &uapi::Replica::C,
        &uapi::ReplicaState::C,
    ] {
        structure(out, s)?;
    }
    writeln!(out)?;
    for ioctl in uapi::IOCTLS {
        let (name, number, structure) = (ioctl.name, ioctl.number, ioctl.structure.name);
        let direction = ioctl.direction.c_macro();
        writeln!(
            out,
            "/* {} */\n#define {name} {direction}(TG_IOCTL_TYPE, 0x{number:02x}, struct {structure})",
            ioctl.doc
        )?;
    }
    writeln!(out, "\n#endif /* _UAPI_TELEGRAPHOS_H */")
}

/// Writes `telegraphos_hw.h`: registers, admin commands and events, in the board's byte order.
///
/// # Errors
/// Those of `out`.
pub fn generate_hw(out: &mut dyn Write) -> fmt::Result {
    writeln!(
        out,
        "/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Telegraphos HIB: what the driver and the board say to each other: registers, admin
 * commands and events. Private to the driver: TG_REG_VERSION says which it is. Everything
 * in memory is little-endian.
 *
 * Generated from the wire crate; do not edit. Renew with
 *   cargo run -p telegraphos-wire --example hw_header > guest-driver/module/telegraphos_hw.h
 */
#ifndef TELEGRAPHOS_HW_H
#define TELEGRAPHOS_HW_H

#include <linux/types.h>"
    )?;
    table(out, "PCI identity", ids::ALL)?;
    writeln!(out, "\n/* BAR0 registers: byte offsets; the access width is in the comment */")?;
    for r in regs::Register::ALL {
        let access = match r.access() {
            regs::Access::ReadOnly => "read",
            regs::Access::ReadWrite => "read, write",
            regs::Access::WriteOnly => "write",
        };
        writeln!(
            out,
            "/* {} bit, {access}: {} */\n#define TG_REG_{} 0x{:03x}",
            u32::from(r.size()) * 8,
            r.doc().trim(),
            r.c_name(),
            r.offset()
        )?;
    }
    table(out, "BAR0 constants", regs::CONSTANTS)?;
    table(out, "Units", &[("TG_UNIT_SHIFT", u64::from(crate::UNIT_SHIFT), "log2 of the import and export unit")])?;
    table(out, "Admin commands", admin::ALL)?;
    table(
        out,
        "Admin slots",
        &[
            ("TG_ADMIN_SLOTS", admin::SLOTS as u64, "Number of slots"),
            ("TG_ADMIN_BLOCK_SIZE", admin::BLOCK_SIZE as u64, "Bytes per slot"),
            ("TG_ADMIN_COMPLETION", admin::COMPLETION_OFFSET as u64, "Offset of the completion in a slot"),
        ],
    )?;
    for s in [
        &admin::Command::C,
        &admin::LaunchCommand::C,
        &admin::CounterCommand::C,
        &admin::QueueCommand::C,
        &admin::ReplicaCommand::C,
        &admin::Completion::C,
    ] {
        structure(out, s)?;
    }
    table(out, "Events", event::ALL)?;
    table(
        out,
        "IMPORT_STATE bits",
        &[
            ("TG_IMPORT_CONGESTED", event::IMPORT_CONGESTED, "Stores wait"),
            ("TG_IMPORT_CUT", event::IMPORT_CUT, "A store was lost"),
        ],
    )?;
    table(
        out,
        "CONTEXT_STATE bits",
        &[("TG_CONTEXT_CONGESTED", event::CONTEXT_CONGESTED, "Its stores or launches wait")],
    )?;
    table(
        out,
        "REPLICA event bits",
        &[
            ("TG_REPLICA_EVENT_ORPHANED", event::REPLICA_ORPHANED, "Its home has gone or does not serve it any more"),
            ("TG_REPLICA_EVENT_MOVED", event::REPLICA_MOVED, "It has had another home; the index is the present one"),
            (
                "TG_REPLICA_EVENT_INVALID",
                event::REPLICA_INVALID,
                "The copy is not valid any more: unmap it, then REPLICA_INVALID",
            ),
        ],
    )?;
    table(
        out,
        "QUEUE event bits",
        &[
            (
                "TG_QUEUE_EVENT_OVERFLOW",
                event::QUEUE_OVERFLOW,
                "The board holds the pending element until QUEUE_RESUME",
            ),
            ("TG_QUEUE_EVENT_BROKEN", event::QUEUE_BROKEN, "The header was not sound; every enqueue is refused"),
        ],
    )?;
    structure(out, &event::Entry::C)?;
    writeln!(out, "\n#endif /* TELEGRAPHOS_HW_H */")
}
