// SPDX-License-Identifier: MIT OR Apache-2.0
//! Beginnings of programs that exchange messages.

use crate::cli::Outcome;
use crate::patience::{MILLISECOND, patiently};
use std::time::Duration;
use telegraphos::Node;
use telegraphos_msg::{Messages, Options, Process};

pub fn open(options: impl Into<Options>) -> Outcome<Messages> {
    Ok(Messages::open(Node::open()?, options)?)
}

/// Waits for the process of that name on a node.
pub fn find(messages: &Messages, node: u16, name: &str, patience: Duration) -> Outcome<Process> {
    Ok(patiently(patience, 50 * MILLISECOND, |_| true, || messages.find(node, name))?)
}
