// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: the same things as in Rust, with the same meaning.
//!
//! `include/telegraphos.h` is printed by [`header`] from the types the compiler knows, so the two cannot differ; a test
//! compares the committed file. Functions return 0 or a negative errno, and never unwind into C: a panic, which would be
//! a bug of this library, becomes `-ENOTRECOVERABLE`.
//!
//! # Safety
//!
//! What C promises, for all functions: a handle is NULL or came from this library and has not been closed; a string is
//! NULL or ends with a zero byte; any other pointer is NULL or points to what its type says. NULL where something is needed is
//! `-EINVAL`. Handles may be used by several threads at once, but closed by only one, after all other use. An export
//! or import keeps its node open.

use crate::{Error, Node, NodeId, Remote, Result, Rights, Secret, Segment, Status, Word};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How C writes a type: before and after the name.
trait CType {
    const BEFORE: &'static str;
    const AFTER: &'static str = "";
}

macro_rules! c_types {
    ($( $type:ty => $name:literal $(, $after:literal)?; )*) => { $(
        impl CType for $type {
            const BEFORE: &'static str = $name;
            $( const AFTER: &'static str = $after; )?
        }
    )* };
}

c_types! {
    () => "void ";
    u8 => "uint8_t ";
    u16 => "uint16_t ";
    u32 => "uint32_t ";
    u64 => "uint64_t ";
    i64 => "int64_t ";
    c_int => "int ";
    *const c_char => "const char *";
    *mut c_void => "void *";
    *mut u8 => "uint8_t *";
    *mut u16 => "uint16_t *";
    *mut u32 => "uint32_t *";
    *mut u64 => "uint64_t *";
    *const u8 => "const uint8_t *";
    *const u16 => "const uint16_t *";
    [u8; 16] => "uint8_t ", "[16]";
    Window => "volatile void *";
    *mut Node => "tg_node *";
    *const Node => "const tg_node *";
    *mut *mut Node => "tg_node **";
    *mut Segment => "tg_segment *";
    *const Segment => "const tg_segment *";
    *mut *mut Segment => "tg_segment **";
    *mut Remote => "tg_remote *";
    *const Remote => "const tg_remote *";
    *mut *mut Remote => "tg_remote **";
    *const ExportOptions => "const tg_export_options *";
    *mut ImportState => "tg_state *";
}

/// The window of an import, as C sees it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Window(pub *mut c_void);

struct Field {
    name: &'static str,
    before: &'static str,
    after: &'static str,
    doc: &'static [&'static str],
}

struct Record {
    name: &'static str,
    doc: &'static [&'static str],
    fields: &'static [Field],
}

struct Function {
    name: &'static str,
    result: &'static str,
    doc: &'static [&'static str],
    arguments: &'static [Field],
}

macro_rules! record {
    ($table:ident, $cname:literal, $(#[doc = $doc:literal])* pub struct $name:ident {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $type:ty, )*
    }) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $type, )* }

        const $table: Record = Record {
            name: $cname,
            doc: &[$($doc),*],
            fields: &[ $( Field {
                name: stringify!($field),
                before: <$type as CType>::BEFORE,
                after: <$type as CType>::AFTER,
                doc: &[$($fdoc),*],
            }, )* ],
        };
    };
}

