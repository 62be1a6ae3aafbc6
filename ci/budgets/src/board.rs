// SPDX-License-Identifier: MIT OR Apache-2.0
//! One board with the memory of its guest, driven as the server drives it (`device/server/src/board.rs`, `shell.rs`):
//! memory steps are performed in place, and what a turn sends is encoded at its end.

use telegraphos_device_core::{Action, Event, Hib, HibConfig, Step, StepResult};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{NodeId, Status};

/// A board and its guest's memory.
pub(crate) struct Board {
    pub(crate) node: NodeId,
    pub(crate) hib: Hib,
    memory: Vec<u8>,
    /// Bytes from the switch.
    pub(crate) input: Vec<u8>,
    /// Bytes for the switch.
    pub(crate) output: Vec<u8>,
    /// The value of the last load that was completed.
    pub(crate) loaded: Option<u64>,
    /// The core has work left for the next turn.
    pub(crate) more: bool,
    frames: Vec<Frame>,
    actions: Vec<Action>,
}

impl Board {
    pub(crate) fn new(config: HibConfig, memory: usize) -> Board {
        Board {
            node: config.node,
            hib: Hib::new(config),
            memory: vec![0; memory],
            input: Vec::new(),
            output: Vec::new(),
            loaded: None,
            more: false,
            frames: Vec::new(),
            actions: Vec::new(),
        }
    }

    pub(crate) fn word(&self, address: u64) -> u64 {
        let at = address as usize;
        u64::from_le_bytes(self.memory[at..at + 8].try_into().unwrap())
    }

    pub(crate) fn set_word(&mut self, address: u64, value: u64) {
        self.set_bytes(address, &value.to_le_bytes());
    }

    pub(crate) fn bytes(&self, address: u64, length: usize) -> &[u8] {
        &self.memory[address as usize..address as usize + length]
    }

    pub(crate) fn set_bytes(&mut self, address: u64, bytes: &[u8]) {
        self.memory[address as usize..address as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// One turn of the server's loop: the time, the input, what the last turn left, the guest's accesses, the output.
    pub(crate) fn turn(&mut self, now: u64, guest: impl IntoIterator<Item = Event>) {
        self.feed(Event::Tick { now });
        self.receive();
        if std::mem::take(&mut self.more) {
            self.feed(Event::Continue);
        }
        for event in guest {
            self.feed(event);
        }
        if self.hib.owes_acknowledgements() {
            let mut actions = std::mem::take(&mut self.actions);
            self.hib.end_turn(&mut actions);
            self.perform(actions);
        }
        for frame in self.frames.drain(..) {
            frame.encode(&mut self.output);
        }
        // The server asks when to wake up.
        std::hint::black_box(self.hib.deadline());
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

    fn feed(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.hib.handle(event, &mut actions);
        self.perform(actions);
    }

    fn perform(&mut self, mut actions: Vec<Action>) {
        let mut at = 0;
        while let Some(action) = actions.get_mut(at) {
            at += 1;
            match std::mem::replace(action, Action::ResetDone) {
                Action::Step { step, op } => {
                    let result = self.access(op);
                    self.hib.handle(Event::StepDone { step, result }, &mut actions);
                }
                Action::ReadDone { data, .. } => self.loaded = Some(data),
                Action::Send(packet) => self.frames.push(Frame::Packet(packet)),
                Action::Credit { class, count } => self.frames.push(Frame::Credit { class, count }),
                Action::AnnounceReset { incarnation } => self.frames.push(Frame::Reset { incarnation }),
                Action::Group { page, members } => self.frames.push(Frame::Group { page, members }),
                Action::Continue => self.more = true,
                Action::Interrupt | Action::ResetDone | Action::Recall { .. } => {}
                Action::RingSend(_) | Action::Ring { .. } => panic!("node {} has no rings", self.node),
                // A notice is a failure: what is measured would not be the operation.
                Action::Notice(notice) => panic!("node {} reports {notice:?}", self.node),
            }
        }
        actions.clear();
        self.actions = actions;
    }

    fn access(&mut self, step: Step) -> StepResult {
        let load = |memory: &[u8], address: u64, size: u8| {
            let (at, size) = (address as usize, usize::from(size));
            let mut bytes = [0; 8];
            bytes[..size].copy_from_slice(memory.get(at..at + size)?);
            Some(u64::from_le_bytes(bytes))
        };
        let store = |memory: &mut [u8], address: u64, bytes: &[u8]| {
            let at = address as usize;
            memory.get_mut(at..at + bytes.len()).map(|memory| memory.copy_from_slice(bytes))
        };
        let memory = &mut self.memory;
        let done = match step {
            Step::Load { address, size } => load(memory, address, size).map(StepResult::Loaded),
            Step::Store { address, size, data } => {
                store(memory, address, &data.to_le_bytes()[..usize::from(size)]).map(|()| StepResult::Stored)
            }
            Step::Atomic { address, size, op, operand, compare } => load(memory, address, size).and_then(|old| {
                let new = op.apply(size, old, operand, compare).to_le_bytes();
                store(memory, address, &new[..usize::from(size)]).map(|()| StepResult::Loaded(old))
            }),
            Step::LoadBlock { address, length, .. } => memory
                .get(address as usize..address as usize + length as usize)
                .map(|bytes| StepResult::Block(bytes.into())),
            Step::Lend { .. } => Some(StepResult::Lent(None)),
            Step::StoreBlock { address, data } => store(memory, address, &data.bytes()).map(|()| StepResult::Stored),
            // The measured programs register no memory.
            Step::Pieces { .. } => None,
            Step::LoadCommand { address } => memory
                .get(address as usize..)
                .and_then(|bytes| bytes.get(..size_of::<telegraphos_wire::admin::Command>()))
                .map(|bytes| StepResult::Command(bytemuck::pod_read_unaligned(bytes))),
        };
        done.unwrap_or(StepResult::Failed(Status::MemoryFault))
    }
}
