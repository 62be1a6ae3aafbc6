// SPDX-License-Identifier: MIT OR Apache-2.0
//! Examples in which a node waits for a word that another one stores.

use super::common::{Failure, PATIENCE};
use std::time::Instant;
use telegraphos::Segment;

/// Waits until a word of this node's memory is at least so large.
pub(crate) fn wait_for(segment: &Segment, offset: u64, value: u64) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    while segment.load::<u64>(offset)? < value {
        if Instant::now() > deadline {
            let text = format!("the other node has not stored {value} at {offset:#x} after {PATIENCE:?}");
            return Err(Failure::Wrong(text));
        }
        std::thread::yield_now();
    }
    Ok(())
}
