// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest memory that is lent within this process, to other boards or to the board itself: a block of a copy then moves
//! from mapping to mapping, and not through a packet.
//!
//! Of a put the source is lent, and read by the receiver; of a get the target, and filled by the owner of the source
//! when it performs the request.
//!
//! A loan ends when its last clone is dropped. Before that the lender can take it back, which it does before the memory
//! is unmapped, revoked, or no longer the guest's that lent it ([`Loans::recall`]): bytes that were not copied yet are
//! copied out, and the receiver finds those. So no board waits for a receiver, and no block is lost. Lender and
//! receiver may be served by different threads: one that takes a loan back waits for the copy in progress.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use telegraphos_device_core::{Data, Loan};
use telegraphos_wire::Block;

use super::mapping::Mapping;

/// Bytes of one board that are lent at a time, at most; what exceeds them is copied into packets. Taking them back
/// takes less than a turn of the loop.
const MOST: u64 = 1 << 20;
/// A shorter block is sooner copied than lent.
const LEAST: u32 = 1 << 12;

/// A part of a block that is adjacent in guest memory. `M` refers to its mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<M> {
    pub(super) mapping: M,
    /// Offset in the mapping.
    pub(super) at: u64,
    pub(super) address: u64,
    pub(super) length: u32,
}

impl<M: AsRef<Mapping>> Part<M> {
    fn map(&self) -> &Mapping {
        self.mapping.as_ref()
    }
}

/// The parts of a loan: mostly one, which needs no memory of its own.
#[derive(Debug)]
enum Few<T> {
    One([T; 1]),
    Many(Box<[T]>),
}

impl<T> Few<T> {
    fn of<'a, M>(parts: &'a [Part<M>], mut each: impl FnMut(&'a Part<M>) -> T) -> Few<T> {
        match parts {
            [part] => Few::One([each(part)]),
            parts => Few::Many(parts.iter().map(each).collect()),
        }
    }
}

impl<T> std::ops::Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Few::One(one) => one,
            Few::Many(many) => many,
        }
    }
}

fn total<M>(parts: &[Part<M>]) -> u64 {
    parts.iter().map(|part| u64::from(part.length)).sum()
}

/// Copies the bytes of parts to as many bytes of others.
fn copy<A: AsRef<Mapping>, B: AsRef<Mapping>>(from: &[Part<A>], to: &[Part<B>]) -> Option<()> {
    let (mut sources, mut done) = (from.iter(), 0);
    let mut source = sources.next()?;
    for target in to {
        let mut stored = 0;
        while stored < target.length {
            if done == source.length {
                (source, done) = (sources.next()?, 0);
            }
            let count = (source.length - done).min(target.length - stored);
            let (at, place) = (source.at + u64::from(done), target.at + u64::from(stored));
            source.map().copy(at, count, target.map(), place)?;
            (done, stored) = (done + count, stored + count);
        }
    }
    Some(())
}

/// Stores bytes to as many bytes of parts.
fn store_bytes<M: AsRef<Mapping>>(bytes: &[u8], to: &[Part<M>]) -> Option<()> {
    let mut rest = bytes;
    for part in to {
        let (now, later) = rest.split_at_checked(part.length as usize)?;
        part.map().store_block(part.at, now)?;
        rest = later;
    }
    Some(())
}

/// Loads the bytes of parts.
pub(super) fn load<M: AsRef<Mapping>>(parts: &[Part<M>]) -> Option<Arc<[u8]>> {
    if let [part] = parts {
        return part.map().load_block(part.at, part.length);
    }
    let mut bytes = Vec::with_capacity(total(parts) as usize);
    for part in parts {
        bytes.extend_from_slice(&part.map().load_block(part.at, part.length)?);
    }
    Some(bytes.into())
}

/// Where the bytes of a loan are.
#[derive(Debug)]
enum Place {
    Lent(Few<Part<Arc<Mapping>>>),
    /// Taken back: the bytes as they were then.
    Returned(Arc<[u8]>),
}

