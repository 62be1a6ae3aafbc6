// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed C headers and the committed tables are the generated ones.

#![allow(clippy::expect_used, reason = "a test may")]

use std::fmt::{Result, Write};

fn is_fresh(path: &str, example: &str, generate: impl Fn(&mut dyn Write) -> Result) {
    let committed = std::fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap_or_default();
    let mut generated = String::new();
    generate(&mut generated).expect("writing to a String");
    assert!(
        committed == generated,
        "{path} is stale: run\n  cargo run -p telegraphos-wire --example {example} > {path}"
    );
}

#[test]
fn committed_headers_are_fresh() {
    is_fresh("guest-driver/uapi/telegraphos.h", "header", |out| telegraphos_wire::header::generate(out));
    is_fresh("guest-driver/module/telegraphos_hw.h", "hw_header", |out| telegraphos_wire::header::generate_hw(out));
}

#[test]
fn committed_tables_are_fresh() {
    is_fresh("docs/packets.md", "packets", telegraphos_wire::tables::generate);
}
