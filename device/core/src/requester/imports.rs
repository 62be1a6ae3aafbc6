// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports are opened, closed and acknowledged; lookups.

use super::{Import, RequestKind};
use crate::events::Cause;
use crate::hib::Hib;
use telegraphos_wire::admin::Command;
use telegraphos_wire::{Body, Rights, Status, UNIT, context};

impl Hib {
    pub(crate) fn lookup(&mut self, slot: u32, command: &Command) -> Result<(), Status> {
        if u32::from(command.node) >= self.ctx.config.window.nodes() {
            return Err(Status::BadNode);
        }
        if !telegraphos_wire::packet::is_valid_name(&command.name) {
            return Err(Status::BadName);
        }
        self.reachable(command.node)?;
        let body = Body::Lookup {
            name: Box::new(command.name),
            secret: command.secret,
            uid: command.uid,
            rights: Rights(command.rights),
        };
        self.ask(command.node, RequestKind::Lookup { slot }, body);
        Ok(())
    }

    /// Opens an import; `Ok(false)` if it is one of a queue, whose node is asked for hold slots first.
    pub(crate) fn import_set(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let Command { import, context, node, index, count, page, generation, length, rights, .. } = *command;
        if u32::from(node) >= self.ctx.config.window.nodes() {
            return Err(Status::BadNode);
        }
        let slots = self.ctx.config.window.slots();
        let sane = import < self.ctx.config.imports
            && count > 0
            && u64::from(index) + u64::from(count) <= u64::from(slots)
            && page.checked_add(count).is_some()
            && length > 0
            && length <= u64::from(count) * UNIT
            && Rights::ALL.contains(Rights(rights))
            && command.taken <= context::TAKEN_WORDS
            && (!Rights(rights).contains(Rights::ENQUEUE) || (rights == Rights::ENQUEUE.0 && count == 1))
            && self.requester.contexts.contains_key(&context);
        if !sane {
            return Err(Status::Invalid);
        }
        let peer = &mut self.requester.peers[usize::from(node)];
        if peer.slots.is_empty() {
            peer.slots = vec![0; slots as usize];
        }
        let range = index as usize..(index + count) as usize;
        if self.requester.imports[usize::from(import)].is_some() || peer.slots[range.clone()].iter().any(|s| *s != 0) {
            return Err(Status::Busy);
        }
        // The count of an earlier import is still on its way to that word: it would come after this one's.
        let taken = command.taken.checked_sub(1);
        if taken.is_some_and(|word| self.counts_taken(context, word)) {
            return Err(Status::Busy);
        }
        let peer = &mut self.requester.peers[usize::from(node)];
        peer.slots[range].fill(import + 1);
        if let Some(context) = self.requester.contexts.get_mut(&context) {
            context.imports.insert(import);
        }
        self.requester.openings += 1;
        self.requester.epochs = self.requester.epochs.wrapping_add(1);
        self.requester.imports[usize::from(import)] = Some(Box::new(Import {
            context,
            opening: self.requester.openings,
            node,
            first_slot: index,
            slots: count,
            page,
            length,
            generation,
            rights: Rights(rights),
            issued: 0,
            finished: 0,
            awaited: None,
            operations: 0,
            taken: taken.map(|word| (word, 0)),
            queue: rights == Rights::ENQUEUE.0,
            bad_keys: 0,
            waiting: 0,
            congested: false,
            throttled: false,
            active: false,
            cut: false,
            epoch: self.requester.epochs,
            refused: false,
            dead: false,
            error: None,
            closing: None,
        }));
        self.divide_reserve();
        if rights == Rights::ENQUEUE.0 {
            self.open_queue(slot, import);
            return Ok(false);
        }
        Ok(true)
    }

    /// Unmaps an import's slots at once; `Ok(false)` if stores of it are unfinished. Elements for a queue are not
    /// waited for: its receiver may never take them.
    pub(crate) fn import_clear(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let number = command.import;
        let opening = self.is_opening(number);
        let Some(import) = self.requester.open_import(number) else { return Err(Status::Invalid) };
        if import.closing.is_some() || opening {
            return Err(Status::Busy);
        }
        let done = import.queue || self.has_ended(import);
        self.unmap_import(number);
        if done {
            self.remove_import(number);
        } else if let Some(import) = self.requester.import(number) {
            import.closing = Some(slot);
            self.requester.closing.insert(number);
        }
        Ok(done)
    }

    /// Nothing of an import is outstanding, and the count of its stores taken is in memory: its word may be another's.
    pub(super) fn has_ended(&self, import: &Import) -> bool {
        import.is_idle() && !import.taken.is_some_and(|(word, _)| self.counts_taken(import.context, word))
    }

    /// Whether a count of stores taken is on its way to this word of a context's status page.
    fn counts_taken(&self, context: u16, word: u32) -> bool {
        let page = self.requester.contexts.get(&context).map(|context| context.status_page);
        page.is_some_and(|page| self.ctx.tables.counts_at(page + context::TAKEN_OFFSET + 8 * u64::from(word)))
    }

    /// A count is in memory.
    pub(crate) fn count_stored(&mut self) {
        let closing: Vec<u16> = self.requester.closing.iter().copied().collect();
        for number in closing {
            self.progressed(number);
        }
    }

    /// Nothing leads to the import any more.
    pub(crate) fn unmap_import(&mut self, number: u16) {
        let Some(import) = self.requester.import(number) else { return };
        let (node, first, count) = (import.node, import.first_slot as usize, import.slots as usize);
        self.requester.peers[usize::from(node)].slots[first..first + count].fill(0);
    }

    pub(crate) fn remove_import(&mut self, number: u16) {
        self.reach_quiets(number, true);
        let context = self.requester.open_import(number).map(|import| import.context);
        if let Some(context) = context.and_then(|context| self.requester.contexts.get_mut(&context)) {
            context.imports.remove(&number);
        }
        let import = self.requester.imports.get_mut(usize::from(number)).and_then(|import| import.take());
        self.requester.throttled.remove(&number);
        self.requester.closing.remove(&number);
        self.divide_reserve();
        if let Some(import) = import.filter(|import| import.queue) {
            self.leave_send_queue(import.opening);
        }
    }

    pub(crate) fn import_ack(&mut self, command: &Command) -> Result<(), Status> {
        let Some(import) = self.requester.import(command.import) else { return Err(Status::Invalid) };
        if import.dead {
            return Err(import.error.unwrap_or(Status::NodeDown));
        }
        import.error = None;
        import.cut = false;
        // Only what has been refused is refused on: behind a store that was lost here, those on their way may still be.
        if import.refused {
            self.begin_epoch(command.import);
        }
        self.ctx.cause(Cause::ImportState(command.import));
        Ok(())
    }
}
