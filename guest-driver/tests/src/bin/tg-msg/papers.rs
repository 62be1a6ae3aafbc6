// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statements of the papers, in one process.

use crate::{PATIENCE, open, refused};
use std::time::Duration;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_msg::{Config, Error, Handle, Memory, Options, Pattern, SingleBuffer};

/// Something that does not happen has not happened within this time.
const NOT: Duration = Duration::from_millis(300);

fn must(condition: bool, what: &str) -> Outcome<()> {
    if condition { Ok(()) } else { Err(Failure::Check(what.into())) }
}

fn ended(handle: Handle) -> Outcome<Vec<u8>> {
    let ended = handle.wait();
    ended.outcome.map_err(refused)?;
    Ok(ended.memory.into_bytes())
}

/// SPEC E21: 32 fragments of 64 KiB less their header are accepted, and one byte more is refused.
pub(crate) fn bounds() -> Outcome<()> {
    const LONGEST: usize = 2_095_872;
    let messages = open(Config::paper())?;
    let (from, to) = (messages.thread(1).map_err(refused)?, messages.thread(2).map_err(refused)?);
    let bytes = crate::bytes::of(from.endpoint(), to.endpoint(), 9, LONGEST + 1);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| from.send(to.endpoint(), 9, &bytes[..LONGEST]));
        let mut buffer = vec![0; LONGEST];
        let got = to.receive_timeout(Pattern::exactly(from.endpoint(), 9), &mut buffer, PATIENCE).map_err(refused)?;
        crate::bytes::check(&got, to.endpoint(), LONGEST, &buffer)?;
        sending.join().map_err(|_| Failure::Check("the sender has panicked".into()))?.map_err(refused)
    })?;
    match from.send(to.endpoint(), 9, &bytes) {
        Err(Error::Refused(refused)) => println!("{LONGEST} bytes arrived; one more: {refused}"),
        other => return Err(Failure::Check(format!("one byte more: {other:?}"))),
    }
    Ok(())
}

/// SPEC item 32: a send ends when its bytes have been taken, and the receiver chooses the order.
pub(crate) fn rendezvous(options: Options) -> Outcome<()> {
    const BYTES: usize = 300_000;
    let messages = open(options)?;
    let (from, to) = (messages.thread(1).map_err(refused)?, messages.thread(2).map_err(refused)?);
    let send =
        |tag| from.send_dma(to.endpoint(), tag, crate::bytes::of(from.endpoint(), to.endpoint(), tag, BYTES), BYTES);
    // Sent first: three sends wait for their receives, which are made the other way round.
    let mut sends = (0..3).map(send).collect::<Result<Vec<_>, _>>().map_err(refused)?;
    // The same memory for all three.
    let mut memory = Memory::from(vec![0; BYTES]);
    for tag in [2, 1, 0] {
        let last = sends.pop().ok_or(Failure::Check("no send is left".into()))?;
        must(!last.wait_timeout(NOT), "a send has ended before its bytes were taken")?;
        let pattern = Pattern { tag: Some(tag), ..Pattern::default() };
        let receive = to.receive_dma(pattern, std::mem::take(&mut memory));
        let done = receive.map_err(refused)?.wait();
        let got = done.outcome.map_err(refused)?.ok_or(Failure::Check("a receive without a message".into()))?;
        crate::bytes::check(&got, to.endpoint(), BYTES, &done.memory)?;
        memory = done.memory;
        ended(last)?;
        must(sends.iter().all(|send| !send.test()), "a send has ended whose bytes were not taken")?;
    }
    // Received first.
    let receive = to.receive_copy(Pattern::exactly(from.endpoint(), 5), BYTES).map_err(refused)?;
    must(!receive.wait_timeout(NOT), "a receive has ended without a message")?;
    let sent = send(5).map_err(refused)?;
    let done = receive.wait();
    let got = done.outcome.map_err(refused)?.ok_or(Failure::Check("a receive without a message".into()))?;
    crate::bytes::check(&got, to.endpoint(), BYTES, &done.memory)?;
    ended(sent)?;
    println!("3 sends ended in the order of their receives, and one that was waited for");
    Ok(())
}

/// SPEC item 34: the first message comes while its thread does something else; the second waits until that was used.
pub(crate) fn single(options: Options) -> Outcome<()> {
    let messages = open(options)?;
    let (from, to) = (messages.thread(1).map_err(refused)?, messages.thread(2).map_err(refused)?);
    let mut buffer = SingleBuffer::open(&to, Pattern::default(), 1 << 20).map_err(refused)?;
    for bytes in [100, 100_000] {
        let sends: Vec<_> = [b'1', b'2', b'3'].map(|byte| from.send_copy(to.endpoint(), 0, &vec![byte; bytes])).into();
        let sends = sends.into_iter().collect::<Result<Vec<_>, _>>().map_err(refused)?;
        for (send, byte) in sends.iter().zip([b'1', b'2', b'3']) {
            must(send.wait_timeout(PATIENCE), "a message has not come into the free buffer")?;
            let ended = sends.iter().filter(|send| send.wait_timeout(NOT)).count();
            must(ended == usize::from(byte - b'0'), "a second message has come into a buffer in use")?;
            let same = buffer.next(|_, got| got.len() == bytes && got.iter().all(|b| *b == byte)).map_err(refused)?;
            must(same, "the buffer has another message")?;
        }
    }
    println!("each send ended when the message before it had been used");
    Ok(())
}