/// Guest memory that is lent.
#[derive(Debug)]
struct Range {
    /// DMA address and length of each part, for the lender.
    spans: Few<(u64, u32)>,
    length: u32,
    /// To be filled; else it is only read.
    fill: bool,
    place: Mutex<Place>,
}

/// Nothing panics between two steps of one change, so a poisoned lock protects what is whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Range {
    fn overlaps(&self, address: u64, length: u64) -> bool {
        let last = |start: u64, length: u64| start.saturating_add(length.saturating_sub(1));
        let meets = |span: &(u64, u32)| span.0 <= last(address, length) && address <= last(span.0, span.1.into());
        length > 0 && self.spans.iter().any(meets)
    }

    /// Copies the bytes to parts of a mapping.
    fn store<M: AsRef<Mapping>>(&self, to: &[Part<M>]) -> Option<()> {
        let there = |from: &[Part<Arc<Mapping>>]| {
            let same = |(a, b): (&Part<Arc<Mapping>>, &Part<M>)| std::ptr::eq(a.map(), b.map()) && a.at == b.at;
            self.fill && from.len() == to.len() && from.iter().zip(to).all(same)
        };
        match &*locked(&self.place) {
            // The target of a get: the owner of the source has filled it.
            Place::Lent(from) if there(from) => Some(()),
            Place::Lent(from) => copy(from, to),
            Place::Returned(bytes) => store_bytes(bytes, to),
        }
    }

    /// Copies bytes of a mapping to it. `None` if it has been taken back, or was not lent for that.
    fn fill<M: AsRef<Mapping>>(&self, from: &[Part<M>]) -> Option<()> {
        match &*locked(&self.place) {
            Place::Lent(to) if self.fill && total(from) == u64::from(self.length) => copy(from, to),
            _ => None,
        }
    }

    /// The bytes as they are, or as they were when it was taken back.
    fn bytes(&self) -> Option<Arc<[u8]>> {
        match &*locked(&self.place) {
            Place::Lent(parts) => load(parts),
            Place::Returned(bytes) => Some(Arc::clone(bytes)),
        }
    }

    fn recall(&self) {
        let mut place = locked(&self.place);
        if let Place::Lent(parts) = &*place {
            // The bounds were checked when it was lent.
            *place = Place::Returned(load(parts).unwrap_or_default());
        }
    }
}

/// The memory of a loan; `None` if that is not of a board of ours.
fn range(loan: &Loan) -> Option<&Range> {
    loan.lender().downcast_ref()
}

/// The bytes of a loan, as many as were lent, whether they are still lent or were taken back meanwhile.
pub(crate) fn bytes(loan: &Loan) -> Block {
    let bytes = range(loan).and_then(Range::bytes);
    // What is sent has the length that was announced. Without a mapping there is nothing to read.
    let bytes = bytes.filter(|bytes| bytes.len() == loan.length() as usize);
    bytes.map_or_else(|| vec![0; loan.length() as usize].into(), Block::from)
}

/// Stores a block, from where it is, to parts that are as long.
pub(super) fn store<M: AsRef<Mapping>>(data: &Data, to: &[Part<M>]) -> Option<()> {
    if total(to) != data.length() {
        return None;
    }
    match data {
        Data::Bytes(block) => store_bytes(block, to),
        Data::Lent(loan) => range(loan)?.store(to),
    }
}

/// Copies bytes to memory that another board lends. `None` if that is not possible, or no more.
pub(super) fn fill<M: AsRef<Mapping>>(loan: &Loan, from: &[Part<M>]) -> Option<()> {
    range(loan)?.fill(from)
}

/// The loans of one board.
#[derive(Debug, Default)]
pub(super) struct Loans(Mutex<Vec<Weak<Range>>>);

