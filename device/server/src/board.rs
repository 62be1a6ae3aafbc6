// SPDX-License-Identifier: MIT OR Apache-2.0
//! One board: the pure core with its guest memory, config space and interrupts. Performs the core's actions at once.
//! The servers (`shell`, `crate_server`) own a board; a vfio-user session drives it as its [`Backend`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use log::{debug, error};
use rustix::io::Errno;
use telegraphos_device_core::{
    Action, Bar, Event, Hib, HibConfig, LentPacket, Loan, RingAction, RingEvent, WindowStore,
};
use telegraphos_link::limit::Limiter;
use telegraphos_link::ring_end::{Beside, Passing};
use telegraphos_service::wait::Places;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, MAX_BURST, NodeId, Packet, UNIT, regs};

use crate::config_space::{self, Builder, ConfigSpace, Written};
use crate::direct::Member;
use crate::interrupts::Interrupts;
use crate::memory::{self, Budget, GuestMemory, Mapped};
use crate::notices;
use crate::rings::{Offer, Rings};
use crate::vfio::message::{DmaMap, DmaUnmap, IrqSet};
use crate::vfio::server::{CONFIG_REGION, spread};
use crate::vfio::{Answer, Backend, Refused, Token};

/// A complete board, without its two connections.
#[derive(Debug)]
pub struct Board {
    hib: Hib,
    memory: GuestMemory,
    config: ConfigSpace,
    interrupts: Interrupts,
    /// Completed loads whose replies have not been sent to the client.
    completed: Vec<(Token, u64)>,
    /// Frames that have not been sent to the fabric.
    frames: Vec<Frame>,
    pub(crate) rings: Rings,
    /// Buffers, kept to reuse their allocations.
    ring_frames: VecDeque<Passing>,
    ready_rings: Vec<NodeId>,
    actions: Vec<Action>,
    /// Stores to the window that the core has not been passed: it handles adjacent ones at a fraction of the cost.
    /// Everything else comes behind them ([`Board::pass_stores`]).
    stores: Vec<WindowStore>,
    /// Rate limit of log lines that the guest or peers can trigger.
    pub(crate) limiter: Limiter,
    now: u64,
    /// The core has work left for the next turn of the loop.
    more: bool,
}

/// The BAR of a vfio-user region; `None` for other regions.
fn bar(region: u32) -> Option<Bar> {
    match region {
        regs::BAR_REGISTERS => Some(Bar::Control),
        regs::BAR_CONTEXTS => Some(Bar::Contexts),
        regs::BAR_WINDOW => Some(Bar::Window),
        _ => None,
    }
}

/// A loan beside a packet of a ring. That of a block that is requested saves no bytes.
fn beside(packet: &Packet, loan: Loan) -> Beside {
    let length = if matches!(packet.body, Body::ReadBlock { .. }) { 0 } else { loan.length() };
    Beside { what: loan.into_any(), length }
}

impl Board {
    /// A board just powered on, which maps at most `dma_limit` bytes of guest memory.
    pub fn new(config: HibConfig, dma_limit: u64) -> Board {
        // Contexts and window are prefetchable, so that they can be above 4 GiB behind a port. Bridges that prefetch or
        // merge, which their loads and stores would not survive, exist in conventional PCI only. How processors access
        // them is the driver's choice: Linux maps them uncached.
        let space = Builder::board().bar64(regs::BAR_REGISTERS, regs::BAR0_SIZE, false);
        let space = space.bar64(regs::BAR_CONTEXTS, contexts_size(&config), true);
        let space = space.bar64(regs::BAR_WINDOW, config.window.bar_size(), true);
        let space =
            if config.msix { space.msix(1, 0, regs::MSIX_TABLE as u32, regs::MSIX_PBA as u32) } else { space.msi() };
        let space = space.function_reset();
        Board {
            memory: GuestMemory::new(dma_limit),
            config: space.build(),
            interrupts: Interrupts::new(config.msix),
            completed: Vec::new(),
            frames: Vec::new(),
            rings: Rings::default(),
            ring_frames: VecDeque::new(),
            ready_rings: Vec::new(),
            actions: Vec::new(),
            stores: Vec::with_capacity(MAX_BURST),
            limiter: Limiter::default(),
            now: 0,
            more: false,
            hib: Hib::new(config),
        }
    }

