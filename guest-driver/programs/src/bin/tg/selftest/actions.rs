// SPDX-License-Identifier: MIT OR Apache-2.0
//! What children do: one action each, which may end them.

use super::syncs::{GUARDED, LOCK};
use super::trouble::{self, REFUSED, Trouble, WRONG, in_child, limit_locked_memory, number};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};
use telegraphos::sync::{Barrier, TicketLock};
use telegraphos::{LaunchStyle, Node, NodeId, Remote, Rights};
use telegraphos_guest_tests::child::{say, wait_for_go};
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::launch::{Arguments, AtomicOp, Launcher, Operation};
use telegraphos_guest_tests::patience::{YIELD, becomes};
use telegraphos_guest_tests::peers::import_patiently;
use telegraphos_guest_tests::{random, raw};
use telegraphos_wire::context;

pub(crate) fn run(args: &[String]) -> Outcome<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    act(&args).map_err(|trouble| match trouble {
        Trouble::Refused(error) => {
            say(format_args!("errno {}", error.errno()));
            Failure::Code(REFUSED)
        }
        Trouble::Wrong(text) => {
            eprintln!("child {args:?}: {text}");
            Failure::Code(WRONG)
        }
    })
}

fn rights(text: &str) -> Rights {
    let has = |letter, right: Rights| if text.contains(letter) { right.0 } else { 0 };
    Rights(has('r', Rights::READ) | has('w', Rights::WRITE) | has('a', Rights::ATOMIC) | has('d', Rights::DMA))
}

fn import(node: &Node, id: &str, name: &str, wanted: &str) -> Result<Remote, Trouble> {
    Ok(node.import(number(id)? as NodeId, name).rights(rights(wanted)).open()?)
}

/// Imports, says so, and waits for the line to continue.
fn import_and_wait(id: &str, name: &str, wanted: &str) -> Result<Remote, Trouble> {
    let remote = import(&Node::open()?, id, name, wanted)?;
    say("ready");
    wait_for_go();
    Ok(remote)
}

