// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules of kernels, loaded and removed by programs. Needs root.

use crate::cli::{Failure, Outcome};
use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use telegraphos::Node;

const LAB: &str = "telegraphos_lab";

fn c_string(text: &str) -> Outcome<CString> {
    CString::new(text).map_err(|e| Failure::Refused(format!("{text:?}: {e}")))
}

fn failed(name: &str, what: &str) -> Failure {
    Failure::Refused(format!("{name} does not {what}: {}; expected root", Error::last_os_error()))
}

/// Loads one of the driver's modules.
pub fn load(name: &str, parameters: &str) -> Outcome<()> {
    let path = format!("/lib/telegraphos/{name}.ko");
    let file = File::open(&path).map_err(|e| Failure::Refused(format!("{path}: {e}")))?;
    let words = c_string(parameters)?;
    // SAFETY: the parameters end with a zero.
    match unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), words.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(failed(name, "come")),
    }
}

/// Removes a module; false if it was not there.
pub fn unload(name: &str) -> Outcome<bool> {
    let text = c_string(name)?;
    // SAFETY: the name ends with a zero.
    if unsafe { libc::syscall(libc::SYS_delete_module, text.as_ptr(), 0) } == 0 {
        return Ok(true);
    }
    match Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Ok(false),
        _ => Err(failed(name, "go")),
    }
}

/// The board, opened as the kernel's own clients open it: for programs that play a hostile kernel.
pub fn open_as_the_kernel() -> Outcome<Node> {
    let before = unload(LAB)?;
    load(LAB, "kernel=1")?;
    let node = Node::open();
    unload(LAB)?;
    if before {
        load(LAB, "")?;
    }
    Ok(node?)
}