    /// From now on it is one of several boards of this process. For a board without a client.
    pub(crate) fn share(&mut self, budget: &Budget) {
        self.memory.share(budget);
    }

    /// Lets it reach its node's slice of the memory of a trust group.
    pub(crate) fn attach(&mut self, member: &Member) -> Result<(), Errno> {
        member.attach(&mut self.memory)
    }

    /// The core, for inspection.
    pub fn hib(&self) -> &Hib {
        &self.hib
    }

    /// The time of the last tick, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Advances the core's clock to `now` microseconds.
    pub fn tick(&mut self, now: u64) {
        self.now = now;
        self.feed(Event::Tick { now });
    }

    /// Whether the core has left work for a later turn of the loop.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Continues work that the core left for this turn of the loop.
    pub fn turn(&mut self) {
        if std::mem::take(&mut self.more) {
            self.feed(Event::Continue);
        }
    }

    /// Microseconds until [`Board::tick`] or [`Board::turn`] must be called; `None` if neither is needed.
    pub fn wait(&self, now: u64) -> Option<u64> {
        if self.more {
            return Some(0);
        }
        self.hib.deadline().map(|at| at.saturating_sub(now))
    }

    /// The loads completed since the last call.
    pub fn take_completed(&mut self) -> impl Iterator<Item = (Token, u64)> + '_ {
        self.completed.drain(..)
    }

    /// Ends a turn of the loop, which acknowledges what was performed in it: swaps the frames queued for the fabric
    /// with an empty buffer.
    pub fn end_turn(&mut self, buffer: &mut Vec<Frame>) {
        self.pass_stores();
        if self.hib.owes_acknowledgements() {
            let mut actions = std::mem::take(&mut self.actions);
            self.hib.end_turn(&mut actions);
            self.perform(actions);
        }
        std::mem::swap(&mut self.frames, buffer);
    }

    /// Passes an event to the core and performs all resulting actions, guest-memory steps included.
    pub fn feed(&mut self, event: Event) {
        self.pass_stores();
        let mut actions = std::mem::take(&mut self.actions);
        self.hib.handle(event, &mut actions);
        self.perform(actions);
    }

    /// Takes a store to the window, which the core gets together with those behind it: as many as fit in a packet, of
    /// those that the guest has posted by now. Stores that may fill the reserve get there at once, since intake pauses
    /// by its state.
    fn take_store(&mut self, store: WindowStore) {
        self.stores.push(store);
        if self.stores.len() == MAX_BURST || self.hib.is_nearly_full_with(self.stores.len() as u32) {
            self.pass_stores();
        }
    }

    /// Passes the core the stores to the window that wait for others. Everything else does so first; a shell does it
    /// when it has served the client's messages.
    pub fn pass_stores(&mut self) {
        if self.stores.is_empty() {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.hib.stores(&self.stores, &mut actions);
        self.stores.clear();
        self.perform(actions);
    }

    /// Performs the core's actions, and those that follow from them.
    fn perform(&mut self, mut actions: Vec<Action>) {
        let mut at = 0;
        while let Some(action) = actions.get_mut(at) {
            at += 1;
            // Moved out, not cloned: it may carry a block.
            match std::mem::replace(action, Action::ResetDone) {
                Action::Step { step, op } => {
                    let result = self.memory.perform(&op);
                    self.hib.handle(Event::StepDone { step, result }, &mut actions);
                }
                Action::ReadDone { token, data } => self.completed.push((token, data)),
                Action::Send(packet) => self.frames.push(Frame::Packet(packet)),
                Action::SendLent(lent) => {
                    let LentPacket { mut packet, loan } = *lent;
                    packet.body.set_block(memory::bytes(&loan));
                    self.frames.push(Frame::Packet(packet));
                }
                Action::RingSend(packet) => self.rings.send(packet.dst, Frame::Packet(packet)),
                Action::RingSendLent(lent) => {
                    let LentPacket { packet, loan } = *lent;
                    let beside = beside(&packet, loan);
                    self.rings.send_with(packet.dst, Frame::Packet(packet), Some(beside));
                }
                Action::Ring { peer, what } => self.ring(peer, what),
                Action::Credit { class, count } => self.frames.push(Frame::Credit { class, count }),
                Action::AnnounceReset { incarnation } => {
                    self.rings.close_all();
                    self.frames.push(Frame::Reset { incarnation });
                }
                Action::Group { page, members } => self.frames.push(Frame::Group { page, members }),
                Action::Recall { address, length } => self.memory.recall(address, length),
                Action::Continue => self.more = true,
                Action::Interrupt => {
                    if let Err(e) = self.interrupts.trigger() {
                        limited!(self.limiter, "interrupt", self.now => warn "the interrupt could not be raised: {e}");
                    }
                }
                // Steps complete at once, so none is in flight when `feed` returns.
                Action::ResetDone => {}
                Action::Notice(notice) => notices::report(&notice, &mut self.limiter, self.now),
            }
        }
        actions.clear();
        // Releases the memory of a long burst.
        if actions.capacity() > 4096 {
            actions.shrink_to(4096);
        }
        self.actions = actions;
    }

    // ---- rings ----

    /// What to do about the ring to a node.
    fn ring(&mut self, peer: NodeId, what: RingAction) {
        match what {
            RingAction::Credit { class, count } => self.rings.send(peer, Frame::Credit { class, count }),
            RingAction::Probe => self.rings.send(peer, Frame::Probe),
            RingAction::Unused { incarnation } => {
                self.frames.push(Frame::RingUse { node: peer, incarnation, on: false });
            }
            RingAction::Close(why) => {
                let (Some(incarnation), Some(why)) = (self.rings.close(peer), why) else { return };
                limited!(self.limiter, "ring", self.now => warn
                    "the ring to node {peer} is closed, and the node counts as down: it {why}");
                self.frames.push(Frame::RingLost { node: peer, incarnation });
            }
        }
    }

    /// Opens an end of a ring, unless it is for an incarnation of the past. Rings are waited for at one of these
    /// places.
    pub(crate) fn open_ring(&mut self, offer: Offer, places: &Places) {
        let Offer { node, incarnation, own, credits, .. } = offer;
        let lends = offer.lends();
        if !self.hib.accepts_ring(node, incarnation, own) {
            return;
        }
        match self.rings.open(offer, places) {
            Ok(()) => {
                self.feed(Event::Ring { peer: node, what: RingEvent::Up { incarnation, own, credits, lends } });
            }
            // The other end is not used without an answer from here.
            Err(e) => {
                limited!(self.limiter, "ring", self.now => warn
                    "no ring to node {node}, whose packets pass the fabric: {e}");
            }
        }
    }

    /// Receives from all rings.
    pub(crate) fn serve_rings(&mut self) {
        let mut ready = std::mem::take(&mut self.ready_rings);
        self.rings.ready(&mut ready);
        for peer in ready.drain(..) {
            let mut frames = std::mem::take(&mut self.ring_frames);
            let received = self.rings.receive(self.now, peer, &mut frames);
            let mut valid = true;
            for Passing { frame, beside } in frames.drain(..) {
                let loan = beside.map(|beside| Loan::from_any(beside.what));
                let what = match frame {
                    // The core may have closed it.
                    _ if !valid || self.rings.incarnation(peer).is_none() => break,
                    Frame::Packet(packet) if packet.src == peer && loan != Some(None) => {
                        self.feed(Event::RingPacket { packet, loan: loan.flatten() });
                        continue;
                    }
                    Frame::Probe => {
                        self.rings.send(peer, Frame::Alive);
                        continue;
                    }
                    Frame::Credit { class, count } => RingEvent::Credit { class, count },
                    Frame::Alive => RingEvent::Alive,
                    _ => {
                        valid = false;
                        RingEvent::Broken
                    }
                };
                self.feed(Event::Ring { peer, what });
            }
            self.ring_frames = frames;
            if let Err(e) = received {
                self.ring_broken(peer, &e);
            }
        }
        self.ready_rings = ready;
    }

    /// Writes what was queued for rings.
    pub(crate) fn flush_rings(&mut self) {
        while self.rings.is_dirty() {
            for (peer, e) in self.rings.flush() {
                self.ring_broken(peer, &e);
            }
        }
    }

    fn ring_broken(&mut self, peer: NodeId, why: &io::Error) {
        limited!(self.limiter, "ring error", self.now => debug "the ring to node {peer}: {why}");
        self.feed(Event::Ring { peer, what: RingEvent::Broken });
    }

    /// Resets the board and drops everything of its guest, after the client has disconnected.
    pub fn client_gone(&mut self) {
        self.reset();
        self.memory.clear();
        self.interrupts.clear();
        self.completed.clear();
    }

    /// Passes the bus-master bit of the command register to the core.
    fn bus_master_changed(&mut self) {
        let on = self.config.bus_master();
        debug!("bus mastering is {}", if on { "on" } else { "off" });
        self.feed(Event::BusMaster(on));
    }
}

