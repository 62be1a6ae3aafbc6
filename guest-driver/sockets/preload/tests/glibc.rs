// SPDX-License-Identifier: MIT OR Apache-2.0
//! All functions of the glibc that this runs with, against `glibc.txt`: each is replaced, or does nothing to a
//! connection past those that are.

use crate::library;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, Sym};
use object::{Endianness, Object, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const TABLE: &str = include_str!("glibc.txt");
const REPLACED: &str = "replaced";

/// Names and patterns, each with its reason.
fn table() -> BTreeMap<&'static str, &'static str> {
    let (mut all, mut reason) = (BTreeMap::new(), "");
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        if let Some(named) = line.strip_prefix('[') {
            reason = named.strip_suffix(']').unwrap();
            continue;
        }
        for word in line.split_ascii_whitespace() {
            let before = all.insert(word, reason);
            assert!(before.is_none(), "{word} is in glibc.txt twice");
        }
    }
    all
}

/// Whether a name is of a pattern, in which * is any text.
fn is_of(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((begin, rest)) => name
            .strip_prefix(begin)
            .is_some_and(|name| (0..=name.len()).any(|at| name.get(at..).is_some_and(|name| is_of(rest, name)))),
    }
}

/// The reason of a function.
fn reason<'a>(table: &BTreeMap<&'a str, &'a str>, name: &str) -> Option<&'a str> {
    if let Some(reason) = table.get(name) {
        return Some(reason);
    }
    let patterns = table.iter().filter(|(pattern, _)| pattern.contains('*') && is_of(pattern, name));
    patterns.max_by_key(|(pattern, _)| pattern.len()).map(|(_, reason)| *reason)
}

/// The functions that a program can be linked with: neither those of glibc's own libraries, nor those which only
/// programs have that were linked decades ago, such as all of Sun RPC.
fn functions(path: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(path).unwrap();
    let data = bytes.as_slice();
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let symbols = sections.symbols(endian, data, object::elf::SHT_DYNSYM).unwrap();
    let versions = sections.versions(endian, data).unwrap().unwrap();
    let mut names = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        let is_function = matches!(symbol.st_type(), object::elf::STT_FUNC | object::elf::STT_GNU_IFUNC);
        let version = versions.version_index(endian, index);
        if !is_function || symbol.is_undefined(endian) || version.is_hidden() {
            continue;
        }
        let of = versions.version(version).unwrap().map(|version| version.name());
        if of != Some(b"GLIBC_PRIVATE") {
            names.insert(String::from_utf8(symbols.symbol_name(endian, symbol).unwrap().to_vec()).unwrap());
        }
    }
    names
}

/// The libc of this test.
fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    PathBuf::from(paths.into_iter().find(|path| path.ends_with("/libc.so.6")).unwrap())
}

/// What the library has in their place.
fn exports() -> BTreeSet<String> {
    let bytes = std::fs::read(library()).unwrap();
    let file = object::File::parse(bytes.as_slice()).unwrap();
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    defined.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

#[test]
fn every_function_of_glibc_is_replaced_or_does_nothing_to_a_connection() {
    let (table, functions) = (table(), functions(&libc()));
    assert!(functions.len() > 1500, "{} functions in {}", functions.len(), libc().display());
    let unknown: Vec<&String> = functions.iter().filter(|name| reason(&table, name).is_none()).collect();
    assert!(unknown.is_empty(), "add to guest-driver/sockets/preload/tests/glibc.txt, with what they do: {unknown:?}");
}

#[test]
fn what_is_said_to_be_replaced_is_and_nothing_else() {
    let (table, functions, exports) = (table(), functions(&libc()), exports());
    let replaced: BTreeSet<String> =
        table.iter().filter(|(_, reason)| **reason == REPLACED).map(|(name, _)| (*name).to_owned()).collect();
    let missing: Vec<&String> = replaced.difference(&exports).collect();
    assert!(missing.is_empty(), "not in the library: {missing:?}");
    let more: Vec<&String> = exports.intersection(&functions).filter(|name| !replaced.contains(*name)).collect();
    assert!(more.is_empty(), "in the library, and not in glibc.txt: {more:?}");
    // They are called as libc's are: none has another name than one of libc's, here or in a newer one.
    let own: Vec<&String> = exports.difference(&replaced).collect();
    assert!(own.is_empty(), "the library has names of its own, which a program may have, too: {own:?}");
}

#[test]
fn a_function_that_is_not_in_the_table_is_found() {
    let table = table();
    for name in ["sendfile_again", "writev3", "descriptor_send", "recvall", "uring_enter", "bsend", "isend"] {
        assert_eq!(reason(&table, name), None, "{name}");
    }
    assert_eq!((reason(&table, "write"), reason(&table, "strlen").is_some()), (Some(REPLACED), true));
}
