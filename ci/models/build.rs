// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the driver's C files that need no kernel, for the models to run them.

use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (module, uapi) = (root.join("guest-driver/module"), root.join("guest-driver/uapi"));
    println!("cargo::rerun-if-changed={}", uapi.join("telegraphos.h").display());
    for name in ["division", "queue_buffers", "queue_handler"] {
        for end in ["c", "h"] {
            println!("cargo::rerun-if-changed={}", module.join(format!("{name}.{end}")).display());
        }
        // Linked by the tests that name it, not by the library.
        cc::Build::new()
            .cargo_metadata(false)
            .file(module.join(format!("{name}.c")))
            .include(&uapi)
            // Of the kernel alone.
            .define("EXPORT_SYMBOL_NS_GPL(symbol, namespace)", "")
            .std("gnu11")
            .warnings_into_errors(true)
            .compile(name);
    }
    // Set by Cargo for every build script.
    println!("cargo::rustc-link-search=native={}", std::env::var("OUT_DIR").unwrap_or_default());
}
