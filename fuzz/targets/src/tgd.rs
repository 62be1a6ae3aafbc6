// SPDX-License-Identifier: MIT OR Apache-2.0

use telegraphos_daemon_core::protocol::{Answer, Checked, Envelope, Request, decode, encode, unframe};

/// The stream of a client of `tgd`, and the same bytes as a letter of another daemon, and as an answer. What is
/// decoded is within the limits of what may be encoded, and comes back as it was.
pub fn tgd(data: &[u8]) {
    let mut stream = data.to_vec();
    let mut left = stream.len();
    while let Ok(Some((ticket, request))) = unframe::<(u32, Request)>(&mut stream) {
        comes_back(&(ticket, request));
        assert!(stream.len() < left, "a message that takes no bytes");
        left = stream.len();
    }
    if let Ok(envelope) = decode::<Envelope>(data) {
        comes_back(&envelope);
    }
    if let Ok(answer) = decode::<(u32, Answer)>(data) {
        comes_back(&answer);
    }
}

fn comes_back<T: Checked + PartialEq + std::fmt::Debug>(message: &T) {
    // Its shortest encoding is no longer than the one that it came in.
    let back = encode(message).and_then(|bytes| decode::<T>(&bytes));
    assert_eq!(back.as_ref(), Ok(message), "comes back otherwise");
}
