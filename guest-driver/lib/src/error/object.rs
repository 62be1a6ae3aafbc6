// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kinds of objects, as errors name them.

use std::fmt;
use telegraphos_wire::NodeId;

/// The kind of an imported object.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Error, Object, Queue};
///
/// if let Err(Error::Import { object, node, name, .. }) = Queue::import(&node, 3, "work").open() {
///     assert_eq!((object, node, name.as_str()), (Object::Queue, 3, "work"));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Object {
    /// A segment.
    Segment,
    /// A notification queue.
    Queue,
    /// A replicated segment.
    Replicated,
}

impl Object {
    /// The name of such an object in messages.
    pub(crate) fn of(self, name: &str, node: NodeId) -> String {
        format!("{self} {name:?} of node {node}")
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Object::Segment => "segment",
            Object::Queue => "queue",
            Object::Replicated => "replicated segment",
        })
    }
}
