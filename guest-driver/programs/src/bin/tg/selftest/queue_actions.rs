// SPDX-License-Identifier: MIT OR Apache-2.0
//! What children do with notification queues.

use super::trouble::{Trouble, limit_locked_memory, mode as mode_of, number};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use telegraphos::{Node, NodeId, Queue, RemoteQueue};
use telegraphos_guest_tests::child::{say, wait_for_go};
use telegraphos_guest_tests::queue::{self, Memory};
use telegraphos_guest_tests::raw;

fn import(id: &str, name: &str) -> Result<RemoteQueue, Trouble> {
    Ok(Queue::import(&Node::open()?, number(id)? as NodeId, name).open()?)
}

/// The same; says so, and waits for the line to continue.
fn import_and_wait(id: &str, name: &str) -> Result<RemoteQueue, Trouble> {
    let queue = import(id, name)?;
    say("ready");
    wait_for_go();
    Ok(queue)
}

/// Arguments that begin with `queue-`.
pub(crate) fn act(args: &[&str]) -> Result<(), Trouble> {
    match *args {
        // Imports and ends.
        ["queue-import", id, name] => {
            import(id, name)?;
            say("imported");
        }
        // Appends numbered elements without end, and says how many.
        ["queue-send-loop", id, name, sender] => {
            let (queue, sender) = (import(id, name)?, number(sender)? as u32);
            say("ready");
            for count in 0..queue::NUMBERS {
                queue.enqueue(queue::element(queue.width(), sender, count))?;
                if count % 16 == 15 {
                    say(count + 1);
                }
            }
            return Err(Trouble::Wrong("no store has blocked".into()));
        }
        // Appends one element to a full queue, and waits to be killed.
        ["queue-send-one", id, name] => {
            let queue = import(id, name)?;
            queue.enqueue(0)?;
            say("sent");
            wait_for_go();
        }
        // Imports, waits, appends until it dies.
        ["queue-until-sigbus", id, name] => {
            let queue = import_and_wait(id, name)?;
            let deadline = Instant::now() + Duration::from_secs(30);
            while Instant::now() < deadline {
                queue.enqueue(7)?;
            }
            return Err(Trouble::Wrong("no SIGBUS within 30 s".into()));
        }
        // Imports, waits, loads from the enqueue aperture.
        ["queue-load", id, name] => {
            let queue = import_and_wait(id, name)?;
            // SAFETY: the page is mapped; whether it can be loaded from is what it tests.
            let found = unsafe { raw::load_size(queue.as_ptr(), 0, queue.width() as usize) };
            say(format_args!("loaded {found:#x}"));
        }
        // Makes a queue and keeps it until it gets the line to end, or is killed.
        ["queue-owner", name, mode, quota] => {
            let builder = Queue::create(&Node::open()?, name).mode(mode_of(mode)?).words(8);
            let _queue = builder.quota(number(quota)? as u32).create()?;
            say("made");
            wait_for_go();
        }
        // Makes a queue under a limit on locked memory.
        ["queue-limited", limit, name, quota] => {
            limit_locked_memory(limit)?;
            Queue::create(&Node::open()?, name).quota(number(quota)? as u32).create()?;
            say("made");
        }
        // Makes a queue, scribbles its state, and takes an element from it.
        ["queue-scribble", name, state] => {
            let node = Node::open()?;
            let queue = Queue::create(&node, name).words(8).create()?;
            let own = Queue::import(&node, node.id(), name).open()?;
            own.enqueue(5)?;
            own.quiet()?;
            let memory = Memory::of(&node, &queue)?;
            memory.state().store(number(state)?, Ordering::SeqCst);
            say("scribbled");
            let found = queue.try_pop()?;
            say(format_args!("took {found:?}"));
        }
        _ => return Err(Trouble::Wrong("no such action".into())),
    }
    Ok(())
}
