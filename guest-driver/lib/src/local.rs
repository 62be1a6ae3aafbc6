// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of this node, as the near end of a copy.

mod sealed {
    use crate::error::Result;
    use crate::remote::Remote;
    use std::sync::Arc;

    /// Memory of this node.
    pub trait Local {
        /// It as an import of this node.
        fn local(&self) -> Result<&Remote>;
    }
    impl<T: Local> Local for Arc<T> {
        fn local(&self) -> Result<&Remote> {
            (**self).local()
        }
    }
    impl<T: Local> Local for Box<T> {
        fn local(&self) -> Result<&Remote> {
            (**self).local()
        }
    }
}

pub(crate) use sealed::Local as AsImport;

/// Memory of this node, as the near end of a copy: a [`Segment`](crate::Segment) or a
/// [`Registration`](crate::Registration).
pub trait Local: sealed::Local {}
impl<T: sealed::Local> Local for T {}
