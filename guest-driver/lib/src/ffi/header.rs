// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header of this library.

use super::declarations::{CType, Constants, Function, Header, Record};
use super::{
    Window, broadcast, counter, error, node, operation, queue, registration, remote, replicated, segment, sync,
};
use crate::sync::Barrier;
use crate::{
    Broadcast, BroadcastConsumer, Error, LaunchStyle, Node, Operation, PageCounter, Queue, Registration, Remote,
    RemoteQueue, Replicated, Rights, Segment, Status,
};

impl CType for Window {
    fn declare(name: &str) -> String {
        format!("volatile void *{name}")
    }
}

c_handles! { HANDLES, Error;
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

const ABOUT: &str = "Telegraphos: load from and store into the memory of other virtual machines.

Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the message. Several threads may
use a handle at once, but only one may close it, after all other use; operations, barriers, broadcasts and their
consumers are for one thread at a time. Names and paths are UTF-8. When the owner of an import has withdrawn it or
died, touching it raises SIGBUS, also by launching an operation on it.

Generated from the library; do not edit. Renew with
  cargo run -p telegraphos --example telegraphos_h > guest-driver/lib/include/telegraphos.h";

/// The text of `include/telegraphos.h`:
/// `cargo run -p telegraphos --example telegraphos_h > guest-driver/lib/include/telegraphos.h` renews it.
pub fn header() -> String {
    let styles = LaunchStyle::ALL.map(|style| {
        let (name, doc) = node::STYLES[style as usize];
        (name, style as u64, doc)
    });
    let constants: [Constants<'_>; 4] = [
        ("Rights", Rights::NAMES),
        ("Launch styles", &styles),
        ("Modes of replicated segments", telegraphos_wire::admin::MODES),
        ("Status codes, as in tg_state and from tg_last_status", Status::ALL),
    ];
    let header = Header {
        about: ABOUT,
        guard: "TELEGRAPHOS_LIBRARY_H",
        includes: &["stdint.h"],
        handles: HANDLES,
        constants: &constants,
        records: &RECORDS,
        functions: FUNCTIONS,
    };
    header.text()
}
