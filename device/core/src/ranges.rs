// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges: granted memory in runs of any length, one entry for each range ([`telegraphos_wire::range`]). `grants` owns
//! them, and asks them for what is no page by itself.
//!
//! A run costs 16 bytes, so that 1 GiB costs 4 MiB in scattered pages of 4 KiB, 8 KiB in pages of 2 MiB, and 16 bytes
//! in one of 1 GiB. Runs are charged to the context that grants them.

use crate::config::{Bug, HibConfig};
use crate::ctx::{Ctx, StepOwner};
use crate::interface::{Piece, Place};
use crate::loan::Data;
use crate::table::Table;
use crate::{Step, StepResult};
use std::collections::BTreeMap;
use std::sync::Arc;
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::range::{self, Run as Entry};
use telegraphos_wire::{NodeId, Rights, Status};

/// Adjacent memory of a range, up to the next run or the end of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Run {
    /// Offset in the range.
    start: u64,
    address: u64,
}

/// What a range admits besides the imports of its own context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gate {
    /// The node that it is open to.
    pub(crate) node: Option<NodeId>,
    /// Bytes from the start of the range that it is open for.
    pub(crate) length: u64,
}

impl Gate {
    const CLOSED: Gate = Gate { node: None, length: 0 };
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Range {
    pub(crate) rights: Rights,
    pub(crate) nodes: [u64; 4],
    pub(crate) generation: u64,
    /// Where it has one, imports by a name have the generation after `generation`.
    gate: Option<Gate>,
    context: u16,
    /// By offset. Not empty once a list has been read.
    runs: Vec<Run>,
    /// Runs that it has when it is complete, which it is charged for.
    total: u32,
    /// Its length in bytes, as far as its runs are known.
    pub(crate) length: u64,
    /// The lowest and the highest address of the runs.
    hull: (u64, u64),
}

impl Range {
    /// The generation of imports by a name.
    pub(crate) fn named_generation(&self) -> u64 {
        self.generation + u64::from(self.gate.is_some())
    }

    /// Bytes from its start that an import of a generation reaches from a node. `Stale` for a generation of another
    /// grant, `NotGranted` if the node is not admitted.
    pub(crate) fn reach(&self, ctx: &Ctx, source: NodeId, generation: u64) -> Result<u64, Status> {
        let named = self.named_generation();
        if generation != named && generation != self.generation && !ctx.has(Bug::IgnoreGeneration) {
            return Err(Status::Stale);
        }
        let admitted = admits(&self.nodes, source);
        match self.gate {
            // The memory is its own processes', whichever node may reach it.
            None if source == ctx.config.node || admitted => Ok(self.length),
            Some(_) if generation == self.generation && source == ctx.config.node => Ok(self.length),
            Some(_) if generation == named && admitted && ctx.has(Bug::GateAlwaysOpen) => Ok(self.length),
            Some(gate) if generation == named && admitted && gate.node == Some(source) => Ok(gate.length),
            _ => Err(Status::NotGranted),
        }
    }

    /// Whether a node may look its name up.
    pub(crate) fn admits(&self, source: NodeId) -> bool {
        admits(&self.nodes, source) && self.gate.is_none_or(|gate| gate.node == Some(source))
    }

    /// Address and length of memory that contains all of it.
    pub(crate) fn hull(&self) -> (u64, u64) {
        (self.hull.0, self.hull.1.saturating_sub(self.hull.0))
    }

    /// Address and length of its first run.
    pub(crate) fn first_run(&self) -> (u64, u64) {
        let end = self.runs.get(1).map_or(self.length, |next| next.start);
        self.runs.first().map_or((0, 0), |run| (run.address, end))
    }

