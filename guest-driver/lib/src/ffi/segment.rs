// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exported memory.

use super::{get_or, give, given, given_slice, guard, name_of, take};
use crate::access_policy::AccessPolicy;
use crate::{Error, Node, NodeId, Remote, Result, Secret, Segment};
use std::ffi::{c_char, c_int, c_void};

c_record! { EXPORT_OPTIONS, "tg_export_options",
    /// How to export. All zeros, or NULL, means: for processes of the same user id, no secret, every node.
    pub struct ExportOptions {
        /// Access rights, as the mode of a file, e.g. 0604; 0 means 0600.
        pub mode: u32,
        /// Number of admitted nodes listed; 0 admits every node.
        pub node_count: u32,
        /// The admitted nodes.
        pub nodes: *const u16,
        /// The secret that an importer must present; zeros mean none.
        pub secret: [u8; 16],
        /// The name of the trust group whose nodes access it directly, at the speed of memory; NULL for none. EXDEV
        /// unless this node is in it.
        pub group: *const c_char,
    }
}

/// The access policy in fields of options: 0 and zeros are the defaults.
///
/// # Safety
/// As the module says.
pub(super) unsafe fn access(mode: u32, secret: Secret, nodes: *const NodeId, node_count: u32) -> Result<AccessPolicy> {
    // SAFETY: the caller's promise.
    let nodes = unsafe { given_slice(nodes, node_count as usize, "the list of nodes")? };
    let nodes = (node_count != 0).then(|| nodes.to_vec());
    Ok(AccessPolicy { mode: (mode != 0).then_some(mode), secret, nodes })
}

/// The access policy in options that may be NULL.
///
/// # Safety
/// As the module says.
pub(super) unsafe fn access_of(options: *const ExportOptions) -> Result<AccessPolicy> {
    // SAFETY: the caller's promise.
    match unsafe { options.as_ref() } {
        // SAFETY: the caller's promise.
        Some(options) => unsafe { access(options.mode, options.secret, options.nodes, options.node_count) },
        None => Ok(AccessPolicy::default()),
    }
}

c_functions! { EXPORTS;
    /// Exports size bytes of new, zeroed memory under a name.
    fn tg_export(
        node: *const Node, name: *const c_char, size: u64, options: *const ExportOptions, segment: *mut *mut Segment
    ) -> c_int = give(segment, || {
        let mut builder = given(node)?.export(name_of(name)?, size);
        if let Some(group) = options.as_ref().map(|options| options.group).filter(|group| !group.is_null()) {
            builder = builder.direct(name_of(group)?);
        }
        builder.access(access_of(options)?).create()
    });

    /// Withdraws an export; returns when no other node can reach it.
    fn tg_unexport(segment: *mut Segment) -> c_int = take(segment, Segment::close);

    /// Where the memory of an export lies. Other nodes change it at any time: use atomic loads
    /// and stores.
    fn tg_segment_memory(segment: *const Segment) -> *mut c_void =
        get_or(segment, std::ptr::null_mut(), |s| s.as_ptr().cast());

    /// Bytes of an export.
    fn tg_segment_size(segment: *const Segment) -> u64 = get_or(segment, 0, Segment::size);
}

c_functions! { REMOTE;
    /// An export as an import of its own node, for copies and for the owner's atomics; NULL on failure. It belongs to
    /// the export: do not close it.
    fn tg_segment_remote(segment: *const Segment) -> *const Remote = {
        let mut found = std::ptr::null();
        guard(|| {
            found = std::ptr::from_ref(given(segment)?.remote()?);
            Ok::<_, Error>(())
        });
        found
    };
}
