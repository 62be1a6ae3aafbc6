// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that looks whether the nodes at the other ends are there, in a process in which directions have become
//! framed, until it has no such connection any more.
//!
//! The kernel asks for the life of the other end where nothing is under way, but tries for minutes to send what is not
//! acknowledged. So a connection whose bytes stay so for a second is asked about by the board, and if the node does not
//! answer, the kernel ends the connection in seconds, and notifies each waiter, in a write or a read, in `poll` or
//! `epoll`.

use crate::board::STACK;
use crate::table::{self, Connection};
use crate::{answers, kernel, process, signals};
use libc::c_int;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);

/// A direction has become framed in this process: it is looked after from now on.
pub(crate) fn start() {
    let Some(watches) = process::watches() else { return };
    // Signals are for the program's threads: the new one has this one's mask.
    let _signals = signals::wait();
    let mut runs = watches.lock().unwrap_or_else(PoisonError::into_inner);
    if !*runs {
        let thread = std::thread::Builder::new().name("tg-sockets".into()).stack_size(STACK);
        // Without it, all is as late as in the system's connections.
        *runs = thread.spawn(|| run(watches)).is_ok();
    }
}

fn run(watches: &Mutex<bool>) {
    // What was acknowledged of a connection at the last look that found more under way.
    let mut before = HashMap::new();
    loop {
        std::thread::sleep(TICK);
        let mut runs = watches.lock().unwrap_or_else(PoisonError::into_inner);
        let framed = table::framed_here();
        if framed.is_empty() {
            // A direction that becomes framed now starts another one.
            *runs = false;
            return;
        }
        drop(runs);
        before = framed.into_iter().filter_map(|fd| Some((fd, look(fd, before.get(&fd).copied())?))).collect();
    }
}

/// Looks after one connection: what has been acknowledged of it, if there is more under way.
fn look(fd: c_int, before: Option<u64>) -> Option<u64> {
    let connection = Connection::of_descriptor(fd)?;
    let acknowledged = answers::acknowledged(fd)?;
    if kernel::unacknowledged(fd).unwrap_or(0) == 0 {
        return None;
    }
    if before == Some(acknowledged) {
        answers::probe(fd, &connection);
    }
    Some(acknowledged)
}