macro_rules! functions {
    ($( $(#[doc = $doc:literal])* fn $name:ident($( $argument:ident : $type:ty ),*) -> $result:ty $body:block )*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// See the module.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
        )*

        const FUNCTIONS: &[Function] = &[ $( Function {
            name: stringify!($name),
            result: <$result as CType>::BEFORE,
            doc: &[$($doc),*],
            arguments: &[ $( Field {
                name: stringify!($argument),
                before: <$type as CType>::BEFORE,
                after: <$type as CType>::AFTER,
                doc: &[],
            }, )* ],
        }, )* ];
    };
}

record! { EXPORT_OPTIONS, "tg_export_options",
    /// How to export. All zeros, or NULL, means: for processes of the same user id, no secret, every node.
    pub struct ExportOptions {
        /// Who may do what, as for a file, e.g. 0604; 0 means 0600.
        pub mode: u32,
        /// Number of admitted nodes listed; 0 admits every node.
        pub node_count: u32,
        /// The admitted nodes.
        pub nodes: *const u16,
        /// What an importer must present; zeros for nothing.
        pub secret: [u8; 16],
    }
}

record! { IMPORT_STATE, "tg_state",
    /// What has become of an import.
    pub struct ImportState {
        /// 1 while stores outrun the network: the next one waits.
        pub congested: u8,
        /// 1 after a store was lost, until tg_acknowledge; later stores are dropped.
        pub cut: u8,
        /// 1 if it is gone for good: touching it is SIGBUS. Import it again.
        pub dead: u8,
        /// Zero.
        pub reserved: u8,
        /// The first error since the last tg_acknowledge: TG_ERR_*, or TG_OK.
        pub status: u32,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static ERROR_TEXT: RefCell<CString> = RefCell::default();
}

/// Text for C; a zero byte within, which no message has, would end it.
fn c_text(text: String) -> CString {
    let bytes: Vec<u8> = text.into_bytes().into_iter().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// The value, or a negative errno with the sentence kept for `tg_last_error`.
fn guard(action: impl FnOnce() -> Result<c_int>) -> c_int {
    let (text, errno) = match catch_unwind(AssertUnwindSafe(action)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => (error.to_string(), error.errno()),
        Err(_) => ("a bug in the library: please report it".to_owned(), Errno::NOTRECOVERABLE.raw_os_error()),
    };
    LAST_ERROR.with(|last| *last.borrow_mut() = c_text(text));
    -errno
}

fn missing(what: &'static str) -> Error {
    Error::Argument { what, value: "NULL".into(), expected: "a pointer".into() }
}

/// What a pointer from C points to.
///
/// # Safety
/// As the module says.
unsafe fn given<'a, T>(pointer: *const T, what: &'static str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| missing(what))
}

/// A string from C.
///
/// # Safety
/// As the module says.
unsafe fn text<'a>(pointer: *const c_char, what: &'static str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(missing(what));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Error::Argument {
        what,
        value: "not UTF-8".into(),
        expected: "UTF-8 text".into(),
    })
}

/// Hands a new object to C.
///
/// # Safety
/// As the module says.
unsafe fn give<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T>) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(missing("the place for the result"));
        }
        let value = Box::into_raw(Box::new(make()?));
        // SAFETY: the caller's promise.
        unsafe { out.write(value) };
        Ok(0)
    })
}

/// Takes an object back from C; NULL is none.
///
/// # Safety
/// As the module says.
unsafe fn take<T>(pointer: *mut T) -> Option<T> {
    // SAFETY: the caller's promise: it came from `give`, and is used no more.
    (!pointer.is_null()).then(|| *unsafe { Box::from_raw(pointer) })
}

/// # Safety
/// As the module says.
unsafe fn put<T: Word>(remote: *const Remote, offset: u64, value: T) -> c_int {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe { given(remote, "the import")? }.put(offset, value)?;
        Ok(0)
    })
}

/// # Safety
/// As the module says.
unsafe fn get<T: Word>(remote: *const Remote, offset: u64, value: *mut T) -> c_int {
    guard(|| {
        if value.is_null() {
            return Err(missing("the place for the value"));
        }
        // SAFETY: the caller's promise.
        let found = unsafe { given(remote, "the import")? }.get(offset)?;
        // SAFETY: the caller's promise.
        unsafe { value.write(found) };
        Ok(0)
    })
}