fn act(args: &[&str]) -> Result<(), Trouble> {
    match *args {
        // Opens the board.
        ["open"] => {
            Node::open()?;
            say("opened");
        }
        // Imports and ends.
        ["import", id, name, wanted] => {
            import(&Node::open()?, id, name, wanted)?;
            say("imported");
        }
        // Imports, waits, stores a word or loads it.
        ["store", id, name, wanted, offset, value] => {
            let remote = import_and_wait(id, name, wanted)?;
            // SAFETY: the test chose a mapped offset; whether the access is allowed is what it tests.
            unsafe { raw::store::<u64>(remote.as_ptr(), number(offset)?, number(value)?) };
            remote.quiet()?;
            say("stored");
        }
        ["load", id, name, wanted, offset] => {
            let remote = import_and_wait(id, name, wanted)?;
            // SAFETY: as above.
            let value = unsafe { raw::load::<u64>(remote.as_ptr(), number(offset)?) };
            say(format_args!("loaded {value}"));
        }
        // Imports, closes, touches what was mapped.
        ["unmapped", id, name] => {
            let remote = import(&Node::open()?, id, name, "rw")?;
            let at = remote.as_ptr();
            drop(remote);
            say("ready");
            // SAFETY: none; the fault is what the test expects. Nothing else of this process is touched: the page
            // was just unmapped, and no other thread maps any.
            unsafe { raw::store::<u64>(at, 0, 1) };
            say("stored");
        }
        // Imports, waits, touches again and again until it dies. Loads must be all ones by then.
        ["until-sigbus", id, name, what] => {
            let remote = import_and_wait(id, name, "rw")?;
            let deadline = Instant::now() + Duration::from_secs(30);
            while Instant::now() < deadline {
                match what {
                    // SAFETY: offset 8 lies within every segment of these tests; the mapping ends by SIGBUS.
                    "store" => unsafe { raw::store::<u64>(remote.as_ptr(), 8, 0xdead) },
                    _ => {
                        // SAFETY: as above.
                        let found = unsafe { raw::load::<u64>(remote.as_ptr(), 8) };
                        if found != u64::MAX {
                            return Err(Trouble::Wrong(format!("loaded {found:#x} from a revoked segment")));
                        }
                    }
                }
            }
            return Err(Trouble::Wrong("no SIGBUS within 30 s".into()));
        }
        // Imports, stores in a loop from now on, until it dies.
        ["store-loop", id, name] => {
            let remote = import(&Node::open()?, id, name, "rw")?;
            say("ready");
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut value = 0;
            while Instant::now() < deadline {
                value += 1;
                // SAFETY: offset 8 lies within every segment of these tests; the mapping ends by SIGBUS.
                unsafe { raw::store::<u64>(remote.as_ptr(), 8, value) };
            }
            return Err(Trouble::Wrong("no SIGBUS within 60 s".into()));
        }
        // Exports until it gets the line to end, or is killed.
        ["export", name, size, mode] => {
            let segment = Node::open()?.export(name, number(size)?).mode(trouble::mode(mode)?).create()?;
            say("exported");
            wait_for_go();
            segment.close()?;
            say("withdrawn");
        }
        // Exports under a limit on locked memory.
        ["export-limited", limit, name, size] => {
            limit_locked_memory(limit)?;
            Node::open()?.export(name, number(size)?).create()?;
            say("exported");
        }
        ["register-limited", limit, size] => super::registrations::register_limited(limit, size)?,
        ["register-and-copy", id, name] => super::registrations::copy_until_killed(id, name)?,
        // Forks, again and again; each child exports by the descriptor that it has inherited, and ends.
        ["export-forked", limit, name, size, times] => {
            limit_locked_memory(limit)?;
            let (node, size) = (Node::open()?, number(size)?);
            for child in 0..number(times)? {
                let name = format!("{name}-{child}");
                let ended = in_child(|| match node.export(&name, size).create() {
                    Ok(segment) => {
                        std::mem::forget(segment);
                        0
                    }
                    Err(error) => error.errno(),
                })?;
                say(format_args!("exit {}", ended.code().unwrap_or(0)));
            }
        }
        // Takes all imports, counters and contexts that it can get: says how many of each.
        ["greedy", id, name] => {
            let node = Node::open()?;
            let mut imports = Vec::new();
            let mut refusals = Vec::new();
            loop {
                match import(&node, id, name, "rw") {
                    Ok(import) => imports.push(import),
                    Err(Trouble::Refused(error)) => break refusals.push(error),
                    Err(other) => return Err(other),
                }
            }
            let mut counters = Vec::new();
            loop {
                match imports[0].arm_counter(0, 1 << 40, 1 << 40) {
                    Ok(counter) => counters.push(counter),
                    Err(error) => break refusals.push(error),
                }
            }
            let mut nodes = Vec::new();
            loop {
                match Node::open() {
                    Ok(node) => nodes.push(node),
                    Err(error) => break refusals.push(error),
                }
            }
            for error in refusals {
                if error.errno() != libc::ENOSPC || !error.to_string().contains("share") {
                    return Err(Trouble::Wrong(format!("refused with {error}: expected ENOSPC and a word of shares")));
                }
            }
            say(format_args!("{} {} {}", imports.len(), counters.len(), nodes.len()));
            wait_for_go();
        }
        // Needs one of each.
        ["modest", id, name] => {
            let node = Node::open()?;
            let segment = node.export(&format!("{name}-modest"), 4096).create()?;
            let far = import(&node, id, name, "rw")?;
            let counter = far.arm_counter(0, 1 << 40, 1 << 40)?;
            far.put64(16, 5)?;
            far.quiet()?;
            drop((counter, segment));
            say("served");
        }
        // Imports, forks; the child of the child touches the window.
        ["fork", id, name] => fork(&import(&Node::open()?, id, name, "rw")?)?,
        // Exports its own segment and works with that of another process, and with another node's, at the same time.
        ["exchange", mine, theirs, here, node, name, word] => exchange(mine, theirs, here, node, name, word)?,
        ["count", id, name, width, rounds, marks, mark] => {
            count(&import_and_wait(id, name, "rwa")?, width, number(rounds)?, number(marks)?, number(mark)?)?;
        }
        ["launch-steps", id, name, offset, rounds] => launch_steps(id, name, number(offset)?, number(rounds)?)?,
        // Launches atomics and copies, without end.
        ["launch-loop", id, name, style] => {
            let node = Node::open()?;
            let style = LaunchStyle::ALL.into_iter().find(|s| *s as u64 == number(style).unwrap_or(u64::MAX));
            node.set_launch_style(style.ok_or_else(|| Trouble::Wrong("no such style".into()))?);
            let far = import(&node, id, name, "rwad")?;
            let near = import(&node, &node.id().to_string(), name, "rwad")?;
            say("ready");
            loop {
                far.fetch_inc::<u64>(128)?;
                drop(telegraphos::copy_nbi(&far, 4096, &near, 65536 + 3, 200_001)?);
                drop(telegraphos::copy_nbi(&near, 4096, &far, 65536 + 3, 50_001)?);
            }
        }
        // Launches copies within this node's memory as fast as it can, whatever becomes of them, without end.
        ["spin"] => {
            say("ready");
            loop {
                std::hint::spin_loop();
            }
        }
        ["launch-flood", name] => {
            let node = Node::open()?;
            let near = import(&node, &node.id().to_string(), name, "rwad")?;
            let (launcher, arguments) = (Launcher::of(&node)?, Arguments::of(&node, &near)?);
            let half = near.size() / 2;
            say("ready");
            for n in 0.. {
                let slot = (n % 64) as u8;
                // The lower half is what other nodes store to.
                arguments.pass(half, launcher.argument(slot, 0));
                arguments.pass(0, launcher.argument(slot, 1));
                launcher.set(slot, context::LENGTH, half);
                launcher.launch(slot, Operation::Copy, n);
            }
        }
        ["lock-loop", id, name, rounds] => {
            lock_loop(&import(&Node::open()?, id, name, "rwad")?, number(rounds)?)?;
        }
        ["barrier", name, nodes, me, epochs, id, shared] => {
            let node = Node::open()?;
            let shared = import(&node, id, shared, "rw")?;
            barrier(&node, name, nodes, number(me)?, number(epochs)?, &shared)?;
        }
        [action, ..] if action.starts_with("replica-") => super::replica_actions::act(args)?,
        [action, ..] if action.starts_with("queue-") => super::queue_actions::act(args)?,
        _ => return Err(Trouble::Wrong("no such action".into())),
    }
    Ok(())
}

