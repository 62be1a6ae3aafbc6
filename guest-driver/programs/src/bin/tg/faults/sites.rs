// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the driver allocates and copies: each call of the module's code to a function of the kernel that may be made
//! to fail, by the relocations of its file. Which of them have failed, by the stacks in the kernel's log.

use super::uses::is_in_group;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use telegraphos_guest_tests::cli::{Failure, Outcome};

/// Beginnings of the names of functions that allocate, or copy from or to a process.
const FAILING: &[&str] = &[
    "__kmalloc",
    "kmalloc_trace",
    "kmalloc_node_trace",
    "kmalloc_large",
    "kmem_cache_alloc",
    "kmemdup",
    "kstrdup",
    "kvasprintf",
    "kasprintf",
    "__kvmalloc",
    "kvmalloc",
    "__vmalloc",
    "vmalloc",
    "vzalloc",
    "alloc_pages",
    "__alloc_pages",
    "__get_free_pages",
    "get_free_pages",
    "get_zeroed_page",
    "bitmap_zalloc",
    "bitmap_alloc",
    "memdup_user",
    "dma_alloc",
    "dma_map_sgtable",
    "sg_alloc",
    "__xa_alloc",
    "__xa_store",
    "__xa_insert",
    "xa_store",
    "ida_alloc",
    "idr_alloc",
    "alloc_workqueue",
    "alloc_anon_inode",
    "alloc_chrdev",
    "alloc_netdev",
    "alloc_etherdev",
    "__alloc_skb",
    "alloc_skb",
    "__netdev_alloc_skb",
    "napi_alloc_skb",
    "build_skb",
    "mmu_interval_notifier_insert",
    "pin_user_pages",
    "request_threaded_irq",
    "pci_alloc_irq",
    "ioremap",
    "memremap",
    "register_netdev",
    "class_register",
    "class_create",
    "device_add",
    "cdev_device_add",
    "dev_set_name",
    "kern_mount",
    "init_pseudo",
    "_copy_from_user",
    "_copy_to_user",
    "should_fail_usercopy",
    "strndup_user",
    "copy_struct_from_user",
    "__get_user_",
    "__put_user_",
];

/// A call: its function, and the offset there at which it returns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    pub(crate) module: String,
    pub(crate) function: String,
    pub(crate) offset: u64,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}+{:#x}", self.module, self.function, self.offset)
    }
}

/// The sites of a module that is in the guest, and what each calls.
pub(crate) fn of(module: &str) -> Outcome<BTreeMap<Site, String>> {
    let path = format!("/lib/telegraphos/{module}.ko");
    let wrong = |what: &str| Failure::Refused(format!("{path}: {what}"));
    let bytes = std::fs::read(&path).map_err(|e| wrong(&e.to_string()))?;
    let file = object::File::parse(&*bytes).map_err(|e| wrong(&e.to_string()))?;
    let functions: Vec<_> = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text).collect();
    let mut sites = BTreeMap::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        for (at, relocation) in section.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else { continue };
            let Ok(symbol) = file.symbol_by_index(index) else { continue };
            let callee = symbol.name().unwrap_or_default();
            if !symbol.is_undefined() || !FAILING.iter().any(|name| callee.starts_with(name)) {
                continue;
            }
            let inside = |function: &&object::Symbol<'_, '_>| {
                function.section_index() == Some(section.index())
                    && (function.address()..function.address() + function.size().max(1)).contains(&at)
            };
            let Some(function) = functions.iter().find(inside) else { continue };
            let name = function.name().unwrap_or_default().to_owned();
            // The operand of a call has four bytes.
            let site = Site { module: module.into(), function: name, offset: at + 4 - function.address() };
            sites.insert(site, callee.to_owned());
        }
    }
    match sites.len() {
        0 => Err(wrong("no call of a function that allocates: expected the driver's module with its symbols")),
        _ => Ok(sites),
    }
}

/// What the kernel's own checks say of a mistake.
const REPORTS: [&str; 10] = [
    "BUG: ",
    "WARNING: ",
    "KASAN: ",
    "UBSAN: ",
    "INFO: task",
    "possible circular",
    "possible recursive",
    "suspicious RCU",
    "Oops",
    "refcount_t:",
];

/// What it says of a mistake of its own: without memory for an interrupt's files in /proc it continues, and then does
/// not find them when the interrupt ends (`unregister_irq_proc`).
const OF_THE_KERNEL: &str = "remove_proc_entry+0x";

/// Reads the kernel's log from now on.
pub(crate) struct Log(File);

/// What has failed, each with the names of the failures, and what the kernel has reported.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) failed: BTreeMap<Site, u64>,
    pub(crate) reports: BTreeSet<String>,
}

impl Log {
    pub(crate) fn open() -> Outcome<Log> {
        let path = "/dev/kmsg";
        let refused = |e: std::io::Error| Failure::Refused(format!("{path}: {e}"));
        let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(refused)?;
        file.seek(SeekFrom::End(0)).map_err(refused)?;
        Ok(Log(file))
    }