    /// Appends a run.
    fn append(&mut self, run: &Entry) -> Result<(), Status> {
        let (address, length) = (run.address, run.length);
        let end = address.checked_add(length).ok_or(Status::Invalid)?;
        let all = self.length.checked_add(length).filter(|all| *all <= range::MAX_BYTES).ok_or(Status::Invalid)?;
        let inner = !self.runs.is_empty() && self.runs.len() as u32 + 1 < self.total;
        if length == 0 || (inner && length < range::RUN_MIN) {
            return Err(Status::Invalid);
        }
        self.hull =
            if self.runs.is_empty() { (address, end) } else { (self.hull.0.min(address), self.hull.1.max(end)) };
        self.runs.push(Run { start: self.length, address });
        self.length = all;
        Ok(())
    }

    /// The runs of `length` bytes from `offset` on, which are within it.
    fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> {
        let first = self.runs.partition_point(|run| run.start <= offset).saturating_sub(1);
        let end = offset + length;
        self.runs[first..].iter().enumerate().map_while(move |(n, run)| {
            let next = self.runs.get(first + n + 1).map_or(self.length, |next| next.start);
            let from = run.start.max(offset);
            let length = next.min(end).checked_sub(from).filter(|length| *length > 0)?;
            Some(Piece { address: run.address + (from - run.start), length: length as u32 })
        })
    }

    /// Where a block lies. `Bounds` if it is not within the range.
    pub(crate) fn block(&self, ctx: &Ctx, offset: u64, length: u64) -> Result<Place, Status> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Status::Bounds);
        }
        let mut pieces = self.pieces(offset, length);
        let first = pieces.next().ok_or(Status::Bounds)?;
        if u64::from(first.length) == length || ctx.has(Bug::IgnoreRunEnd) {
            return Ok(Place { address: first.address, pieces: None });
        }
        let pieces: Vec<Piece> = std::iter::once(first).chain(pieces).collect();
        Ok(Place { address: first.address, pieces: Some(Arc::new(pieces)) })
    }

    /// The address of a word. `Bounds` if it is not within the range, `BadSize` if it is not aligned in memory: it
    /// would lie in two pages, or its access would not be one.
    pub(crate) fn word(&self, ctx: &Ctx, offset: u64, length: u64) -> Result<u64, Status> {
        let place = self.block(ctx, offset, length)?;
        if place.pieces.is_some() || place.address % length.max(1) != 0 {
            return Err(Status::BadSize);
        }
        Ok(place.address)
    }
}

/// Returns whether the bit of `node` is set. All ones admits every node, including those beyond the bits.
pub(crate) fn admits(nodes: &[u64; 4], node: NodeId) -> bool {
    if *nodes == [u64::MAX; 4] {
        return true;
    }
    nodes.get(usize::from(node) / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
}

/// A list that is being read.
#[derive(Clone, Copy, Debug, Hash)]
struct Reading {
    range: u32,
    generation: u64,
}

/// All ranges of the board; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Ranges {
    table: Table<Range>,
    reading: BTreeMap<u32, Reading>,
    /// Account of the runs, by context.
    runs: Account<u16>,
}

impl Ranges {
    /// No ranges.
    pub(crate) fn new(config: &HibConfig) -> Ranges {
        let (runs, contexts) = (config.runs.into(), config.contexts.into());
        let shares = Shares::half_guaranteed(runs, contexts, runs / 2);
        Ranges { table: Table::default(), reading: BTreeMap::new(), runs: Account::new(shares) }
    }

    /// The range that an export page belongs to, and the offset of the page in it.
    pub(crate) fn at(&self, page: u32) -> Option<(&Range, u64)> {
        let number = range::number(page)?;
        let first = range::first_page(number);
        Some((self.table.get(number)?, u64::from(page - first) << telegraphos_wire::UNIT_SHIFT))
    }

