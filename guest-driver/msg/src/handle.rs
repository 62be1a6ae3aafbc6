// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous sends and receives.

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::request::{Event, Request};
use crate::shared::Shared;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telegraphos_msg_core::{ReceiveId, Received};

/// A send or a receive that continues while its thread does something else (s4's `testHandle`).
///
/// A send whose handle is dropped continues; a receive is withdrawn, if it has no message.
#[derive(Debug)]
#[must_use = "a receive is withdrawn when its handle is dropped"]
pub struct Handle {
    shared: Arc<Shared>,
    request: Arc<Request>,
    receive: Option<ReceiveId>,
}

/// What has become of a send or a receive.
#[derive(Debug)]
pub struct Ended {
    /// Its memory, which is the caller's again.
    pub memory: Memory,
    /// Of a send without a message.
    pub outcome: Result<Option<Received>>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>, request: Arc<Request>, receive: Option<ReceiveId>) -> Handle {
        Handle { shared, request, receive }
    }

    /// Whether it has ended; of a send: whether the receiving thread has the message. Does not wait.
    pub fn test(&self) -> bool {
        // In a child there is nothing to wait for.
        self.shared.here().is_err() || self.request.has_ended() || {
            // If that is not possible, the request ends.
            _ = self.shared.poll();
            self.request.has_ended()
        }
    }

    /// Waits until it has ended.
    pub fn wait(self) -> Ended {
        if let Err(error) = self.shared.here() {
            return Ended { memory: Memory::default(), outcome: Err(error) };
        }
        let outcome = loop {
            // Without a limit there is an event, and transfers are another thread's.
            if let Some(Event::Ended(outcome)) = self.shared.next(&self.request, None) {
                break outcome;
            }
        };
        let owned = self.request.take_owned();
        // Before the memory is used.
        drop((owned.writable, owned.grant));
        Ended { memory: owned.memory.unwrap_or_default(), outcome: outcome.map_err(Error::from) }
    }

    /// Waits until it has ended, for at most this time; whether it has.
    pub fn wait_timeout(&self, time: Duration) -> bool {
        if self.shared.here().is_err() {
            return true;
        }
        let limit = Instant::now().checked_add(time);
        self.shared.next(&self.request, limit).is_some()
    }

    /// Withdraws a receive. False if it has a message, has ended, or is a send; it ends in any case.
    pub fn withdraw(&self) -> bool {
        let here = self.shared.here().is_ok();
        self.receive
            .filter(|_| here)
            .is_some_and(|receive| self.shared.with(|state| state.engine.withdraw_receive(receive)))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.here().is_err() {
            // The opener's.
            std::mem::forget((self.shared.clone(), self.request.clone()));
            return;
        }
        // The memory belongs to the request, which lasts until it has ended.
        self.withdraw();
    }
}
