// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each target over its corpus, and over mutations of it.
//!
//! A failure prints its target, its seed and the input:
//! `TELEGRAPHOS_SEED=n cargo test -p telegraphos-fuzz-targets --test corpus TARGET` replays it.
//! `TELEGRAPHOS_SCALE=full` makes a hundred times as many mutations.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod seeds;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use telegraphos_fuzz_targets::TARGETS;
use telegraphos_testkit::{Rng, rounds, seed};

/// Characters of the names that cargo-fuzz gives its finds: hashes.
const HASH: usize = 40;
/// Bytes of the longest input.
const LONGEST: usize = 16 << 10;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(fuzz().join("corpus").join(target)).unwrap();
    let read =
        |entry: std::fs::DirEntry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
    let mut files: Vec<_> = files.map(|entry| read(entry.unwrap())).collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus of {target} is empty");
    files
}

fn check(target: &str, what: &str, input: &[u8]) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    if catch_unwind(AssertUnwindSafe(|| run(input))).is_err() {
        let mut hex = String::new();
        input.iter().for_each(|byte| write!(hex, "{byte:02x}").unwrap());
        panic!("target {target}, {what}, input of {} bytes: {hex}", input.len());
    }
}

/// Runs a target over its corpus, and over so many mutations; with `TELEGRAPHOS_SEED` over that one.
fn run(target: &str, mutations: u64) {
    let files = corpus(target);
    let mutated = |seed: u64| check(target, &format!("TELEGRAPHOS_SEED={seed}"), &mutation(&files, seed));
    if let Some(seed) = seed() {
        return mutated(seed);
    }
    for (name, bytes) in &files {
        check(target, &format!("file {name}"), bytes);
    }
    rounds(mutations, 100 * mutations).for_each(mutated);
}

/// The mutation of that seed: one of the files of a fresh checkout, changed in a few places.
fn mutation(files: &[(String, Vec<u8>)], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    // What a developer's cargo-fuzz has left would make other mutations of the same seed.
    let files: Vec<&Vec<u8>> = files.iter().filter(|(name, _)| name.len() != HASH).map(|(_, bytes)| bytes).collect();
    let any = |rng: &mut Rng| files[rng.below(files.len())];
    let mut input = any(&mut rng).clone();
    for _ in 0..1 + rng.below(7) {
        change(&mut input, any(&mut rng), &mut rng);
    }
    input.truncate(LONGEST);
    input
}

/// Changes an input in one place, maybe with a piece of another.
fn change(input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    const INTERESTING: [u64; 12] = [0, 1, 7, 8, 0x7f, 0x80, 0xff, 0xffff, 0x1_0000, 0x7fff_ffff, 0xffff_ffff, u64::MAX];
    let at = rng.below(input.len() + 1);
    let length = (1 + rng.below(32_usize)).min(input.len() - at);
    match rng.below(10) {
        0 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = rng.next() as u8;
            }
        }
        2 => {
            // A number of 1, 2, 4 or 8 bytes, often near a limit.
            let size = (1 << rng.below(4)).min(input.len() - at);
            let number = match rng.below(4) {
                0 => rng.next(),
                _ => INTERESTING[rng.below(INTERESTING.len())].wrapping_add(rng.below(3)).wrapping_sub(1),
            };
            input[at..at + size].copy_from_slice(&number.to_le_bytes()[..size]);
        }
        3 => drop(input.drain(at..at + length)),
        4 => {
            let piece = input[at..at + length].to_vec();
            let to = rng.below(input.len() + 1);
            input.splice(to..to, piece);
        }
        5 => input.truncate(at),
        6 => {
            // A line, where there are lines.
            let lines: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
            if let Some(line) = (!lines.is_empty()).then(|| lines[rng.below(lines.len())]) {
                let line = &line[..line.len().min(200)];
                let start = input[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
                input.splice(start..start, line.iter().copied());
            }
        }
        7 => {
            let from = rng.below(other.len() + 1);
            let piece = &other[from..(from + 1 + rng.below(64_usize)).min(other.len())];
            input.splice(at..at, piece.iter().copied());
        }
        8 => {
            // Continues as the other from there, or from anywhere.
            let from = if rng.percent(50) { at.min(other.len()) } else { rng.below(other.len() + 1) };
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        _ => {
            let digit = b'0' + rng.below(10_u8);
            if let Some(byte) = input[at..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *byte = digit;
            }
        }
    }
}

#[test]
fn vfio_user() {
    run("vfio_user", 10_000);
}

#[test]
fn packet() {
    run("packet", 100_000);
}

#[test]
fn link_frame() {
    run("link_frame", 50_000);
}

#[test]
fn hib() {
    run("hib", 20_000);
}

#[test]
fn rdp() {
    run("rdp", 50_000);
}

#[test]
fn settings() {
    run("settings", 30_000);
}

#[test]
fn capture() {
    run("capture", 10_000);
}

#[test]
fn i17_i18_messages() {
    run("messages", 200_000);
}

#[test]
fn sockets() {
    run("sockets", 300_000);
}

#[test]
fn channel() {
    run("channel", 300_000);
}

#[test]
fn s4_routes() {
    run("routes", 100_000);
}

#[test]
fn tgd() {
    run("tgd", 100_000);
}

/// The corpus has what the example `corpus` writes, and nothing else but finds, with names that begin with `found-`.
#[test]
fn the_corpus_is_fresh() {
    let mut expected = seeds::all();
    expected.sort();
    let mut targets: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    targets.sort_unstable();
    assert_eq!(targets, expected.iter().map(|(target, _)| *target).collect::<Vec<_>>());
    for (target, mut inputs) in expected {
        inputs.sort();
        let mut files = corpus(target);
        files.retain(|(name, _)| !name.starts_with("found-") && name.len() != HASH);
        let names = |inputs: &[(String, Vec<u8>)]| inputs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let hint = "run: cargo run -p telegraphos-fuzz-targets --example corpus";
        assert_eq!(names(&files), names(&inputs), "{target}: {hint}");
        for ((name, found), (_, wanted)) in files.iter().zip(&inputs) {
            assert!(found == wanted, "ci/fuzz/corpus/{target}/{name} is stale; {hint}");
        }
    }
}

/// Each target has its program for cargo-fuzz, which calls it and nothing else.
#[test]
fn each_target_has_its_program() {
    let manifest = std::fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let programs = manifest["bin"].as_array().unwrap();
    assert_eq!(programs.len(), TARGETS.len());
    for (name, _) in TARGETS {
        let path = format!("fuzz_targets/{name}.rs");
        let program = programs.iter().find(|program| program["name"].as_str() == Some(name));
        assert_eq!(program.and_then(|program| program["path"].as_str()), Some(path.as_str()));
        let text = std::fs::read_to_string(fuzz().join(&path)).unwrap();
        let wanted = format!(
            "// SPDX-License-Identifier: MIT OR Apache-2.0\n//! See `telegraphos_fuzz_targets::{name}`.\n#![no_main]\n\n\
             libfuzzer_sys::fuzz_target!(|data: &[u8]| {{\n    telegraphos_fuzz_targets::{name}(data);\n}});\n"
        );
        assert_eq!(text, wanted, "{path}");
    }
}
