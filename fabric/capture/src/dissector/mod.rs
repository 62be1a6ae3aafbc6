// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the tables in the Wireshark dissector from those of the wire crate and of this one.
//!
//! `cargo run -p telegraphos-capture --example dissector` renews them in fabric/dissector/telegraphos.lua; a test fails
//! when they are stale. What does not depend on them stands below them in that file, and is edited there.

use std::fmt::{self, Write};

use telegraphos_wire::Class;
use telegraphos_wire::layout::{self, Field, Kind, Show};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};

use crate::record::RECORDS;

const COMMITTED: &str = include_str!("../../../dissector/telegraphos.lua");
/// The line that ends the tables.
const END: &str = "-- End of the generated tables; what follows is edited here.\n";

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

/// Writes the whole dissector: the tables as they are now, and what stands below them in the committed copy.
pub fn generate(out: &mut dyn Write) -> fmt::Result {
    out.write_str(
        "-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Wireshark dissector for captures of a Telegraphos fabric (docs/capture.md).
--   wireshark -X lua_script:telegraphos.lua FILE
--
-- The tables are generated from the crates telegraphos-wire and telegraphos-capture; renew them with
--   cargo run -p telegraphos-capture --example dissector

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
    let logic = COMMITTED.split_once(END).map_or("", |(_, logic)| logic);
    write!(out, "{END}{logic}")
}
