// SPDX-License-Identifier: MIT OR Apache-2.0
//! How to create and to join a replicated segment.

use super::mode::{ReplicaMode, rights_of_mode};
use super::segment::Replicated;
use crate::access_policy::{AccessPolicy, access_options, name_bytes};
use crate::context::Context;
use crate::error::{Error, Object, Result, status_of};
use crate::node::Node;
use crate::remote::{ImportBuilder, Remote};
use crate::sys;
use rustix::io::Errno;
use std::sync::Arc;
use telegraphos_wire::{NodeId, Status, uapi};

/// What creating and joining have in common.
#[derive(Clone, Debug)]
struct Common {
    context: Arc<Context>,
    name: String,
    replica_mode: ReplicaMode,
    access: AccessPolicy,
}

impl Common {
    fn new(node: &Node, name: &str) -> Common {
        Common {
            context: node.context.clone(),
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
    /// How stores reach the copies; [`ReplicaMode::Counters`] by default.
    pub fn replica_mode(mut self, mode: ReplicaMode) -> Self {
        self.common.replica_mode = mode;
        self
    }

    access_options! {
        self.common.access;
        /// Access rights, as the mode of a file: `0o600` (the default) admits processes of this user id, on any node;
        /// `0o604` lets others load, `0o606` load, store and use atomics. There are no groups: that digit is 0, or the
        /// same as the last.
        mode;
        /// A secret that joiners must present; zeros mean none.
        secret;
        /// Admits only these nodes, below 256; without it, every node is admitted.
        nodes;
    }

    fn request(&self) -> Result<uapi::Replica> {
        if self.size == 0 || usize::try_from(self.size).is_err() {
            let expected = "1 byte to the window size per node";
            return Err(Error::argument("the size of a replicated segment", self.size, expected));
        }
        self.common.request(uapi::REPLICA_HERE as u32, self.size)
    }

    /// Allocates this node's copy, zeroed, and publishes it under its name, with this node as the home. Fails with
    /// [`Error::Replicate`].
    pub fn create(self) -> Result<Replicated> {
        let mut request = self.request()?;
        let Common { context, name, .. } = self.common;
        sys::replicate(context.device.fd(), &mut request).map_err(|errno| Error::Replicate {
            name: name.clone(),
            size: self.size,
            status: status(&request, errno),
            errno,
        })?;
        let home = context.id;
        Replicated::map(context, &name, home, &request)
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
    /// The mode of the segment, which is not naive; [`ReplicaMode::Counters`] by default.
    pub fn replica_mode(mut self, mode: ReplicaMode) -> Self {
        self.common.replica_mode = mode;
        self
    }

    access_options! {
        self.common.access;
        /// The rights that this process requests, by the first digit, all of which the home must grant: 4 to load, 6
        /// (the default) to load, store and use atomics. The whole mode, as in [`ReplicatedBuilder::mode`], applies to
        /// nodes that join here should this node become the home ([`Replicated::take_home`], [`Replicated::adopt`]);
        /// `0o600` by default.
        mode;
        /// The segment's secret.
        secret;
        /// Admits only these nodes, below 256, should this node become the home: the other nodes' copies are orphans
        /// then.
        nodes;
    }

    fn request(&self) -> Result<uapi::Replica> {
        self.common.request(self.home.into(), 0)
    }

    /// An ordinary import of the home's pages, with the rights that this join requests.
    pub(super) fn import(&self) -> Result<Remote> {
        let (rights, _) = rights_of_mode(self.common.access.mode())?;
        ImportBuilder::new(&self.common.context, Object::Replicated, self.home, &self.common.name)
            .rights(rights)
            .secret(self.common.access.secret)
            .open()
    }

    /// Requests a copy from the driver, or for a naive segment that exists here already the stores of one more node.
    fn replicate(&self) -> Result<uapi::Replica> {
        let mut request = self.request()?;
        sys::replicate(self.common.context.device.fd(), &mut request).map_err(|errno| Error::Import {
            object: Object::Replicated,
            name: self.common.name.clone(),
            node: self.home.into(),
            status: status(&request, errno),
            errno,
        })?;
        Ok(request)
    }

    /// Makes a copy on this node. Returns when it is filled; from then on it misses no store (SPEC E20). Fails with
    /// [`Error::Import`].
    pub fn open(self) -> Result<Replicated> {
        if self.common.replica_mode == ReplicaMode::Naive {
            return Err(Error::argument(
                "the mode of a segment that is joined",
                "ReplicaMode::Naive, which has no home",
                "it to be created here too, and joined to its peers by Replicated::join_peer",
            ));
        }
        let answer = self.replicate()?;
        let Common { context, name, .. } = self.common;
        Replicated::map(context, &name, self.home, &answer)
    }
}

impl Replicated {
    /// A new segment of `size` bytes under `name`, with this node as its home.
    ///
    /// A [naive](ReplicaMode::Naive) one has no home: it is created on every node, and each then
    /// [joins](Replicated::join_peer) each other.
    #[allow(clippy::new_ret_no_self, reason = "as Node::export and Node::import, it returns a builder")]
    pub fn create(node: &Node, name: &str, size: u64) -> ReplicatedBuilder {
        ReplicatedBuilder { common: Common::new(node, name), size }
    }

    /// A copy on this node of the segment `name` whose home is node `home`, another than this. A node has one
    /// copy of it, which belongs to one process and is shared by its threads.
    pub fn join(node: &Node, home: NodeId, name: &str) -> JoinBuilder {
        JoinBuilder { common: Common::new(node, name), home }
    }

    /// Makes a [naive](ReplicaMode::Naive) segment take the stores of node `peer` too, which has created it under the
    /// same name, with the same size, mode and secret. The content there replaces the content here, so this is done
    /// before the first store.
    ///
    /// Nodes that are to see each other's stores join each other.
    pub fn join_peer(&self, peer: NodeId) -> Result<()> {
        if self.replica_mode != ReplicaMode::Naive {
            return Err(Error::argument(
                "the mode of a segment that joins a peer",
                format!("{:?}", self.replica_mode),
                "ReplicaMode::Naive: others are joined at their home",
            ));
        }
        let node = Node { context: self.handle.context.clone() };
        let join = Replicated::join(&node, peer, self.name()).secret(self.secret).replica_mode(ReplicaMode::Naive);
        let answer = join.replicate()?;
        if answer.handle != self.handle() {
            let what = format!("joining node {peer} to {}: the driver joined it to another", self.handle.label);
            return Err(Error::Os { what, errno: Errno::PROTO });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_wire::{Rights, admin};

    const ALL: u16 = Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0;

    fn node() -> Node {
        Node { context: Arc::new(Context::without_board()) }
    }

    #[test]
    fn a_new_segment_is_requested_as_the_interface_says() {
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
    fn invalid_arguments_are_refused_before_the_driver_sees_them() {
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
        // The device is not a board.
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
    fn only_naive_segments_join_peers() {
        let replicated = Replicated::without_board(&node().context, Rights(ALL));
        let error = replicated.join_peer(1).unwrap_err().to_string();
        assert!(error.contains("is Counters: expected ReplicaMode::Naive"), "{error}");
    }
}
