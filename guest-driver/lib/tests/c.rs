// SPDX-License-Identifier: MIT OR Apache-2.0
//! What C sees is what Rust means: headers, numbers, and both libraries linked by the host's gcc.

#![allow(clippy::expect_used, reason = "a test fails by panicking, in its helpers too")]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use telegraphos_wire::uapi;

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
const UAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../uapi/telegraphos.h");
/// The examples in C: name, usage, a command that needs a board.
const EXAMPLES: [(&str, &str, &[&str]); 2] = [
    ("mailbox", "usage: mailbox serve MESSAGES | mailbox post NODE TEXT\n", &["serve", "1"]),
    ("work", "usage: work serve ITEMS | work help NODE\n", &["help", "1"]),
];

/// Where cargo has put the libraries of this very build: beside this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().expect("its directory").to_owned()
}

fn gcc(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("gcc");
    command.current_dir(directory).args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(arguments);
    let out = command.output().expect("gcc does not start: install gcc with the headers of libc");
    assert!(out.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&out.stderr));
    out
}

#[test]
fn committed_header_is_fresh() {
    let committed = std::fs::read_to_string(format!("{INCLUDE}/telegraphos.h")).expect("include/telegraphos.h");
    assert!(
        committed == telegraphos::ffi::header(),
        "guest-driver/lib/include/telegraphos.h is stale: run\n  cargo run -p telegraphos --example header > \
         guest-driver/lib/include/telegraphos.h"
    );
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
    for (name, size) in sizes {
        writeln!(text, "_Static_assert(sizeof({name}) == {size}, \"{name}\");").expect("a String");
    }
    std::fs::write(directory.path().join("check.c"), text).expect("check.c");
    gcc(directory.path(), &["-I", INCLUDE, "-c", "check.c"]);
}

/// Runs an example without a board; it must start, and explain what is missing.
fn run_example(program: &Path, usage: &str, command: &[&str]) {
    let run = |arguments: &[&str]| {
        let out = Command::new(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", libraries())
            .output()
            .expect("the example does not start");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert_eq!(run(&[]), (Some(2), usage.into()));
    if !Path::new("/dev/telegraphos0").exists() {
        let (code, text) = run(command);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("there is no /dev/telegraphos0: attach a HIB"), "{text}");
    }
}

/// Links every example with these arguments behind it, and runs it.
fn link_examples(arguments: &[&str]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, usage, command) in EXAMPLES {
        let source = format!("{}/examples/{name}.c", env!("CARGO_MANIFEST_DIR"));
        gcc(directory.path(), &[&["-I", INCLUDE, &source], arguments, &["-o", name]].concat());
        run_example(&directory.path().join(name), usage, command);
    }
}

#[test]
fn c_links_with_the_static_library() {
    let library = libraries().join("libtelegraphos.a");
    // What rustc names with --print native-static-libs.
    let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];
    link_examples(&[&[library.to_str().expect("a path in UTF-8")][..], &system].concat());
}

#[test]
fn c_links_with_the_shared_library() {
    let libraries = libraries();
    link_examples(&["-L", libraries.to_str().expect("a path in UTF-8"), "-l:libtelegraphos.so"]);
}

/// Every function of the header is in the shared library, under that name.
#[test]
fn shared_library_has_every_function() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let header = telegraphos::ffi::header();
    let names: Vec<&str> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.starts_with([' ', '\t', '/', '#']))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    assert!(names.len() > 60, "{names:?}");
    let mut text = "#include <telegraphos.h>\n#include <stdio.h>\ntypedef void any(void);\n".to_owned();
    let list: Vec<String> = names.iter().map(|n| format!("(any *){n}")).collect();
    writeln!(text, "static any *const all[] = {{ {} }};", list.join(", ")).expect("a String");
    text += "int main(void) { unsigned n = 0; for (unsigned i = 0; i < sizeof(all) / sizeof(*all); i++) n += !!all[i];\n\
             printf(\"%u\\n\", n); return 0; }\n";
    std::fs::write(directory.path().join("all.c"), text).expect("all.c");
    let libraries = libraries();
    let path = libraries.to_str().expect("a path in UTF-8");
    gcc(directory.path(), &["-Wno-cast-function-type", "-I", INCLUDE, "all.c", "-L", path, "-l:libtelegraphos.so"]);
    let out = Command::new(directory.path().join("a.out")).env("LD_LIBRARY_PATH", &libraries).output().expect("a.out");
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), names.len().to_string());
}
