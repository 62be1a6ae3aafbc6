// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the inputs that fuzzing begins with: `cargo run -p telegraphos-fuzz-targets --example corpus`.

#[path = "../tests/seeds/mod.rs"]
mod seeds;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (target, inputs) in seeds::all() {
        let directory = corpus.join(target);
        std::fs::create_dir_all(&directory)?;
        for (name, bytes) in inputs {
            std::fs::write(directory.join(name), bytes)?;
        }
    }
    Ok(())
}
