// SPDX-License-Identifier: MIT OR Apache-2.0
//! What C sees is what Rust means: headers, numbers, and both libraries linked by the host's gcc.

#![allow(clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

use std::fmt::Write;
use telegraphos_testkit::CLibrary;
use telegraphos_wire::uapi;

const LIBRARY: CLibrary = CLibrary {
    package: "telegraphos",
    directory: env!("CARGO_MANIFEST_DIR"),
    name: "telegraphos",
    includes: &[],
    header: telegraphos::ffi::header,
    examples: &[
        ("mailbox", "usage: mailbox serve MESSAGES | mailbox post NODE TEXT\n", &["serve", "1"]),
        ("work", "usage: work serve ITEMS | work help NODE\n", &["help", "1"]),
    ],
};
const UAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../uapi/telegraphos.h");

#[test]
fn committed_header_is_fresh() {
    LIBRARY.check_header();
}

/// The kernel's header says the same about sizes and request numbers as the structures that the library passes.
#[test]
fn driver_interface_is_the_same_in_c() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // Both headers in one program must get on with each other.
    let mut text = format!("#include \"{UAPI}\"\n#include <telegraphos.h>\n");
    for ioctl in uapi::IOCTLS {
        let (name, record, request) = (ioctl.name, ioctl.structure, ioctl.request());
        writeln!(text, "_Static_assert({name} == {request:#x}U, \"{name}\");").expect("a String");
        writeln!(text, "_Static_assert(sizeof(struct {}) == {}, \"size\");", record.name, record.size)
            .expect("a String");
    }
    let mmap = uapi::mmap_offset(uapi::MMAP_IMPORT, 7);
    writeln!(
        text,
        "_Static_assert(((__u64)TG_MMAP_IMPORT << TG_MMAP_KIND_SHIFT | 7ULL << TG_MMAP_HANDLE_SHIFT) == {mmap}ULL, \"mmap\");"
    )
    .expect("a String");
    let sizes = [
        ("tg_export_options", size_of::<telegraphos::ffi::ExportOptions>()),
        ("tg_state", size_of::<telegraphos::ffi::ImportState>()),
        ("tg_replicated_state", size_of::<telegraphos::ffi::ReplicatedState>()),
        ("tg_count", size_of::<telegraphos::ffi::CountState>()),
        ("tg_queue_options", size_of::<telegraphos::ffi::QueueOptions>()),
        ("tg_queue_status", size_of::<telegraphos::ffi::QueueStatus>()),
    ];
    LIBRARY.check_records(directory.path(), text, &sizes);
}

#[test]
fn c_links_with_the_static_library() {
    LIBRARY.link_statically(tempfile::tempdir().expect("a temporary directory").path());
}

#[test]
fn c_links_with_the_shared_library() {
    LIBRARY.link_dynamically(tempfile::tempdir().expect("a temporary directory").path());
}

#[test]
fn shared_library_has_every_function() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let functions = LIBRARY.check_functions(directory.path(), "telegraphos.h", &telegraphos::ffi::header());
    assert!(functions > 60, "{functions}");
}
