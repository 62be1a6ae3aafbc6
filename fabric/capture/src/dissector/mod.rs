// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the Wireshark dissector from the tables of the wire crate and of this one.
//!
//! `cargo run -p telegraphos-capture --example dissector > fabric/dissector/telegraphos.lua` renews the committed copy; a test
//! fails when it is stale. What does not depend on the tables is in `logic.lua` beside this file.

use std::fmt::{self, Write};

use telegraphos_wire::Class;
use telegraphos_wire::layout::{self, Field, Kind, Show};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};

use crate::record::RECORDS;

const LOGIC: &str = include_str!("logic.lua");

fn field(out: &mut dyn Write, field: &Field) -> fmt::Result {
    write!(out, "{{ {:?}, {}, {}, \"{:?}\" }}", field.name, field.at, field.len, field.show)
}

fn fields(out: &mut dyn Write, list: &[Field]) -> fmt::Result {
    out.write_str("{")?;
    for one in list {
        out.write_str(" ")?;
        field(out, one)?;
        out.write_str(",")?;
    }
    out.write_str(" }")
}

fn kinds(out: &mut dyn Write, name: &str, kinds: &[Kind]) -> fmt::Result {
    writeln!(out, "wire.{name} = {{")?;
    for kind in kinds {
        let class = kind.class.map_or(String::new(), |class| format!("class = {}, ", class as u8));
        writeln!(
            out,
            "  [{}] = {{ name = {:?}, {class}len = {}, check = \"{:?}\", tail = \"{:?}\",",
            kind.number, kind.name, kind.len, kind.check, kind.tail
        )?;
        out.write_str("    fields = ")?;
        fields(out, kind.fields)?;
        out.write_str(" },\n")?;
    }
    out.write_str("}\n")
}

/// Writes the whole dissector.
pub fn generate(out: &mut dyn Write) -> fmt::Result {
    out.write_str(
        "-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Wireshark dissector for captures of a Telegraphos fabric (docs/capture.md).
--   wireshark -X lua_script:telegraphos.lua FILE
--
-- Generated from the crates telegraphos-wire and telegraphos-capture; do not edit. Renew with
--   cargo run -p telegraphos-capture --example dissector > fabric/dissector/telegraphos.lua

local proto = Proto(\"telegraphos\", \"Telegraphos\")

-- Where everything is: fields are { name, offset, bytes, how to show it }.
local wire = {
",
    )?;
    for (name, value) in layout::CONSTANTS {
        writeln!(out, "  {name} = {value},")?;
    }
    writeln!(out, "  REPLY = {},", Class::Reply as u8)?;
    writeln!(out, "  nodes = {{ [{MULTICAST}] = \"all members\", [{NO_NODE}] = \"nobody\" }},\n}}")?;
    out.write_str("wire.values = {\n")?;
    for show in [Show::Class, Show::Status, Show::Refusal, Show::Rights, Show::Atomic] {
        write!(out, "  {show:?} = {{")?;
        for (number, name) in layout::values(show) {
            write!(out, " [{number}] = {name:?},")?;
        }
        out.write_str(" },\n")?;
    }
    out.write_str("}\nwire.head = ")?;
    fields(out, layout::HEAD)?;
    out.write_str("\nwire.header = ")?;
    fields(out, layout::HEADER)?;
    out.write_str("\nwire.target = ")?;
    fields(out, layout::TARGET)?;
    out.write_str("\n")?;
    kinds(out, "frames", layout::FRAMES)?;
    kinds(out, "packets", layout::PACKETS)?;
    kinds(out, "records", RECORDS)?;
    write!(out, "\n{LOGIC}")
}
