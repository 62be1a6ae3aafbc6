// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the tables in the Wireshark dissector from those of the wire crate and of this one.
//!
//! `cargo run -p telegraphos-capture --example dissector` renews them in fabric/capture/dissector/telegraphos.lua; a
//! test fails when they are stale. What does not depend on them stands below them in that file, and is edited there.

use telegraphos_wire::Class;
use telegraphos_wire::layout::{self, Field, Kind, Show};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};

use crate::record::RECORDS;

const COMMITTED: &str = include_str!("../../dissector/telegraphos.lua");
const TOP: &str = "-- SPDX-License-Identifier: MIT OR Apache-2.0
-- Wireshark dissector for captures of a Telegraphos fabric (docs/capture.md).
--   wireshark -X lua_script:telegraphos.lua FILE
--
-- The tables are generated from the crates telegraphos-wire and telegraphos-capture; renew them with
--   cargo run -p telegraphos-capture --example dissector

local proto = Proto(\"telegraphos\", \"Telegraphos\")

-- Where everything is: fields are { name, offset, bytes, how to show it }.
local wire = {
";
/// The line that ends the tables.
const END: &str = "-- End of the generated tables; what follows is edited here.\n";

fn fields(list: &[Field]) -> String {
    let field = |f: &Field| format!("{{ {:?}, {}, {}, \"{:?}\" }}, ", f.name, f.at, f.len, f.show);
    format!("{{ {}}}", list.iter().map(field).collect::<String>())
}

fn kinds(name: &str, kinds: &[Kind]) -> String {
    let kind = |kind: &Kind| {
        let Kind { number, name, len, check, tail, .. } = kind;
        let class = kind.class.map_or(String::new(), |class| format!("class = {}, ", class as u8));
        let head = format!("name = {name:?}, {class}len = {len}, check = \"{check:?}\", tail = \"{tail:?}\"");
        format!("  [{number}] = {{ {head},\n    fields = {} }},\n", fields(kind.fields))
    };
    format!("wire.{name} = {{\n{}}}\n", kinds.iter().map(kind).collect::<String>())
}

fn values(show: Show) -> String {
    let value = |(number, name)| format!(" [{number}] = {name:?},");
    format!("  {show:?} = {{{} }},\n", layout::values(show).into_iter().map(value).collect::<String>())
}

/// The whole dissector: the tables as they are now, and what stands below them in the committed copy.
pub fn generate() -> String {
    let constants: String = layout::CONSTANTS.iter().map(|(name, value)| format!("  {name} = {value},\n")).collect();
    let values: String =
        [Show::Class, Show::Status, Show::Refusal, Show::Rights, Show::Atomic].into_iter().map(values).collect();
    [
        TOP,
        &constants,
        &format!("  REPLY = {},\n", Class::Reply as u8),
        &format!("  nodes = {{ [{MULTICAST}] = \"all members\", [{NO_NODE}] = \"no node\" }},\n}}\n"),
        &format!("wire.values = {{\n{values}}}\n"),
        &format!("wire.head = {}\n", fields(layout::HEAD)),
        &format!("wire.header = {}\n", fields(layout::HEADER)),
        &format!("wire.target = {}\n", fields(layout::TARGET)),
        &kinds("frames", layout::FRAMES),
        &kinds("packets", layout::PACKETS),
        &kinds("records", RECORDS),
        END,
        COMMITTED.split_once(END).map_or("", |(_, logic)| logic),
    ]
    .concat()
}
