// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beginnings of programs that exchange messages.

use crate::cli::Outcome;
use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_msg::{Messages, Options, Process};

pub fn open(options: impl Into<Options>) -> Outcome<Messages> {
    Ok(Messages::open(Node::open()?, options)?)
}

/// Waits for the process of that name on a node.
pub fn find(messages: &Messages, node: u16, name: &str, patience: Duration) -> Outcome<Process> {
    let deadline = Instant::now() + patience;
    loop {
        match messages.find(node, name) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            found => return Ok(found?),
        }
    }
}
