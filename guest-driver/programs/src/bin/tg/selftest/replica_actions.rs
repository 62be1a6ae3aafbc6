// SPDX-License-Identifier: MIT OR Apache-2.0
//! What children do with replicated segments.

use super::trouble::{Trouble, limit_locked_memory, mode, number};
use std::time::{Duration, Instant};
use telegraphos::{JoinBuilder, Node, NodeId, Replicated};
use telegraphos_guest_tests::child::{say, wait_for_go};
use telegraphos_guest_tests::{raw, replica};

const PATIENCE: Duration = Duration::from_secs(60);

fn join(home: &str, name: &str) -> Result<JoinBuilder, Trouble> {
    Ok(Replicated::join(&Node::open()?, number(home)? as NodeId, name).mode(0o606))
}

fn create(name: &str) -> Result<Replicated, Trouble> {
    Ok(Replicated::create(&Node::open()?, name, replica::PAGE).mode(0o606).create()?)
}

/// Arguments that begin with `replica-`.
pub(crate) fn act(args: &[&str]) -> Result<(), Trouble> {
    match *args {
        // Is a home until it gets the line to leave, or is killed.
        ["replica-home", name] => {
            let home = create(name)?;
            say("made");
            wait_for_go();
            home.leave()?;
            say("left");
        }
        // Joins, and stores without end to the word at `offset`, until it dies.
        ["replica-storm", home, name, offset] => {
            let copy = replica::join_patiently(join(home, name)?, PATIENCE)?;
            say("joined");
            let (offset, deadline) = (number(offset)?, Instant::now() + PATIENCE);
            let mut count = 0u64;
            while Instant::now() < deadline {
                count += 1;
                copy.store(offset, count)?;
            }
            return Err(Trouble::Wrong(format!("neither killed nor SIGBUS within {PATIENCE:?}")));
        }
        // Stores into the copy itself: that of a home, or of another node's segment.
        ["replica-scribble", home, name] => {
            let copy = match home {
                "here" => create(name)?,
                id => replica::join_patiently(join(id, name)?, PATIENCE)?,
            };
            say("ready");
            // SAFETY: none; the fault is what the test expects.
            unsafe { raw::store::<u64>(copy.as_ptr().cast_mut(), 8, 1) };
            say("stored");
        }
        // Joins for loads only, loads, and stores through the window anyway.
        ["replica-reader", home, name] => {
            let copy = join(home, name)?.mode(0o400).open()?;
            say(format_args!("loaded {}", copy.load::<u64>(0)?));
            if copy.store(0, 1u64).is_ok() {
                return Err(Trouble::Wrong("the library stores without the right".into()));
            }
            // SAFETY: none; the fault is what the test expects.
            unsafe { raw::store::<u64>(copy.window_ptr(), 0, 1) };
            say("stored");
        }
        // Joins with this mode, and ends.
        ["replica-join", home, name, access] => {
            let copy = join(home, name)?.mode(mode(access)?).open()?;
            say(format_args!("joined {}", copy.load::<u64>(0)?));
            wait_for_go();
        }
        // Makes one under a limit on locked memory.
        ["replica-limited", limit, name, size] => {
            limit_locked_memory(limit)?;
            Replicated::create(&Node::open()?, name, number(size)?).create()?;
            say("made");
        }
        _ => return Err(Trouble::Wrong("no such action".into())),
    }
    Ok(())
}
