// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants: which pages of this node are exported, to which nodes and with which rights, and the names under which
//! importers look them up.
//!
//! A grant has a *generation*, greater than those of all earlier grants. An access with an earlier generation is
//! refused ([`Grants::translate`]). `control` calls this module for admin commands; the responder, queues, launcher and
//! replicas call it to check accesses.

use crate::HibConfig;
use crate::answers::refusal;
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::interface::Place;
use crate::keyed::Key;
use crate::ranges::{Range, Ranges, admits};
use crate::table::Table;
use std::collections::BTreeMap;
use telegraphos_wire::admin::Command;
use telegraphos_wire::packet::Name;
use telegraphos_wire::{Body, Burst, NodeId, RemoteAddr, RemotePage, Rights, Status, UNIT};

/// The grant of one export page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) address: u64,
    /// Valid bytes from the start of the page.
    pub(crate) valid: u64,
    pub(crate) rights: Rights,
    pub(crate) nodes: [u64; 4],
    pub(crate) generation: u64,
    /// The context that may watch it; `None` for a queue, which is armed in another way.
    pub(crate) context: Option<u16>,
    /// The page is no longer replicated: it can be read but not changed, until it is replicated or granted again (SPEC
    /// E20).
    pub(crate) resigned: bool,
}

/// A published name, and the pages that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Segment {
    page: u32,
    count: u32,
    length: u64,
    generation: u64,
    rights_owner: Rights,
    rights_others: Rights,
    uid: u32,
    secret: [u8; 16],
}

/// A revocation that waits for steps in flight.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Clearing {
    pub(crate) slot: u32,
    pub(crate) page: u32,
    pub(crate) count: u32,
}

/// A gate that is closed when no access through it is in flight.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Closing {
    pub(crate) operation: Key,
    pub(crate) import: u16,
    pub(crate) page: u32,
}

/// All grants and names of the board; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Grants {
    /// Pages by themselves, so that an access to one is one look-up.
    pub(crate) pages: Table<Grant>,
    pub(crate) ranges: Ranges,
    pub(crate) segments: BTreeMap<Name, Segment>,
    generation: u64,
    /// Their pages stay in use until the steps in flight have ended.
    pub(crate) clearing: Vec<Clearing>,
    /// At most one for each unfinished operation.
    pub(crate) closing: Vec<Closing>,
}

impl Grants {
    /// No grants.
    pub(crate) fn new(config: &HibConfig) -> Grants {
        Grants {
            pages: Table::default(),
            ranges: Ranges::new(config),
            segments: BTreeMap::new(),
            generation: 0,
            clearing: Vec::new(),
            closing: Vec::new(),
        }
    }

    /// Returns whether there are delayed revocations, or gates that are not closed yet.
    pub(crate) fn is_clearing(&self) -> bool {
        !self.clearing.is_empty() || !self.closing.is_empty()
    }

    /// Removes all grants and names. Generations continue to grow.
    pub(crate) fn reset(&mut self, ctx: &Ctx) {
        if !ctx.has(Bug::KeepGrantsOnReset) {
            self.pages.clear();
            self.ranges = Ranges::new(&ctx.config);
        }
        self.segments.clear();
        self.clearing.clear();
        self.closing.clear();
    }

    /// Makes all later generations greater than `floor`.
    pub(crate) fn raise_generation(&mut self, floor: u64) {
        self.generation = self.generation.max(floor);
    }

    /// Returns a new generation, greater than all before it.
    pub(crate) fn new_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// GRANT_SET. Grants pages and returns their generation: a new one, or on request that of the page before them.
    pub(crate) fn set(&mut self, ctx: &Ctx, command: &Command) -> Result<u64, Status> {
        let Command { index, count, address, length, .. } = *command;
        let end = u64::from(index) + u64::from(count);
        let valid = count > 0
            && end <= u64::from(ctx.config.export_pages)
            && address % 4096 == 0
            && length > 0
            && length <= u64::from(count) * UNIT
            && length > u64::from(count - 1) * UNIT
            && address.checked_add(length).is_some();
        let rights = Rights(command.rights);
        if !valid || !Rights::ALL.contains(rights) {
            return Err(Status::Invalid);
        }
        self.are_free(index, count)?;
        let generation = if command.generation == 0 {
            self.new_generation()
        } else {
            let previous = index.checked_sub(1).and_then(|i| self.pages.get(i));
            match previous {
                Some(grant) if grant.generation == command.generation => command.generation,
                _ => return Err(Status::Stale),
            }
        };
        for i in 0..count {
            let start = u64::from(i) * UNIT;
            let grant = Grant {
                address: address + start,
                valid: (length - start).min(UNIT),
                rights,
                nodes: command.nodes,
                generation,
                context: Some(command.context),
                resigned: false,
            };
            self.pages.insert(index + i, grant);
        }
        Ok(generation)
    }

