// SPDX-License-Identifier: MIT OR Apache-2.0
//! How each thing looks in C, and the text of the header.

use super::{
    CountState, ExportOptions, ImportState, QueueOptions, QueueStatus, ReplicatedState, Window, barrier, broadcast,
    consumer, counter, error, node, operation, queue, remote, remote_queue, replicated, segment,
};
use crate::sync::Barrier;
use crate::{
    Broadcast, BroadcastConsumer, Node, Operation, PageCounter, Queue, Remote, RemoteQueue, Replicated, Rights,
    Segment, Status,
};
use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;

/// How C writes a type: before and after the name.
pub(super) trait CType {
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
    [u8; 6] => "uint8_t ", "[6]";
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
    *mut Operation<u64> => "tg_operation *";
    *mut *mut Operation<u64> => "tg_operation **";
    *mut Barrier => "tg_barrier *";
    *mut *mut Barrier => "tg_barrier **";
    *mut PageCounter => "tg_page_counter *";
    *const PageCounter => "const tg_page_counter *";
    *mut *mut PageCounter => "tg_page_counter **";
    *mut CountState => "tg_count *";
    *mut Replicated => "tg_replicated *";
    *const Replicated => "const tg_replicated *";
    *mut *mut Replicated => "tg_replicated **";
    *mut Broadcast => "tg_broadcast *";
    *mut *mut Broadcast => "tg_broadcast **";
    *mut BroadcastConsumer => "tg_consumer *";
    *mut *mut BroadcastConsumer => "tg_consumer **";
    *mut ReplicatedState => "tg_replicated_state *";
    *const c_void => "const void *";
    *const ExportOptions => "const tg_export_options *";
    *mut ImportState => "tg_state *";
    *mut Queue => "tg_queue *";
    *const Queue => "const tg_queue *";
    *mut *mut Queue => "tg_queue **";
    *mut RemoteQueue => "tg_remote_queue *";
    *const RemoteQueue => "const tg_remote_queue *";
    *mut *mut RemoteQueue => "tg_remote_queue **";
    *const QueueOptions => "const tg_queue_options *";
    *mut QueueStatus => "tg_queue_status *";
    *const u64 => "const uint64_t *";
}

pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) before: &'static str,
    pub(super) after: &'static str,
    pub(super) doc: &'static [&'static str],
}

pub(super) struct Record {
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) fields: &'static [Field],
}

pub(super) struct Function {
    pub(super) name: &'static str,
    pub(super) result: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) arguments: &'static [Field],
}

macro_rules! record {
    ($table:ident, $cname:literal, $(#[doc = $doc:literal])* pub struct $name:ident {
        $( $(#[doc = $fdoc:literal])* pub $field:ident : $type:ty, )*
    }) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $( $(#[doc = $fdoc])* pub $field: $type, )* }

        pub(super) const $table: $crate::ffi::header::Record = $crate::ffi::header::Record {
            name: $cname,
            doc: &[$($doc),*],
            fields: &[ $( $crate::ffi::header::Field {
                name: stringify!($field),
                before: <$type as $crate::ffi::header::CType>::BEFORE,
                after: <$type as $crate::ffi::header::CType>::AFTER,
                doc: &[$($fdoc),*],
            }, )* ],
        };
    };
}

macro_rules! functions {
    ($table:ident;
        $( $(#[doc = $doc:literal])* fn $name:ident($( $argument:ident : $type:ty ),*) -> $result:ty $body:block )*
    ) => {
        $(
            $(#[doc = $doc])*
            ///
            /// # Safety
            /// See the module.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result $body
        )*

        pub(super) const $table: &[$crate::ffi::header::Function] = &[ $( $crate::ffi::header::Function {
            name: stringify!($name),
            result: <$result as $crate::ffi::header::CType>::BEFORE,
            doc: &[$($doc),*],
            arguments: &[ $( $crate::ffi::header::Field {
                name: stringify!($argument),
                before: <$type as $crate::ffi::header::CType>::BEFORE,
                after: <$type as $crate::ffi::header::CType>::AFTER,
                doc: &[],
            }, )* ],
        }, )* ];
    };
}

/// Functions that differ in the width of a word alone: `words! { TABLE: CALL(SUBJECT: TYPE); NAME(ARGUMENTS); ... }`.
/// Each calls `CALL` with the subject, an offset, and the arguments of that width.
macro_rules! words {
    ($table:ident: $call:ident($subject:ident : $of:ty);
        $( $(#[doc = $doc:literal])* $name:ident($( $argument:ident : $type:ty ),*); )*
    ) => {
        functions! { $table; $(
            $(#[doc = $doc])*
            fn $name($subject: $of, offset: u64 $(, $argument: $type)*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { $call($subject, offset $(, $argument)*) }
            }
        )* }
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
    remote::PUT,
    remote::GET,
    remote::QUIET,
    node::QUIET,
    remote::STATE,
    node::LAUNCHES,
    segment::REMOTE,
    operation::SWAP,
    operation::FETCH_ADD,
    operation::FETCH_INC,
    operation::COMPARE_SWAP,
    operation::SWAP_NBI,
    operation::FETCH_ADD_NBI,
    operation::COMPARE_SWAP_NBI,
    operation::COPIES,
    operation::OPERATIONS,
    node::COMPLETIONS,
    remote::LOCK,
    barrier::BARRIERS,
    queue::QUEUES,
    remote_queue::REMOTE_QUEUES,
    counter::COUNTERS,
    replicated::SEGMENTS,
    replicated::STORE,
    replicated::LOAD,
    replicated::STATE,
    broadcast::BROADCASTS,
    consumer::CONSUMERS,
    node::ERRORS,
    error::ERRORS,
];

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
 * used by several threads at once, but closed by only one, after all other use; operations, barriers,
 * broadcasts and their consumers are for one thread at a time. Names and paths are UTF-8. Touching an import whose owner has withdrawn it or died is SIGBUS, also
 * by launching an operation on it.
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
/* An atomic or a copy that was launched. */
typedef struct tg_operation tg_operation;
/* A barrier that was joined. */
typedef struct tg_barrier tg_barrier;
/* A copy of a segment that several nodes have copies of. */
typedef struct tg_replicated tg_replicated;
/* The producer of a broadcast. */
typedef struct tg_broadcast tg_broadcast;
/* A consumer of a broadcast. */
typedef struct tg_consumer tg_consumer;
/* Access counters armed for a page. */
typedef struct tg_page_counter tg_page_counter;
/* A notification queue of this node. (The kernel's header has a struct tg_queue, which is another thing.) */
typedef struct tg_local_queue tg_queue;
/* A notification queue of another node, imported to append to it. */
typedef struct tg_remote_queue tg_remote_queue;

",
    );
    let tables = [
        ("Rights", Rights::NAMES),
        ("Launch styles", node::STYLES),
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
        for Field { name, before, after, doc } in record.fields {
            comment(&mut out, "\t", doc);
            let _ = writeln!(out, "\t{before}{name}{after};");
        }
        let _ = writeln!(out, "}} {};\n", record.name);
    }
    for function in FUNCTIONS.iter().copied().flatten() {
        comment(&mut out, "", function.doc);
        let arguments: Vec<String> =
            function.arguments.iter().map(|a| format!("{}{}{}", a.before, a.name, a.after)).collect();
        let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
        let _ = writeln!(out, "{}{}({arguments});\n", function.result, function.name);
    }
    out.push_str("#ifdef __cplusplus\n}\n#endif\n\n#endif /* TELEGRAPHOS_LIBRARY_H */\n");
    out
}
