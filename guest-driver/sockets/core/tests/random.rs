// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both ends of a framed direction in random order, over a connection that takes and gives any part, against the bytes
//! that were written (SPEC item 36).

use std::collections::VecDeque;
use telegraphos_sockets_core::{
    Bug, Failure, Frame, Incoming, Outgoing, Piece, Reading, Record, Room, SMALLEST, Violation, Writing, peek, read,
    write,
};
use telegraphos_testkit::{Rng, finds, over_seeds};

/// The kernel's connection is full, or empty.
#[derive(Debug, PartialEq, Eq)]
struct WouldBlock;

/// What both ends share: the connection and the ring.
struct World {
    random: Rng,
    connection: VecDeque<u8>,
    /// Most bytes in it.
    capacity: usize,
    ended: bool,
    ring: Vec<u8>,
    ring_is_gone: bool,
    /// What a copy writes there that was not answered.
    late: Vec<(usize, Vec<u8>)>,
    /// What the receiver has said, oldest first; the sender sees them late.
    heads: VecDeque<u64>,
    seen: u64,
}

impl World {
    fn new(random: Rng, capacity: usize, ring: Vec<u8>, connection: VecDeque<u8>) -> World {
        let (late, heads) = (Vec::new(), VecDeque::new());
        World { random, connection, capacity, ended: false, ring, ring_is_gone: false, late, heads, seen: 0 }
    }
}

/// What the program writes: its bytes are numbered.
struct Writer<'a> {
    world: &'a mut World,
    data: &'a [u8],
}

impl Writing for Writer<'_> {
    type Error = WouldBlock;

    fn send(&mut self, pieces: &[Piece], offset: u64) -> Result<u64, WouldBlock> {
        let mut bytes = Vec::new();
        let mut at = offset as usize;
        for piece in pieces {
            bytes.extend(piece.code);
            bytes.extend(&self.data[at..at + piece.length as usize]);
            at += piece.length as usize;
        }
        let room = self.world.capacity - self.world.connection.len();
        // The kernel takes any part.
        let taken = bytes.len().min(1 + self.world.random.below(room.max(1)));
        if room == 0 {
            return Err(WouldBlock);
        }
        self.world.connection.extend(&bytes[..taken]);
        Ok(taken as u64)
    }

    fn announce(&mut self, code: u8) -> Result<(), WouldBlock> {
        if self.world.connection.len() == self.world.capacity {
            return Err(WouldBlock);
        }
        self.world.connection.push_back(code);
        Ok(())
    }

    fn head(&mut self) -> u64 {
        for _ in 0..self.world.random.below(3) {
            self.world.seen = self.world.heads.pop_front().unwrap_or(self.world.seen);
        }
        self.world.seen
    }

    fn most(&self) -> u64 {
        SMALLEST / 2
    }

    fn record(&mut self, room: Room, offset: u64, length: u64) -> Record {
        if self.world.random.percent(3) {
            return Record::Busy;
        }
        let (at, data) = (room.offset as usize, &self.data[offset as usize..(offset + length) as usize]);
        let mut record = length.to_le_bytes().to_vec();
        record.extend(data);
        if self.world.ring_is_gone {
            // Not answered: some of it comes at any time.
            let late = self.world.random.below(record.len());
            self.world.late.push((at + late, record.split_off(late)));
            return Record::Gone;
        }
        self.world.ring[at..at + record.len()].copy_from_slice(&record);
        Record::Written
    }

    fn wait_for_room(&mut self) -> bool {
        self.world.random.percent(20)
    }
}

impl Reading for World {
    type Error = WouldBlock;

    fn peek(&mut self, code: &mut u8, bytes: &mut [u8]) -> Result<usize, WouldBlock> {
        let mut all = self.connection.iter();
        match all.next() {
            Some(first) => *code = *first,
            None => return if self.ended { Ok(0) } else { Err(WouldBlock) },
        }
        let mut count = 1;
        for (to, from) in bytes.iter_mut().zip(all) {
            *to = *from;
            count += 1;
        }
        Ok(count)
    }

