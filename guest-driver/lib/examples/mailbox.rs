// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mailbox: messages of any length go into an arena in the receiver's memory, by plain stores, and the word that says
//! where follows through its queue. A receiver that pops the word has the whole message already, in its own memory: no
//! copy, no question, no flag per sender to look at.

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use std::time::Instant;
use telegraphos::sync::Barrier;
use telegraphos::{Node, NodeId, Queue};

pub(crate) const USAGE: &str = "\
Messages from all nodes to node 0: stored into its memory, announced through a notification queue

Usage: tg-mailbox NODES [MESSAGES]      (on nodes 0 to NODES-1 at once; MESSAGES of each, or 1000)

Exit codes: 0 done, 1 a message was not what was sent, 2 usage, 3 the board, the driver or a peer refused.

Example: telegraphos run --nodes 3 -- tg-mailbox 3
";

/// The arena begins with a word for each sender: how many of its messages have been read.
const SLOTS_AT: u64 = 8 * 256;
/// Bytes of a message, at most.
const SLOT: u64 = 256;
/// Messages of a sender that may be unread.
const SLOTS: u64 = 16;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(1000)], |[nodes, messages]| run(nodes.min(256) as NodeId, messages))
}

fn run(nodes: NodeId, messages: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    let everybody: Vec<NodeId> = (0..nodes).collect();
    if node.id() != 0 {
        send(&node, messages)?;
        return part(&node, &everybody);
    }
    std::thread::scope(|scope| {
        // To itself, too.
        let here = scope.spawn(|| send(&node, messages));
        let result = receive(&node, &everybody, messages);
        match here.join() {
            Ok(sender) => result.and(sender),
            Err(_) => Err(Failure::Wrong("the sender of node 0 has panicked".into())),
        }
    })
}

/// No node leaves before all have finished.
fn part(node: &Node, everybody: &[NodeId]) -> Result<(), Failure> {
    let mut barrier = Barrier::join(node, "mailbox-end", everybody, node.id().into(), 0o606, PATIENCE)?;
    Ok(barrier.wait_timeout(PATIENCE)?)
}

/// Message `number` of a sender: the sender, the number, the count of words that follow, and those.
fn message(sender: NodeId, number: u64) -> Vec<u64> {
    let length = number % (SLOT / 8 - 2);
    let word = |index| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(index as u32) ^ u64::from(sender);
    [u64::from(sender) << 32 | length, number].into_iter().chain((0..length).map(word)).collect()
}

fn send(node: &Node, messages: u64) -> Result<(), Failure> {
    let ready = common::patiently(|| Queue::import(node, 0, "mailbox-ready").open())?;
    let arena = common::patiently(|| node.import(0, "mailbox").open())?;
    let (counter, slots) = (8 * u64::from(node.id()), SLOTS_AT + u64::from(node.id()) * SLOTS * SLOT);
    let mut read = 0;
    for number in 0..messages {
        let deadline = Instant::now() + PATIENCE;
        // Reads the remote count only when all slots may be unread.
        while number - read == SLOTS {
            if Instant::now() > deadline {
                return Err(Failure::Wrong(format!("the receiver has read nothing for {PATIENCE:?}")));
            }
            read = arena.get64(counter)?.min(number);
        }
        let at = slots + number % SLOTS * SLOT;
        ready.put_notify(&arena, at, &message(node.id(), number), at)?;
    }
    // The last ones have arrived, and none was lost.
    arena.quiet()?;
    ready.quiet()?;
    println!("node {}: sent {messages} messages", node.id());
    Ok(())
}

fn receive(node: &Node, everybody: &[NodeId], messages: u64) -> Result<(), Failure> {
    let size = SLOTS_AT + everybody.len() as u64 * SLOTS * SLOT;
    let arena = node.export("mailbox", size).mode(0o606).create()?;
    let ready = Queue::create(node, "mailbox-ready").mode(0o602).words(64).create()?;
    let mut next = vec![0; everybody.len()];
    let begun = Instant::now();
    let mut count = 0;
    while count < messages * everybody.len() as u64 {
        let Some(at) = ready.pop_wait(Some(PATIENCE))? else {
            return Err(Failure::Wrong(format!("nothing has come for {PATIENCE:?}, after {count} messages")));
        };
        // A word from outside: the segment checks that all of it lies within.
        let word = |index: u64| arena.load::<u64>(at + 8 * index);
        let (sender, length) = ((word(0)? >> 32) as NodeId, word(0)? as u32);
        let found: Vec<u64> = (0..2 + u64::from(length)).map(word).collect::<Result<_, _>>()?;
        match next.get_mut(usize::from(sender)) {
            Some(number) if found == message(sender, *number) => {
                *number += 1;
                // Its slot is free again.
                arena.store(8 * u64::from(sender), *number)?;
            }
            _ => return Err(Failure::Wrong(format!("{found:x?} at {at:#x} is not the next message of node {sender}"))),
        }
        count += 1;
    }
    println!("node 0: read {count} messages in {:.1?}", begun.elapsed());
    part(node, everybody)
}