    /// GRANT_RANGE, GRANT_GATED. Starts to read a list of runs, of a range that has all the rights of the command or of
    /// a new one of `generation`; the step completes the slot.
    pub(crate) fn set(&mut self, ctx: &mut Ctx, slot: u32, command: &Command, generation: u64) -> Result<(), Status> {
        let gate = (command.opcode == admin::GRANT_GATED).then_some(Gate::CLOSED);
        let Command { index, count, page: total, address, context, .. } = *command;
        let number = range::number(index).filter(|number| range::first_page(*number) == index);
        let rights = Rights(command.rights);
        let valid = (1..=range::LIST as u32).contains(&count)
            && count <= total
            && Rights::ALL.contains(rights)
            && !rights.contains(Rights::ENQUEUE);
        let (Some(number), true) = (number, valid) else { return Err(Status::Invalid) };
        if self.reading.values().any(|reading| reading.range == number) {
            return Err(Status::Busy);
        }
        let generation = match self.table.get(number) {
            None if command.generation != 0 => return Err(Status::Stale),
            None => {
                if !ctx.has(Bug::UnboundedRuns) {
                    self.runs.take(context, total.into()).map_err(|_| Status::NoSpace)?;
                }
                let nodes = command.nodes;
                let new = Range {
                    rights,
                    nodes,
                    generation,
                    gate,
                    context,
                    runs: Vec::new(),
                    total,
                    length: 0,
                    hull: (0, 0),
                };
                self.table.insert(number, new);
                generation
            }
            Some(_) if command.generation == 0 => return Err(Status::Busy),
            Some(range) if range.generation != command.generation || range.gate.is_some() != gate.is_some() => {
                return Err(Status::Stale);
            }
            Some(range) if range.runs.len() as u64 + u64::from(count) > range.total.into() => {
                return Err(Status::Invalid);
            }
            Some(range) => range.generation,
        };
        self.reading.insert(slot, Reading { range: number, generation });
        let length = count * size_of::<Entry>() as u32;
        let list = Step::LoadBlock { address, length, lend: false, into: None };
        ctx.step(list, StepOwner::Runs(slot));
        Ok(())
    }

    /// A list has been read, or could not be. Returns the generation of its range.
    pub(crate) fn read(&mut self, slot: u32, result: &StepResult) -> Result<u64, Status> {
        let Reading { range, generation } = self.reading.remove(&slot).ok_or(Status::Invalid)?;
        let list = match result {
            StepResult::Block(Data::Bytes(list)) => list,
            StepResult::Failed(status) => return Err(*status),
            _ => return Err(Status::Invalid),
        };
        // Revoked meanwhile.
        let range = self.table.get_mut(range).filter(|range| range.generation == generation).ok_or(Status::Stale)?;
        if range.runs.capacity() - range.runs.len() < list.len() / size_of::<Entry>() {
            // Twice as much each time, but never more than the account has been charged for.
            let missing = range.total as usize - range.runs.len();
            range.runs.reserve_exact(missing.min(range.runs.len().max(range::LIST as usize)));
        }
        for entry in list.chunks_exact(size_of::<Entry>()) {
            range.append(&bytemuck::pod_read_unaligned(entry))?;
        }
        Ok(generation)
    }

    /// TG_OP_GATE by the import of a context with that page and generation: opens a range to a node for so many bytes,
    /// or closes it. Returns whether accesses may be in flight that it does not admit any more. `NotGranted` if the
    /// context has not granted the range, `Busy` if it is open to another node.
    pub(crate) fn gate(
        &mut self,
        context: u16,
        (page, generation): (u32, u64),
        (node, length): (u64, u64),
    ) -> Result<bool, Status> {
        let number = range::number(page).filter(|number| range::first_page(*number) == page).ok_or(Status::Invalid)?;
        let range = self.table.get_mut(number).ok_or(Status::NotGranted)?;
        if range.generation != generation || range.context != context {
            return Err(Status::NotGranted);
        }
        let gate = range.gate.as_mut().ok_or(Status::Invalid)?;
        if length > range.length {
            return Err(Status::Bounds);
        }
        if length == 0 {
            *gate = Gate::CLOSED;
            return Ok(true);
        }
        let node = NodeId::try_from(node).map_err(|_| Status::BadNode)?;
        if !admits(&range.nodes, node) {
            return Err(Status::Rights);
        }
        if gate.node.is_some_and(|open| open != node) {
            return Err(Status::Busy);
        }
        let narrower = length < gate.length;
        *gate = Gate { node: Some(node), length };
        Ok(narrower)
    }

