// SPDX-License-Identifier: MIT OR Apache-2.0
//! One board with the memory of its guest, driven as the server drives it (`device/server/src/board.rs`, `shell.rs`):
//! memory steps are performed in place, and what a turn sends is handed to the ring, or encoded, at its end.

use crate::memory::GuestMemory;
use crate::ring::Ring;
use telegraphos_device_core::{Action, Event, Hib, HibConfig, LentPacket, Loan, RingAction, RingEvent, WindowStore};
use telegraphos_link::ring_end::{Beside, Passing};
use telegraphos_testkit::world::Kernel;
use telegraphos_wire::link::Frame;
use telegraphos_wire::{MAX_BURST, NodeId};

/// A board and its guest's memory.
pub(crate) struct Board<M> {
    pub(crate) node: NodeId,
    pub(crate) hib: Hib,
    pub(crate) memory: M,
    pub(crate) kernel: Kernel,
    /// Bytes from the switch.
    pub(crate) input: Vec<u8>,
    /// Bytes for the switch.
    pub(crate) output: Vec<u8>,
    /// Its end of the ring to the other board, once it has one.
    ring: Option<Ring>,
    /// The value of the last load that was completed.
    pub(crate) loaded: Option<u64>,
    /// The core has work left for the next turn.
    pub(crate) more: bool,
    frames: Vec<Frame>,
    actions: Vec<Action>,
    /// Stores to the window that the core has not been passed.
    stores: Vec<WindowStore>,
}

impl<M: GuestMemory> Board<M> {
    pub(crate) fn new(config: HibConfig, memory: usize) -> Board<M> {
        Board {
            node: config.node,
            hib: Hib::new(config),
            memory: vec![0; memory].into(),
            kernel: Kernel::default(),
            input: Vec::new(),
            output: Vec::new(),
            ring: None,
            loaded: None,
            more: false,
            frames: Vec::new(),
            actions: Vec::new(),
            stores: Vec::with_capacity(MAX_BURST),
        }
    }

    /// Begins a turn of the server's loop: the time, the input, what the last turn left. The guest's accesses follow.
    pub(crate) fn begin_turn(&mut self, now: u64) {
        self.feed(Event::Tick { now });
        if self.is_called() {
            self.receive_ring(now);
        }
        self.receive();
        if std::mem::take(&mut self.more) {
            self.feed(Event::Continue);
        }
    }

    /// Ends it: the output.
    pub(crate) fn end_turn(&mut self) {
        if let Some(ring) = self.ring_mut() {
            ring.flush();
        }
        if self.hib.owes_acknowledgements() {
            self.hib.end_turn(&mut self.actions);
            self.perform();
        }
        for frame in self.frames.drain(..) {
            frame.encode(&mut self.output);
        }
        // The server asks when to wake up.
        std::hint::black_box(self.hib.deadline());
    }

    // ---- the ring ----

    /// From now on it has this end of a ring.
    pub(crate) fn open_ring(&mut self, ring: Ring) {
        assert!(M::RING, "the board is without code for it");
        self.ring = Some(ring);
    }

    fn ring(&self) -> Option<&Ring> {
        if M::RING { self.ring.as_ref() } else { None }
    }

    pub(crate) fn ring_mut(&mut self) -> Option<&mut Ring> {
        if M::RING { self.ring.as_mut() } else { None }
    }

    /// Whether something has arrived by the ring.
    pub(crate) fn is_called(&self) -> bool {
        self.ring().is_some_and(Ring::is_called)
    }

    fn ring_send(&mut self, frame: Frame, beside: Option<Beside>) {
        match self.ring_mut() {
            Some(ring) => ring.send(frame, beside),
            None => panic!("node {} has no ring", self.node),
        }
    }

