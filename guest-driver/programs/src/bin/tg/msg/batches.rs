// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages whose receives have all begun before they are sent, or that have all been sent before their receives begin,
//! for what interrupts that takes.

use super::{PATIENCE, ended, open, reaching, serving};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Endpoint, Memory, Options, Pattern, Thread};

/// Messages of a batch, each from memory of its own: so much stays registered and imported.
const BATCH: usize = 8;
/// Tags of messages of a batch are below.
const BEGIN: u32 = 100;
const END: u32 = 101;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Receives,
    Sends,
}

pub(crate) fn first(word: &str) -> Outcome<First> {
    match word {
        "receives-first" => Ok(First::Receives),
        "sends-first" => Ok(First::Sends),
        other => Err(Failure::Usage(format!("{other:?}: expected receives-first or sends-first"))),
    }
}

/// Memory of a batch, of which each message has other bytes.
fn memories(bytes: usize) -> Vec<Memory> {
    (0..BATCH).map(|n| vec![n as u8 + 1; bytes].into()).collect()
}

fn tagged(tag: u32) -> Pattern {
    Pattern { tag: Some(tag), ..Pattern::default() }
}

/// Receives batches, until a message with the tag [`END`] comes.
pub(crate) fn sink(options: Options, name: &str, bytes: usize, first: First) -> Outcome<()> {
    let messages = open(options)?;
    let thread = messages.thread(2)?;
    let (control, _name) = serving(&messages, name)?;
    let mut memories = memories(bytes);
    loop {
        let got = control.receive(Pattern::default(), &mut [])?;
        if got.tag == END {
            return Ok(());
        }
        memories.iter_mut().for_each(|memory| memory.fill(0));
        let given = std::mem::take(&mut memories).into_iter().zip(0..);
        let receives = given.map(|(memory, tag)| Ok(thread.receive_dma(tagged(tag), memory)?));
        memories = match first {
            First::Receives => {
                let receives = receives.collect::<Outcome<Vec<_>>>()?;
                control.send(got.from, BEGIN, &[])?;
                receives.into_iter().map(ended).collect::<Outcome<_>>()?
            }
            First::Sends => receives.map(|receive| receive.and_then(ended)).collect::<Outcome<_>>()?,
        };
        cli::check(memories.iter().zip(1..).all(|(memory, value)| memory.iter().all(|byte| *byte == value)), || {
            "the bytes of a message are others".into()
        })?;
    }
}

fn batch(control: &Thread<'_>, to: Endpoint, memories: &mut Vec<Memory>, first: First) -> Outcome<()> {
    let of_batch = Endpoint { thread: 2, ..to };
    match first {
        First::Receives => {
            control.send(to, BEGIN, &[])?;
            control.receive_timeout(Pattern::exactly(to, BEGIN), &mut [], PATIENCE)?;
            let mut sends = memories.iter().zip(0..);
            sends.try_for_each(|(memory, tag)| Ok(control.send(of_batch, tag, memory)?))
        }
        First::Sends => {
            let given = std::mem::take(memories).into_iter().zip(0..);
            let sends = given.map(|(memory, tag)| {
                let length = memory.len();
                control.send_dma(of_batch, tag, memory, length)
            });
            let sends = sends.collect::<Result<Vec<_>, _>>()?;
            control.send(to, BEGIN, &[])?;
            *memories = sends.into_iter().map(ended).collect::<Outcome<_>>()?;
            Ok(())
        }
    }
}

/// Sends a batch, and then others between two lines of its input.
pub(crate) fn batches(
    options: Options,
    (node, name): (u16, &str),
    count: usize,
    bytes: usize,
    first: First,
) -> Outcome<()> {
    let messages = open(options)?;
    let (control, to) = reaching(&messages, node, name)?;
    let mut memories = memories(bytes);
    let mut lines = std::io::stdin().lines();
    batch(&control, to, &mut memories, first)?;
    println!("ready");
    lines.next();
    for _ in 0..count {
        batch(&control, to, &mut memories, first)?;
    }
    println!("{} messages", count * BATCH);
    lines.next();
    Ok(control.send(to, END, &[])?)
}
