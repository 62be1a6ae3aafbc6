// SPDX-License-Identifier: GPL-2.0-or-later
//! The observer of this QEMU, the plugin's arguments, and where the table goes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telegraphos_plugin_core::{Access, Marker, Observer, Retired};

/// The machine that this observes: markers are x86 instructions.
const TARGET: &str = "x86_64";
/// Instructions at and above are the kernel's.
pub(crate) const KERNEL: u64 = 1 << 63;
/// Bits of an address within its page.
pub(crate) const PAGE_BITS: u32 = 12;

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// A file, written whole and renamed into place; else stderr.
    out: Option<PathBuf>,
    /// Where the table of the code that ran goes, likewise. Without it blocks need not be reported.
    code: Option<PathBuf>,
}

impl Options {
    /// Reads the plugin's arguments, each `NAME=VALUE`.
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        for argument in arguments {
            match argument.split_once('=') {
                Some(("out", path)) if !path.is_empty() => options.out = Some(path.into()),
                Some(("code", path)) if !path.is_empty() => options.code = Some(path.into()),
                _ => return Err(format!("argument {argument:?} is unknown: expected out=FILE or code=FILE")),
            }
        }
        Ok(options)
    }
}

/// Refuses a machine with markers that could not be read.
fn check_target(name: &str, system: bool) -> Result<(), String> {
    if name == TARGET && system {
        return Ok(());
    }
    let kind = if system { "a machine" } else { "a process" };
    Err(format!("QEMU emulates {kind} of type {name}: expected a machine of type {TARGET}"))
}

/// The observer and the plugin's options.
struct Shell {
    observer: Observer,
    options: Options,
}

static SHELL: Mutex<Option<Shell>> = Mutex::new(None);
/// Passages begun and not ended. Read without the lock: the virtual processor that opened one sees its own store, and
/// of the others no access counts.
static OPEN: AtomicUsize = AtomicUsize::new(0);

fn shell() -> MutexGuard<'static, Option<Shell>> {
    SHELL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line for the user.
fn say(text: &str) {
    // Fails only if stderr is closed.
    let _ = writeln!(std::io::stderr(), "telegraphos-plugin: {text}");
}

/// Begins to observe; false if the machine or the plugin's arguments are refused.
pub(crate) fn start(target: &str, system: bool, arguments: impl IntoIterator<Item = String>) -> bool {
    match check_target(target, system).and_then(|()| Options::parse(arguments)) {
        Ok(options) => *shell() = Some(Shell { observer: Observer::new(), options }),
        Err(e) => {
            say(&e);
            return false;
        }
    }
    true
}

/// Whether accesses are of interest.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// Virtual processor `vcpu` executes a marker.
pub(crate) fn marker(vcpu: u32, marker: Marker, retired: Retired) {
    let mut shell = shell();
    let Some(shell) = shell.as_mut() else { return };
    shell.observer.marker(vcpu, marker, retired);
    OPEN.store(shell.observer.open(), Ordering::Relaxed);
    if marker == Marker::Report {
        shell.write();
    }
}

/// Whether blocks are to be reported.
pub(crate) fn wants_blocks() -> bool {
    shell().as_ref().is_some_and(|shell| shell.options.code.is_some())
}

/// Virtual processor `vcpu` begins a block of so many instructions.
pub(crate) fn block(vcpu: u32, address: u64, instructions: u64) {
    if let Some(shell) = shell().as_mut() {
        shell.observer.block(vcpu, address, instructions);
    }
}

/// Virtual processor `vcpu` accesses memory.
pub(crate) fn access(vcpu: u32, access: Access<'_>) {
    if let Some(shell) = shell().as_mut() {
        shell.observer.access(vcpu, access);
    }
}

/// QEMU ends; nothing is observed any more.
pub(crate) fn finish() {
    if let Some(shell) = shell().take() {
        shell.write();
    }
}

impl Shell {
    fn write(&self) {
        let table = self.observer.report().to_string();
        match &self.options.out {
            Some(out) => replace(out, &table),
            // Fails only if stderr is closed.
            None => _ = std::io::stderr().write_all(table.as_bytes()),
        }
        if let Some(code) = &self.options.code {
            replace(code, &self.observer.code().to_string());
        }
    }
}

/// Writes a file whole and renames it into place.
fn replace(file: &Path, table: &str) {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".tmp");
    if let Err(e) = std::fs::write(&unfinished, table).and_then(|()| std::fs::rename(&unfinished, file)) {
        say(&format!("cannot write the table to {}: {e}", file.display()));
    }
}