functions! {
    /// Opens the board of that device file, or with NULL the first one.
    fn tg_open(path: *const c_char, node: *mut *mut Node) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(node, || match path.is_null() {
                true => Node::open(),
                false => Node::open_path(text(path, "the path")?),
            })
        }
    }

    /// Closes it; exports and imports made from it stay until they are closed.
    fn tg_close(node: *mut Node) -> () {
        let _ = guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { take(node) });
            Ok(0)
        });
    }

    /// This node's id, or a negative errno.
    fn tg_node_id(node: *const Node) -> c_int {
        // SAFETY: the caller's promise.
        guard(|| Ok(unsafe { given(node, "the node")? }.id().into()))
    }

    /// Exports size bytes of new, zeroed memory under a name.
    fn tg_export(
        node: *const Node, name: *const c_char, size: u64, options: *const ExportOptions, segment: *mut *mut Segment
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(segment, || {
                let mut builder = given(node, "the node")?.export(text(name, "the name")?, size);
                if let Some(options) = options.as_ref() {
                    builder = builder.secret(options.secret);
                    if options.mode != 0 {
                        builder = builder.mode(options.mode);
                    }
                    if options.node_count != 0 {
                        let first = given(options.nodes, "the list of nodes")?;
                        let nodes: &[NodeId] = std::slice::from_raw_parts(first, options.node_count as usize);
                        builder = builder.nodes(nodes);
                    }
                }
                builder.create()
            })
        }
    }

    /// Withdraws an export; returns when no other node can reach it.
    fn tg_unexport(segment: *mut Segment) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(segment) }.map_or(Ok(()), Segment::close)?;
            Ok(0)
        })
    }

    /// Where the memory of an export lies. Others change it at any time: use atomic loads and stores.
    fn tg_segment_memory(segment: *const Segment) -> *mut c_void {
        // SAFETY: the caller's promise.
        unsafe { segment.as_ref() }.map_or(std::ptr::null_mut(), |s| s.as_ptr().cast())
    }

    /// Bytes of an export.
    fn tg_segment_size(segment: *const Segment) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { segment.as_ref() }.map_or(0, Segment::size)
    }

    /// Imports a segment of a node for the rights TG_RIGHT_*; 0 means loads and stores. The secret has 16 bytes, or is NULL.
    fn tg_import(
        node: *const Node, id: u16, name: *const c_char, rights: u16, secret: *const u8, remote: *mut *mut Remote
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(remote, || {
                let mut builder = given(node, "the node")?.import(id, text(name, "the name")?);
                if rights != 0 {
                    builder = builder.rights(Rights(rights));
                }
                if let Some(secret) = secret.cast::<Secret>().as_ref() {
                    builder = builder.secret(*secret);
                }
                builder.open()
            })
        }
    }

    /// Closes an import after its outstanding stores.
    fn tg_unimport(remote: *mut Remote) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(remote) }.map_or(Ok(()), Remote::close)?;
            Ok(0)
        })
    }

    /// Where the window of an import lies: for aligned words of 1, 2, 4 or 8 bytes, never for memcpy.
    fn tg_remote_window(remote: *const Remote) -> Window {
        // SAFETY: the caller's promise.
        Window(unsafe { remote.as_ref() }.map_or(std::ptr::null_mut(), |r| r.as_ptr().cast()))
    }

    /// Bytes of an import.
    fn tg_remote_size(remote: *const Remote) -> u64 {
        // SAFETY: the caller's promise.
        unsafe { remote.as_ref() }.map_or(0, Remote::size)
    }

    /// Stores with one instruction, and returns before the other node has the value.
    fn tg_put8(remote: *const Remote, offset: u64, value: u8) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// See tg_put8.
    fn tg_put16(remote: *const Remote, offset: u64, value: u16) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// See tg_put8.
    fn tg_put32(remote: *const Remote, offset: u64, value: u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// See tg_put8.
    fn tg_put64(remote: *const Remote, offset: u64, value: u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { put(remote, offset, value) }
    }

    /// Loads with one instruction, behind all earlier stores to that node. All ones may mean that it failed: see tg_state_of.
    fn tg_get8(remote: *const Remote, offset: u64, value: *mut u8) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// See tg_get8.
    fn tg_get16(remote: *const Remote, offset: u64, value: *mut u16) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// See tg_get8.
    fn tg_get32(remote: *const Remote, offset: u64, value: *mut u32) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// See tg_get8.
    fn tg_get64(remote: *const Remote, offset: u64, value: *mut u64) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { get(remote, offset, value) }
    }

    /// Returns when every earlier store to this import has been performed and acknowledged.
    fn tg_quiet(remote: *const Remote) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(remote, "the import")? }.quiet()?;
            Ok(0)
        })
    }

    /// tg_quiet that gives up with -EAGAIN after so many nanoseconds; it may be called again.
    fn tg_quiet_timeout(remote: *const Remote, nanoseconds: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(remote, "the import")? }.quiet_timeout(Duration::from_nanos(nanoseconds))?;
            Ok(0)
        })
    }

    /// tg_quiet for all imports of a node handle.
    fn tg_quiet_all(node: *const Node) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.quiet()?;
            Ok(0)
        })
    }

    /// tg_quiet_timeout for all imports of a node handle.
    fn tg_quiet_all_timeout(node: *const Node, nanoseconds: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(node, "the node")? }.quiet_timeout(Duration::from_nanos(nanoseconds))?;
            Ok(0)
        })
    }

    /// What has become of an import.
    fn tg_state_of(remote: *const Remote, state: *mut ImportState) -> c_int {
        guard(|| {
            if state.is_null() {
                return Err(missing("the place for the state"));
            }
            // SAFETY: the caller's promise.
            let found = unsafe { given(remote, "the import")? }.state()?;
            let found = ImportState {
                congested: found.congested.into(),
                cut: found.cut.into(),
                dead: found.dead.into(),
                reserved: 0,
                status: found.error.unwrap_or(Status::Ok) as u32,
            };
            // SAFETY: the caller's promise.
            unsafe { state.write(found) };
            Ok(0)
        })
    }

    /// Clears the latched error of an import and goes on after a cut. Lost stores stay lost.
    fn tg_acknowledge(remote: *const Remote) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(remote, "the import")? }.acknowledge()?;
            Ok(0)
        })
    }

    /// Waits until an import of this node handle has an error to report: 1, or 0 after so many milliseconds (negative: for ever).
    fn tg_wait_error(node: *const Node, milliseconds: i64) -> c_int {
        guard(|| {
            let limit = u64::try_from(milliseconds).ok().map(Duration::from_millis);
            // SAFETY: the caller's promise.
            Ok(unsafe { given(node, "the node")? }.wait_error(limit)?.into())
        })
    }

    /// Orders all earlier accesses of this thread before all later ones. It waits for nothing to arrive: that is tg_quiet.
    fn tg_fence() -> () {
        crate::fence();
    }

    /// What a result means, positive or negative. Valid until the thread's next call of this function.
    fn tg_strerror(error: c_int) -> *const c_char {
        // Linux has no larger errno.
        let text = match i32::try_from(error.unsigned_abs()) {
            Ok(0) => "Done.".to_owned(),
            Ok(errno @ 1..4096) => {
                let os = std::io::Error::from_raw_os_error(errno);
                match crate::error::status_of(Errno::from_raw_os_error(errno)) {
                    Some(status) => format!("{} ({os})", status.describe()),
                    None => os.to_string(),
                }
            }
            _ => format!("{error} is no errno."),
        };
        ERROR_TEXT.with(|last| {
            *last.borrow_mut() = c_text(text);
            last.borrow().as_ptr()
        })
    }

    /// What failed last in this thread, in a sentence with what to do. Valid until the thread's next call that fails.
    fn tg_last_error() -> *const c_char {
        LAST_ERROR.with(|last| last.borrow().as_ptr())
    }
}

