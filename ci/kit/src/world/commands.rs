// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver's commands, as most tests give them; others change fields of them.

use telegraphos_wire::admin::{self, Command, Completion, QueueCommand, ReplicaCommand};
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{NodeId, Rights, UNIT};

/// A name, padded.
pub fn name64(name: &str) -> [u8; 64] {
    let mut out = [0; 64];
    out[..name.len()].copy_from_slice(name.as_bytes());
    out
}

/// Opens a context with that status page.
pub fn context_open(context: u16, address: u64, key: u64) -> Command {
    Command { opcode: admin::CONTEXT_OPEN, context, address, key, ..Command::default() }
}

/// Closes it.
pub fn context_close(context: u16) -> Command {
    Command { opcode: admin::CONTEXT_CLOSE, context, ..Command::default() }
}

/// Grants export pages of that memory to all nodes.
pub fn grant_set(index: u32, count: u32, address: u64, rights: Rights) -> Command {
    Command {
        opcode: admin::GRANT_SET,
        index,
        count,
        address,
        length: u64::from(count) * UNIT,
        rights: rights.0,
        nodes: [u64::MAX; 4],
        ..Command::default()
    }
}

/// Revokes export pages.
pub fn grant_clear(index: u32, count: u32) -> Command {
    Command { opcode: admin::GRANT_CLEAR, index, count, ..Command::default() }
}

/// Publishes so many bytes from an export page on, with the same rights for all.
pub fn publish(name: &str, index: u32, length: u64, generation: u64, rights: Rights) -> Command {
    Command {
        opcode: admin::SEGMENT_PUBLISH,
        index,
        count: length.div_ceil(UNIT) as u32,
        length,
        generation,
        rights_owner: rights.0,
        rights_others: rights.0,
        name: name64(name),
        ..Command::default()
    }
}

/// Withdraws a name.
pub fn withdraw(name: &str) -> Command {
    Command { opcode: admin::SEGMENT_WITHDRAW, name: name64(name), ..Command::default() }
}

/// Asks a node for a segment.
pub fn lookup(node: NodeId, name: &str) -> Command {
    Command { opcode: admin::LOOKUP, node, name: name64(name), ..Command::default() }
}

/// Imports what was found, at window slot `index`.
pub fn import_set(import: u16, node: NodeId, index: u32, found: &Completion) -> Command {
    Command {
        opcode: admin::IMPORT_SET,
        import,
        node,
        index,
        count: found.count,
        page: found.index,
        generation: found.generation,
        length: found.length,
        rights: found.rights as u16,
        ..Command::default()
    }
}

/// Imports whole export pages that were not looked up, from a window slot on.
pub fn import_pages(
    import: u16,
    node: NodeId,
    index: u32,
    pages: (u32, u32),
    generation: u64,
    rights: Rights,
) -> Command {
    let (page, count) = pages;
    let length = u64::from(count) * UNIT;
    let found = Completion { index: page, count, generation, length, rights: rights.0.into(), ..Completion::default() };
    import_set(import, node, index, &found)
}

/// Closes an import.
pub fn import_clear(import: u16) -> Command {
    Command { opcode: admin::IMPORT_CLEAR, import, ..Command::default() }
}

/// Acknowledges the error of an import.
pub fn import_ack(import: u16) -> Command {
    Command { opcode: admin::IMPORT_ACK, import, ..Command::default() }
}

/// Waits for what an import has begun.
pub fn import_quiet(import: u16) -> Command {
    Command { opcode: admin::IMPORT_QUIET, import, ..Command::default() }
}

/// Makes an export page of context 0 a queue for all nodes, with its first buffer at `address`.
pub fn queue_set(page: u32, shape: Shape, address: u64) -> QueueCommand {
    QueueCommand {
        opcode: admin::QUEUE_SET,
        page,
        words: shape.words().into(),
        width: shape.width().into(),
        address,
        nodes: [u64::MAX; 4],
        ..QueueCommand::default()
    }
}

/// Resumes a queue that has stopped.
pub fn queue_resume(index: u32) -> Command {
    Command { opcode: admin::QUEUE_RESUME, index, ..Command::default() }
}

/// Makes an export page the home, or a copy of the page `home_page` of the home.
pub fn replica_set(page: u32, mode: u32, home: NodeId, home_page: u32, home_generation: u64) -> ReplicaCommand {
    let (opcode, node) = (admin::REPLICA_SET, home.into());
    ReplicaCommand { opcode, page, mode, node, home_page, home_generation, ..ReplicaCommand::default() }
}

/// Ends that.
pub fn replica_clear(index: u32) -> Command {
    Command { opcode: admin::REPLICA_CLEAR, index, ..Command::default() }
}

/// The processors have an invalid page mapped no longer.
pub fn replica_invalid(index: u32) -> Command {
    Command { opcode: admin::REPLICA_INVALID, index, ..Command::default() }
}

/// Makes a copy the home.
pub fn replica_move(index: u32) -> Command {
    Command { opcode: admin::REPLICA_MOVE, index, ..Command::default() }
}