    fn receive_ring(&mut self, now: u64) {
        let Some(ring) = self.ring_mut() else { return };
        let (peer, mut frames) = (ring.peer, ring.receive(now));
        for Passing { frame, beside } in frames.drain(..) {
            let what = match frame {
                Frame::Packet(packet) => {
                    let loan = beside.map(|beside| Loan::from_any(beside.what).expect("a loan is beside it"));
                    self.feed(Event::RingPacket { packet, loan });
                    continue;
                }
                Frame::Probe => {
                    self.ring_send(Frame::Alive, None);
                    continue;
                }
                Frame::Credit { class, count } => RingEvent::Credit { class, count },
                Frame::Alive => RingEvent::Alive,
                other => panic!("node {} was sent {other:?} by the ring", self.node),
            };
            self.feed(Event::Ring { peer, what });
        }
        if let Some(ring) = self.ring_mut() {
            ring.reuse(frames);
        }
    }

    fn receive(&mut self) {
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while let Some((frame, used)) = Frame::decode(rest).expect("the switch sends frames") {
            rest = &rest[used..];
            let event = match frame {
                Frame::Welcome { incarnation, nodes, credits } => Event::LinkUp { incarnation, nodes, credits },
                Frame::Packet(packet) => Event::Packet(packet),
                Frame::Credit { class, count } => Event::Credit { class, count },
                Frame::NodeUp { node, incarnation, block } => Event::NodeUp { node, incarnation, block },
                Frame::NodeDown { node } => Event::NodeDown { node },
                other => panic!("node {} was sent {other:?}", self.node),
            };
            self.feed(event);
        }
        // Its allocation is used again.
        self.input = input;
        self.input.clear();
    }

    /// A store of the guest to the window.
    pub(crate) fn take_store(&mut self, store: WindowStore) {
        self.stores.push(store);
        if self.stores.len() == MAX_BURST || self.hib.is_nearly_full_with(self.stores.len() as u32) {
            self.pass_stores();
        }
    }

    pub(crate) fn feed(&mut self, event: Event) {
        self.hib.handle(event, &mut self.actions);
        self.perform();
    }

    /// Passes the stores, before another access of the guest and when there is none.
    pub(crate) fn pass_stores(&mut self) {
        if !self.stores.is_empty() {
            self.hib.stores(&self.stores, &mut self.actions);
            self.stores.clear();
            self.perform();
        }
    }

    #[inline]
    fn perform(&mut self) {
        if !self.actions.is_empty() {
            self.perform_all();
        }
    }

    fn perform_all(&mut self) {
        let mut at = 0;
        while let Some(action) = self.actions.get_mut(at) {
            at += 1;
            match std::mem::replace(action, Action::ResetDone) {
                Action::Step { step, op } => {
                    let lent = self.memory.perform_lent(&op);
                    let result = lent.unwrap_or_else(|| self.memory.perform(&op));
                    self.hib.handle(Event::StepDone { step, result }, &mut self.actions);
                }
                Action::ReadDone { data, .. } => self.loaded = Some(data),
                Action::Send(packet) => self.frames.push(Frame::Packet(packet)),
                Action::Credit { class, count } => self.frames.push(Frame::Credit { class, count }),
                Action::AnnounceReset { incarnation } => self.frames.push(Frame::Reset { incarnation }),
                Action::Group { page, members } => self.frames.push(Frame::Group { page, members }),
                Action::Continue => self.more = true,
                Action::Interrupt | Action::ResetDone | Action::Recall { .. } => {}
                Action::RingSend(packet) => self.ring_send(Frame::Packet(packet), None),
                Action::RingSendLent(lent) => {
                    let LentPacket { packet, loan } = *lent;
                    let length = loan.length();
                    let beside = Beside { what: loan.into_any(), length };
                    self.ring_send(Frame::Packet(packet), Some(beside));
                }
                Action::Ring { what: RingAction::Credit { class, count }, .. } => {
                    self.ring_send(Frame::Credit { class, count }, None);
                }
                Action::Ring { what: RingAction::Probe, .. } => self.ring_send(Frame::Probe, None),
                other @ (Action::SendLent(_) | Action::Ring { .. }) => panic!("node {}: {other:?}", self.node),
                // A notice is a failure: what is measured would not be the operation.
                Action::Notice(notice) => panic!("node {} reports {notice:?}", self.node),
            }
        }
        self.actions.clear();
    }
}