/// Draws numbers by fetch-and-increment, and marks each as its own.
fn count(word: &Remote, width: &str, rounds: u64, marks: u64, mark: u64) -> Result<(), Trouble> {
    let mut newest = None;
    for _ in 0..rounds {
        let drawn = match width {
            "4" => word.fetch_inc::<u32>(0)?.into(),
            _ => word.fetch_inc::<u64>(0)?,
        };
        if newest.is_some_and(|n| drawn <= n) {
            return Err(Trouble::Wrong(format!("drew {drawn} after {newest:?}")));
        }
        newest = Some(drawn);
        word.put64(marks + 8 * drawn, mark)?;
    }
    word.quiet()?;
    say("done");
    Ok(())
}

/// A compare-and-swap, launched by hand: waits before each step, says so after it, and at last what it found.
fn launch_steps(id: &str, name: &str, offset: u64, rounds: u64) -> Result<(), Trouble> {
    let node = Node::open()?;
    let remote = import(&node, id, name, "rwa")?;
    let launcher = Launcher::of(&node)?;
    let arguments = Arguments::of(&node, &remote)?;
    say("ready");
    for round in 0..rounds {
        let expected = 1000 * ((offset - 64) / 8 + 1) + round;
        let steps: [&dyn Fn(); 5] = [
            &|| arguments.pass(offset, launcher.argument(0, 0)),
            &|| launcher.set(0, context::OPERAND, expected + 500_000),
            &|| launcher.set(0, context::COMPARE, expected),
            &|| launcher.set(0, context::LENGTH, 0),
            &|| launcher.launch(0, Operation::Atomic { op: AtomicOp::CompareSwap, size: 8 }, round + 1),
        ];
        for step in steps {
            wait_for_go();
            step();
            say("step");
        }
        wait_for_go();
        match launcher.wait(0, round + 1)? {
            (telegraphos::Status::Ok, found) => say(format_args!("found {found}")),
            (status, _) => say(format_args!("status {status:?}")),
        }
    }
    Ok(())
}

