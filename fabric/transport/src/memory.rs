// SPDX-License-Identifier: MIT OR Apache-2.0
//! The link of a HIB in the same process. Its user hands over frames ([`Transport::memory`]); where something must lie
//! between, such as faults, they pass as bytes, which must be those of frames.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use telegraphos_link::{BATCH, Input, MemoryLink};
use telegraphos_wire::link::Frame;

use crate::{Received, Transport, TransportStatistics};

/// See the module.
#[derive(Debug)]
pub struct MemoryTransport {
    link: MemoryLink,
    /// Frames that have arrived and are not encoded yet.
    arrived: VecDeque<Frame>,
    /// Their bytes.
    encoded: Vec<u8>,
    /// Bytes of `encoded` that were received.
    taken: usize,
    /// Bytes that were sent and are no whole frame yet.
    sent: Option<Input>,
    counted: TransportStatistics,
}

impl MemoryTransport {
    /// Over this end of a link.
    pub fn new(link: MemoryLink) -> MemoryTransport {
        let arrived = VecDeque::new();
        MemoryTransport {
            link,
            arrived,
            encoded: Vec::new(),
            taken: 0,
            sent: None,
            counted: TransportStatistics::default(),
        }
    }
}

impl Transport for MemoryTransport {
    /// Readable only after [`MemoryLink::ring`].
    fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    fn memory(&self) -> Option<&MemoryLink> {
        Some(&self.link)
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        if self.taken == self.encoded.len() {
            self.encoded.clear();
            self.taken = 0;
            let closed = self.arrived.is_empty() && self.link.receive(&mut self.arrived).closed;
            while self.encoded.len() < BATCH {
                let Some(frame) = self.arrived.pop_front() else { break };
                frame.encode(&mut self.encoded);
            }
            if self.encoded.is_empty() {
                return Ok(if closed { Received::End } else { Received::Nothing });
            }
        }
        let rest = &self.encoded[self.taken..];
        let bytes = rest.len().min(buffer.len());
        buffer[..bytes].copy_from_slice(&rest[..bytes]);
        self.taken += bytes;
        self.counted.received_bytes += bytes as u64;
        if self.taken < self.encoded.len() || !self.arrived.is_empty() || self.link.has_ended() {
            self.link.remind();
        }
        Ok(Received::Bytes(bytes))
    }

    fn send(&mut self, _now: u64, mut bytes: &[u8]) -> io::Result<usize> {
        let invalid = |e: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, e.to_string());
        let whole = bytes.len();
        let input = self.sent.get_or_insert_with(Input::new);
        while !bytes.is_empty() {
            let space = input.space();
            let fits = space.len().min(bytes.len());
            space[..fits].copy_from_slice(&bytes[..fits]);
            input.filled(fits);
            bytes = &bytes[fits..];
            while let Some(frame) = input.frame().map_err(|e| invalid(&e))? {
                self.link.send(frame).map_err(|e| invalid(&e))?;
            }
        }
        self.counted.sent_bytes += whole as u64;
        Ok(whole)
    }

    fn flush(&mut self, _now: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use telegraphos_wire::STREAM_BLOCK;

    use super::*;

    fn frames(count: u16) -> Vec<Frame> {
        (0..count)
            .map(|node| Frame::NodeUp { node, incarnation: u64::from(node) << 12, block: STREAM_BLOCK as u32 })
            .collect()
    }

    #[test]
    fn frames_pass_as_bytes_in_any_pieces() {
        let (near, far) = MemoryLink::pair().unwrap();
        let mut near = MemoryTransport::new(near);
        let mut bytes = Vec::new();
        for frame in &frames(40) {
            frame.encode(&mut bytes);
            far.send(frame.clone()).unwrap();
        }
        let (mut got, mut piece) = (Vec::new(), [0; 13]);
        while let Received::Bytes(n) = near.receive(0, &mut piece).unwrap() {
            got.extend_from_slice(&piece[..n]);
        }
        assert_eq!(got, bytes);
        for piece in bytes.chunks(7) {
            assert_eq!(near.send(0, piece).unwrap(), piece.len());
        }
        let mut arrived = VecDeque::new();
        far.receive(&mut arrived);
        assert_eq!(arrived, frames(40));
        assert_eq!(near.receive(0, &mut piece).unwrap(), Received::Nothing);
        drop(far);
        assert_eq!(near.receive(0, &mut piece).unwrap(), Received::End);
    }

    #[test]
    fn what_is_no_frame_ends_the_connection() {
        let (near, _far) = MemoryLink::pair().unwrap();
        assert!(MemoryTransport::new(near).send(0, &[0xff; 64]).is_err());
    }

    #[test]
    fn more_than_a_batch_arrives_whole() {
        let (near, far) = MemoryLink::pair().unwrap();
        let mut near = MemoryTransport::new(near);
        let count = 10_000;
        frames(count).into_iter().for_each(|frame| far.send(frame).unwrap());
        drop(far);
        let (mut input, mut got) = (Input::new(), 0);
        loop {
            match near.receive(0, input.space()).unwrap() {
                Received::Bytes(n) => input.filled(n),
                Received::Nothing => {}
                Received::End => break,
            }
            while input.frame().unwrap().is_some() {
                got += 1;
            }
        }
        assert_eq!(got, count);
    }
}
