// SPDX-License-Identifier: MIT OR Apache-2.0
//! A number by which two processes see whether they were given the same topology.

/// FNV-1a, 64 bits: the same on every host and in every version. It finds mistakes, not forgeries.
pub(crate) struct Digest(u64);

impl Digest {
    /// The digest of no bytes.
    pub(crate) fn new() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes, without their count.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Numbers with their count before them, so that no two different sequences of calls hash the same bytes.
    pub(crate) fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = u16>) {
        self.bytes(&(numbers.len() as u64).to_le_bytes());
        for number in numbers {
            self.bytes(&number.to_le_bytes());
        }
    }

    /// Adds a text with its length.
    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u64).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    /// The digest of all bytes so far.
    pub(crate) fn value(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a() {
        // Test vectors of the algorithm's authors.
        for (text, value) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            let mut digest = Digest::new();
            digest.bytes(text.as_bytes());
            assert_eq!(digest.value(), value, "{text}");
        }
    }
}
