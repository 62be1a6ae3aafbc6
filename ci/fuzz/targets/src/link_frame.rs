// SPDX-License-Identifier: MIT OR Apache-2.0

use telegraphos_wire::link::{Frame, MAX_LEN};

/// A stream of frames. A frame is no longer than what is there, it is encoded to something that decodes to the same
/// frame, and without its last byte it is none yet.
pub fn link_frame(data: &[u8]) {
    let mut rest = data;
    while let Ok(Some((frame, used))) = Frame::decode(rest) {
        assert!((1..=rest.len().min(MAX_LEN)).contains(&used), "{used} bytes of {}", rest.len());
        assert_eq!(Frame::decode(&rest[..used - 1]), Ok(None), "{frame:?} without its last byte");
        let mut bytes = Vec::new();
        let length = frame.encode(&mut bytes);
        assert_eq!(Frame::decode(&bytes), Ok(Some((frame, length))));
        rest = &rest[used..];
    }
}
