// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where accesses may lie.

use crate::access::Word;
use crate::error::{Error, Result};

/// Checks that `count` words from byte `offset` are aligned and lie within `size` bytes; `what` names the object in
/// errors.
#[inline(always)]
pub(crate) fn check<T: Word>(offset: u64, count: u64, size: u64, what: impl Fn() -> String) -> Result<()> {
    let length = count.checked_mul(T::SIZE as u64);
    let inside = length.and_then(|l| offset.checked_add(l)).is_some_and(|end| end <= size);
    if !inside {
        return Err(Error::Bounds { what: what(), offset, length: length.unwrap_or(u64::MAX), size });
    }
    if offset % T::SIZE as u64 != 0 {
        return Err(Error::Misaligned { what: what(), offset, width: T::SIZE });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_checked() {
        let what = || "it".to_owned();
        assert!(check::<u64>(0, 1, 8, what).is_ok());
        assert!(check::<u8>(7, 1, 8, what).is_ok());
        assert!(check::<u64>(8, 0, 8, what).is_ok());
        assert!(matches!(check::<u64>(1, 1, 16, what), Err(Error::Misaligned { width: 8, .. })));
        assert!(matches!(check::<u16>(8, 1, 8, what), Err(Error::Bounds { .. })));
        assert!(matches!(check::<u32>(6, 1, 8, what), Err(Error::Bounds { .. })));
        assert!(matches!(check::<u64>(u64::MAX - 7, 1, 8, what), Err(Error::Bounds { .. })));
        assert!(matches!(check::<u64>(0, u64::MAX, 8, what), Err(Error::Bounds { .. })));
    }
}