    /// Revokes a range, by its first page, and returns what it was. `Invalid` if it is no first page.
    pub(crate) fn remove(&mut self, page: u32) -> Result<Option<Range>, Status> {
        let number = range::number(page).filter(|number| range::first_page(*number) == page).ok_or(Status::Invalid)?;
        let removed = self.table.remove(number);
        if let Some(range) = &removed {
            self.runs.give(&range.context, range.total.into());
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(runs: &[(u64, u64)]) -> Range {
        let mut range = Range {
            rights: Rights::ALL,
            nodes: [u64::MAX; 4],
            generation: 1,
            gate: None,
            context: 0,
            runs: Vec::new(),
            total: runs.len() as u32,
            length: 0,
            hull: (0, 0),
        };
        for (address, length) in runs {
            range.append(&Entry { address: *address, length: *length }).unwrap();
        }
        range
    }

    proptest! {
        /// Against a list with the address of each byte.
        #[test]
        fn pieces_are_those_of_a_naive_model(
            runs in proptest::collection::vec((0u64..1 << 40, 0u64..3, 1u64..4096), 1..9),
            offset in 0u64..40_000,
            length in 1u64..30_000,
        ) {
            let last = runs.len() - 1;
            let runs: Vec<(u64, u64)> = runs.iter().enumerate().map(|(n, (address, pages, rest))| {
                // Those at both ends may be short.
                (*address, if n == 0 || n == last { *rest } else { (pages + 1) * 4096 })
            }).collect();
            let model: Vec<u64> = runs.iter().flat_map(|(address, length)| *address..address + length).collect();
            let (range, ctx) = (range(&runs), Ctx::new(HibConfig::new(0)));
            prop_assert_eq!(range.length, model.len() as u64);
            let found = range.block(&ctx, offset, length);
            let Some(wanted) = model.get(offset as usize..(offset + length) as usize) else {
                prop_assert_eq!(found, Err(Status::Bounds));
                return Ok(());
            };
            let place = found.unwrap();
            let whole = vec![Piece { address: place.address, length: length as u32 }];
            let pieces = place.pieces.as_deref().unwrap_or(&whole);
            prop_assert!(pieces.len() < 12, "a block has as many steps as it has pages: {}", pieces.len());
            prop_assert_eq!(pieces[0].address, place.address);
            let bytes: Vec<u64> = pieces.iter().flat_map(|p| p.address..p.address + u64::from(p.length)).collect();
            prop_assert_eq!(&bytes[..], wanted);
            let (low, size) = range.hull();
            prop_assert!(bytes.iter().all(|byte| (low..low + size).contains(byte)));
            for width in [1, 2, 4, 8] {
                let word = range.word(&ctx, offset, width);
                match model.get(offset as usize..(offset + width) as usize) {
                    None => prop_assert_eq!(word, Err(Status::Bounds)),
                    Some(bytes) if bytes[0] % width == 0 && bytes.windows(2).all(|b| b[0] + 1 == b[1]) => {
                        prop_assert_eq!(word, Ok(bytes[0]));
                    }
                    Some(_) => prop_assert_eq!(word, Err(Status::BadSize)),
                }
            }
        }
    }

    #[test]
    fn runs_that_are_too_short_too_long_or_wrap_are_refused() {
        let mut range = range(&[(0x1000, 1), (0x3000, 4096)]);
        range.total = 4;
        for (address, length) in [(0, 0), (0x5000, 4095), (u64::MAX, 4096), (0, range::MAX_BYTES), (0, u64::MAX)] {
            assert_eq!(range.append(&Entry { address, length }), Err(Status::Invalid), "{address:#x} {length:#x}");
        }
        assert_eq!(range.length, 4097);
        range.total = 3;
        range.append(&Entry { address: 0, length: 1 }).unwrap();
    }
}
