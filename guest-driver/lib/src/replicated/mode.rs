// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modes of replicated segments: how stores reach the copies, and the rights in a file mode.

use crate::access_policy::mode_digits;
use crate::error::{Error, Result};
use telegraphos_wire::{Rights, admin};

/// How stores reach the copies; all copies of a segment have the same.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{ReplicaMode, Replicated};
///
/// let board = Replicated::create(&node, "board", 64 << 10).replica_mode(ReplicaMode::Invalidate).create()?;
/// assert_eq!(board.replica_mode(), ReplicaMode::Invalidate);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ReplicaMode {
    /// Each node stores to its own copy and multicasts itself (SPEC item 24): where stores to one word cross, copies
    /// diverge for good. For demonstrations, or for words with one writer each.
    Naive = admin::NAIVE,
    /// Stores go through the home, which multicasts them in its order. A copy takes every reflected write: its
    /// node may see an older store of its own again, and x, y, x. For demonstrations.
    Owner = admin::OWNER,
    /// The same with counters of pending writes (SPEC item 25), which prevent that.
    #[default]
    Counters = admin::COUNTERS,
    /// Stores go to the home alone, and invalidate the copies (SPEC item 28): a load from one then waits, in a page
    /// fault, until its whole page (64 KiB) has been filled again. For pages that are stored to often and read seldom.
    /// A store is taken when all nodes have invalidated the page, so a load behind it takes that much longer, too. When
    /// the home dies, what only it had is lost.
    ///
    /// The drivers of all copies of such a page must acknowledge the invalidation, also this node's. A processor that
    /// is stalled in a load through a window cannot run its driver: so call [`quiet`](crate::Replicated::quiet) before
    /// a load through an import of the home's node, or a [trapped](crate::Replicated::load_trapped) load, that follows
    /// 64 or more stores (the board's window of unacknowledged requests). Otherwise that load may end in
    /// [`Status::Timeout`](crate::Status::Timeout).
    Invalidate = admin::INVALIDATE,
}

impl ReplicaMode {
    /// Every mode.
    pub const ALL: [ReplicaMode; 4] =
        [ReplicaMode::Naive, ReplicaMode::Owner, ReplicaMode::Counters, ReplicaMode::Invalidate];

    /// The mode of that number in the driver's interface, if there is one.
    pub(crate) fn from_u32(number: u32) -> Option<ReplicaMode> {
        ReplicaMode::ALL.into_iter().find(|mode| *mode as u32 == number)
    }
}

/// The rights that a file mode gives: those of the owner, and of others.
pub(super) fn rights_of_mode(mode: u32) -> Result<(Rights, Rights)> {
    let (owner, others) = mode_digits("the mode of a replicated segment", mode)?;
    let rights = |digit: u32| match digit & 6 {
        0 => Ok(Rights::default()),
        4 => Ok(Rights::READ),
        6 => Ok(Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0)),
        // A copy that may not be read is of no use.
        _ => Err(Error::argument(
            "the mode of a replicated segment",
            format!("{mode:#o}"),
            "digits 0, 4 (load) or 6 (load, store and atomics), as 0o606",
        )),
    };
    Ok((rights(owner)?, rights(others)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_the_interface() {
        for mode in ReplicaMode::ALL {
            assert_eq!(ReplicaMode::from_u32(mode as u32), Some(mode));
        }
        assert_eq!(ReplicaMode::ALL.len(), admin::MODES.len());
        assert_eq!(ReplicaMode::from_u32(0), None);
    }
}
