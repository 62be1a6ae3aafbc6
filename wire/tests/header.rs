// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed C header is the generated one.

#[test]
fn committed_header_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../guest-driver/uapi/telegraphos.h");
    let committed = std::fs::read_to_string(path).expect("guest-driver/uapi/telegraphos.h");
    let mut generated = String::new();
    telegraphos_wire::header::generate(&mut generated).expect("writing to a String");
    assert!(
        committed == generated,
        "guest-driver/uapi/telegraphos.h is stale: run\n  cargo run -p telegraphos-wire --example header > guest-driver/uapi/telegraphos.h"
    );
}
