// SPDX-License-Identifier: MIT OR Apache-2.0
//! What C sees is what Rust means: the header, sizes, and both libraries linked by the host's gcc.

#![allow(clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

use telegraphos_msg::ffi;
use telegraphos_testkit::CLibrary;

const LIBRARY: CLibrary = CLibrary {
    package: "telegraphos-msg",
    directory: env!("CARGO_MANIFEST_DIR"),
    name: "telegraphos_msg",
    includes: &[concat!(env!("CARGO_MANIFEST_DIR"), "/../lib/include")],
    header: ffi::header,
    examples: &[("sum", "usage: sum serve NAME COUNT | sum ask NODE NAME NUMBERS\n", &["ask", "1", "sums", "3"])],
};

#[test]
fn committed_header_is_fresh() {
    LIBRARY.check_header();
}

#[test]
fn records_have_the_same_size_in_c() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let records = [
        ("tg_msg_process", size_of::<ffi::ProcessRecord>()),
        ("tg_msg_endpoint", size_of::<ffi::EndpointRecord>()),
        ("tg_msg_pattern", size_of::<ffi::PatternRecord>()),
        ("tg_msg_received", size_of::<ffi::ReceivedRecord>()),
        ("tg_msg_options", size_of::<ffi::OptionsRecord>()),
    ];
    LIBRARY.check_records(directory.path(), "#include <telegraphos_msg.h>\n".into(), &records);
}

#[test]
fn c_links_with_the_static_library() {
    LIBRARY.link_statically(tempfile::tempdir().expect("a temporary directory").path());
}

#[test]
fn c_links_with_the_shared_library() {
    LIBRARY.link_dynamically(tempfile::tempdir().expect("a temporary directory").path());
}

/// Those of the user library are there, too: a program links only this one.
#[test]
fn shared_library_has_every_function() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let own = LIBRARY.check_functions(directory.path(), "telegraphos_msg.h", &ffi::header());
    let others = LIBRARY.check_functions(directory.path(), "telegraphos.h", &telegraphos::ffi::header());
    assert!(own > 25 && others > 60, "{own}, {others}");
}