fn comment(out: &mut String, indent: &str, doc: &[&str]) {
    for (index, line) in doc.iter().enumerate() {
        let begin = if index == 0 { "/* " } else { " * " };
        let end = if index + 1 == doc.len() { " */" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{indent}{begin}{}{end}", line.trim());
    }
}

/// The text of `include/telegraphos.h`:
/// `cargo run -p telegraphos --example header > guest-driver/lib/include/telegraphos.h` renews it.
pub fn header() -> String {
    let mut out = String::from(
        "/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Telegraphos: load from and store into the memory of other virtual machines.
 *
 * Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the whole sentence. Handles may be
 * used by several threads at once, but closed by only one, after all other use. Names and paths are UTF-8. Touching an
 * import whose owner has withdrawn it or died is SIGBUS.
 *
 * Generated from the library; do not edit. Renew with
 *   cargo run -p telegraphos --example header > guest-driver/lib/include/telegraphos.h
 */
#ifndef TELEGRAPHOS_LIBRARY_H
#define TELEGRAPHOS_LIBRARY_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif

/* An open board. */
typedef struct tg_node tg_node;
/* Memory of this node, exported under a name. */
typedef struct tg_segment tg_segment;
/* Memory of another node, imported. */
typedef struct tg_remote tg_remote;

",
    );
    for (title, table) in [("Rights", Rights::NAMES), ("Status codes, as in tg_state", Status::ALL)] {
        let _ = writeln!(out, "/* {title} */");
        for (name, value, doc) in table {
            comment(&mut out, "", &[doc]);
            // Letter for letter as in the kernel's header, so that a program may include both.
            let _ = writeln!(out, "#define {name} 0x{value:x}");
        }
        out.push('\n');
    }
    for record in [&EXPORT_OPTIONS, &IMPORT_STATE] {
        comment(&mut out, "", record.doc);
        let _ = writeln!(out, "typedef struct {} {{", record.name);
        for Field { name, before, after, doc } in record.fields {
            comment(&mut out, "\t", doc);
            let _ = writeln!(out, "\t{before}{name}{after};");
        }
        let _ = writeln!(out, "}} {};\n", record.name);
    }
    for function in FUNCTIONS {
        comment(&mut out, "", function.doc);
        let arguments: Vec<String> =
            function.arguments.iter().map(|a| format!("{}{}{}", a.before, a.name, a.after)).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        let _ = writeln!(out, "{}{}({arguments});\n", function.result, function.name);
    }
    out.push_str("#ifdef __cplusplus\n}\n#endif\n\n#endif /* TELEGRAPHOS_LIBRARY_H */\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: the text of this thread, until its next failure.
        unsafe { CStr::from_ptr(tg_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn null_is_refused_and_explained() {
        let invalid = -Errno::INVAL.raw_os_error();
        let (mut value, mut node) = (0, std::ptr::null_mut());
        // SAFETY: NULL is allowed everywhere.
        unsafe {
            assert_eq!(tg_put64(std::ptr::null(), 0, 1), invalid);
            assert_eq!(last_error(), "the import is NULL: expected a pointer");
            assert_eq!(tg_get8(std::ptr::null(), 0, &mut value), invalid);
            assert_eq!(tg_open(std::ptr::null(), std::ptr::null_mut()), invalid);
            assert_eq!(tg_open(c"/no/such/board".as_ptr(), &mut node), -Errno::NOENT.raw_os_error());
            assert!(last_error().contains("/no/such/board"), "{}", last_error());
            assert_eq!(tg_open(c"/dev/null".as_ptr(), &mut node), invalid);
            assert!(last_error().contains("expected a /dev/telegraphosN"), "{}", last_error());
            tg_close(std::ptr::null_mut());
            assert_eq!(tg_unexport(std::ptr::null_mut()), 0);
            assert!(tg_segment_memory(std::ptr::null()).is_null());
        }
    }

    #[test]
    fn a_panic_does_not_reach_c() {
        std::panic::set_hook(Box::new(|_| ()));
        let result = guard(|| panic!("a bug"));
        let _ = std::panic::take_hook();
        assert_eq!(result, -Errno::NOTRECOVERABLE.raw_os_error());
        assert!(last_error().contains("bug"));
    }

    #[test]
    fn errors_have_texts() {
        let text = |error| {
            // SAFETY: the text of this thread, until its next call.
            unsafe { CStr::from_ptr(tg_strerror(error)) }.to_str().unwrap().to_owned()
        };
        assert_eq!(text(0), "Done.");
        let missing = Errno::NOENT.raw_os_error();
        assert!(text(-missing).starts_with("No segment of that name"));
        assert_eq!(text(missing), text(-missing));
        for odd in [c_int::MIN, c_int::MAX, -4095, 12345] {
            assert!(!text(odd).is_empty());
        }
    }
}