/// Size of BAR2 in bytes.
fn contexts_size(config: &HibConfig) -> u64 {
    u64::from(config.contexts) * UNIT
}

impl Backend for Board {
    fn region_size(&self, region: u32) -> u64 {
        match region {
            regs::BAR_REGISTERS => regs::BAR0_SIZE,
            regs::BAR_CONTEXTS => contexts_size(self.hib.config()),
            regs::BAR_WINDOW => self.hib.config().window.bar_size(),
            CONFIG_REGION => config_space::SIZE as u64,
            _ => 0,
        }
    }

    fn vectors(&self, index: u32) -> u32 {
        self.interrupts.vectors(index)
    }

    fn read(&mut self, token: Token, region: u32, offset: u64, data: &mut [u8]) -> Answer {
        if let Some(bar) = bar(region) {
            self.feed(Event::Read { token, bar, offset, size: data.len() as u32 });
            // Newest first: the answer to a register read was appended just now.
            return match self.completed.iter().rposition(|(t, _)| *t == token) {
                Some(at) => {
                    let (_, value) = self.completed.swap_remove(at);
                    spread(value, data);
                    Answer::Now
                }
                None => Answer::Later,
            };
        }
        if region != CONFIG_REGION || self.config.read(offset, data).is_err() {
            data.fill(0xff);
        }
        Answer::Now
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        if let Some(bar) = bar(region) {
            let mut bytes = [0; 8];
            let low = data.len().min(8);
            bytes[..low].copy_from_slice(&data[..low]);
            let (size, data) = (data.len() as u32, u64::from_le_bytes(bytes));
            match bar {
                Bar::Window => self.take_store(WindowStore { offset, size, data }),
                _ => self.feed(Event::Write { bar, offset, size, data }),
            }
        } else if region == CONFIG_REGION {
            let before = self.config.bus_master();
            match self.config.write(offset, data) {
                Ok(Written::FunctionReset) => {
                    debug!("the guest resets the function");
                    self.reset();
                }
                Ok(Written::Registers) if self.config.bus_master() != before => self.bus_master_changed(),
                _ => {}
            }
        }
    }

    fn dma_map(&mut self, map: DmaMap, fd: Option<OwnedFd>) -> Result<(), Refused> {
        self.pass_stores();
        let mapped = self.memory.map(&map, fd)?;
        debug!("guest memory {:#x} + {:#x} mapped: {mapped:?}", map.address, map.size);
        if mapped == (Mapped::Shared { sealed: false }) {
            limited!(self.limiter, "unsealed", self.now => debug
                "the file behind guest memory {:#x} is not sealed against shrinking", map.address);
        }
        Ok(())
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<u64, Refused> {
        self.pass_stores();
        if !self.hib.is_quiescent() {
            // Unreachable: `feed` performs every step before it returns.
            error!("guest memory is unmapped with steps in flight");
        }
        let size = self.memory.unmap(&unmap)?;
        debug!("guest memory {:#x} + {:#x} unmapped", unmap.address, size);
        Ok(size)
    }

    fn set_irqs(&mut self, set: IrqSet, data: &[u8], fds: Vec<OwnedFd>) -> Result<(), Refused> {
        self.pass_stores();
        self.interrupts.set(&set, data, fds)
    }

    fn reset(&mut self) {
        self.config.reset();
        self.feed(Event::Reset);
        self.interrupts.reset();
    }
}
