// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the user library's C functions out of `libtelegraphos_preload.so`: a program that uses them has its own.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
