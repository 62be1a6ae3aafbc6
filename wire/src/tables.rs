// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates docs/packets.md, the tables of frames and packets.
//!
//! `cargo run -p telegraphos-wire --example packets > docs/packets.md` renews the committed copy; a test fails when it
//! is stale.

use core::fmt::{self, Write};

use crate::layout::{Check, FRAMES, Field, HEAD, HEADER, Kind, PACKETS, TARGET, Tail};

/// `name` at byte, its bytes: one line for each.
fn fields(out: &mut dyn Write, fields: &[Field]) -> fmt::Result {
    for (at, field) in fields.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(out, "{comma}`{}` {}:{}", field.name, field.at, field.len)?;
    }
    Ok(())
}

fn check(check: Check) -> &'static str {
    match check {
        Check::None => "",
        Check::Access => "1, 2, 4 or 8 bytes, aligned, in one unit",
        Check::Word => "4 or 8 bytes, aligned, in one unit",
        Check::Block => "1 to 65536 bytes in one unit",
        Check::Burst => "1 to 64 stores: data 0:8, offset 8:2, size 10:1, ignored 11:1; each as a write",
    }
}

fn tail(tail: Tail) -> &'static str {
    match tail {
        Tail::None => "",
        Tail::Packet => "a packet",
        Tail::Members => "node ids, ascending, to the end",
        Tail::MembersAndPacket => "`count` node ids, ascending; a packet",
        Tail::Block => "`length` bytes",
        Tail::Text => "text",
        Tail::Bytes => "bytes",
    }
}

fn kinds(out: &mut dyn Write, kinds: &[Kind]) -> fmt::Result {
    out.write_str("| Kind | Name | Class | Bytes | Fields | Checked | Behind them |\n|---|---|---|---|---|---|---|\n")?;
    for kind in kinds {
        write!(out, "| {:#x} | {} | ", kind.number, kind.name)?;
        if let Some(class) = kind.class {
            write!(out, "{class:?}")?;
        }
        write!(out, " | {} | ", kind.len)?;
        fields(out, kind.fields)?;
        writeln!(out, " | {} | {} |", check(kind.check), tail(kind.tail))?;
    }
    Ok(())
}

/// Writes docs/packets.md.
///
/// # Errors
/// Those of `out`.
pub fn generate(out: &mut dyn Write) -> fmt::Result {
    out.write_str(
        "# Frames and packets

Generated from the declarations in `wire/src/link.rs` and `wire/src/packet.rs` (`cargo run -p telegraphos-wire --example packets >
docs/packets.md`). A field is given as name, first byte, number of bytes; integers are little-endian, all other bytes are zero. What the
kinds mean is said where they are declared.

## Frames

A frame has a head (",
    )?;
    fields(out, HEAD)?;
    out.write_str("), then the fields of its kind; their places count from behind the head.\n\n")?;
    kinds(out, FRAMES)?;
    out.write_str("\n## Packets\n\nA packet begins with ")?;
    fields(out, HEADER)?;
    out.write_str("; requests, and what is multicast, have ")?;
    fields(out, TARGET)?;
    out.write_str(" besides. Places count from the start of the packet.\n\n")?;
    kinds(out, PACKETS)
}
