// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statements of the papers: of one process, or of one and another, which performs its orders.

use super::{PATIENCE, ended, must, open, reaching, serving};
use std::time::Duration;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_msg::{Config, Endpoint, Error, Handle, Memory, Messages, Options, Pattern, SingleBuffer, Thread};

/// What a process that takes messages is to do: the tag of what its thread 1 gets. An answer has the same one.
mod order {
    /// Takes the message with this tag, and answers.
    pub(super) const TAKE: u32 = 1;
    /// Begins to receive the message with this tag, answers, waits for the message, and answers.
    pub(super) const BEGIN: u32 = 2;
    /// Opens a single buffer, and answers.
    pub(super) const OPEN: u32 = 3;
    /// Uses the message that is in the buffer, and answers what it is: its first byte, and its length above.
    pub(super) const USE: u32 = 4;
    pub(super) const END: u32 = 5;
}

/// The thread of both processes that orders are about; they go to thread 1.
const DATA: u32 = 2;
/// Of a message that boards move.
const BYTES: usize = 300_000;

/// Something that does not happen has not happened within this time.
const NOT: Duration = Duration::from_millis(300);

/// The memory of a receive that has got a message of `BYTES` to a thread.
fn came(handle: Handle, to: &Thread<'_>) -> Outcome<Memory> {
    let done = handle.wait();
    let came = done.outcome?.ok_or(Failure::Check("a receive without a message".into()))?;
    super::bytes::check(&came, to.endpoint(), BYTES, &done.memory)?;
    Ok(done.memory)
}

/// SPEC E21: 32 fragments of 64 KiB less their header are accepted, and one byte more is refused.
pub(crate) fn bounds() -> Outcome<()> {
    const LONGEST: usize = 2_095_872;
    let messages = open(Config::paper())?;
    let (from, to) = (messages.thread(1)?, messages.thread(2)?);
    let bytes = super::bytes::of(from.endpoint(), to.endpoint(), 9, LONGEST + 1);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| from.send(to.endpoint(), 9, &bytes[..LONGEST]));
        let mut buffer = vec![0; LONGEST];
        let got = to.receive_timeout(Pattern::exactly(from.endpoint(), 9), &mut buffer, PATIENCE)?;
        super::bytes::check(&got, to.endpoint(), LONGEST, &buffer)?;
        Ok::<_, Failure>(sending.join().map_err(|_| Failure::Check("the sender has panicked".into()))??)
    })?;
    match from.send(to.endpoint(), 9, &bytes) {
        Err(Error::Refused(refused)) => println!("{LONGEST} bytes arrived; one more: {refused}"),
        other => return Err(Failure::Check(format!("one byte more: {other:?}"))),
    }
    forked(&messages, &from)?;
    println!("a child has no messages of its parent's");
    Ok(())
}

/// In a child, made by `fork`, messages are known as its parent's, to which what it drops is no matter.
#[allow(unsafe_code, reason = "fork")]
fn forked(messages: &Messages, thread: &Thread<'_>) -> Outcome<()> {
    let handle = thread.receive_copy(Pattern::exactly(thread.endpoint(), 3), 8)?;
    // SAFETY: the child does what is tested, and ends without what this process does at its end.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |result: Result<(), Error>| matches!(result, Err(Error::Forked { .. }));
        let thread_is = refused(thread.send(thread.endpoint(), 3, b"child"));
        let right = thread_is && refused(messages.thread(9).map(drop)) && refused(handle.wait().outcome.map(drop));
        // SAFETY: as above.
        unsafe { libc::_exit(if right { 0 } else { 1 }) }
    }
    let mut status = -1;
    // SAFETY: a child of this process, and a number.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    must(child > 0 && ended == child && status == 0, &format!("a child has ended with status {status:#x}"))?;
    let sent = thread.send_copy(thread.endpoint(), 3, b"parent")?;
    let got = handle.wait();
    sent.wait().outcome?;
    must(got.outcome?.is_some() && got.memory.starts_with(b"parent"), "the parent has lost its receive")
}

