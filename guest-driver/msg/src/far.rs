// SPDX-License-Identifier: MIT OR Apache-2.0
//! What threads do with processes that no board reaches: find them, connect to them, fetch long messages.

use crate::beyond::{Answer, PART};
use crate::error::{Error, Result};
use crate::request::Buffer;
use crate::shared::Shared;
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use telegraphos_msg_core::routes::Route;
use telegraphos_msg_core::{Failure, Place, Process};

/// Parts of a message that are asked for at a time.
const QUESTIONS: usize = 4;

impl Shared {
    /// [`Shared::connect`] by streams.
    pub(crate) fn connect_far(&self, process: Process, time: Duration) -> Result<()> {
        let (begun, mut tried) = (Instant::now(), false);
        let not_reached = |why: String| Error::NotReached { process, why };
        let mut state = self.lock();
        loop {
            if self.signals.is_closed() {
                return Err(Error::Closed);
            }
            let Some(beyond) = &mut state.beyond else {
                let why = "it is of no node of this cluster, and this process does not take part in routing";
                return Err(not_reached(why.into()));
            };
            if beyond.knows(process) {
                return Ok(());
            }
            if !tried {
                tried = true;
                let opened = beyond.far.open(process);
                state.refused.remove(&process);
                opened.map_err(|why| not_reached(why.to_string()))?;
                drop(state);
                self.with(|_| {});
                state = self.lock();
                continue;
            }
            // It is asked once: what has ended since is not asked for again.
            if beyond.far.path(process).is_none() {
                let why = state.refused.get(&process).cloned();
                return Err(not_reached(why.unwrap_or_else(|| "the connection has ended".into())));
            }
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Error::NoAnswer { process, time });
            }
            state = self.signals.linked.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// This process has a name, or has it no more.
    pub(crate) fn has_name(&self, name: &str, has: bool) {
        self.with(|state| {
            if let Some(beyond) = &mut state.beyond {
                if !beyond.far.name(name, has) && has {
                    log::warn!("the name {name:?} is not told beyond this cluster: it is too long, or one too many");
                }
            }
        });
    }

    /// The process of that name on a node that no board reaches.
    pub(crate) fn find_far(&self, node: u16, name: &str) -> Option<Process> {
        self.lock().beyond.as_ref().and_then(|beyond| beyond.far.routes().find(node, name))
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        self.lock().beyond.iter().flat_map(|beyond| beyond.far.routes().all().cloned()).collect()
    }

    /// Asks a far process for the bytes of a message.
    pub(crate) fn fetch_far(&self, (other, at): (Process, Place), length: u64, buffer: Buffer) -> Result<()> {
        let (mut asked, mut waiting) = (0, VecDeque::new());
        let mut fetch = || -> Result<()> {
            loop {
                self.with(|state| {
                    let Some(beyond) = &mut state.beyond else { return };
                    while asked < length && waiting.len() < QUESTIONS {
                        let part = PART.min(length - asked) as u32;
                        let Some(number) = beyond.ask(other, at, asked, part) else { return };
                        waiting.push_back((number, asked, part));
                        asked += u64::from(part);
                    }
                });
                let Some((number, offset, part)) = waiting.pop_front() else {
                    return if asked == length { Ok(()) } else { Err(Failure::Gone.into()) };
                };
                let bytes = self.answer(other, number)?;
                if bytes.len() != part as usize {
                    return Err(Failure::Failed.into());
                }
                // SAFETY: the request has not ended, so its memory is there, and this message is its.
                unsafe { buffer.write_bytes(offset, &bytes) };
            }
        };
        let outcome = fetch();
        if let Some(beyond) = &mut self.lock().beyond {
            beyond.forget(other, waiting.into_iter().map(|(number, ..)| number));
        }
        outcome
    }

    /// Waits for what a far process was asked for; for as long as its session, which does not last if it is silent.
    fn answer(&self, other: Process, number: u64) -> Result<Vec<u8>> {
        let mut state = self.lock();
        loop {
            match state.beyond.as_mut().map_or(Answer::Gone, |beyond| beyond.answer(other, number)) {
                Answer::NotYet => state = self.signals.answers.wait(state).unwrap_or_else(PoisonError::into_inner),
                Answer::Bytes(bytes) => return Ok(bytes),
                Answer::Refused => return Err(Failure::Failed.into()),
                Answer::Gone => return Err(Failure::Gone.into()),
            }
        }
    }
}
