// SPDX-License-Identifier: MIT OR Apache-2.0
//! How to create and to join a replicated segment.

use super::adaptive::Adaptive;
use super::segment::Replicated;
use crate::access_policy::{AccessPolicy, mode_digits};
use crate::error::{Error, Object, Result, name_bytes, status_of};
use crate::node::{Inner, Node};
use crate::remote::{ImportBuilder, Remote};
use crate::sys;
use crate::{NodeId, Rights, Secret, Status};
use rustix::io::Errno;
use std::sync::Arc;
use telegraphos_wire::{admin, uapi};

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
    /// Each node stores to its own copy and multicasts itself (SPEC item 24): where stores meet, copies diverge for
    /// good. To show just that, or for words with one writer each.
    Naive = admin::NAIVE,
    /// Stores go through the home, which multicasts them in its order. A copy takes everything that comes back: its
    /// node may see an older store of its own again, and x, y, x. To show just that.
    Owner = admin::OWNER,
    /// The same with counters of pending writes (SPEC item 25), which keep that away.
    #[default]
    Counters = admin::COUNTERS,
    /// Stores go to the home alone, and make the copies invalid (SPEC item 28): whoever loads from one then waits, in a
    /// page fault, until its whole page (64 KiB) has been filled again. For pages that are stored to often and read
    /// seldom. A store counts as this process's own when all nodes have let go of the page, so a load behind it takes
    /// that much longer, too. When the home dies, what only it had is lost.
    ///
    /// Before such a page is let go the drivers of all its copies are asked, also this node's. A processor that stands
    /// still in a load through a window cannot be asked: so [`quiet`](Replicated::quiet) comes first where a load
    /// through an import of the home's node, or a [trapped](Replicated::load_trapped) one, follows a long burst of
    /// stores (64, the board's window of unacknowledged requests, or more). Else it may end in [`Status::Timeout`].
    Invalidate = admin::INVALIDATE,
}

impl ReplicaMode {
    /// Every mode.
    pub const ALL: [ReplicaMode; 4] =
        [ReplicaMode::Naive, ReplicaMode::Owner, ReplicaMode::Counters, ReplicaMode::Invalidate];

    pub(crate) fn from_u32(number: u32) -> Option<ReplicaMode> {
        ReplicaMode::ALL.into_iter().find(|mode| *mode as u32 == number)
    }
}

/// What both builders know.
#[derive(Clone, Debug)]
struct Common {
    inner: Arc<Inner>,
    name: String,
    replica_mode: ReplicaMode,
    access: AccessPolicy,
}

impl Common {
    fn new(node: &Node, name: &str) -> Common {
        Common {
            inner: node.inner.clone(),
            name: name.into(),
            replica_mode: ReplicaMode::default(),
            access: AccessPolicy::default(),
        }
    }

    fn request(&self, home: u32, size: u64) -> Result<uapi::Replica> {
        let (owner, others) = rights_of_mode(self.access.mode())?;
        Ok(uapi::Replica {
            name: name_bytes(&self.name)?,
            secret: self.access.secret,
            nodes: self.access.node_set()?,
            length: size,
            home,
            mode: self.replica_mode as u32,
            rights_owner: owner.0,
            rights_others: others.0,
            ..uapi::Replica::default()
        })
    }
}

/// The board's reason for a refusal.
fn status(request: &uapi::Replica, errno: Errno) -> Option<Status> {
    match errno {
        Errno::REMOTEIO => Some(Status::from_u16(request.status as u16)),
        errno => status_of(errno),
    }
}

/// Rights of the owner and of others.
fn rights_of_mode(mode: u32) -> Result<(Rights, Rights)> {
    let (owner, others) = mode_digits("the mode of a replicated segment", mode)?;
    let rights = |digit: u32| match digit & 6 {
        0 => Ok(Rights::default()),
        4 => Ok(Rights::READ),
        6 => Ok(Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0)),
        // A copy that may not be read would be of no use.
        _ => Err(Error::Argument {
            what: "the mode of a replicated segment",
            value: format!("{mode:#o}"),
            expected: "digits 0, 4 (load) or 6 (load, store and atomics), as 0o606".into(),
        }),
    };
    Ok((rights(owner)?, rights(others)?))
}

/// How to make a replicated segment; made by [`Replicated::create`].
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Replicated;
///
/// let board = Replicated::create(&node, "board", 64 << 10)
///     .mode(0o604) // processes of other users may load
///     .nodes(&[node.id(), 1, 2])
///     .create()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "there is no segment before create()"]
pub struct ReplicatedBuilder {
    common: Common,
    size: u64,
}

impl ReplicatedBuilder {
    pub(super) fn new(node: &Node, name: &str, size: u64) -> ReplicatedBuilder {
        ReplicatedBuilder { common: Common::new(node, name), size }
    }

