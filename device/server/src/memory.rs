// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guest memory: the memory that the client shared for DMA, and the only code that accesses it. `board` owns it.
//!
//! A map with a regular file is mapped shared. A map without one is *private*: accesses to it fail with
//! [`Status::PrivateMemory`], whose text names the missing QEMU option. Every address is looked up at the moment of its
//! access and must lie, with its whole size, within one map.
//!
//! An access is one atomic operation of its size: a load with acquire and a store with release ordering. The guest's
//! processors access the same bytes concurrently. They are outside the language's memory model, but on all supported
//! machines an aligned access of up to 8 bytes is single-copy atomic for them, too.
//!
//! One hazard remains: if a client shrinks a file after sharing it, this process faults. QEMU seals its memfds against
//! that (`memory-backend-memfd`, the default). For other backends the host user is trusted, see `docs/security.md`.

mod budget;
mod loans;
mod mapping;

pub use budget::Budget;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, SealFlags};
use rustix::io::Errno;
use telegraphos_accounts::{Account, Shares};
use telegraphos_device_core::{Data, Piece, Step, StepResult};
use telegraphos_wire::admin::Command;
use telegraphos_wire::{BurstStore, Status};

use self::budget::Allotment;
pub(crate) use self::loans::bytes;
use self::loans::{Loans, Part};
use self::mapping::Mapping;
use crate::vfio::Refused;
use crate::vfio::message::{DmaMap, DmaUnmap, dma_map, dma_unmap};

/// Limit on the number of maps of a board, private ones included. QEMU needs some tens, or with a virtual IOMMU one for
/// each range that the guest maps.
const MAX_MAPS: usize = budget::MAX_MAPS as usize;
/// Default limit on mapped bytes: an eighth of a process's address space, and more than any guest has.
pub const DEFAULT_LIMIT: u64 = 16 << 40;
const PAGE: u64 = 4096;

#[derive(Debug)]
struct Map {
    size: u64,
    /// `None` if the memory is private.
    mapping: Option<Arc<Mapping>>,
    /// Not the client's: it can neither unmap it nor lose it by disconnecting.
    fixed: bool,
}

/// How the board can access a new map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Loads, and stores if the client allows them.
    Shared {
        /// The file is sealed against shrinking.
        sealed: bool,
    },
    /// Not at all, since no regular file came with it.
    Private,
}

/// The guest memory that the client shares with the board.
///
/// Every mapped file takes up this process's address space of 2^47 bytes. If that were exhausted, the next allocation
/// would end the process, so one account limits all maps together; and so for the number of mappings. What the boards
/// of a process take together is divided ([`Budget`]).
#[derive(Debug)]
pub struct GuestMemory {
    maps: BTreeMap<u64, Map>,
    /// Bytes of files that are mapped; private maps do not count.
    mapped: Account<()>,
    /// This board's part of what all boards of the process take.
    part: Allotment,
    /// What is lent of them.
    loans: Loans,
}

impl Default for GuestMemory {
    fn default() -> GuestMemory {
        GuestMemory::new(DEFAULT_LIMIT)
    }
}

impl GuestMemory {
    /// No maps, with a limit on mapped bytes, for the only board of the process.
    pub fn new(limit: u64) -> GuestMemory {
        GuestMemory {
            maps: BTreeMap::new(),
            mapped: Account::new(Shares::single(limit)),
            part: Budget::of_process(1).part(),
            loans: Loans::default(),
        }
    }

    /// From now on this is one of several boards, which share what the process has. For a board without a client.
    pub fn share(&mut self, budget: &Budget) {
        self.part = budget.part();
    }

    /// Adds memory of this process's own at `address`: `size` bytes from `offset` of a file. It stays whatever the
    /// client does, and is not charged to it. Address, offset and size are whole pages, and overlap no other map.
    pub fn fix(&mut self, address: u64, fd: &OwnedFd, offset: u64, size: u64) -> Result<(), Errno> {
        let len = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        let mapping = Some(Arc::new(Mapping::new(fd, offset, len, true, None)?));
        self.maps.insert(address, Map { size, mapping, fixed: true });
        Ok(())
    }