impl Loans {
    /// Lends parts of guest memory, to be read or to be filled. `None` if they are not worth it or too many are lent:
    /// then they are to be copied.
    pub(super) fn lend(&self, parts: &[Part<&Arc<Mapping>>], fill: bool) -> Option<Loan> {
        let length = u32::try_from(total(parts)).ok()?;
        if length < LEAST || parts.iter().any(|part| !part.mapping.holds(part.at, part.length)) {
            return None;
        }
        let mut loans = locked(&self.0);
        let mut lent = u64::from(length);
        loans.retain(|loan| {
            let held = loan.upgrade();
            lent += held.as_ref().map_or(0, |range| u64::from(range.length));
            held.is_some()
        });
        if lent > MOST {
            return None;
        }
        let owned = |part: &Part<&Arc<Mapping>>| {
            let Part { mapping, at, address, length } = *part;
            Part { mapping: Arc::clone(mapping), at, address, length }
        };
        let place = Mutex::new(Place::Lent(Few::of(parts, owned)));
        let spans = Few::of(parts, |part| (part.address, part.length));
        let range = Arc::new(Range { spans, length, fill, place });
        loans.push(Arc::downgrade(&range));
        Some(Loan::new(length, range))
    }

    /// Takes back what is lent of a range of DMA addresses.
    pub(super) fn recall(&self, address: u64, length: u64) {
        let loans = std::mem::take(&mut *locked(&self.0));
        let (called, others): (Vec<_>, Vec<_>) =
            loans.into_iter().partition(|loan| loan.upgrade().is_some_and(|range| range.overlaps(address, length)));
        called.iter().filter_map(Weak::upgrade).for_each(|range| range.recall());
        *locked(&self.0) = others;
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use telegraphos_device_core::{Piece, Step, StepResult};

    use super::super::{DmaMap, DmaUnmap, GuestMemory, dma_map};
    use super::*;

    /// Where each guest's memory begins.
    const RAM: u64 = 0x10_0000;
    const SIZE: u64 = 4 << 20;

    fn guest() -> GuestMemory {
        let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, SIZE).unwrap();
        let mut memory = GuestMemory::default();
        let flags = dma_map::READ | dma_map::WRITE;
        memory.map(&DmaMap { argsz: 32, flags, offset: 0, address: RAM, size: SIZE }, Some(fd)).unwrap();
        memory
    }

    fn lend(memory: &GuestMemory, at: u64, length: u32) -> Data {
        match memory.perform(&Step::LoadBlock { address: RAM + at, length, lend: true, into: None }) {
            StepResult::Block(block) => block,
            other => panic!("{other:?}"),
        }
    }

    fn store(memory: &GuestMemory, at: u64, data: impl Into<Data>) -> StepResult {
        memory.perform(&Step::StoreBlock { address: RAM + at, data: data.into() })
    }