    /// Adds what has been logged since.
    pub(crate) fn read(&mut self, found: &mut Found) -> Outcome<()> {
        let mut record = [0; 8192];
        // Whether the next function of ours is where a failure was.
        let mut waits = false;
        loop {
            let length = match self.0.read(&mut record) {
                Ok(length) => length,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Some were overwritten: what is there is read.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => continue,
                Err(e) => return Err(Failure::Refused(format!("/dev/kmsg: {e}"))),
            };
            let text = String::from_utf8_lossy(&record[..length]);
            let line = text.split_once(';').map_or("", |(_, line)| line).lines().next().unwrap_or_default();
            if line.contains("FAULT_INJECTION: forcing a failure") {
                waits = true;
            } else if let (true, Some(site)) = (waits, frame(line)) {
                waits = false;
                *found.failed.entry(site).or_default() += 1;
            } else if REPORTS.iter().any(|report| line.contains(report)) && !line.contains(OF_THE_KERNEL) {
                found.reports.insert(line.to_owned());
            }
        }
    }
}

/// The site that a line of a stack names: ` tg_open+0x1a/0x80 [telegraphos]`.
fn frame(line: &str) -> Option<Site> {
    let (place, module) = line.trim().strip_suffix(']')?.rsplit_once(" [")?;
    // What the unwinder is not sure of.
    if place.starts_with('?') {
        return None;
    }
    let module = module.split(' ').next()?;
    if !module.starts_with("telegraphos") {
        return None;
    }
    let (function, offset) = place.split('/').next()?.split_once("+0x")?;
    let offset = u64::from_str_radix(offset, 16).ok()?;
    Some(Site { module: module.into(), function: function.into(), offset })
}

/// Why a site that has not failed need not: by what it calls, or where it is.
pub(crate) fn reason(site: &Site, callee: &str) -> Option<&'static str> {
    const REASONS: &[(&str, &str, &str)] = &[
        ("", "__get_user_", "the kernel cannot make it fail; tg-hostile has it fault"),
        ("", "__put_user_", "the kernel cannot make it fail; tg-hostile has it fault"),
        ("tg_object_end", "xa_store", "stores nothing in place of something, which needs no memory"),
        ("tg_probe", "ida_alloc", "the number of the only board needs no memory"),
        ("tg_registration_set", "dma_map_sgtable", "needs no memory without an IOMMU"),
        ("tg_init", "", "once, when the module is loaded"),
        ("init_module", "", "once, when the module is loaded"),
        ("tg_net_init", "", "once, when the module is loaded"),
    ];
    if site.function.starts_with("tg_direct") && !is_in_group() {
        return Some("only in a trust group");
    }
    let fits =
        |(function, name, _): &&(&str, &str, &str)| site.function.starts_with(function) && callee.starts_with(name);
    REASONS.iter().find(fits).map(|(.., reason)| *reason)
}

/// Prints a table of all sites; how many have neither failed nor a reason.
pub(crate) fn table(all: &BTreeMap<Site, String>, found: &Found) -> usize {
    let mut without = 0;
    println!("{:>8}  {:44} what it calls, or why it has not failed", "failures", "where");
    let places = Site::to_string;
    for (site, callee) in all {
        let count = found.failed.get(site).copied().unwrap_or(0);
        match (count, reason(site, callee)) {
            (0, Some(reason)) => println!("{:>8}  {:44} {callee}: {reason}", "-", places(site)),
            (0, None) => {
                without += 1;
                println!("{:>8}  {:44} {callee}: HAS NOT FAILED", 0, places(site));
            }
            _ => println!("{count:>8}  {:44} {callee}", places(site)),
        }
    }
    // Functions of the kernel that allocate somewhere inside.
    for (site, count) in found.failed.iter().filter(|(site, _)| !all.contains_key(*site)) {
        println!("{count:>8}  {:44} (within what it calls)", places(site));
    }
    let failed = all.keys().filter(|site| found.failed.contains_key(site)).count();
    println!(
        "{failed} of {} sites have failed, and {} within what the driver calls; {without} have not, without a reason",
        all.len(),
        found.failed.keys().filter(|site| !all.contains_key(site)).count()
    );
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_read() {
        let site = Site { module: "telegraphos".into(), function: "tg_object_init".into(), offset: 0x45 };
        assert_eq!(frame(" tg_object_init+0x45/0x120 [telegraphos]"), Some(site.clone()));
        assert_eq!(frame(" tg_object_init+0x45/0x120 [telegraphos 0123456789abcdef]"), Some(site));
        for other in [" ? tg_open+0x45/0x120 [telegraphos]", " do_syscall_64+0x3f/0x90", " a+0x1/0x2 [nvme]", ""] {
            assert_eq!(frame(other), None, "{other}");
        }
    }
}