    /// Removes all maps of the client, after it has disconnected.
    pub fn clear(&mut self) {
        self.recall(0, u64::MAX);
        self.maps.retain(|_, map| map.fixed);
        self.mapped.clear();
    }

    /// Adds a map, with the file that came with the message. Refused if it overlaps another map or exceeds a limit.
    pub fn map(&mut self, map: &DmaMap, fd: Option<OwnedFd>) -> Result<Mapped, Refused> {
        let DmaMap { flags, offset, address, size, .. } = *map;
        let refused = |errno, why: &str| {
            Refused::new(errno, format!("DMA_MAP of {size:#x} bytes at {address:#x} (file offset {offset:#x}): {why}"))
        };
        if size == 0 || (address | size | offset) % PAGE != 0 {
            return Err(refused(Errno::INVAL, "address, offset and size must be whole pages of 4 KiB, and not empty"));
        }
        let last = address.checked_add(size - 1).ok_or_else(|| refused(Errno::INVAL, "it wraps around"))?;
        if flags & dma_map::READ == 0 {
            return Err(refused(Errno::INVAL, "it cannot be read"));
        }
        if let Some((start, other)) = self.maps.range(..=last).next_back() {
            if start + (other.size - 1) >= address {
                return Err(refused(
                    Errno::EXIST,
                    &format!("it overlaps the map of {:#x} bytes at {start:#x}", other.size),
                ));
            }
        }
        if self.maps.len() >= MAX_MAPS {
            return Err(refused(Errno::NOSPC, &format!("there are {MAX_MAPS} maps already")));
        }
        let regular = |fd: OwnedFd| match rustix::fs::fstat(&fd) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => Ok(None),
            Ok(stat) => Ok(Some((fd, stat.st_size))),
            Err(e) => Err(refused(e, "its file cannot be examined")),
        };
        let Some((fd, length)) = fd.map(regular).transpose()?.flatten() else {
            self.maps.insert(address, Map { size, mapping: None, fixed: false });
            return Ok(Mapped::Private);
        };
        let end = offset.checked_add(size).ok_or_else(|| refused(Errno::INVAL, "the file offset wraps around"))?;
        if u64::try_from(length).unwrap_or(0) < end {
            return Err(refused(Errno::INVAL, &format!("its file has only {length:#x} bytes")));
        }
        let len = usize::try_from(size).map_err(|_| refused(Errno::NOMEM, "it is too large"))?;
        self.mapped
            .take((), size)
            .map_err(|e| refused(Errno::NOMEM, &format!("the client {e} bytes: see --dma-limit-gib")))?;
        let charged = self.part.take(size).map_err(|e| refused(Errno::NOSPC, &e.to_string()));
        let mapping = charged.and_then(|charge| {
            Mapping::new(&fd, offset, len, flags & dma_map::WRITE != 0, Some(charge))
                .map_err(|e| refused(e, &format!("its file cannot be mapped: {e}")))
        });
        let mapping = mapping.inspect_err(|_| {
            self.mapped.give(&(), size);
        })?;
        let seals = rustix::fs::fcntl_get_seals(fd.as_fd()).unwrap_or(SealFlags::empty());
        self.maps.insert(address, Map { size, mapping: Some(Arc::new(mapping)), fixed: false });
        Ok(Mapped::Shared { sealed: seals.contains(SealFlags::SHRINK) })
    }

    /// Removes the maps within a range (all maps with [`dma_unmap::ALL`]) and returns their total size in bytes.
    /// Refuses a range that divides a map, as the kernel does.
    pub fn unmap(&mut self, unmap: &DmaUnmap) -> Result<u64, Refused> {
        if unmap.flags & dma_unmap::ALL != 0 {
            let bytes = self.maps.values().filter(|m| !m.fixed).map(|m| m.size).fold(0, u64::wrapping_add);
            self.clear();
            return Ok(bytes);
        }
        let DmaUnmap { address, size, .. } = *unmap;
        let refused =
            |errno, why: &str| Refused::new(errno, format!("DMA_UNMAP of {size:#x} bytes at {address:#x}: {why}"));
        let last = size
            .checked_sub(1)
            .and_then(|n| address.checked_add(n))
            .ok_or_else(|| refused(Errno::INVAL, "it is empty or wraps around"))?;
        let mut hit = Vec::new();
        for (start, map) in self.maps.range(..=last).rev() {
            let end = start + (map.size - 1);
            if end < address {
                break;
            }
            if map.fixed {
                return Err(refused(Errno::INVAL, "this is not the client's memory"));
            }
            if *start < address || end > last {
                return Err(refused(Errno::INVAL, &format!("it cuts the map of {:#x} bytes at {start:#x}", map.size)));
            }
            hit.push(*start);
        }
        if hit.is_empty() {
            return Err(refused(Errno::NOENT, "nothing is mapped there"));
        }
        self.recall(address, size);
        let mut bytes = 0u64;
        for map in hit.iter().filter_map(|start| self.maps.remove(start)) {
            bytes = bytes.wrapping_add(map.size);
            if map.mapping.is_some() {
                self.mapped.give(&(), map.size);
            }
        }
        Ok(bytes)
    }

    /// Takes back what is lent of `length` bytes at a DMA address. When this returns, no other board accesses them:
    /// what was not copied yet has been copied out of them.
    pub fn recall(&self, address: u64, length: u64) {
        self.loans.recall(address, length);
    }

    /// Performs a guest-memory step of the core.
    pub fn perform(&self, step: &Step) -> StepResult {
        self.try_perform(step).unwrap_or_else(StepResult::Failed)
    }

    fn try_perform(&self, step: &Step) -> Result<StepResult, Status> {
        let done = match *step {
            Step::Load { address, size } => {
                let (mapping, at) = self.find(address)?;
                mapping.load(at, size).map(StepResult::Loaded)
            }
            Step::Store { address, size, data } => {
                let (mapping, at) = self.find(address)?;
                mapping.store(at, size, data).map(|()| StepResult::Stored)
            }
            Step::StoreBurst { base, ref stores } => return Ok(self.store_burst(base, stores)),
            Step::Atomic { address, size, op, operand, compare } => {
                let (mapping, at) = self.find(address)?;
                mapping.atomic(at, size, op, operand, compare).map(StepResult::Loaded)
            }
            Step::LoadCommand { address } => {
                let (mapping, at) = self.find(address)?;
                command(mapping, at).map(|command| StepResult::Command(Box::new(command)))
            }
            Step::LoadBlock { address, length, .. } | Step::Lend { address, length } => {
                self.block(step, &[self.part(Piece { address, length })?])
            }
            Step::StoreBlock { address, ref data } => {
                self.block(step, &[self.part(Piece { address, length: data.length() as u32 })?])
            }
            Step::Pieces { ref step, ref pieces } => {
                let parts = pieces.iter().map(|piece| self.part(*piece)).collect::<Result<Vec<_>, Status>>()?;
                self.block(step, &parts)
            }
        };
        done.ok_or(Status::MemoryFault)
    }

    /// Stores words one after the other, up to the first that cannot be stored. A release each, as
    /// [`Step::Store`] is.
    fn store_burst(&self, base: u64, stores: &[BurstStore]) -> StepResult {
        // The map of the last one, which is most often that of the next.
        let mut found: Option<(u64, &Map)> = None;
        for (count, store) in stores.iter().enumerate() {
            let address = base.wrapping_add(store.offset.into());
            let near = found.filter(|(start, map)| address.wrapping_sub(*start) < map.size);
            let stored = near.map_or_else(|| self.map_at(address), Ok).and_then(|(start, map)| {
                found = Some((start, map));
                let mapping = map.mapping.as_ref().ok_or(Status::PrivateMemory)?;
                mapping.store(address - start, store.size, store.data).ok_or(Status::MemoryFault)
            });
            if let Err(status) = stored {
                return StepResult::StoredPart { stores: count, status };
            }
        }
        StepResult::Stored
    }

    /// A step on a block that lies in these parts.
    fn block(&self, step: &Step, parts: &[Part<&Arc<Mapping>>]) -> Option<StepResult> {
        match step {
            Step::LoadBlock { lend, into, .. } => {
                let filled = || into.as_ref().filter(|into| loans::fill(into, parts).is_some()).cloned();
                let lent = if *lend { self.loans.lend(parts, false) } else { filled() };
                let bytes = || loans::load(parts).map(|bytes| Data::Bytes(bytes.into()));
                lent.map(Data::Lent).or_else(bytes).map(StepResult::Block)
            }
            // Where it cannot be stored to, the bytes come in the answer, and storing them fails.
            Step::Lend { .. } => Some(StepResult::Lent(self.loans.lend(parts, true))),
            Step::StoreBlock { data, .. } => loans::store(data, parts).map(|()| StepResult::Stored),
            _ => None,
        }
    }

    fn part(&self, Piece { address, length }: Piece) -> Result<Part<&Arc<Mapping>>, Status> {
        let (mapping, at) = self.find(address)?;
        Ok(Part { mapping, at, address, length })
    }

    /// The mapping that holds a DMA address, and the offset in it.
    fn find(&self, address: u64) -> Result<(&Arc<Mapping>, u64), Status> {
        let (start, map) = self.map_at(address)?;
        map.mapping.as_ref().map(|mapping| (mapping, address - start)).ok_or(Status::PrivateMemory)
    }

    /// The map that has a DMA address, and where it starts.
    fn map_at(&self, address: u64) -> Result<(u64, &Map), Status> {
        let (start, map) = self.maps.range(..=address).next_back().ok_or(Status::MemoryFault)?;
        if address - start < map.size { Ok((*start, map)) } else { Err(Status::MemoryFault) }
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // Also if the board has ended by a fault: what other boards still read is copied out.
        self.recall(0, u64::MAX);
    }
}