/// Performs the orders of another process, until [`order::END`].
pub(crate) fn taker(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let data = messages.thread(DATA)?;
    let (orders, _name) = serving(&messages, name)?;
    // The same memory for all.
    let mut memory = Memory::from(vec![0; BYTES]);
    let mut single = None;
    loop {
        let mut word = [0; 4];
        let got = orders.receive(Pattern::default(), &mut word)?;
        let answer = |word: u32| orders.send(got.from, got.tag, &word.to_le_bytes());
        let from = Endpoint { thread: DATA, ..got.from };
        let pattern = Pattern::exactly(from, u32::from_le_bytes(word));
        match got.tag {
            order::TAKE => {
                memory = came(data.receive_dma(pattern, std::mem::take(&mut memory))?, &data)?;
            }
            order::BEGIN => {
                let receive = data.receive_copy(pattern, BYTES)?;
                must(!receive.wait_timeout(NOT), "a receive has ended without a message")?;
                answer(0)?;
                came(receive, &data)?;
            }
            order::OPEN => single = Some(SingleBuffer::open(&data, Pattern::default(), 1 << 20)?),
            order::USE => {
                let buffer = single.as_mut().ok_or(Failure::Check("there is no single buffer".into()))?;
                let used =
                    |bytes: &[u8]| bytes.first().filter(|first| bytes.iter().all(|byte| byte == *first)).copied();
                let (first, length) = buffer.next(|_, got| (used(got), got.len() as u32))?;
                answer(length << 8 | u32::from(first.unwrap_or(0)))?;
                continue;
            }
            order::END => return Ok(()),
            other => return Err(Failure::Check(format!("an order {other}, which there is not"))),
        }
        answer(0)?;
    }
}

/// A process that performs orders.
struct Taker<'a> {
    orders: Thread<'a>,
    at: Endpoint,
}

impl<'a> Taker<'a> {
    /// That of a name, and where its data goes.
    fn of(messages: &'a Messages, node: u16, name: &str) -> Outcome<(Taker<'a>, Endpoint)> {
        let (orders, at) = reaching(messages, node, name)?;
        Ok((Taker { orders, at }, Endpoint { thread: DATA, ..at }))
    }

    fn tell(&self, order: u32, word: u32) -> Outcome<()> {
        Ok(self.orders.send(self.at, order, &word.to_le_bytes())?)
    }

    fn answer(&self, order: u32) -> Outcome<u32> {
        let mut word = [0; 4];
        self.orders.receive_timeout(Pattern::exactly(self.at, order), &mut word, PATIENCE)?;
        Ok(u32::from_le_bytes(word))
    }

    fn ask(&self, order: u32, word: u32) -> Outcome<u32> {
        self.tell(order, word)?;
        self.answer(order)
    }
}

/// SPEC item 32: a send ends when its bytes have been taken, and the receiver chooses the order.
pub(crate) fn rendezvous(options: Options, node: u16, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let from = messages.thread(DATA)?;
    let (taker, to) = Taker::of(&messages, node, name)?;
    let send = |tag| from.send_dma(to, tag, super::bytes::of(from.endpoint(), to, tag, BYTES), BYTES);
    // Sent first: three sends wait for their receives, which are made the other way round.
    let mut sends = (0..3).map(send).collect::<Result<Vec<_>, _>>()?;
    for tag in [2, 1, 0] {
        let last = sends.pop().ok_or(Failure::Check("no send is left".into()))?;
        must(!last.wait_timeout(NOT), "a send has ended before its bytes were taken")?;
        taker.ask(order::TAKE, tag)?;
        ended(last)?;
        must(sends.iter().all(|send| !send.test()), "a send has ended whose bytes were not taken")?;
    }
    // Received first.
    taker.ask(order::BEGIN, 5)?;
    let sent = send(5)?;
    taker.answer(order::BEGIN)?;
    ended(sent)?;
    taker.tell(order::END, 0)?;
    println!("3 sends ended in the order of their receives, and one that was waited for");
    Ok(())
}

/// SPEC item 34: the first message comes while its thread does something else; the second waits until that was used.
pub(crate) fn single(options: Options, node: u16, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let from = messages.thread(DATA)?;
    let (taker, to) = Taker::of(&messages, node, name)?;
    taker.ask(order::OPEN, 0)?;
    for bytes in [100, 100_000_u32] {
        let sends = [b'1', b'2', b'3'].map(|byte| from.send_copy(to, 0, &vec![byte; bytes as usize]));
        let sends = sends.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (send, byte) in sends.iter().zip([b'1', b'2', b'3']) {
            must(send.wait_timeout(PATIENCE), "a message has not come into the free buffer")?;
            let ended = sends.iter().filter(|send| send.wait_timeout(NOT)).count();
            must(ended == usize::from(byte - b'0'), "a second message has come into a buffer in use")?;
            let used = taker.ask(order::USE, 0)?;
            must(used == bytes << 8 | u32::from(byte), "the buffer has another message")?;
        }
    }
    taker.tell(order::END, 0)?;
    println!("each send ended when the message before it had been used");
    Ok(())
}
