// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the C headers of the guest driver from the tables of this crate: the interface to user space, and the
//! private one between the driver and the board.
//!
//! ```sh
//! cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h
//! cargo run -p telegraphos-wire --example hw_header > guest-driver/module/telegraphos_hw.h
//! ```

use crate::{
    CStruct, admin, context, direct, event, ids, names, net, packet::Rights, queue, range, regs, uapi, window,
};
use core::fmt::{self, Write};

fn table(out: &mut dyn Write, title: &str, rows: &[(&str, u64, &str)]) -> fmt::Result {
    writeln!(out, "\n/* {title} */")?;
    for (name, value, doc) in rows {
        let suffix = if *value > u64::from(u32::MAX) { "ULL" } else { "" };
        writeln!(out, "/* {} */\n#define {name} 0x{value:x}{suffix}", doc.trim())?;
    }
    Ok(())
}

fn strings(out: &mut dyn Write, title: &str, rows: &[(&str, &str, &str)]) -> fmt::Result {
    writeln!(out, "\n/* {title} */")?;
    rows.iter().try_for_each(|(name, text, doc)| writeln!(out, "/* {} */\n#define {name} \"{text}\"", doc.trim()))
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
        write!(out, "\t{} {}", f.ctype, f.name)?;
        match f.count {
            0 => out.write_str(";\n")?,
            count => writeln!(out, "[{count}];")?,
        }
    }
    writeln!(out, "}};")?;
    writeln!(out, "_Static_assert(sizeof(struct {}) == {}, \"{}\");", s.name, s.size, s.name)
}

/// Writes `telegraphos.h`: the user interface, and the layouts of the pages that processes share with the board.
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
 * Each ioctl has a structure that begins with its size in the caller's version of it, and
 * flags. It may grow at its end. The driver takes missing bytes for zero, and refuses what it
 * does not support unless it is zero: E2BIG for bytes after the end of its own version of the
 * structure, EINVAL for a flag, and for a structure that is shorter than its first version. It
 * writes no more than that size back.
 *
 * Generated from the wire crate; do not edit. Renew with
 *   cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h
 */
#ifndef _UAPI_TELEGRAPHOS_H
#define _UAPI_TELEGRAPHOS_H

#include <linux/ioctl.h>
#include <linux/types.h>"
    )?;
    for (title, rows) in [
        ("Status codes", crate::Status::ALL),
        ("Rights", Rights::NAMES),
        ("Modes of replicated pages", admin::MODES),
        ("COUNTER bits", event::COUNTER_BITS),
        ("Contexts", context::ALL),
        ("Bits of a context's words", context::BITS),
        ("Operations", context::OPERATIONS),
        ("Launch flags", context::FLAGS),
    ] {
        table(out, title, rows)?;
    }
    structure(out, &context::StatusPage::C)?;
    table(out, "Notification queues", queue::ALL)?;
    structure(out, &queue::Control::C)?;
    table(out, "User interface", uapi::ALL)?;
    for s in uapi::STRUCTS {
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

/// Writes `telegraphos_hw.h`: registers, admin commands and events, in the board's byte order, and what the driver has
/// in common with programs and other nodes' drivers besides the user interface.
///
/// # Errors
/// Those of `out`.
pub fn generate_hw(out: &mut dyn Write) -> fmt::Result {
    writeln!(
        out,
        "/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Telegraphos HIB: the interface between the driver and the board: registers, admin
 * commands and events. Private to the driver; the register TG_REG_VERSION has its version.
 * Everything in memory is little-endian. Behind it, names and places that the driver has in
 * common with programs and with other nodes' drivers.
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
    table(out, "BARs", regs::BARS)?;
    table(out, "BAR0 constants", regs::CONSTANTS)?;
    table(out, "Apertures of the window: the quarters of its BAR", window::APERTURES)?;
    table(out, "Units", &[("TG_UNIT_SHIFT", u64::from(crate::UNIT_SHIFT), "log2 of the import and export unit")])?;
    table(out, "Admin commands", admin::ALL)?;
    table(out, "Admin slots", admin::SIZES)?;
    for s in admin::STRUCTS {
        structure(out, s)?;
    }
    table(out, "Ranges", range::ALL)?;
    for s in range::STRUCTS {
        structure(out, s)?;
    }
    for (title, rows) in [
        ("Event queue", event::SIZES),
        ("Events", event::ALL),
        ("IMPORT_STATE bits", event::IMPORT_BITS),
        ("CONTEXT_STATE bits", event::CONTEXT_BITS),
        ("REPLICA event bits", event::REPLICA_BITS),
        ("QUEUE event bits", event::QUEUE_BITS),
    ] {
        table(out, title, rows)?;
    }
    structure(out, &event::Entry::C)?;
    table(out, "BARs of the memory device", direct::BARS)?;
    table(out, "The direct aperture: the memory device and its slices", direct::ALL)?;
    for s in direct::STRUCTS {
        structure(out, s)?;
    }
    strings(out, "Beginnings of names", names::ALL)?;
    table(out, "Lengths of names", names::LENGTHS)?;
    strings(out, "The network device: names", net::NAMES)?;
    table(out, "The network device: addresses and places", net::ALL)?;
    writeln!(out, "\n#endif /* TELEGRAPHOS_HW_H */")
}
