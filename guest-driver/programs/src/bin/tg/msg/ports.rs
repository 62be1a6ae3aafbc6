// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why s4 takes two ports where a thread blocks in one (s4 §4.1), with ports as GM's: one thread at a time may use one.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use telegraphos::{Node, Queue, RemoteQueue};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};

/// Something that does not happen has not happened within this time.
const NOT: Duration = Duration::from_secs(1);

/// A port: messages come by its queue and are sent through it.
struct Port {
    queue: Queue,
    other: RemoteQueue,
}

/// One thread blocks in the first of the ports until a message comes, which is the answer to what the other sends by
/// the last. Returns whether it was sent before anything had come.
fn sends_while_blocked(ports: &[Mutex<Port>]) -> Outcome<bool> {
    let (Some(first), Some(last)) = (ports.first(), ports.last()) else {
        return Err(Failure::Check("no port".into()));
    };
    let (blocked, is_blocked) = channel();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || -> Outcome<Option<u64>> {
            let port = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // No thread waits for it any more if this fails.
            _ = blocked.send(());
            Ok(port.queue.pop_wait(Some(2 * NOT))?)
        });
        is_blocked.recv().map_err(|_| Failure::Check("the thread that waits has ended".into()))?;
        let (sent, is_sent) = channel();
        scope.spawn(move || -> Outcome<()> {
            let port = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            port.other.enqueue(1)?;
            _ = sent.send(());
            Ok(())
        });
        let in_time = is_sent.recv_timeout(NOT) != Err(RecvTimeoutError::Timeout);
        let came = waiting.join().map_err(|_| Failure::Check("the thread that waits has panicked".into()))??;
        cli::check(in_time == came.is_some(), || format!("sent in time: {in_time}, but {came:?} came"))?;
        Ok(in_time)
    })
}

pub(crate) fn ports() -> Outcome<()> {
    let node = Node::open()?;
    let name = |n: usize| format!("tg-msg.ports.{}.{n}", std::process::id());
    for (count, expected) in [(1, false), (2, true)] {
        let queues = (0..count).map(|n| Queue::create(&node, &name(n)).create()).collect::<Result<Vec<_>, _>>()?;
        // What is sent through any port goes to the first, as an answer would.
        let port = |queue| Ok(Mutex::new(Port { queue, other: Queue::import(&node, node.id(), &name(0)).open()? }));
        let ports = queues.into_iter().map(port).collect::<Outcome<Vec<_>>>()?;
        let sends = sends_while_blocked(&ports)?;
        println!("{count} port(s): a message is sent while a thread blocks in one: {sends}");
        cli::check(sends == expected, || format!("with {count} port(s) expected {expected}"))?;
    }
    Ok(())
}
