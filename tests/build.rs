// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the driver's C files that need no kernel, for the models to run them.

use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (module, uapi) = (root.join("guest-driver/module"), root.join("guest-driver/uapi"));
    for file in [module.join("queue_buffers.c"), module.join("queue_buffers.h"), uapi.join("telegraphos.h")] {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    // Linked by the tests that name it, not by the library.
    cc::Build::new()
        .cargo_metadata(false)
        .file(module.join("queue_buffers.c"))
        .include(&uapi)
        .std("gnu11")
        .warnings_into_errors(true)
        .compile("queue_buffers");
    // Set by Cargo for every build script.
    println!("cargo::rustc-link-search=native={}", std::env::var("OUT_DIR").unwrap_or_default());
}
