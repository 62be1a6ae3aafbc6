// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C declarations of types and functions, and the text of the header.

use super::{
    Handle, Window, broadcast, counter, error, node, operation, queue, registration, remote, replicated, segment, sync,
};
use crate::sync::Barrier;
use crate::{
    Broadcast, BroadcastConsumer, LaunchStyle, Node, Operation, PageCounter, Queue, Registration, Remote, RemoteQueue,
    Replicated, Rights, Segment, Status,
};
use std::ffi::{c_int, c_void};
use std::fmt::Write;

/// The C declaration of a name.
pub(super) type Declare = fn(&str) -> String;

/// A type that C has, too.
pub(super) trait CType {
    /// The C declaration of `name` with this type.
    fn declare(name: &str) -> String;
}

impl<T: CType> CType for *mut T {
    fn declare(name: &str) -> String {
        T::declare(&format!("*{name}"))
    }
}

impl<T: CType> CType for *const T {
    fn declare(name: &str) -> String {
        format!("const {}", T::declare(&format!("*{name}")))
    }
}

impl<T: CType, const N: usize> CType for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

impl CType for Window {
    fn declare(name: &str) -> String {
        format!("volatile void *{name}")
    }
}

macro_rules! c_types {
    ($( $type:ty => $name:literal; )*) => { $(
        impl $crate::ffi::header::CType for $type {
            fn declare(name: &str) -> String {
                format!("{} {name}", $name)
            }
        }
    )* };
}

c_types! {
    () => "void";
    c_void => "void";
    // `c_char` of x86; of aarch64 it is `u8`.
    i8 => "char";
    u8 => "uint8_t";
    u16 => "uint16_t";
    u32 => "uint32_t";
    u64 => "uint64_t";
    i64 => "int64_t";
    c_int => "int";
}

/// Opaque types: `TYPE => "C NAME", "STRUCT", "NAME IN ERRORS", "COMMENT";`
macro_rules! handles {
    ($( $type:ty => $name:literal, $tag:literal, $what:literal, $doc:literal; )*) => {
        c_types! { $( $type => $name; )* }
        $( impl Handle for $type {
            const WHAT: &'static str = $what;
        } )*
        /// Name, structure and comment of each.
        const HANDLES: &[(&str, &str, &str)] = &[ $( ($name, $tag, $doc), )* ];
    };
}

handles! {
    Node => "tg_node", "tg_node", "the node", "An open board.";
    Segment => "tg_segment", "tg_segment", "the export", "Memory of this node, exported under a name.";
    Registration => "tg_registration", "tg_registration", "the registration", "Memory that the process had before.";
    Remote => "tg_remote", "tg_remote", "the import", "Memory of another node, imported.";
    Operation<u64> => "tg_operation", "tg_operation", "the operation", "An atomic or a copy that was launched.";
    Barrier => "tg_barrier", "tg_barrier", "the barrier", "A barrier that was joined.";
    Replicated => "tg_replicated", "tg_replicated", "the replicated segment",
        "This node's copy of a replicated segment.";
    Broadcast => "tg_broadcast", "tg_broadcast", "the broadcast", "The producer of a broadcast.";
    BroadcastConsumer => "tg_consumer", "tg_consumer", "the consumer", "A consumer of a broadcast.";
    PageCounter => "tg_page_counter", "tg_page_counter", "the counter", "Access counters armed for a page.";
    Queue => "tg_queue", "tg_local_queue", "the queue",
        "A notification queue of this node. (The kernel's header has another struct tg_queue.)";
    RemoteQueue => "tg_remote_queue", "tg_remote_queue", "the imported queue",
        "A notification queue of another node, imported to append to it.";
}

/// A member of a record, or an argument of a function.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) declare: Declare,
    pub(super) doc: &'static [&'static str],
}

/// A structure that C fills or reads.
pub(super) struct Record {
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) fields: &'static [Field],
}

/// A function of the C interface.
pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) result: Declare,
    pub(super) doc: &'static [&'static str],
    pub(super) arguments: &'static [Field],
}

/// A record of both languages: `record! { TABLE, "C NAME", pub struct ... }`.
macro_rules! record {
    ($table:ident, $cname:literal, $(#[doc = $doc:literal])* pub struct $name:ident {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $type:ty, )*
    }) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $type, )* }
        c_types! { $name => $cname; }

        pub(super) const $table: $crate::ffi::header::Record = $crate::ffi::header::Record {
            name: $cname,
            doc: &[$($doc),*],
            fields: &[ $( $crate::ffi::header::Field {
                name: stringify!($field),
                declare: <$type as $crate::ffi::header::CType>::declare,
                doc: &[$($fdoc),*],
            }, )* ],
        };
    };
}