    /// How stores reach the copies; [`ReplicaMode::Counters`] unless told otherwise.
    pub fn replica_mode(mut self, mode: ReplicaMode) -> Self {
        self.common.replica_mode = mode;
        self
    }

    /// Who may join, as for a file: `0o600` (the default) admits processes of this user id, on any node; `0o604` lets
    /// others load, `0o606` load, store and use atomics. There are no groups: that digit is 0, or the same as the last.
    pub fn mode(mut self, mode: u32) -> Self {
        self.common.access.mode = Some(mode);
        self
    }

    /// A secret that joiners must present; zeros mean none.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.common.access.secret = secret;
        self
    }

    /// Admits only these nodes, below 256; without it, every node is admitted.
    pub fn nodes(mut self, nodes: &[NodeId]) -> Self {
        self.common.access.nodes = Some(nodes.to_vec());
        self
    }

    /// All of [`mode`](Self::mode), [`secret`](Self::secret) and [`nodes`](Self::nodes).
    pub(crate) fn access(mut self, access: AccessPolicy) -> Self {
        self.common.access = access;
        self
    }

    fn request(&self) -> Result<uapi::Replica> {
        if self.size == 0 || usize::try_from(self.size).is_err() {
            return Err(Error::Argument {
                what: "the size of a replicated segment",
                value: self.size.to_string(),
                expected: "1 byte to the window size per node".into(),
            });
        }
        self.common.request(uapi::REPLICA_HERE as u32, self.size)
    }

    /// Allocates this node's copy, zeroed, and makes it known under its name, with this node as the home.
    pub fn create(self) -> Result<Replicated> {
        let mut request = self.request()?;
        let Common { inner, name, .. } = self.common;
        sys::replicate(inner.fd(), &mut request).map_err(|errno| Error::Replicate {
            name: name.clone(),
            size: self.size,
            status: status(&request, errno),
            errno,
        })?;
        let home = inner.id;
        Replicated::map(inner, name, home, &request)
    }
}

/// How to join a replicated segment; made by [`Replicated::join`].
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Replicated;
///
/// let board = Replicated::join(&node, 0, "board").secret(*b"0123456789abcdef").open()?;
/// println!("{} bytes, ordered by node {}", board.size(), board.home()?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is joined before open()"]
pub struct JoinBuilder {
    common: Common,
    home: NodeId,
}

impl JoinBuilder {
    pub(super) fn new(node: &Node, home: NodeId, name: &str) -> JoinBuilder {
        JoinBuilder { common: Common::new(node, name), home }
    }

    /// That of the segment, which is not naive; [`ReplicaMode::Counters`] unless told otherwise.
    pub fn replica_mode(mut self, mode: ReplicaMode) -> Self {
        self.common.replica_mode = mode;
        self
    }

    /// What this process wants, by the first digit, all of which the home must grant: 4 to load, 6 (the default) to
    /// load, store and use atomics. The whole, as in [`ReplicatedBuilder::mode`], says who may join here should this
    /// node become the home ([`Replicated::take_home`], [`Replicated::adopt`]); `0o600` unless told otherwise.
    pub fn mode(mut self, mode: u32) -> Self {
        self.common.access.mode = Some(mode);
        self
    }

