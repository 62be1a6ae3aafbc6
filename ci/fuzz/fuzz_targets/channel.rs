// SPDX-License-Identifier: MIT OR Apache-2.0
//! See `telegraphos_fuzz_targets::channel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    telegraphos_fuzz_targets::channel(data);
});