/// Functions of the C interface: `functions! { TABLE; fn NAME(ARGUMENTS) -> RESULT = BODY; ... }`. Bodies are unsafe
/// code that relies on the promises of the module's documentation.
macro_rules! functions {
    ($table:ident;
        $( $(#[doc = $doc:literal])* fn $name:ident($( $argument:ident : $type:ty ),*) -> $result:ty = $body:expr; )*
    ) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// See the module.
            #[unsafe(no_mangle)]
            #[allow(unused_unsafe, reason = "a few have no use for their arguments' promises")]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller's promise.
                unsafe { $body }
            }
        )*

        pub(super) const $table: &[$crate::ffi::header::Function] = &[ $( $crate::ffi::header::Function {
            name: stringify!($name),
            result: <$result as $crate::ffi::header::CType>::declare,
            doc: &[$($doc),*],
            arguments: &[ $( $crate::ffi::header::Field {
                name: stringify!($argument),
                declare: <$type as $crate::ffi::header::CType>::declare,
                doc: &[],
            }, )* ],
        }, )* ];
    };
}

/// Functions that differ only in the width of a word, with one body for all:
/// `words! { TABLE(SUBJECT: TYPE, OFFSET); [BODY] NAME(ARGUMENTS); ... [BODY] ... }`. Each takes the subject and the
/// offset before the arguments of its width.
macro_rules! words {
    ($table:ident($subject:ident : $of:ty, $offset:ident);
        $( [$body:expr] $( $(#[doc = $doc:literal])* $name:ident($( $argument:ident : $type:ty ),*); )* )*
    ) => {
        functions! { $table; $( $(
            $(#[doc = $doc])*
            fn $name($subject: $of, $offset: u64 $(, $argument: $type)*) -> c_int = $body;
        )* )* }
    };
}

/// The records, in the order of the header.
const RECORDS: [&Record; 6] = [
    &segment::EXPORT_OPTIONS,
    &remote::IMPORT_STATE,
    &queue::QUEUE_OPTIONS,
    &queue::QUEUE_STATUS,
    &replicated::REPLICATED_STATE,
    &counter::COUNT,
];

/// The functions, in the order of the header.
const FUNCTIONS: &[&[Function]] = &[
    node::BOARD,
    segment::EXPORTS,
    remote::IMPORTS,
    remote::WORDS,
    remote::QUIET,
    node::QUIET,
    remote::STATE,
    node::LAUNCHES,
    segment::REMOTE,
    registration::REGISTRATIONS,
    operation::ATOMICS,
    operation::OPERATIONS,
    node::COMPLETIONS,
    sync::LOCKS_AND_BARRIERS,
    queue::QUEUES,
    counter::COUNTERS,
    replicated::SEGMENTS,
    replicated::WORDS,
    replicated::STATE,
    broadcast::BROADCASTS,
    node::ERRORS,
    error::ERRORS,
];

const BEGIN: &str = "/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Telegraphos: load from and store into the memory of other virtual machines.
 *
 * Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the message. Several threads may
 * use a handle at once, but only one may close it, after all other use; operations, barriers, broadcasts and their
 * consumers are for one thread at a time. Names and paths are UTF-8. When the owner of an import has withdrawn it or
 * died, touching it raises SIGBUS, also by launching an operation on it.
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

";

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
    let mut out = String::from(BEGIN);
    for (name, tag, doc) in HANDLES {
        comment(&mut out, "", &[doc]);
        let _ = writeln!(out, "typedef struct {tag} {name};");
    }
    out.push('\n');
    let styles = LaunchStyle::ALL.map(|style| {
        let (name, doc) = node::STYLES[style as usize];
        (name, style as u64, doc)
    });
    let tables = [
        ("Rights", Rights::NAMES),
        ("Launch styles", &styles),
        ("Modes of replicated segments", telegraphos_wire::admin::MODES),
        ("Status codes, as in tg_state and from tg_last_status", Status::ALL),
    ];
    for (title, table) in tables {
        let _ = writeln!(out, "/* {title} */");
        for (name, value, doc) in table {
            comment(&mut out, "", &[doc]);
            // Letter for letter as in the kernel's header, so that a program may include both.
            let _ = writeln!(out, "#define {name} 0x{value:x}");
        }
        out.push('\n');
    }
    for record in RECORDS {
        comment(&mut out, "", record.doc);
        let _ = writeln!(out, "typedef struct {} {{", record.name);
        for field in record.fields {
            comment(&mut out, "\t", field.doc);
            let _ = writeln!(out, "\t{};", (field.declare)(field.name));
        }
        let _ = writeln!(out, "}} {};\n", record.name);
    }
    for function in FUNCTIONS.iter().copied().flatten() {
        comment(&mut out, "", function.doc);
        let arguments: Vec<String> = function.arguments.iter().map(|a| (a.declare)(a.name)).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        let _ = writeln!(out, "{};\n", (function.result)(&format!("{}({arguments})", function.name)));
    }
    out.push_str("#ifdef __cplusplus\n}\n#endif\n\n#endif /* TELEGRAPHOS_LIBRARY_H */\n");
    out
}