/// Copies an admin command word by word. The driver does not write to it meanwhile; a driver that does harms only
/// itself.
fn command(mapping: &Mapping, offset: u64) -> Option<Command> {
    const WORDS: usize = size_of::<Command>() / 8;
    let mut words = [0u64; WORDS];
    for (n, word) in words.iter_mut().enumerate() {
        *word = mapping.load(offset.checked_add(8 * n as u64)?, 8)?;
    }
    Some(bytemuck::cast(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use telegraphos_wire::{AtomicOp, Block};

    fn file(size: u64) -> OwnedFd {
        let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        fd
    }

    fn request(address: u64, size: u64, flags: u32) -> DmaMap {
        DmaMap { argsz: 32, flags, offset: 0, address, size }
    }

    const RW: u32 = dma_map::READ | dma_map::WRITE;

    #[test]
    fn stores_land_in_the_file_and_loads_see_it() {
        let fd = file(0x2000);
        let mut memory = GuestMemory::default();
        let map = DmaMap { offset: 0x1000, ..request(0x10_0000, 0x1000, RW) };
        assert_eq!(memory.map(&map, Some(fd.try_clone().unwrap())).unwrap(), Mapped::Shared { sealed: false });
        for (n, size) in [1u8, 2, 4, 8].into_iter().enumerate() {
            let address = 0x10_0000 + 8 * n as u64;
            let data = 0x8877_6655_4433_2211 & (u64::MAX >> (64 - 8 * u32::from(size)));
            assert_eq!(memory.perform(&Step::Store { address, size, data }), StepResult::Stored);
            assert_eq!(memory.perform(&Step::Load { address, size }), StepResult::Loaded(data));
            let mut bytes = [0; 8];
            rustix::io::pread(&fd, &mut bytes, 0x1000 + 8 * n as u64).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), data);
        }
    }

    #[test]
    fn nothing_outside_a_map_is_reached() {
        let mut memory = GuestMemory::default();
        memory.map(&request(0x1000, 0x1000, RW), Some(file(0x1000))).unwrap();
        let fault = StepResult::Failed(Status::MemoryFault);
        for address in [0, 0xff8, 0x2000, u64::MAX - 7] {
            assert_eq!(memory.perform(&Step::Load { address, size: 8 }), fault, "{address:#x}");
            assert_eq!(memory.perform(&Step::Store { address, size: 8, data: 1 }), fault, "{address:#x}");
        }
        // Across the end, misaligned, odd sizes.
        assert_eq!(memory.perform(&Step::Load { address: 0x1ffc, size: 8 }), fault);
        assert_eq!(memory.perform(&Step::Load { address: 0x1001, size: 2 }), fault);
        assert_eq!(memory.perform(&Step::Load { address: 0x1000, size: 3 }), fault);
        assert_eq!(memory.perform(&Step::LoadCommand { address: 0x2000 - 128 }), fault);
        assert!(matches!(memory.perform(&Step::LoadCommand { address: 0x1f00 }), StepResult::Command(_)));
    }

    #[test]
    fn blocks_of_any_alignment_and_atomics_touch_what_they_name_and_no_more() {
        let mut memory = GuestMemory::default();
        memory.map(&request(0x1000, 0x1000, RW), Some(file(0x1000))).unwrap();
        let whole = Step::LoadBlock { address: 0x1000, length: 0x1000, lend: false, into: None };
        let mut wanted = vec![0; 0x1000];
        for (n, (start, length)) in
            [(0usize, 1usize), (3, 20), (100, 8), (128, 64), (201, 7), (4090, 6)].iter().enumerate()
        {
            let bytes: Block = (0..*length).map(|i| (i * 5 + n + 1) as u8).collect();
            wanted[*start..start + length].copy_from_slice(&bytes);
            let data = Data::Bytes(bytes);
            let address = 0x1000 + *start as u64;
            assert_eq!(memory.perform(&Step::StoreBlock { address, data: data.clone() }), StepResult::Stored);
            let load = Step::LoadBlock { address, length: *length as u32, lend: false, into: None };
            assert_eq!(memory.perform(&load), StepResult::Block(data));
            assert_eq!(memory.perform(&whole), StepResult::Block(Data::Bytes(wanted.as_slice().into())));
        }
        let fault = StepResult::Failed(Status::MemoryFault);
        assert_eq!(memory.perform(&Step::LoadBlock { address: 0x1fff, length: 2, lend: false, into: None }), fault);
        assert_eq!(memory.perform(&Step::StoreBlock { address: 0x1ffa, data: Data::Bytes([0; 7].into()) }), fault);
        let atomic = |address, size, op, operand, compare| Step::Atomic { address, size, op, operand, compare };
        for (step, old) in [
            (atomic(0x1800, 8, AtomicOp::Swap, u64::MAX, 0), 0),
            (atomic(0x1800, 4, AtomicOp::Add, 2, 0), 0xffff_ffff),
            (atomic(0x1800, 8, AtomicOp::CompareSwap, 5, 0xffff_ffff_0000_0001), 0xffff_ffff_0000_0001),
            (atomic(0x1800, 4, AtomicOp::CompareSwap, 9, 6), 5),
            (atomic(0x1804, 4, AtomicOp::Swap, 7, 0), 0),
            (atomic(0x1800, 8, AtomicOp::Add, 0, 0), 7 << 32 | 5),
        ] {
            assert_eq!(memory.perform(&step), StepResult::Loaded(old), "{step:?}");
        }
        assert_eq!(memory.perform(&atomic(0x1804, 8, AtomicOp::Add, 1, 0)), fault, "unaligned");
        assert_eq!(memory.perform(&atomic(0x1800, 2, AtomicOp::Add, 1, 0)), fault);
        let mut only = GuestMemory::default();
        only.map(&request(0x1000, 0x1000, dma_map::READ), Some(file(0x1000))).unwrap();
        assert_eq!(only.perform(&atomic(0x1000, 8, AtomicOp::Add, 1, 0)), fault, "read-only");
        assert_eq!(only.perform(&Step::StoreBlock { address: 0x1000, data: Data::Bytes([0; 1].into()) }), fault);
    }

    #[test]
    fn read_only_maps_refuse_stores() {
        let mut memory = GuestMemory::default();
        memory.map(&request(0, 0x1000, dma_map::READ), Some(file(0x1000))).unwrap();
        assert_eq!(memory.perform(&Step::Load { address: 0, size: 4 }), StepResult::Loaded(0));
        let store = Step::Store { address: 0, size: 4, data: 1 };
        assert_eq!(memory.perform(&store), StepResult::Failed(Status::MemoryFault));
    }

    #[test]
    fn private_memory_is_named_as_such() {
        let mut memory = GuestMemory::default();
        assert_eq!(memory.map(&request(0, 0x1000, RW), None).unwrap(), Mapped::Private);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(memory.map(&request(0x1000, 0x1000, RW), Some(null.into())).unwrap(), Mapped::Private);
        for address in [0, 0x1000] {
            let result = memory.perform(&Step::Load { address, size: 1 });
            assert_eq!(result, StepResult::Failed(Status::PrivateMemory));
        }
        assert!(Status::PrivateMemory.to_string().contains("memory-backend-memfd,share=on"));
    }

    #[test]
    fn bad_maps_are_refused() {
        let mut memory = GuestMemory::default();
        memory.map(&request(0x4000, 0x2000, RW), Some(file(0x2000))).unwrap();
        for (address, size) in [(0x3000, 0x2000), (0x4000, 0x1000), (0x5000, 0x1000), (0, 0x10_000)] {
            let error = memory.map(&request(address, size, RW), None).unwrap_err();
            assert_eq!(error.errno, Errno::EXIST, "{address:#x}");
        }
        for (address, size) in [(0x10_0800, 0x1000), (0x10_0000, 0), (0x10_0000, 0x800), (u64::MAX - 0xfff, 0x2000)] {
            let error = memory.map(&request(address, size, RW), None).unwrap_err();
            assert_eq!(error.errno, Errno::INVAL, "{address:#x}");
        }
        // The file is shorter than the map claims.
        assert_eq!(memory.map(&request(0x10_0000, 0x2000, RW), Some(file(0x1000))).unwrap_err().errno, Errno::INVAL);
        let far = DmaMap { offset: u64::MAX - 0xfff, ..request(0x10_0000, 0x1000, RW) };
        assert_eq!(memory.map(&far, Some(file(0x1000))).unwrap_err().errno, Errno::INVAL);
        assert_eq!(memory.maps.len(), 1);
        // The very last page of the address space is a page like any other.
        memory.map(&request(u64::MAX - 0xfff, 0x1000, RW), Some(file(0x1000))).unwrap();
        assert_eq!(memory.perform(&Step::Load { address: u64::MAX - 7, size: 8 }), StepResult::Loaded(0));
    }

    #[test]
    fn maps_of_one_sparse_file_do_not_use_up_the_addresses() {
        const SIZE: u64 = 3 << 40;
        let fd = file(SIZE);
        let mut memory = GuestMemory::default();
        let map = |memory: &mut GuestMemory, n: u64| {
            memory.map(&request(n * SIZE, SIZE, RW), Some(fd.try_clone().unwrap())).map_err(|refused| refused.errno)
        };
        let fit = DEFAULT_LIMIT / SIZE;
        for n in 0..100 {
            let wanted = if n < fit { Ok(Mapped::Shared { sealed: false }) } else { Err(Errno::NOMEM) };
            assert_eq!(map(&mut memory, n), wanted, "map {n}");
        }
        assert_eq!((memory.maps.len() as u64, memory.mapped.total()), (fit, fit * SIZE));
        // The address space left is enough for everything else. Unmapped memory can be mapped again, and private memory
        // is not charged.
        drop(vec![1u8; 64 << 20]);
        memory.map(&request(100 * SIZE, SIZE, RW), None).unwrap();
        let unmap = DmaUnmap { argsz: 24, flags: 0, address: 0, size: SIZE };
        assert_eq!(memory.unmap(&unmap).unwrap(), SIZE);
        assert_eq!(map(&mut memory, 0), Ok(Mapped::Shared { sealed: false }));
        assert_eq!(map(&mut memory, 99), Err(Errno::NOMEM));
        memory.unmap(&DmaUnmap { address: 100 * SIZE, ..unmap }).unwrap();
        assert_eq!(map(&mut memory, 99), Err(Errno::NOMEM), "it was not charged");
        memory.clear();
        assert_eq!((memory.mapped.total(), map(&mut memory, 99)), (0, Ok(Mapped::Shared { sealed: false })));
    }

    /// Mappings of a file of this name, as the kernel counts them.
    fn mappings_of(name: &str) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(&format!("/memfd:{name} "))).count()
    }

    /// The claim: a guest of one process takes the mappings from the others.
    #[test]
    fn a_guest_with_all_maps_that_it_can_have_leaves_those_of_the_other_boards() {
        const BOARDS: usize = 4;
        let fd = rustix::fs::memfd_create("greedy", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 0x1000).unwrap();
        let budget = Budget::of_process(BOARDS);
        let mut boards: Vec<_> = (0..BOARDS).map(|_| GuestMemory::default()).collect();
        boards.iter_mut().for_each(|board| board.share(&budget));
        // The same page each time: the kernel merges mappings of contiguous addresses and offsets, which these are not.
        let map = |memory: &mut GuestMemory, n: u64| {
            memory.map(&request(0x2000 * n, 0x1000, RW), Some(fd.try_clone().unwrap()))
        };
        let counts: Vec<u64> =
            boards.iter_mut().map(|board| (0..).find(|n| map(board, *n).is_err()).unwrap()).collect();
        assert_eq!(mappings_of("greedy") as u64, counts.iter().sum::<u64>(), "none is merged");
        let allowed: u64 =
            std::fs::read_to_string("/proc/sys/vm/max_map_count").map_or(65_530, |text| text.trim().parse().unwrap());
        if allowed == 65_530 {
            assert_eq!(counts[0], MAX_MAPS as u64);
        }
        let guaranteed = (allowed - 8192) / 2 / BOARDS as u64;
        assert!(counts.iter().all(|count| *count >= guaranteed), "{counts:?}: expected {guaranteed} at least");
        assert!(counts.iter().sum::<u64>() <= allowed - 8192, "{counts:?}");
        // Each of them is refused by its limit, not by the kernel, and the process continues.
        for (board, n) in boards.iter_mut().zip(&counts) {
            let refused = map(board, *n).unwrap_err();
            assert_eq!(refused.errno, Errno::NOSPC, "{}", refused.why);
        }
        let stacks: Vec<_> = (0..100).map(|_| std::thread::spawn(|| drop(vec![1u8; 1 << 20]))).collect();
        stacks.into_iter().for_each(|thread| thread.join().unwrap());
        // What one gives back is there for it again, and the rest of it for the others.
        boards[0].unmap(&DmaUnmap { argsz: 24, flags: 0, address: 0, size: 0x1000 }).unwrap();
        assert_eq!(mappings_of("greedy") as u64, counts.iter().sum::<u64>() - 1);
        map(&mut boards[0], 0).unwrap();
        boards.remove(0);
        assert_eq!(mappings_of("greedy") as u64, counts[1..].iter().sum::<u64>());
        map(&mut boards[0], counts[1]).unwrap();
    }

    #[test]
    fn guests_of_one_process_do_not_take_its_addresses_from_each_other() {
        const SIZE: u64 = 1 << 40;
        let fd = file(SIZE);
        let budget = Budget::of_process(16);
        let mut boards: Vec<_> = (0..16).map(|_| GuestMemory::default()).collect();
        boards.iter_mut().for_each(|board| board.share(&budget));
        let map = |memory: &mut GuestMemory, n: u64| {
            memory.map(&request(SIZE * n, SIZE, RW), Some(fd.try_clone().unwrap())).map_err(|refused| refused.errno)
        };
        let counts: Vec<u64> =
            boards.iter_mut().map(|board| (0..).find(|n| map(board, *n).is_err()).unwrap()).collect();
        // 16 TiB each is the limit of one; together they have 64 TiB of 128.
        assert!(counts[0] == 16 && counts.iter().all(|count| *count >= 2), "{counts:?}");
        assert_eq!(counts.iter().sum::<u64>(), 64, "{counts:?}");
        assert_eq!(map(&mut boards[15], 63), Err(Errno::NOSPC));
        drop(vec![1u8; 64 << 20]);
    }

    #[test]
    fn fixed_memory_is_not_the_clients() {
        let fd = file(0x3000);
        let mut memory = GuestMemory::new(0x1000);
        memory.fix(1 << 63, &fd, 0x1000, 0x2000).unwrap();
        let store = Step::Store { address: (1 << 63) + 8, size: 8, data: 7 };
        assert_eq!(memory.perform(&store), StepResult::Stored);
        let unmap = |address, size, flags| DmaUnmap { argsz: 24, flags, address, size };
        assert_eq!(memory.map(&request(1 << 63, 0x1000, RW), None).unwrap_err().errno, Errno::EXIST);
        assert_eq!(memory.unmap(&unmap(1 << 63, 0x2000, 0)).unwrap_err().errno, Errno::INVAL);
        memory.map(&request(0x1000, 0x1000, RW), Some(file(0x1000))).unwrap();
        assert_eq!(memory.unmap(&unmap(0, 0, dma_unmap::ALL)).unwrap(), 0x1000);
        memory.clear();
        assert_eq!(memory.perform(&Step::Load { address: (1 << 63) + 8, size: 8 }), StepResult::Loaded(7));
        let mut whole = GuestMemory::default();
        whole.fix(0, &fd, 0, 0x3000).unwrap();
        assert_eq!(whole.perform(&Step::Load { address: 0x1008, size: 8 }), StepResult::Loaded(7), "the same bytes");
    }

    #[test]
    fn unmapping_takes_whole_maps() {
        let mut memory = GuestMemory::default();
        for n in 0..4 {
            memory.map(&request(n * 0x1000, 0x1000, RW), Some(file(0x1000))).unwrap();
        }
        memory.map(&request(0x10_0000, 0x2000, RW), None).unwrap();
        let unmap = |address, size, flags| DmaUnmap { argsz: 24, flags, address, size };
        assert_eq!(memory.unmap(&unmap(0x10_1000, 0x1000, 0)).unwrap_err().errno, Errno::INVAL);
        assert_eq!(memory.unmap(&unmap(0x20_0000, 0x1000, 0)).unwrap_err().errno, Errno::NOENT);
        assert_eq!(memory.unmap(&unmap(0x1000, 0x2000, 0)).unwrap(), 0x2000);
        let fault = StepResult::Failed(Status::MemoryFault);
        assert_eq!(memory.perform(&Step::Load { address: 0x1000, size: 1 }), fault);
        assert_eq!(memory.perform(&Step::Load { address: 0x3000, size: 1 }), StepResult::Loaded(0));
        assert_eq!(memory.unmap(&unmap(0, 0, dma_unmap::ALL)).unwrap(), 0x4000);
        assert!(memory.maps.is_empty());
    }
}
