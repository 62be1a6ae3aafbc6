// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of segments, which wrap.

/// The number of a segment. Two numbers can be compared while fewer than 2^31 segments lie between them; a window is at
/// most [`Config::MAX_WINDOW`](crate::Config::MAX_WINDOW).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// The number `count` segments later.
    pub fn plus(self, count: u32) -> Sequence {
        Sequence(self.0.wrapping_add(count))
    }

    /// How many segments this is after `other`; negative if before.
    pub fn since(self, other: Sequence) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Sequence(u32::MAX);
        assert_eq!(last.plus(1), Sequence(0));
        assert_eq!(last.plus(3).since(last), 3);
        assert_eq!(last.since(last.plus(3)), -3);
    }
}
