// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imports: opening, closing, acknowledgement of errors, and lookups. Called by `control` for admin commands.

use super::{Import, RequestKind, Requester};
use crate::ctx::Ctx;
use crate::events::Cause;
use telegraphos_wire::admin::Command;
use telegraphos_wire::{Body, Rights, Status, UNIT, context, range};

impl Requester {
    /// LOOKUP. Sends the request; the reply completes the slot.
    pub(crate) fn lookup(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<(), Status> {
        if u32::from(command.node) >= ctx.config.window.nodes() {
            return Err(Status::BadNode);
        }
        if !telegraphos_wire::packet::is_valid_name(&command.name) {
            return Err(Status::BadName);
        }
        self.reachable(ctx, command.node)?;
        let body = Body::Lookup {
            name: Box::new(command.name),
            secret: command.secret,
            uid: command.uid,
            rights: Rights(command.rights),
        };
        self.submit(ctx, command.node, RequestKind::Lookup { slot }, body);
        Ok(())
    }

    /// IMPORT_SET. Opens an import, which has no window if it has no slots. Returns `Ok(false)` for an import of a
    /// queue, which first requests receive credits; the reply completes the slot.
    pub(crate) fn open(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<bool, Status> {
        let Command { import, context, node, index, count, page, generation, length, rights, .. } = *command;
        if u32::from(node) >= ctx.config.window.nodes() {
            return Err(Status::BadNode);
        }
        let slots = ctx.config.window.slots();
        let windowless = count == 0;
        let units = if windowless { length.div_ceil(UNIT).min(u64::from(u32::MAX)) as u32 } else { count };
        let most = if windowless { range::MAX_BYTES } else { u64::from(count) * UNIT };
        let valid = import < ctx.config.imports
            && u64::from(index) + u64::from(count) <= u64::from(slots)
            && page.checked_add(units).is_some()
            && length > 0
            && length <= most
            && Rights::ALL.contains(Rights(rights))
            && command.taken <= context::TAKEN_WORDS
            && (!Rights(rights).contains(Rights::ENQUEUE) || (rights == Rights::ENQUEUE.0 && count == 1))
            && self.contexts.contains(context);
        if !valid {
            return Err(Status::Invalid);
        }
        let peer = &mut self.peers[usize::from(node)];
        if peer.slots.is_empty() {
            peer.slots = vec![0; slots as usize];
        }
        let range = index as usize..(index + count) as usize;
        if self.imports[usize::from(import)].is_some() || peer.slots[range.clone()].iter().any(|s| *s != 0) {
            return Err(Status::Busy);
        }
        // A store of an earlier import's count to that word is in progress and would overwrite this import's count.
        let taken = command.taken.checked_sub(1);
        if taken.is_some_and(|word| self.taken_count_in_progress(ctx, context, word)) {
            return Err(Status::Busy);
        }
        let peer = &mut self.peers[usize::from(node)];
        peer.slots[range].fill(import + 1);
        if let Some(context) = self.contexts.get_mut(context) {
            context.imports.insert(import);
        }
        self.openings += 1;
        self.epochs = self.epochs.wrapping_add(1);
        self.imports[usize::from(import)] = Some(Box::new(Import {
            context,
            opening: self.openings,
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
            send_queue: None,
            bad_keys: 0,
            waiting: 0,
            congested: false,
            throttled: false,
            active: false,
            in_error: false,
            epoch: self.epochs,
            refused: false,
            dead: false,
            error: None,
            closing: None,
            settling: None,
        }));
        self.divide_reserve(ctx);
        if rights == Rights::ENQUEUE.0 {
            self.open_queue(ctx, slot, import);
            return Ok(false);
        }
        Ok(true)
    }

    /// IMPORT_CLEAR. Unmaps an import at once. Returns `Ok(false)` if stores of it are unfinished; the slot completes
    /// after them. The close does not wait for elements: the receiver of a queue may never take them.
    pub(crate) fn close(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<bool, Status> {
        let number = command.import;
        let opening = self.is_opening(number);
        let Some(import) = self.open_import(number) else { return Err(Status::Invalid) };
        if import.closing.is_some() || opening {
            return Err(Status::Busy);
        }
        let done = import.queue || self.has_ended(ctx, import);
        self.unmap_import(number);
        if done {
            self.remove_import(ctx, number);
        } else if let Some(import) = self.import(number) {
            import.closing = Some(slot);
            self.closing.insert(number);
        }
        Ok(done)
    }

    /// IMPORT_QUIET. Returns `Ok(false)` if stores or operations of the import are unfinished; the slot completes after
    /// them.
    pub(crate) fn settle(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let opening = self.is_opening(command.import);
        let Some(import) = self.import(command.import) else { return Err(Status::Invalid) };
        if import.closing.is_some() || import.settling.is_some() || opening {
            return Err(Status::Busy);
        }
        if !import.is_idle() {
            import.settling = Some(slot);
        }
        Ok(import.settling.is_none())
    }

    /// Returns whether no store or operation of an import is unfinished and its count of taken stores is in memory, so
    /// that its status word can be reused.
    pub(super) fn has_ended(&self, ctx: &Ctx, import: &Import) -> bool {
        import.is_idle()
            && !import.taken.is_some_and(|(word, _)| self.taken_count_in_progress(ctx, import.context, word))
    }

    /// Returns whether a store of a count to this word of a context's status page is in progress.
    fn taken_count_in_progress(&self, ctx: &Ctx, context: u16, word: u32) -> bool {
        let page = self.contexts.get(context).map(|context| context.status_page);
        page.is_some_and(|page| ctx.tables.counter_in_progress(page + context::TAKEN_OFFSET + 8 * u64::from(word)))
    }

    /// A count of taken stores is in memory: closes the imports that waited for it.
    pub(crate) fn count_stored(&mut self, ctx: &mut Ctx) {
        let closing: Vec<u16> = self.closing.iter().copied().collect();
        for number in closing {
            self.progressed(ctx, number);
        }
    }

    /// Removes an import from the window; accesses to its slots fail from now on.
    pub(crate) fn unmap_import(&mut self, number: u16) {
        let Some(import) = self.import(number) else { return };
        let (node, first, count) = (import.node, import.first_slot as usize, import.slots as usize);
        self.peers[usize::from(node)].slots[first..first + count].fill(0);
    }

    /// Removes an import from all tables, and completes the quiets that wait for its stores.
    pub(crate) fn remove_import(&mut self, ctx: &mut Ctx, number: u16) {
        self.reach_quiets(ctx, number, true);
        let context = self.open_import(number).map(|import| import.context);
        if let Some(context) = context.and_then(|context| self.contexts.get_mut(context)) {
            context.imports.remove(&number);
        }
        let import = self.imports.get_mut(usize::from(number)).and_then(|import| import.take());
        if let Some(slot) = import.as_ref().and_then(|import| import.settling) {
            ctx.complete_status(slot, Status::Invalid);
        }
        self.throttled.remove(&number);
        self.closing.remove(&number);
        self.divide_reserve(ctx);
        if let Some(send_queue) = import.and_then(|import| import.send_queue) {
            self.detach_send_queue(ctx, send_queue);
        }
    }

    /// IMPORT_ACK. Clears the error of an import, so that it accepts stores again. Fails for a permanently failed
    /// import.
    pub(crate) fn acknowledge(&mut self, ctx: &mut Ctx, command: &Command) -> Result<(), Status> {
        let Some(import) = self.import(command.import) else { return Err(Status::Invalid) };
        if import.dead {
            return Err(import.error.unwrap_or(Status::NodeDown));
        }
        import.error = None;
        import.in_error = false;
        // A new epoch is needed only if the receiver has refused a store. After a local loss, earlier stores of the
        // epoch may still be in flight and must not be refused.
        if import.refused {
            self.begin_epoch(command.import);
        }
        ctx.cause(Cause::ImportState(command.import));
        Ok(())
    }
}