    fn bytes(memory: &GuestMemory, at: u64, length: u32) -> Vec<u8> {
        match memory.perform(&Step::LoadBlock { address: RAM + at, length, lend: false, into: None }) {
            StepResult::Block(Data::Bytes(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of a block, wherever they are.
    fn of(data: &Data) -> Block {
        match data {
            Data::Bytes(block) => block.clone(),
            Data::Lent(loan) => super::bytes(loan),
        }
    }

    fn pattern(length: u32, seed: u64) -> Vec<u8> {
        (0..u64::from(length)).map(|n| (n * 7 + n / 253 + seed) as u8).collect()
    }

    #[test]
    fn a_loan_is_copied_from_memory_to_memory_at_any_alignment() {
        let (from, to) = (guest(), guest());
        for (n, (at, target, length)) in
            [(0, 0, 65536), (8, 16, 8192), (3, 11, 4096), (5, 2, 5000), (4096, 1, 4099), (7, 7, 4113)]
                .into_iter()
                .enumerate()
        {
            let data = pattern(length, n as u64);
            store(&from, at, Block::from(data.as_slice()));
            store(&to, 0, Block::from(vec![0xaa; 0x2_0000]));
            let block = lend(&from, at, length);
            assert!(block.is_lent());
            assert_eq!((block.length(), &*of(&block)), (length.into(), data.as_slice()));
            assert_eq!(store(&to, target, block), StepResult::Stored);
            let mut wanted = vec![0xaa; 0x2_0000];
            wanted[target as usize..target as usize + length as usize].copy_from_slice(&data);
            assert!(bytes(&to, 0, 0x2_0000) == wanted, "{length} bytes from {at} to {target}");
        }
        // Beyond the target's end, and beyond the own.
        let fault = StepResult::Failed(telegraphos_wire::Status::MemoryFault);
        assert_eq!(store(&to, SIZE - 4096, lend(&from, 0, 4104)), fault);
        assert_eq!(
            from.perform(&Step::LoadBlock { address: RAM + SIZE - 4096, length: 4104, lend: true, into: None }),
            fault
        );
        // Within one memory.
        let data = pattern(8192, 9);
        store(&from, 0, Block::from(data.as_slice()));
        assert_eq!(store(&from, 0x1_0000, lend(&from, 0, 8192)), StepResult::Stored);
        assert!(bytes(&from, 0x1_0000, 8192) == data);
    }

    /// Parts of a block of a range, in an order of their own.
    fn scattered(at: &[(u64, u32)]) -> Arc<Vec<Piece>> {
        Arc::new(at.iter().map(|(at, length)| Piece { address: RAM + at, length: *length }).collect())
    }

    fn in_pieces(pieces: &Arc<Vec<Piece>>, step: impl FnOnce(u64) -> Step) -> Step {
        Step::Pieces { step: Box::new(step(pieces[0].address)), pieces: Arc::clone(pieces) }
    }

    #[test]
    fn blocks_in_pieces_move_between_pieces() {
        let (from, to) = (guest(), guest());
        let source = scattered(&[(0x9001, 4095), (0x3000, 4096), (0x7000, 1000)]);
        let target = scattered(&[(0x20_0ffd, 3), (0x10_0000, 4096), (0x30_0000, 5092)]);
        let length = 9191;
        let data = pattern(length, 3);
        let place = |pieces: &Arc<Vec<Piece>>, memory: &GuestMemory, data: Data| {
            memory.perform(&in_pieces(pieces, |address| Step::StoreBlock { address, data }))
        };
        let load = |pieces: &Arc<Vec<Piece>>, memory: &GuestMemory, lend: bool, into: Option<Loan>| match memory
            .perform(&in_pieces(pieces, |address| Step::LoadBlock { address, length, lend, into }))
        {
            StepResult::Block(block) => block,
            other => panic!("{other:?}"),
        };
        assert_eq!(place(&source, &from, Data::Bytes(data.as_slice().into())), StepResult::Stored);
        assert_eq!(bytes(&from, 0x3000, 4096), data[4095..8191]);
        // A put that is lent.
        let lent = load(&source, &from, true, None);
        assert!(lent.is_lent());
        assert_eq!(place(&target, &to, lent), StepResult::Stored);
        assert!(*of(&load(&target, &to, false, None)) == *data && bytes(&to, 0x30_0000, 5092) == data[4099..]);
        // One that is taken back by a byte of its second piece.
        let lent = load(&source, &from, true, None);
        from.recall(RAM + 0x3fff, 1);
        place(&source, &from, Data::Bytes(vec![0; 9191].into()));
        assert!(*of(&lent) == *data);
        // A get that is filled, and its bytes are in their place then.
        let step = in_pieces(&target, |address| Step::Lend { address, length });
        let StepResult::Lent(Some(loan)) = to.perform(&step) else { panic!("it is lent") };
        let filled = load(&source, &from, false, Some(loan));
        assert!(filled.is_lent() && bytes(&to, 0x10_0000, 4096).iter().all(|byte| *byte == 0));
        store(&to, 0x10_0000, Block::from([7; 9]));
        assert_eq!(place(&target, &to, filled), StepResult::Stored);
        assert_eq!(bytes(&to, 0x10_0000, 9), [7; 9]);
        // A piece outside of the memory, and pieces of another length than the block.
        let outside = scattered(&[(0, 4096), (SIZE - 1, 2)]);
        let fault = StepResult::Failed(telegraphos_wire::Status::MemoryFault);
        assert_eq!(place(&outside, &to, Data::Bytes(vec![1; 4098].into())), fault);
        assert_eq!(place(&target, &to, Data::Bytes(vec![1; 9190].into())), fault);
    }

    #[test]
    fn what_is_taken_back_is_copied_as_it_was() {
        let (mut from, to) = (guest(), guest());
        let (first, second) = (pattern(8192, 1), pattern(8192, 2));
        store(&from, 0, Block::from(first.as_slice()));
        let (recalled, other) = (lend(&from, 0, 8192), lend(&from, 8192, 8192));
        from.recall(RAM + 8191, 1);
        store(&from, 0, Block::from(second.as_slice()));
        store(&from, 8192, Block::from(second.as_slice()));
        assert!(*of(&recalled) == *first && *of(&other) == *second, "one byte of the first is in the range");
        assert_eq!((store(&to, 0, recalled), store(&to, 8192, other)), (StepResult::Stored, StepResult::Stored));
        assert!(bytes(&to, 0, 8192) == first && bytes(&to, 8192, 8192) == second);
        // Memory that is unmapped, and that of a client that has gone.
        let unmap = DmaUnmap { argsz: 24, flags: 0, address: RAM, size: SIZE };
        let lent = lend(&from, 0, 8192);
        from.unmap(&unmap).unwrap();
        assert!(*of(&lent) == *second);
        let mut from = guest();
        store(&from, 0, Block::from(first.as_slice()));
        let lent = lend(&from, 0, 8192);
        from.clear();
        assert!(*of(&lent) == *first);
    }

    #[test]
    fn what_is_lent_is_bounded_and_short_blocks_are_copied() {
        let memory = guest();
        assert!(!lend(&memory, 0, LEAST - 1).is_lent());
        let mut held: Vec<Data> = (0..MOST / 65536).map(|n| lend(&memory, n * 65536, 65536)).collect();
        assert!(held.iter().all(Data::is_lent));
        assert!(!lend(&memory, MOST, 65536).is_lent());
        held.pop();
        let again = lend(&memory, MOST, 65536);
        assert!(again.is_lent() && !lend(&memory, 0, LEAST).is_lent());
        // What was taken back is no longer lent.
        memory.recall(0, u64::MAX);
        assert!(lend(&memory, 0, 65536).is_lent());
    }

    fn lend_to_fill(memory: &GuestMemory, at: u64, length: u32) -> Loan {
        match memory.perform(&Step::Lend { address: RAM + at, length }) {
            StepResult::Lent(Some(loan)) => loan,
            other => panic!("{other:?}"),
        }
    }

    /// As the owner of the source performs the request of a get.
    fn load_into(memory: &GuestMemory, at: u64, length: u32, loan: &Loan) -> Data {
        let step = Step::LoadBlock { address: RAM + at, length, lend: false, into: Some(loan.clone()) };
        match memory.perform(&step) {
            StepResult::Block(block) => block,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_target_of_a_get_is_filled_unless_it_was_taken_back() {
        let (owner, target) = (guest(), guest());
        let data = pattern(8192, 5);
        store(&owner, 3, Block::from(data.as_slice()));
        let loan = lend_to_fill(&target, 4099, 8192);
        let filled = load_into(&owner, 3, 8192, &loan);
        assert_eq!(filled, Data::Lent(loan));
        assert!(*of(&filled) == *data && bytes(&target, 4099, 8192) == data);
        // The bytes are in their place: storing them once more would undo what has been stored since.
        store(&target, 5000, Block::from([0xee; 9]));
        assert_eq!(store(&target, 4099, filled.clone()), StepResult::Stored);
        assert_eq!(bytes(&target, 5000, 9), [0xee; 9]);
        // Taken back afterwards, it is still what was got; taken back before, nothing is written to it.
        target.recall(RAM + 4099, 1);
        assert_eq!(of(&filled)[5000 - 4099], 0xee);
        let loan = lend_to_fill(&target, 0x1_0000, 8192);
        target.recall(RAM + 0x1_0000, 1);
        let block = load_into(&owner, 3, 8192, &loan);
        assert!(!block.is_lent() && *of(&block) == *data);
        assert!(bytes(&target, 0x1_0000, 8192).iter().all(|byte| *byte == 0));
        assert_eq!(store(&target, 0x1_0000, block), StepResult::Stored);
        assert!(bytes(&target, 0x1_0000, 8192) == data);
    }

    #[test]
    fn nothing_is_copied_to_what_is_lent_to_be_read_or_has_another_length() {
        let (owner, other) = (guest(), guest());
        store(&owner, 0, Block::from(vec![7; 8192]));
        let Data::Lent(read) = lend(&other, 0, 8192) else { panic!("it is lent") };
        let longer = lend_to_fill(&other, 0, 8200);
        for loan in [read, longer] {
            assert!(!load_into(&owner, 0, 8192, &loan).is_lent());
        }
        assert!(bytes(&other, 0, 8200).iter().all(|byte| *byte == 0));
        let short = Step::Lend { address: RAM, length: LEAST - 1 };
        assert_eq!(other.perform(&short), StepResult::Lent(None));
        // Nor to memory that the guest has shared for loads alone.
        let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, SIZE).unwrap();
        let mut only = GuestMemory::default();
        let map = DmaMap { argsz: 32, flags: dma_map::READ, offset: 0, address: RAM, size: SIZE };
        only.map(&map, Some(fd)).unwrap();
        let block = load_into(&owner, 0, 8192, &lend_to_fill(&only, 0, 8192));
        assert!(!block.is_lent());
        assert_eq!(store(&only, 0, block), StepResult::Failed(telegraphos_wire::Status::MemoryFault));
    }

    #[test]
    fn of_what_is_not_lent_by_a_board_nothing_is_copied() {
        let memory = guest();
        store(&memory, 0, Block::from(vec![7; 8192]));
        let loan = Loan::new(8192, Arc::new("other memory"));
        let fault = StepResult::Failed(telegraphos_wire::Status::MemoryFault);
        assert_eq!(store(&memory, 0, Data::Lent(loan.clone())), fault);
        assert!(!load_into(&memory, 0, 8192, &loan).is_lent());
        assert_eq!(*super::bytes(&loan), [0; 8192]);
    }

    /// A lender in another thread: after it has taken a loan back, nothing of what it writes arrives.
    #[test]
    fn nothing_is_copied_behind_a_recall_in_another_thread() {
        let (from, to) = (guest(), guest());
        for round in 0..200 {
            store(&from, 0, Block::from(vec![1; 65536]));
            let block = lend(&from, 0, 65536);
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(store(&to, 0, block.clone()), StepResult::Stored));
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                from.recall(RAM, 65536);
                store(&from, 0, Block::from(vec![2; 65536]));
            });
            assert!(bytes(&to, 0, 65536).iter().all(|byte| *byte == 1), "round {round}");
            // And nothing is copied to what it has written since.
            let loan = lend_to_fill(&from, 0, 65536);
            std::thread::scope(|scope| {
                scope.spawn(|| load_into(&to, 0, 65536, &loan));
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                from.recall(RAM, 65536);
                store(&from, 0, Block::from(vec![3; 65536]));
            });
            assert!(bytes(&from, 0, 65536).iter().all(|byte| *byte == 3), "round {round}");
        }
    }
}
