// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes in a state in which one of them is killed, or its node loses its power. They say when they are in it:
//! what one process says to another arrives in order, so what was sent before a message that has been received has
//! arrived. Amid the bytes of a message only they themselves know that they are.

use super::{PATIENCE, open, reaching, serving};
use rustix::process::{Signal, getpid, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use telegraphos_guest_tests::cli::{Failure, Outcome, failed, refused};
use telegraphos_guest_tests::patience::{YIELD, until};
use telegraphos_msg::{Endpoint, Handle, Options, Pattern};

/// Of what is sent, and of what never is.
const TAG: u32 = 3;
const NEVER: u32 = 9;
/// A thread besides the first, which receives at once.
const WITNESS: u32 = 2;
const FILL: u8 = 7;
/// Bytes of what is under way for a while: half of a node's window. The paper's profile has no message that long, but
/// many fragments.
const AMID: u64 = 32 << 20;
/// Of what is sent without end.
const ENDLESS: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Messages of so many bytes have arrived, and the thread that they are for receives something else.
    Arrived(usize),
    /// So have messages in all slots, and others wait for these.
    Full,
    /// The receiver has said where a long message is to be stored, and the sender does not know yet.
    Cleared,
    /// Some bytes of a message are there, and others not: the receiver ends itself.
    AmidReceiverDies,
    /// The same, and the sender ends itself.
    AmidSenderDies,
    /// One long message after the other.
    Endless,
}

impl State {
    pub(crate) fn of(word: &str) -> Outcome<State> {
        Ok(match word {
            "short" => State::Arrived(10),
            "long" => State::Arrived(100_000),
            "full" => State::Full,
            "cleared" => State::Cleared,
            "amid-receiver-dies" => State::AmidReceiverDies,
            "amid-sender-dies" => State::AmidSenderDies,
            "endless" => State::Endless,
            other => return Err(Failure::Usage(format!("the state {other:?}: expected one of those of --help"))),
        })
    }
}

/// Bytes of a message that is under way in a state.
fn longest(options: &Options, state: State) -> usize {
    options.config.longest.min(if state == State::Endless { ENDLESS } else { AMID }) as usize
}

/// As far as one may see into memory that others write to.
fn byte_at(memory: &File, address: usize) -> Outcome<u8> {
    let mut byte = [0];
    let read = memory.read_exact_at(&mut byte, address as u64);
    read.map_err(failed("/proc/self/mem"))?;
    Ok(byte[0])
}

/// Waits until some bytes of a message are in a buffer of zeros, and others not.
fn wait_for_a_part((first, last): (usize, usize)) -> Outcome<()> {
    let memory = File::open("/proc/self/mem").map_err(failed("/proc/self/mem"))?;
    let late = || Failure::Check(format!("no byte has come in {PATIENCE:?}"));
    until(PATIENCE, YIELD, || Ok(byte_at(&memory, first)? != 0), late)?;
    match byte_at(&memory, last)? {
        0 => Ok(()),
        _ => Err(Failure::Check("the last byte was there with the first".into())),
    }
}

/// As others would kill it.
fn die() -> Failure {
    println!("amid");
    let error = kill_process(getpid(), Signal::KILL).err();
    Failure::Refused(format!("it has not killed itself: {error:?}"))
}

/// What has failed as it should; nothing else is right.
fn must_fail<T>(what: &str, outcome: Result<T, telegraphos_msg::Error>) -> Failure {
    match outcome {
        Ok(_) => Failure::Check(format!("{what} has not failed")),
        Err(error) => error.into(),
    }
}

pub(crate) fn receiver(options: Options, name: &str, state: State) -> Outcome<()> {
    let longest = longest(&options, state);
    let messages = open(options)?;
    let witness = messages.thread(WITNESS)?;
    let (thread, _name) = serving(&messages, name)?;
    let from = witness.receive(Pattern::default(), &mut [])?.from;
    println!("there");
    let exactly = |tag| Pattern::exactly(Endpoint { thread: 1, ..from }, tag);
    let mut buffer = vec![0; longest];
    match state {
        State::Arrived(_) | State::Full | State::Cleared => {
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).map_err(refused)?;
            let tag = if state == State::Cleared { TAG } else { NEVER };
            let receive = thread.receive_copy(exactly(tag), 100_000)?;
            println!("waiting");
            Err(must_fail("the receive", receive.wait().outcome))
        }
        State::AmidReceiverDies | State::AmidSenderDies => {
            let ends = (buffer.as_ptr().addr(), buffer.as_ptr().addr() + buffer.len() - 1);
            std::thread::scope(|scope| {
                let watching = scope.spawn(|| {
                    wait_for_a_part(ends)?;
                    if state == State::AmidReceiverDies {
                        return Err(die());
                    }
                    // It may be dead before it has answered.
                    _ = witness.send(Endpoint { thread: WITNESS, ..from }, TAG, &[]);
                    Ok(())
                });
                let received = thread.receive(exactly(TAG), &mut buffer);
                watching.join().map_err(|_| Failure::Check("the watching thread has panicked".into()))??;
                Err(must_fail("the receive", received))
            })
        }
        State::Endless => {
            thread.receive(exactly(TAG), &mut buffer)?;
            println!("waiting");
            loop {
                thread.receive(exactly(TAG), &mut buffer)?;
            }
        }
    }
}

pub(crate) fn sender(options: Options, node: u16, name: &str, state: State) -> Outcome<()> {
    let (longest, slots) = (longest(&options, state), usize::from(options.config.slots));
    let messages = open(options)?;
    let witness = messages.thread(WITNESS)?;
    let (thread, to) = reaching(&messages, node, name)?;
    let to_witness = Endpoint { thread: WITNESS, ..to };
    // As the inbox for it is called.
    println!("connecting to {:08x}", to.process.number);
    messages.connect(to.process, PATIENCE)?;
    let arrived = || {
        witness.send(to_witness, TAG, &[])?;
        println!("there");
        Ok::<_, Failure>(())
    };
    let begin = |count: usize, bytes: usize| {
        (0..count).map(|_| thread.send_copy(to, TAG, &vec![FILL; bytes])).collect::<Result<Vec<Handle>, _>>()
    };
    match state {
        State::Arrived(_) | State::Cleared | State::Full => {
            let mut sends = match state {
                State::Arrived(bytes) => begin(1, bytes)?,
                State::Full => begin(slots - 1, 8)?,
                _ => begin(1, 100_000)?,
            };
            arrived()?;
            if state == State::Full {
                // The witness has given its slot back: one takes it, and the others wait.
                sends.extend(begin(3 * slots, 8)?);
                println!("full");
            }
            // Each of them has ended, and none well.
            let failures: Vec<Failure> =
                sends.into_iter().map(|send| must_fail("a send", send.wait().outcome)).collect();
            let unlike = failures.iter().find(|failure| failure.to_string() != failures[0].to_string());
            match unlike {
                Some(unlike) => Err(Failure::Check(format!("{} and {unlike}", failures[0]))),
                None => failures.into_iter().next().map_or(Ok(()), Err),
            }
        }
        State::AmidReceiverDies | State::AmidSenderDies => std::thread::scope(|scope| {
            arrived()?;
            scope.spawn(|| witness.receive(Pattern::exactly(to_witness, TAG), &mut []).map(|_| die()));
            let sent = thread.send(to, TAG, &vec![FILL; longest]);
            Err(must_fail("the send", sent))
        }),
        State::Endless => {
            arrived()?;
            let bytes = vec![FILL; longest];
            loop {
                thread.send(to, TAG, &bytes)?;
            }
        }
    }
}
