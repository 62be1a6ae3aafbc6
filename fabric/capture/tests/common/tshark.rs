// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real tshark with our dissector.

use std::collections::HashMap;
use std::path::Path;

use telegraphos_capture::RECORDS;
use telegraphos_images::{Progress, Store, Tshark};
use telegraphos_wire::layout;

use super::frames::Value;

/// What tshark says of one packet: each field's occurrences.
pub(crate) type Row = HashMap<String, Vec<String>>;

pub(crate) fn tshark() -> Tshark {
    Store::open(None, Progress::Auto).and_then(|store| store.tshark()).unwrap_or_else(|e| panic!("{e}"))
}

/// Every field of the dissector that frames, packets and records have.
pub(crate) fn names() -> Vec<&'static str> {
    let kinds = layout::FRAMES.iter().chain(layout::PACKETS).chain(RECORDS);
    let mut names: Vec<&str> = kinds.flat_map(|kind| kind.fields).map(|field| field.name).collect();
    names.extend(layout::HEAD.iter().chain(layout::HEADER).chain(layout::TARGET).map(|field| field.name));
    names.extend(["class", "member", "block", "text", "bytes", "operation_name"]);
    names.sort_unstable();
    names.dedup();
    names
}

/// Dissects a capture: for each packet our fields and `more`, by their full names.
pub(crate) fn dissect(file: &Path, more: &[&str]) -> Vec<Row> {
    let mut columns: Vec<String> = names().iter().map(|name| format!("telegraphos.{name}")).collect();
    columns.extend(["_ws.expert.message", "_ws.col.info", "_ws.col.protocol"].map(String::from));
    columns.extend(more.iter().map(|name| (*name).to_owned()));
    let mut command = tshark().command();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/dissector/telegraphos.lua");
    command.arg("-X").arg(format!("lua_script:{script}"));
    // Twice, so that requests know their replies.
    command.arg("-2").arg("-r").arg(file).args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]);
    command.args(["-E", "aggregator=|", "-E", "escape=n"]);
    for column in &columns {
        command.args(["-e", column]);
    }
    let out = command.output().expect("tshark runs");
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && !errors.contains("Lua") && !errors.contains("lua"), "{errors}");
    let row = |line: &str| {
        let cells = line.split('\t').map(|cell| cell.split('|').map(str::to_owned).collect::<Vec<_>>());
        let row: Row =
            columns.iter().cloned().zip(cells).filter(|(_, cell)| cell.iter().any(|text| !text.is_empty())).collect();
        // A dissector that fails says so there.
        let said = [&row.get("_ws.expert.message"), &row.get("_ws.col.info")].map(|cell| format!("{cell:?}"));
        assert!(!said.iter().any(|text| text.contains("Lua Error")), "{row:?}");
        row
    };
    text.lines().map(row).collect()
}

pub(crate) fn number(text: &str) -> u64 {
    match text {
        "True" | "1" => 1,
        "False" | "0" => 0,
        _ => text
            .strip_prefix("0x")
            .map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16))
            .unwrap_or_else(|e| panic!("{text:?} is no number: {e}")),
    }
}

/// Whether tshark's text of a field is this value.
pub(crate) fn says(cell: Option<&Vec<String>>, value: &Value) -> bool {
    let Some(cell) = cell else {
        return *value == Value::Text(String::new());
    };
    match value {
        Value::Number(expected) => cell.len() == 1 && number(&cell[0]) == *expected,
        Value::Text(expected) => cell.join("|") == *expected,
        Value::List(expected) => cell.iter().map(|text| number(text)).collect::<Vec<_>>() == *expected,
        Value::Bytes(expected) => {
            let hex: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
            cell.len() == 1 && cell[0].replace(':', "") == hex
        }
    }
}
