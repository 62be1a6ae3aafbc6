// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines for the core's diagnostics. `board` calls `report`.

use telegraphos_device_core::{Bar, LostStore, Notice};
use telegraphos_link::limit::Limiter;

/// The name of a BAR in log lines.
fn bar(bar: Bar) -> &'static str {
    match bar {
        Bar::Control => "BAR0 (registers)",
        Bar::Contexts => "BAR2 (contexts)",
        Bar::Window => "BAR4 (window)",
    }
}

/// Logs the line of the notice: of each pattern, the level, the kind for the rate limit, and the text.
macro_rules! log_line {
    ($notice:expr, $limiter:ident, $now:ident; $($pattern:pat => $level:ident $kind:literal ($($text:tt)+);)*) => {
        match $notice {
            $($pattern => limited!($limiter, $kind, $now => $level $($text)+),)*
        }
    };
}

/// Logs one diagnostic, unless the rate limit of its kind is exceeded. `now` is in microseconds.
pub(crate) fn report(notice: &Notice, limiter: &mut Limiter, now: u64) {
    log_line! { *notice, limiter, now;
        Notice::BadAccess { bar: b, offset, size, status } => warn "bad access"
            ("guest access of {size} bytes at {offset:#x} of {}: {status}", bar(b));
        Notice::LostStore(LostStore { node, import: Some(import), status }) => warn "lost store"
            ("a store to node {node} through import {import} was lost: {status}");
        Notice::LostStore(LostStore { node, import: None, status }) => warn "lost store"
            ("a store to node {node} was lost: {status}");
        Notice::FailedLoad { node, status } => warn "failed load"
            ("a load from node {node} was answered all-ones: {status}");
        Notice::FailedOperation { node, status } => warn "failed operation"
            ("an atomic or a copy with node {node} failed: {status}");
        Notice::Congested { import, on: true } => info "congested"
            ("import {import} is congested: its processes are stopped");
        Notice::Congested { import, on: false } => info "congested"
            ("import {import} is no longer congested");
        Notice::ContextCongested { context, on: true } => info "congested context"
            ("context {context} is congested: its processes are stopped");
        Notice::ContextCongested { context, on: false } => info "congested context"
            ("context {context} is no longer congested");
        Notice::Refused { from, page, status } => warn "refused"
            ("a request of node {from} for export page {page} was refused: {status}");
        Notice::NoHold { from, page, imports } => warn "no hold"
            ("node {from} was refused hold slots for {imports} imports of the queue at export page {page}: its share \
              or --holds is used up");
        Notice::SilentNode { node } => warn "silent node"
            ("node {node} has not answered a request within --answer-limit-ms: what was sent to it has failed, and its \
              imports can only be closed");
        Notice::SilentCopy { node, page } => warn "silent copy"
            ("node {node} did not acknowledge a store to export page {page} within --replica-limit-ms: its copy is \
              dropped, the others continue");
        Notice::SilentHome { page } => warn "silent home"
            ("the home of export page {page} did not send what it had announced within --replica-limit-ms: the copy is \
              an orphan");
        Notice::BrokenQueue { page, word, value } => warn "broken queue"
            ("word {word} of the queue at export page {page} is {value:#x}: expected the granted size above a number \
              from 3 to size - 1; the queue takes nothing any more");
        Notice::Admin { opcode: 0, status } => warn "admin"
            ("the guest's admin command is empty: {status} If the guest runs our driver, its memory is not shared with \
              this process: start QEMU with memory-backend-memfd,share=on");
        Notice::Admin { opcode, status } => info "admin"
            ("the guest's admin command {opcode} failed: {status}");
        Notice::Memory { address, status } => warn "memory"
            ("the board's own tables at guest address {address:#x} cannot be reached: {status}");
    }
}
