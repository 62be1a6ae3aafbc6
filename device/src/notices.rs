// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log lines for the core's diagnostics. `board` calls `report`.

use log::{info, warn};
use telegraphos_device_core::{Bar, Notice};
use telegraphos_link::limit::Limiter;

/// The name of a BAR in log lines.
fn bar(bar: Bar) -> &'static str {
    match bar {
        Bar::Control => "BAR0 (registers)",
        Bar::Contexts => "BAR2 (contexts)",
        Bar::Window => "BAR4 (window)",
    }
}

/// Logs one diagnostic, unless the rate limit of its kind is exceeded. `now` is in microseconds.
pub(crate) fn report(notice: &Notice, limiter: &mut Limiter, now: u64) {
    let kind = match notice {
        Notice::BadAccess { .. } => "bad access",
        Notice::LostStore(_) => "lost store",
        Notice::FailedLoad { .. } => "failed load",
        Notice::FailedOperation { .. } => "failed operation",
        Notice::Congested { .. } => "congested",
        Notice::ContextCongested { .. } => "congested context",
        Notice::Refused { .. } => "refused",
        Notice::NoHold { .. } => "no hold",
        Notice::SilentCopy { .. } => "silent copy",
        Notice::SilentHome { .. } => "silent home",
        Notice::BrokenQueue { .. } => "broken queue",
        Notice::Admin { .. } => "admin",
        Notice::Memory { .. } => "memory",
    };
    let Some(more) = limiter.admit(kind, now) else { return };
    match *notice {
        Notice::BadAccess { bar: b, offset, size, status } => {
            warn!("guest access of {size} bytes at {offset:#x} of {}: {status}{more}", bar(b));
        }
        Notice::LostStore(lost) => match lost.import {
            Some(import) => {
                warn!("a store to node {} through import {import} was lost: {}{more}", lost.node, lost.status)
            }
            None => warn!("a store to node {} was lost: {}{more}", lost.node, lost.status),
        },
        Notice::FailedLoad { node, status } => warn!("a load from node {node} was answered all-ones: {status}{more}"),
        Notice::FailedOperation { node, status } => {
            warn!("an atomic or a copy with node {node} failed: {status}{more}")
        }
        Notice::Congested { import, on: true } => {
            info!("import {import} is congested: its processes are stopped{more}")
        }
        Notice::Congested { import, on: false } => info!("import {import} is no longer congested{more}"),
        Notice::ContextCongested { context, on: true } => {
            info!("context {context} is congested: its processes are stopped{more}")
        }
        Notice::ContextCongested { context, on: false } => info!("context {context} is no longer congested{more}"),
        Notice::Refused { from, page, status } => {
            warn!("a request of node {from} for export page {page} was refused: {status}{more}");
        }
        Notice::NoHold { from, page, imports } => warn!(
            "node {from} was refused hold slots for {imports} imports of the queue at export page {page}: its share or --holds is used up{more}"
        ),
        Notice::SilentCopy { node, page } => warn!(
            "node {node} did not acknowledge a store to export page {page} within --replica-limit-ms: its copy is dropped, the others go on{more}"
        ),
        Notice::SilentHome { page } => warn!(
            "the home of export page {page} did not send what it had announced within --replica-limit-ms: the copy is an orphan{more}"
        ),
        Notice::BrokenQueue { page, word, value } => warn!(
            "word {word} of the queue at export page {page} is {value:#x}: expected the granted size above a number from 3 to size - 1; the \
             queue takes nothing any more{more}"
        ),
        Notice::Admin { opcode: 0, status } => warn!(
            "the guest's admin command is empty: {status} If the guest runs our driver, its memory is not shared with this \
             process: start QEMU with memory-backend-memfd,share=on{more}"
        ),
        Notice::Admin { opcode, status } => info!("the guest's admin command {opcode} failed: {status}{more}"),
        Notice::Memory { address, status } => {
            warn!("the board's own tables at guest address {address:#x} cannot be reached: {status}{more}");
        }
    }
}