    fn consume(&mut self, bytes: usize) -> Result<(), WouldBlock> {
        // Of bytes that have been peeked at, unless the state is one that no end has.
        if bytes > self.connection.len() {
            return Err(WouldBlock);
        }
        self.connection.drain(..bytes);
        Ok(())
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, WouldBlock> {
        let count = bytes.len().min(self.connection.len());
        if count == 0 && !self.ended {
            return Err(WouldBlock);
        }
        for (to, from) in bytes.iter_mut().zip(self.connection.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn ring(&mut self, offset: u64, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.ring[offset as usize..offset as usize + bytes.len()]);
    }

    fn returned(&mut self, head: u64) {
        self.heads.push_back(head);
    }
}

fn run(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut random = Rng::new(seed);
    let size = SMALLEST + 64 * random.below(400_u64);
    let most = if random.percent(50) { 2000 } else { 100_000_usize };
    let mut data = vec![0; 1 + random.below(most)];
    data.iter_mut().for_each(|byte| *byte = random.below(256_u32) as u8);
    let capacity = if random.percent(50) { 1 + random.below(40_usize) } else { 1000 + random.below(50_000_usize) };
    let least = if random.percent(50) { 1 } else { 1 + random.below(SMALLEST / 2) };
    let (mut outgoing, mut incoming) = (Outgoing::new(size).unwrap().with(bug), Incoming::new(size).unwrap().with(bug));
    let ring_goes = random.percent(10).then(|| random.below(data.len()));
    let mut world = World::new(random, capacity, vec![0; size as usize], VecDeque::new());
    let (mut written, mut got) = (0, Vec::<u8>::new());
    let wrong = |what: String| Err(format!("rules: {what}"));
    for _ in 0..2_000_000 {
        if world.random.percent(10) {
            for (at, bytes) in std::mem::take(&mut world.late) {
                world.ring[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        world.ring_is_gone |= ring_goes.is_some_and(|at| written >= at);
        if written < data.len() && world.random.percent(50) {
            let length = 1 + world.random.below(data.len() - written);
            let length = if world.random.percent(50) { length } else { length.min(300) };
            // What is offered again may be another length: nothing but what was taken is promised.
            let mut writer = Writer { world: &mut world, data: &data[written..written + length] };
            match write(&mut outgoing, &mut writer, length as u64, least) {
                Ok(bytes) => written += bytes as usize,
                Err(Failure::Connection(WouldBlock)) => {}
                Err(Failure::Violation(violation)) => return wrong(violation.to_string()),
            }
        }
        world.ended |= written == data.len() && world.random.percent(30);
        let most = if world.random.percent(50) { 64 } else { 30_000_usize };
        let mut buffer = vec![0; 1 + world.random.below(most)];
        let readable = world.connection.len() > 1;
        if world.random.percent(20) {
            let bytes: Vec<u8> = world.connection.iter().copied().collect();
            let ring = world.ring.clone();
            let copy = |offset: u64, to: &mut [u8]| {
                to.copy_from_slice(&ring[offset as usize..offset as usize + to.len()]);
            };
            let seen = peek(&incoming, &bytes, copy, &mut buffer).map_err(|v| format!("rules: {v}"))?;
            if data.get(got.len()..got.len() + seen) != Some(&buffer[..seen]) {
                return Err(format!("exact: peeked wrong bytes behind {}", got.len()));
            }
        }
        match read(&mut incoming, &mut world, &mut buffer) {
            Ok(found) => {
                let full = found.bytes == buffer.len();
                let read = &buffer[..found.bytes];
                if data.get(got.len()..got.len() + read.len()) != Some(read) {
                    return Err(format!("exact: wrong {} bytes behind {} of {}", read.len(), got.len(), data.len()));
                }
                got.extend(read);
                // A short read is a sign that nothing is left.
                if !full && !world.connection.is_empty() {
                    return Err(format!("readable: {} bytes left by a short read", world.connection.len()));
                }
                if found.bytes == 0 {
                    return if got == data { Ok(()) } else { Err(format!("exact: end after {}", got.len())) };
                }
            }
            Err(Failure::Connection(WouldBlock)) if readable => return Err("readable: nothing to read".into()),
            Err(Failure::Connection(WouldBlock)) if incoming.left() > 0 => {
                return Err("readable: a record is hidden".into());
            }
            Err(Failure::Connection(WouldBlock)) => {}
            Err(Failure::Violation(violation)) => return wrong(violation.to_string()),
        }
        if world.connection.is_empty() && incoming.left() > 0 {
            return Err("readable: some of a record is left, and the connection is empty".into());
        }
    }
    Err(format!("end: {written} of {} written, {} read", data.len(), got.len()))
}

#[test]
fn s3_what_is_written_is_read() {
    over_seeds(3000, 300_000, |seed| run(seed, None));
}

#[test]
fn each_bug_is_found() {
    finds(Bug::ForgetOwed, "exact", 0..50, |seed| run(seed, Some(Bug::ForgetOwed)));
    finds(Bug::IgnoreHead, "exact", 0..200, |seed| run(seed, Some(Bug::IgnoreHead)));
    finds(Bug::ReturnEarly, "exact", 0..200, |seed| run(seed, Some(Bug::ReturnEarly)));
    finds(Bug::ReadOn, "rules", 0..50, |seed| run(seed, Some(Bug::ReadOn)));
    finds(Bug::ConsumeEarly, "readable", 0..50, |seed| run(seed, Some(Bug::ConsumeEarly)));
    finds(Bug::MissFrame, "exact", 0..50, |seed| run(seed, Some(Bug::MissFrame)));
}

#[test]
fn a_stream_without_rules_is_refused_and_reads_nothing_outside() {
    let mut refused = 0;
    over_seeds(20_000, 1_000_000, |seed| {
        let mut random = Rng::new(seed);
        let size = SMALLEST;
        let mut incoming = Incoming::new(size).unwrap();
        let mut ring = vec![0; size as usize];
        ring.iter_mut().for_each(|byte| *byte = if random.percent(90) { 0 } else { random.below(256_u32) as u8 });
        let codes = if random.percent(50) { 3 } else { 256_u32 };
        let connection = (0..random.below(3000)).map(|_| random.below(codes) as u8).collect();
        let mut world = World { ended: true, ..World::new(random, 3000, ring, connection) };
        // `World::ring` panics outside of the ring.
        for _ in 0..10_000 {
            match read(&mut incoming, &mut world, &mut [0; 700]) {
                Ok(found) if found.bytes == 0 || found.raw => return Ok::<_, String>(()),
                Ok(_) => {}
                Err(failure) => {
                    refused += u64::from(failure.violation().is_some());
                    return Ok(());
                }
            }
        }
        Err("no end".into())
    });
    assert!(refused > 0);
}

/// Words that processes share, where a hostile one writes what it likes: whatever is taken for a state, an end with it
/// neither panics nor reads or writes outside of a ring.
#[test]
fn any_words_are_no_state_or_one_that_stays_inside_the_ring() {
    let mut taken = [0; 2];
    over_seeds(5000, 500_000, |seed| {
        let mut random = Rng::new(seed);
        let size = SMALLEST + 64 * random.below(400_u64);
        let word = |random: &mut Rng| match random.below(7_u32) {
            0 => 0,
            1 => 1 << random.below(64_u32),
            2 => u64::MAX - random.below(100_u64),
            3 => size,
            4 => size * random.below(1000_u64) + 64 * random.below(100_u64),
            5 => random.below(2 * size),
            _ => random.below(u64::MAX),
        };
        let words: [u64; 5] = std::array::from_fn(|_| word(&mut random));
        let ring = random.below(1_u64 << 20).to_le_bytes().into_iter().cycle().take(size as usize).collect();
        let connection = (0..random.below(300_u32)).map(|_| random.below(150_u32) as u8).collect();
        let seen = word(&mut random);
        let mut world = World { ended: true, seen, ..World::new(random, 3000, ring, connection) };
        // The shell compares its size with that of the memory.
        if let Some(mut outgoing) = Outgoing::of([words[0], words[1], words[4]]).filter(|o| o.size() <= size) {
            assert_eq!(outgoing.words(), [words[0], words[1], words[4]]);
            let mut writer = Writer { world: &mut world, data: &[7; 5000] };
            let _ = write(&mut outgoing, &mut writer, 5000, 100);
            taken[0] += 1;
        }
        if let Some(mut incoming) = Incoming::of(words).filter(|i| i.size() <= size) {
            assert_eq!(incoming.words(), words);
            let (bytes, ring) = (world.connection.make_contiguous().to_vec(), world.ring.clone());
            let copy = |offset: u64, to: &mut [u8]| to.copy_from_slice(&ring[offset as usize..][..to.len()]);
            let _ = peek(&incoming, &bytes, copy, &mut [0; 700]);
            for _ in 0..100 {
                match read(&mut incoming, &mut world, &mut [0; 700]) {
                    Ok(found) if found.bytes > 0 && !found.raw => {}
                    _ => break,
                }
            }
            taken[1] += 1;
        }
        Ok::<_, String>(())
    });
    assert!(taken.iter().all(|taken| *taken > 50), "{taken:?} states of 5000");
}

#[test]
fn a_head_that_lies_is_a_violation() {
    let mut outgoing = Outgoing::new(SMALLEST).unwrap();
    let room = outgoing.room(0, 1).unwrap().unwrap();
    outgoing.recorded(room, 100);
    assert!(matches!(outgoing.room(109, 1), Err(Violation::Head { head: 109, tail: 108, .. })));
    assert!(outgoing.room(108, 1).unwrap().is_some());
}

#[test]
fn raw_again_after_its_code() {
    let connection = [Frame::Bytes(2).code(), b'a', b'b', Frame::Raw.code(), b'c'].into();
    let mut world = World { ring_is_gone: true, ..World::new(Rng::new(1), 9, Vec::new(), connection) };
    let mut buffer = [0; 9];
    let found = read(&mut Incoming::default(), &mut world, &mut buffer).unwrap();
    assert_eq!((found.bytes, found.raw, &buffer[..2], world.connection), (2, true, &b"ab"[..], [b'c'].into()));
}