    /// GRANT_RANGE, GRANT_GATED. Starts to read runs of a range; the slot completes when they are known
    /// ([`Ranges::read`]).
    pub(crate) fn set_range(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<(), Status> {
        if self.clearing.iter().any(|clearing| clearing.page == command.index) {
            return Err(Status::Busy);
        }
        let generation = self.new_generation();
        // That of imports by a name, if it has a gate.
        self.new_generation();
        self.ranges.set(ctx, slot, command, generation)
    }

    /// Whether a node may import a page of that generation by a name, whatever kind of grant it has.
    fn admits(&self, page: u32, generation: u64, source: NodeId) -> bool {
        match self.pages.get(page) {
            Some(grant) => grant.generation == generation && admits(&grant.nodes, source),
            None => self
                .ranges
                .at(page)
                .is_some_and(|(range, _)| range.named_generation() == generation && range.admits(source)),
        }
    }

    /// Fails with `Busy` if one of these export pages is granted or has a delayed revocation.
    pub(crate) fn are_free(&self, page: u32, count: u32) -> Result<(), Status> {
        let end = page + count;
        let granted = self.pages.range(page..end).next().is_some();
        let clearing = self.clearing.iter().any(|c| c.page < end && page < c.page + c.count);
        if granted || clearing { Err(Status::Busy) } else { Ok(()) }
    }

    /// SEGMENT_PUBLISH. Publishes granted pages under a name.
    pub(crate) fn publish(&mut self, ctx: &Ctx, command: &Command) -> Result<(), Status> {
        let name = command.name;
        if !telegraphos_wire::packet::is_valid_name(&name) {
            return Err(Status::BadName);
        }
        let all = Rights::ALL;
        let rights = (Rights(command.rights_owner), Rights(command.rights_others));
        let span = u64::from(command.count) * UNIT;
        if command.count == 0
            || command.length == 0
            || command.length > span
            || !all.contains(rights.0)
            || !all.contains(rights.1)
        {
            return Err(Status::Invalid);
        }
        let mut generation = command.generation;
        let granted = match self.ranges.at(command.index) {
            Some((range, 0)) => {
                generation = range.named_generation();
                range.generation == command.generation && command.length <= range.length
            }
            Some(_) => false,
            None => {
                let end = u64::from(command.index) + u64::from(command.count);
                if end > u64::from(ctx.config.export_pages) {
                    return Err(Status::Invalid);
                }
                (command.index..end as u32)
                    .all(|page| self.pages.get(page).is_some_and(|g| g.generation == command.generation))
            }
        };
        if !granted {
            return Err(Status::NotGranted);
        }
        if self.segments.contains_key(&name) {
            return Err(Status::NameTaken);
        }
        // One name for each page suffices for all segments that can be granted by pages. The limit is on the total: a
        // page may have several names, and ranges have names of the same account.
        if self.segments.len() as u64 >= u64::from(ctx.config.export_pages) && !ctx.has(Bug::EndlessNames) {
            return Err(Status::NoSpace);
        }
        let segment = Segment {
            page: command.index,
            count: command.count,
            length: command.length,
            generation,
            rights_owner: rights.0,
            rights_others: rights.1,
            uid: command.uid,
            secret: command.secret,
        };
        self.segments.insert(name, segment);
        Ok(())
    }

    /// Checks an access to a word by `source` and returns its guest address. Fails with `NotGranted`, `Stale`,
    /// `Rights`, `NotHome`, `Bounds`, `BadSize` for a word that is not aligned in a range's memory, or `MemoryFault`
    /// while bus mastering is off.
    pub(crate) fn translate(
        &self,
        ctx: &Ctx,
        source: NodeId,
        at: &RemoteAddr,
        length: u64,
        right: Rights,
    ) -> Result<u64, Status> {
        let Some(grant) = self.pages.get(at.page) else {
            let (range, offset) = self.range_for(ctx, source, at, length, right)?;
            return range.word(ctx, offset, length);
        };
        Grants::page_address(ctx, source, grant, at, length, right)
    }

    /// The same for a block, of which the pieces are returned, too.
    pub(crate) fn translate_block(
        &self,
        ctx: &Ctx,
        source: NodeId,
        at: &RemoteAddr,
        length: u64,
        right: Rights,
    ) -> Result<Place, Status> {
        let Some(grant) = self.pages.get(at.page) else {
            let (range, offset) = self.range_for(ctx, source, at, length, right)?;
            return range.block(ctx, offset, length);
        };
        let address = Grants::page_address(ctx, source, grant, at, length, right)?;
        Ok(Place { address, pieces: None })
    }

    /// The DMA address of the start of the page, modulo 2^64, if all stores of a burst are allowed and the words are
    /// adjacent to each other in memory as they are in the page. Otherwise it may be that each of them is allowed.
    pub(crate) fn translate_burst(&self, ctx: &Ctx, source: NodeId, on: RemotePage, stores: &Burst) -> Option<u64> {
        let low = stores.iter().map(|store| store.offset).min()?.into();
        let high = stores.iter().map(|store| u32::from(store.offset) + u32::from(store.size)).max()?;
        let length = u64::from(high - low);
        let address = match self.pages.get(on.page) {
            Some(grant) => Grants::page_address(ctx, source, grant, &on.at(low), length, Rights::WRITE).ok()?,
            None => {
                let (range, offset) = self.range_for(ctx, source, &on.at(low), length, Rights::WRITE).ok()?;
                let Place { address, pieces: None } = range.block(ctx, offset, length).ok()? else { return None };
                address
            }
        };
        let base = address.wrapping_sub(low.into());
        // Then all words are aligned.
        (base % 8 == 0).then_some(base)
    }

    /// The range of an access that its grant allows, and the offset of the access in it.
    #[cold]
    fn range_for(
        &self,
        ctx: &Ctx,
        source: NodeId,
        at: &RemoteAddr,
        length: u64,
        right: Rights,
    ) -> Result<(&Range, u64), Status> {
        let (range, page) = self.ranges.at(at.page).ok_or(Status::NotGranted)?;
        let reach = range.reach(ctx, source, at.generation)?;
        if !range.rights.contains(right) {
            return Err(Status::Rights);
        }
        let offset = page + u64::from(at.offset);
        if offset.checked_add(length).is_none_or(|end| end > reach) {
            return Err(Status::Bounds);
        }
        if !ctx.bus_master {
            return Err(Status::MemoryFault);
        }
        Ok((range, offset))
    }

    /// [`Grants::translate`] for a page by itself.
    #[inline]
    fn page_address(
        ctx: &Ctx,
        source: NodeId,
        grant: &Grant,
        at: &RemoteAddr,
        length: u64,
        right: Rights,
    ) -> Result<u64, Status> {
        if grant.generation != at.generation && !ctx.has(Bug::IgnoreGeneration) {
            return Err(Status::Stale);
        }
        if !admits(&grant.nodes, source) {
            return Err(Status::NotGranted);
        }
        if !grant.rights.contains(right) {
            return Err(Status::Rights);
        }
        let changes = right.0 & (Rights::WRITE.0 | Rights::ATOMIC.0) != 0;
        if grant.resigned && changes && !ctx.has(Bug::ServeResigned) {
            return Err(Status::NotHome);
        }
        if u64::from(at.offset) + length > grant.valid {
            return Err(Status::Bounds);
        }
        if !ctx.bus_master {
            return Err(Status::MemoryFault);
        }
        Ok(grant.address + u64::from(at.offset))
    }

    /// The reply to a LOOKUP from `source`. `width` returns the width in bytes of a queue's words, 0 for other pages.
    pub(crate) fn look_up(&self, ctx: &Ctx, source: NodeId, body: &Body, width: impl Fn(u32) -> u8) -> Body {
        let refuse = |status| refusal(body, status);
        let Body::Lookup { name, secret, uid, rights } = body else { return refuse(Status::Invalid) };
        // Checked first: to a node that the grant does not admit, the segment does not exist, even if it sends the
        // right secret.
        let admitted =
            |segment: &&Segment| self.admits(segment.page, segment.generation, source) || ctx.has(Bug::TellOfSegments);
        let Some(segment) = self.segments.get(&**name).filter(admitted) else { return refuse(Status::NoSegment) };
        let offered = if *uid == segment.uid { segment.rights_owner } else { segment.rights_others };
        // Compares all bytes in constant time.
        let differing = segment.secret.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b));
        if differing != 0 || !offered.contains(*rights) {
            return refuse(Status::Denied);
        }
        Body::LookupReply {
            status: Status::Ok,
            page: segment.page,
            count: segment.count,
            length: segment.length,
            generation: segment.generation,
            rights: offered,
            width: width(segment.page),
        }
    }
}