/// Increments two plain words under a lock, a little apart.
fn lock_loop(segment: &Remote, rounds: u64) -> Result<(), Trouble> {
    let lock = TicketLock::new(segment, LOCK)?;
    say("ready");
    wait_for_go();
    for round in 0..rounds {
        let guard = lock.lock()?;
        let (one, two) = (segment.get64(GUARDED)?, segment.get64(GUARDED + 8)?);
        if one != two {
            return Err(Trouble::Wrong(format!("under the lock, {one} and its twin {two} differ")));
        }
        segment.put64(GUARDED, one + 1)?;
        if random::word(round, one) % 4 == 0 {
            std::thread::yield_now();
        }
        segment.put64(GUARDED + 8, one + 1)?;
        guard.unlock()?;
    }
    say("done");
    Ok(())
}

/// Announces its epoch before each barrier; after it all have announced at least that.
fn barrier(node: &Node, name: &str, nodes: &str, me: u64, epochs: u64, shared: &Remote) -> Result<(), Trouble> {
    let nodes = nodes.split(',').map(|n| Ok(number(n)? as NodeId)).collect::<Result<Vec<_>, Trouble>>()?;
    let limit = Duration::from_secs(100);
    let mut barrier = Barrier::join(node, name, &nodes, me as usize, 0o606, limit)?;
    for epoch in 1..=epochs {
        shared.put64(8 * me, epoch)?;
        barrier.wait_timeout(limit)?;
        for other in 0..nodes.len() as u64 {
            let found = shared.get64(8 * other)?;
            // A faster one may be waiting at the next barrier already.
            if !(epoch..=epoch + 1).contains(&found) {
                return Err(Trouble::Wrong(format!("behind barrier {epoch}, participant {other} is at {found}")));
            }
        }
    }
    // So that none leaves while others still store to it.
    barrier.wait_timeout(limit)?;
    say("done");
    wait_for_go();
    Ok(())
}

fn fork(remote: &Remote) -> Result<(), Trouble> {
    remote.put64(0, 1)?;
    let at = remote.as_ptr();
    let ended = in_child(|| {
        // SAFETY: the fault is what the test expects; nothing is mapped there in the child.
        unsafe { raw::store::<u64>(at, 0, 2) };
        0
    })?;
    match ended.signal() {
        Some(signal) => say(format_args!("signal {signal}")),
        None => say(format_args!("exit {}", ended.code().unwrap_or(0))),
    }
    // The parent's window still works.
    remote.put64(0, 3)?;
    remote.quiet()?;
    Ok(())
}

fn exchange(mine: &str, theirs: &str, here: &str, node: &str, name: &str, word: &str) -> Result<(), Trouble> {
    const ROUNDS: u64 = 200;
    let board = Node::open()?;
    let word = number(word)?;
    let segment = board.export(mine, 4096).mode(0o606).create()?;
    let other = import_patiently(&board, number(here)? as NodeId, theirs, Duration::from_secs(60))?;
    let far = import(&board, node, name, "rw")?;
    for round in 1..=ROUNDS {
        other.put64(0, round)?;
        far.put64(word * 8, round)?;
        let found = far.get64(word * 8)?;
        if found != round {
            return Err(Trouble::Wrong(format!("round {round}: the far word is {found}")));
        }
        // In step with the other process.
        becomes(
            Duration::from_secs(60),
            YIELD,
            || Ok(segment.load::<u64>(0)?),
            |found| *found >= round,
            |_| Trouble::Wrong(format!("round {round}: the other process does not answer")),
        )?;
    }
    board.quiet()?;
    say("done");
    // The other process may still be storing its last word here.
    wait_for_go();
    Ok(())
}
