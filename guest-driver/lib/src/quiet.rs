// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: when stores, atomics and copies have arrived (the papers' FENCE, SPEC item 27, E19; OpenSHMEM's
//! `shmem_quiet`). And `fence`, which only orders.
//!
//! A thread takes one of the context's slots, stores `import << 48 | cookie` to the slot's `QUIET` register in the
//! context page, and waits until the board has written `status << 48 | cookie` to the slot's word of the status page.
//! Order comes from the store alone, which travels behind the process's earlier stores: on x86, stores to uncached
//! memory are performed in program order and after earlier ordinary stores; on aarch64 a barrier ensures the latter.

use crate::access::fence;
use crate::backoff::Backoff;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::pending_request::PendingRequest;
use crate::slots::SlotUse;
use std::time::Duration;
use telegraphos_wire::{Status, context};

/// Which stores quiet waits for.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Those of one import: its handle, and its name for messages.
    Import(u32, &'a str),
    /// Those of the whole context.
    All,
}

impl Context {
    /// Returns when all earlier stores, atomics and copies in `scope` have been performed and acknowledged; past
    /// `limit` (`None`: never) [`Error::Pending`]. Fails with [`Error::Failed`] while an error is latched.
    pub(crate) fn quiet(&self, scope: Scope<'_>, limit: Option<Duration>) -> Result<()> {
        let number = match scope {
            Scope::Import(handle, _) => u64::from(handle),
            Scope::All => context::QUIET_ALL,
        };
        let what = || match scope {
            Scope::Import(_, what) => what.to_owned(),
            Scope::All => format!("all imports of {}", self.device.path.display()),
        };
        let mut backoff = Backoff::new(limit);
        let pending = |backoff: &Backoff| self.pending(format!("quiet of {}", what()), backoff);
        let Some(mut request) = PendingRequest::new(self, SlotUse::Quiet, &mut backoff) else {
            return Err(pending(&backoff));
        };
        fence();
        let word = number << context::COOKIE_BITS | request.cookie;
        request.submit(context::QUIET + 8 * u64::from(request.slot), word);
        let Some((status, _)) = request.wait(&mut backoff)? else { return Err(pending(&backoff)) };
        fence();
        match status {
            Status::Ok => Ok(()),
            status => Err(Error::Failed { what: what(), status }),
        }
    }

    /// Orders, see [`Node::fence`](crate::Node::fence).
    pub(crate) fn fence(&self) -> Result<()> {
        if self.destinations.count() <= 1 && self.slots.unfinished() == 0 {
            fence();
            return Ok(());
        }
        self.quiet(Scope::All, None)
    }

    /// [`Error::Pending`]: `what` did not happen within the limit of `backoff`.
    pub(crate) fn pending(&self, what: String, backoff: &Backoff) -> Error {
        Error::Pending { what, waited: backoff.waited(), operations: self.slots.unfinished() }
    }
}
