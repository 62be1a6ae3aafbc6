// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recovery of a replicated segment, and moving its home.

use super::mode::ReplicaMode;
use super::segment::Replicated;
use crate::error::{Error, Result};
use crate::sys;
use rustix::io::Errno;
use telegraphos_wire::Status;

impl Replicated {
    /// Clears the latched error and accepts stores again after a cut. Lost stores stay lost; this node's copy may have
    /// them or not. No other thread uses the segment meanwhile.
    pub fn acknowledge(&self) -> Result<()> {
        self.window.acknowledge()?;
        // The board may store its last count only after it has answered the first.
        self.window.quiet()?;
        self.window.quiet()?;
        self.stores.forget_lost(&self.handle.context.slots);
        Ok(())
    }

    /// Makes this node the home of an orphan: its copy is authoritative from now on, under the same name, and the other
    /// nodes leave their copies and join here. The program must see to it that only one node does so. Stores start
    /// afresh; those in flight may be lost. No other thread uses the segment meanwhile.
    pub fn adopt(&self) -> Result<()> {
        let device = &self.handle.context.device;
        sys::replica_adopt(device.fd(), &mut sys::handle(self.handle())).map_err(|errno| match errno {
            Errno::INVAL => Error::argument(
                "the copy to be adopted",
                format!("{}, which has a home", self.handle.label),
                "an orphan",
            ),
            errno => device.refusal(format!("adopting {}", self.handle.label), errno),
        })?;
        // The board counts from 0.
        self.stores.forget_lost(&self.handle.context.slots);
        Ok(())
    }

    /// Makes this node the home, while all nodes continue to load and to store; the previous home keeps its copy.
    /// Returns when this node is the home, at once if it was already. Nothing is lost or seen out of order; stores wait
    /// at their copies for a few round trips, and programs on the other nodes need not notice: [`Replicated::home`]
    /// returns the new one there.
    ///
    /// From then on nodes join here; at the previous home that fails with [`Status::NotHome`], and so do loads and
    /// stores through an ordinary import of it. This copy must have been joined with all rights (else
    /// [`Error::Right`]), and grants others no more than
    /// [`JoinBuilder::mode`](crate::JoinBuilder::mode) said; and this node must have nothing else under the segment's
    /// name ([`Status::NameTaken`]). Copies on nodes that [`JoinBuilder::nodes`](crate::JoinBuilder::nodes) leaves out
    /// become orphans. Modes [`Naive`](ReplicaMode::Naive) and [`Invalidate`](ReplicaMode::Invalidate) have no home
    /// that could move.
    ///
    /// Of several nodes that try at once one succeeds; the others may get [`Status::Busy`] or [`Status::NotHome`], and
    /// try again. The home moves page by page (64 KiB). If it fails midway, for which the failure of the home or of
    /// this node's link is the only reason, the pages have different homes: loads and stores continue,
    /// [`Replicated::home`] still names the node that has all of them or had them last, joins fail with
    /// [`Status::NotHome`], and another call finishes the move.
    pub fn take_home(&self) -> Result<()> {
        if !matches!(self.replica_mode, ReplicaMode::Owner | ReplicaMode::Counters) {
            return Err(Error::argument(
                "the mode of a segment whose home is to move",
                format!("{:?}", self.replica_mode),
                "ReplicaMode::Counters or ReplicaMode::Owner",
            ));
        }
        let device = &self.handle.context.device;
        let action = || format!("moving the home of {} here", self.handle.label);
        sys::replica_move(device.fd(), &mut sys::handle(self.handle())).map_err(|errno| match errno {
            Errno::ACCESS => self.window.lacks("become the home", "join it with a mode of 6"),
            // The one status here that has no errno.
            Errno::REMOTEIO => Error::Failed { what: action(), status: Status::NotHome },
            errno => device.refusal(action(), errno),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use std::sync::Arc;
    use telegraphos_wire::Rights;

    #[test]
    fn only_modes_with_a_home_move_it() {
        let mut replicated = Replicated::without_board(&Arc::new(Context::without_board()), Rights::READ);
        for mode in [ReplicaMode::Naive, ReplicaMode::Invalidate] {
            replicated.replica_mode = mode;
            let error = replicated.take_home().unwrap_err().to_string();
            assert!(error.contains("is to move is") && error.contains("ReplicaMode::Counters"), "{error}");
        }
    }
}
