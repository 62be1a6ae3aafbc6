// SPDX-License-Identifier: MIT OR Apache-2.0
//! What cannot be done says why, and nothing else happens.

use super::{PATIENCE, open};
use std::time::Duration;
use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Config, Endpoint, Error, Memory, Messages, Options, Pattern, Process};

/// A node that is not there.
const ABSENT: u16 = 60;

/// Fails unless it was refused with these words.
pub(crate) fn is_refused<T>(what: &str, result: Result<T, Error>, words: &str) -> Outcome<()> {
    match result {
        Ok(_) => Err(Failure::Check(format!("{what}: it was not refused"))),
        Err(error) if error.to_string().contains(words) => {
            println!("{what}: {error}");
            Ok(())
        }
        Err(error) => Err(Failure::Check(format!("{what}: {error}: expected {words:?}"))),
    }
}

pub(crate) fn wrong() -> Outcome<()> {
    configurations()?;
    let config = Config { threads: 2, sends: 2, receives: 2, longest: 1 << 20, ..Config::default() };
    let messages = open(config)?;
    let one = messages.thread(1)?;
    is_refused("a thread that is open", messages.thread(1), "thread 1 is open already; choose another number")?;
    let two = messages.thread(2)?;
    is_refused("a third thread", messages.thread(3), "2 threads are open, which is the limit")?;
    let me = messages.process();
    let name = messages.publish("wrong")?;
    is_refused("a name that is taken", messages.publish("wrong"), "already exports that name")?;
    drop(name);
    is_refused("a name that is not published", messages.find(me.node, "wrong"), "no process of node")?;
    is_refused("a node that is not there", messages.find(ABSENT, "wrong"), "no process of node 60")?;
    // Processes that are not there: on such a node, and on this one.
    for process in [Process { node: ABSENT, number: 1 }, Process { node: me.node, number: 1 }] {
        let to = Endpoint { process, thread: 1 };
        is_refused(&format!("a message to {process}"), one.send(to, 0, b"x"), "is not reached")?;
        let receive = one.receive_timeout(Pattern::exactly(to, 0), &mut [0; 8], Duration::from_secs(1));
        is_refused(&format!("a receive from {process}"), receive, "is not reached")?;
    }
    let absent = Endpoint { process: me, thread: 9 };
    is_refused("a thread that is not there", one.send(absent, 0, b"x"), "the thread that it is for is not there")?;
    is_refused("a long message to it", one.send(absent, 0, &[7; 100_000]), "the thread that it is for is not there")?;
    let long = vec![7; (1 << 20) + 1];
    is_refused("a message that is too long", one.send(two.endpoint(), 0, &long), "expected at most 1048576")?;
    let memory = Memory::from(vec![7; 8]);
    is_refused("more than the memory has", one.send_dma(two.endpoint(), 0, memory, 9), "9 bytes from memory of 8")?;
    // Control blocks: what is under way is not disturbed.
    let sends = [b"a", b"b"].map(|bytes| one.send_copy(two.endpoint(), 0, bytes));
    is_refused("a third send", one.send_copy(two.endpoint(), 0, b"c"), "2 sends have not ended, which is the limit")?;
    for (send, byte) in sends.into_iter().zip(*b"ab") {
        let mut got = [0];
        two.receive_timeout(Pattern::default(), &mut got, PATIENCE)?;
        send?.wait().outcome?;
        cli::check(got == [byte], || format!("{got:?} came: expected {byte}"))?;
    }
    let receives = [two.receive_copy(Pattern::default(), 1), two.receive_copy(Pattern::default(), 1)];
    is_refused("a third receive", two.receive_copy(Pattern::default(), 1), "2 receives have not ended")?;
    for receive in receives {
        let receive = receive?;
        cli::check(receive.withdraw(), || "a receive without a message was not withdrawn".into())?;
        is_refused("a receive that was withdrawn", receive.wait().outcome, "it was withdrawn")?;
    }
    let short = two.receive_timeout(Pattern::default(), &mut [0], Duration::from_millis(10));
    is_refused("a receive without a sender", short, "no message within 10ms")?;
    // A thread that is closed, and then all.
    let receive = two.receive_copy(Pattern::default(), 1)?;
    drop(two);
    is_refused("a receive of a thread that has ended", receive.wait().outcome, "the receiving thread was closed")?;
    let receive = one.receive_copy(Pattern::default(), 1)?;
    drop(one);
    drop(messages);
    is_refused("a receive of messages that have ended", receive.wait().outcome, "was closed")
}

fn configurations() -> Outcome<()> {
    let opened = |options: Options| Messages::open(Node::open()?, options);
    let config = |config: Config| opened(config.into());
    is_refused("no port", opened(Options { ports: 0, ..Options::default() }), "ports is 0: expected 1 to 64")?;
    is_refused("65 ports", opened(Options { ports: 65, ..Options::default() }), "ports is 65: expected 1 to 64")?;
    is_refused("no slot", config(Config { slots: 0, ..Config::default() }), "slots is 0: expected at least 1")?;
    let eager = Config { eager: 4097, ..Config::default() };
    is_refused("eager beyond a slot", config(eager), "eager is 4097: expected at most 4096")
}