    /// The segment's secret.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.common.access.secret = secret;
        self
    }

    /// Admits only these nodes, below 256, should this node become the home: the others' copies are orphans then.
    pub fn nodes(mut self, nodes: &[NodeId]) -> Self {
        self.common.access.nodes = Some(nodes.to_vec());
        self
    }

    /// All of [`mode`](Self::mode), [`secret`](Self::secret) and [`nodes`](Self::nodes).
    pub(crate) fn access(mut self, access: AccessPolicy) -> Self {
        self.common.access = access;
        self
    }

    fn request(&self) -> Result<uapi::Replica> {
        self.common.request(self.home.into(), 0)
    }

    /// Opens the segment as an ordinary import, whose loads and stores go to the home, and makes a copy here once this
    /// node has made `reads` loads from one of its pages (64 KiB), or `writes` stores and atomics to it, as the board's
    /// page access counters tell (SPEC item 22); 0 counts none. See [`Adaptive`](super::Adaptive).
    pub fn when_used(self, reads: u64, writes: u64) -> Result<Adaptive> {
        Adaptive::open(self, reads, writes)
    }

    /// The import of the home's pages, with the rights that this wants.
    pub(super) fn import(&self) -> Result<Remote> {
        let (rights, _) = rights_of_mode(self.common.access.mode())?;
        let node = Node { inner: self.common.inner.clone() };
        ImportBuilder::new(&node, Object::Replicated, self.home, &self.common.name)
            .rights(rights)
            .secret(self.common.access.secret)
            .open()
    }

    /// Asks the driver: a copy, or for a naive segment that exists here already the pages of one more node.
    pub(super) fn ask(&self) -> Result<uapi::Replica> {
        let mut request = self.request()?;
        sys::replicate(self.common.inner.fd(), &mut request).map_err(|errno| Error::Import {
            object: Object::Replicated,
            name: self.common.name.clone(),
            node: self.home.into(),
            status: status(&request, errno),
            errno,
        })?;
        Ok(request)
    }

    /// Makes a copy on this node. Returns when it is filled, and then it misses no store (SPEC E20).
    pub fn open(self) -> Result<Replicated> {
        if self.common.replica_mode == ReplicaMode::Naive {
            return Err(Error::Argument {
                what: "the mode of a segment that is joined",
                value: "ReplicaMode::Naive, which has no home".into(),
                expected: "it to be created here too, and joined to its peers by Replicated::join_peer".into(),
            });
        }
        let answer = self.ask()?;
        let Common { inner, name, .. } = self.common;
        Replicated::map(inner, name, self.home, &answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u16 = Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0;

    fn node() -> Node {
        Node { inner: Arc::new(Inner::without_board()) }
    }

    #[test]
    fn a_new_segment_is_asked_for_as_the_interface_says() {
        let request = Replicated::create(&node(), "board", 100_000)
            .mode(0o604)
            .replica_mode(ReplicaMode::Owner)
            .secret([7; 16])
            .nodes(&[0, 65])
            .request()
            .unwrap();
        assert_eq!(request.name[..6], *b"board\0");
        assert_eq!((request.length, request.secret, request.nodes), (100_000, [7; 16], [1, 2, 0, 0]));
        assert_eq!((u64::from(request.home), request.mode), (uapi::REPLICA_HERE, admin::OWNER));
        assert_eq!((request.rights_owner, request.rights_others), (ALL, Rights::READ.0));
    }

    #[test]
    fn joining_names_the_home_and_the_mode() {
        let request = Replicated::join(&node(), 3, "board").request().unwrap();
        assert_eq!((request.home, request.mode, request.length), (3, admin::COUNTERS, 0));
        assert_eq!((request.rights_owner, request.rights_others, request.nodes), (ALL, 0, [u64::MAX; 4]));
        let request = Replicated::join(&node(), 0, "board").mode(0o400).replica_mode(ReplicaMode::Naive).request();
        let request = request.unwrap();
        assert_eq!((request.home, request.mode, request.rights_owner), (0, admin::NAIVE, Rights::READ.0));
    }

    #[test]
    fn what_can_never_be_right_is_refused_before_the_driver_sees_it() {
        let create = |size| Replicated::create(&node(), "board", size);
        for (bad, value) in [
            (create(0), "is 0: expected 1 byte"),
            (create(8).mode(0o602), "is 0o602: expected digits 0, 4"),
            (create(8).mode(0o200), "is 0o200: expected digits"),
            (create(8).mode(0o700), "is 0o700: expected"),
            (create(8).mode(0o646), "is 0o646: expected"),
            (create(8).nodes(&[1, 256]), "is 256: expected a node id below 256"),
        ] {
            let error = bad.request().unwrap_err().to_string();
            assert!(error.contains(value), "{error}");
        }
        assert!(Replicated::create(&node(), "", 8).request().is_err());
        assert!(Replicated::join(&node(), 1, &"x".repeat(64)).request().is_err());
        assert!(Replicated::join(&node(), 1, "x").mode(0o020).request().is_err());
        let error = Replicated::join(&node(), 1, "x").replica_mode(ReplicaMode::Naive).open().unwrap_err().to_string();
        assert!(error.contains("Replicated::join_peer"), "{error}");
    }

    #[test]
    fn refusals_say_what_to_do() {
        // There is no board behind it.
        let error = Replicated::create(&node(), "board", 8).create().unwrap_err();
        assert!(matches!(error, Error::Replicate { status: None, .. }), "{error:?}");
        assert!(error.to_string().starts_with("replicated segment \"board\" of 8 bytes is not made: "), "{error}");
        let error = Replicated::join(&node(), 2, "board").open().unwrap_err();
        assert!(
            error.to_string().starts_with("replicated segment \"board\" of node 2 cannot be joined")
                || error.to_string().starts_with("replicated segment \"board\" of node 2 cannot be imported"),
            "{error}"
        );
        let refused = |status| Error::Import {
            object: Object::Replicated,
            name: "board".into(),
            node: 2,
            status: Some(status),
            errno: Errno::REMOTEIO,
        };
        for (status, text) in [
            (Status::NotHome, "that node is not its home"),
            (Status::Busy, "has a copy of it already"),
            (Status::NoSegment, "is its owner running?"),
            (Status::NodeDown, "node 2 is not in the cluster"),
        ] {
            let error = refused(status).to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn modes_are_those_of_the_interface() {
        for mode in ReplicaMode::ALL {
            assert_eq!(ReplicaMode::from_u32(mode as u32), Some(mode));
        }
        assert_eq!(ReplicaMode::ALL.len(), admin::MODES.len());
        assert_eq!(ReplicaMode::from_u32(0), None);
    }
}
