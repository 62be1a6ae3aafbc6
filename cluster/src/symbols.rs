// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where in the kernel's source the functions of a stack are, by the vmlinux with debugging information that a kernel
//! build has.

use object::{Object, ObjectSymbol, ReadCache};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// An entry of a stack: `name+0x16/0x20`, then what may follow.
struct Entry<'a> {
    name: &'a str,
    offset: u64,
}

impl Entry<'_> {
    fn of(text: &str) -> Option<Entry<'_>> {
        let mut words = text.split_whitespace();
        let (name, rest) = words.next()?.split_once("+0x")?;
        let (offset, _size) = rest.split_once("/0x")?;
        // That of a module is not in vmlinux.
        let in_module = words.next().is_some_and(|word| word.starts_with('['));
        let offset = u64::from_str_radix(offset, 16).ok()?;
        (!in_module && !name.is_empty()).then_some(Entry { name, offset })
    }
}

/// The places of these entries, `file:line`, as far as this vmlinux says. The address of the first one is that of an
/// instruction if `exact`; all others are those to which calls return, so that the call is before them.
pub(crate) fn places(vmlinux: &Path, entries: &[&str], exact: bool) -> Vec<Option<String>> {
    let none = || vec![None; entries.len()];
    let parsed: Vec<Option<Entry<'_>>> = entries.iter().map(|entry| Entry::of(entry)).collect();
    let Some(addresses) = addresses(vmlinux, parsed.iter().flatten().map(|entry| entry.name)) else { return none() };
    let loader = match addr2line::Loader::new(vmlinux) {
        Ok(loader) => loader,
        Err(e) => {
            log::warn!("{} has no debugging information that can be read: {e}", vmlinux.display());
            return none();
        }
    };
    let place = |(n, entry): (usize, &Option<Entry<'_>>)| {
        let entry = entry.as_ref()?;
        // One name may be that of several static functions.
        let [begin] = addresses.get(entry.name)?[..] else { return None };
        let back = u64::from(!(exact && n == 0));
        let probe = begin.checked_add(entry.offset)?.checked_sub(back)?;
        let location = loader.find_location(probe).ok()??;
        let file = location.file?;
        let file = vmlinux.parent().and_then(|tree| Path::new(file).strip_prefix(tree).ok()?.to_str()).unwrap_or(file);
        Some(format!("{}:{}", file.trim_start_matches("./"), location.line?))
    };
    parsed.iter().enumerate().map(place).collect()
}

/// The addresses of functions with these names.
fn addresses<'a>(vmlinux: &Path, names: impl Iterator<Item = &'a str>) -> Option<HashMap<&'a str, Vec<u64>>> {
    let mut found: HashMap<&str, Vec<u64>> = names.map(|name| (name, Vec::new())).collect();
    let file = File::open(vmlinux).ok()?;
    // A vmlinux may have a GiB; its symbols alone are read.
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).ok()?;
    for symbol in elf.symbols().filter(ObjectSymbol::is_definition) {
        let Some(places) = symbol.name().ok().and_then(|name| found.get_mut(name)) else { continue };
        if !places.contains(&symbol.address()) {
            places.push(symbol.address());
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This program is an ELF file with lines, too.
    // SAFETY: no other function has this name.
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn telegraphos_decoded_here(n: u64) -> u64 {
        std::hint::black_box(n + 1)
    }

    #[test]
    fn entries_have_the_places_of_their_functions() {
        assert_eq!(telegraphos_decoded_here(1), 2);
        let own = std::env::current_exe().unwrap();
        let entries = [
            "telegraphos_decoded_here+0x1/0x40",
            "telegraphos_decoded_here+0x1/0x40",
            "tg_open+0x12/0x40 [telegraphos]",
            "no_such_function+0x1/0x2",
            "nonsense",
        ];
        let found = places(&own, &entries, true);
        let is_here = |place: &Option<String>| place.as_deref().is_some_and(|place| place.contains("symbols.rs:"));
        assert!(is_here(&found[0]) && is_here(&found[1]), "{found:?}");
        assert_eq!(found[2..], [None, None, None]);
    }

    #[test]
    fn what_is_no_kernel_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("vmlinux");
        assert_eq!(places(&file, &["a+0x1/0x2"], false), [None]);
        for content in [&b"\x7fELF\x02\x01\x01"[..], b"text", b"", &[0xff; 5000]] {
            std::fs::write(&file, content).unwrap();
            assert_eq!(places(&file, &["a+0x1/0x2"], false), [None]);
        }
    }
}
