// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end: everything is received, and nothing is left (I18).

use super::world::{PROCESSES, Part, World, import, node, which};
use telegraphos_msg_core::Pattern;

/// Passes in which something happens, at most.
const PASSES: usize = 20_000;
/// Bytes that a receive has room for if there is no memory for more.
const LITTLE: u64 = 64;

impl World {
    /// Everything that is under way comes to its end.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..PASSES {
            self.cluster.settle();
            let mut any = false;
            for who in 0..PROCESSES.len() {
                any |= self.handle_overflow(who);
                while self.pop(who)? {
                    any = true;
                }
                for of in 0..PROCESSES.len() {
                    while self.advance(who, of)? {
                        any = true;
                    }
                }
            }
            while !self.transfers.is_empty() && self.transfer()? {
                any = true;
            }
            for at in (0..self.transfers.len()).rev() {
                any |= at < self.transfers.len() && self.end_transfer(at)?;
            }
            if !any {
                return Ok(());
            }
        }
        Err(format!("hang: something still happens after {PASSES} passes"))
    }

    /// Lets everything end, receives whatever there is, and checks that nothing is left.
    pub(crate) fn rest(&mut self) -> Result<(), String> {
        self.settle()?;
        // Those who have gone are noticed.
        for (who, of) in (0..PROCESSES.len()).flat_map(|who| (0..PROCESSES.len()).map(move |of| (who, of))) {
            self.probe(who, of);
        }
        self.settle()?;
        for who in 0..PROCESSES.len() {
            self.look(who)?;
        }
        self.settle()?;
        for receive in 0..self.receives.len() {
            let wanted = &self.receives[receive];
            if wanted.outcome.is_none() && self.programs[which(wanted.at.process)].alive {
                self.withdraw_receive(receive)?;
            }
        }
        self.settle()?;
        while let Some(send) = self.open_send() {
            let to = self.sends[send].to;
            let (who, length) = (which(to.process), self.sends[send].length);
            if !self.programs[who].alive {
                return Err(format!("freed: send {send} waits for a process that has gone"));
            }
            let mut receive = self.receive(who, to.thread, Pattern::default(), length)?;
            if receive.is_none() {
                receive = self.receive(who, to.thread, Pattern::default(), LITTLE)?;
            }
            let Some(receive) = receive else {
                return Err(format!("freed: send {send} waits for a thread that is not there"));
            };
            self.settle()?;
            if self.receives[receive].outcome.is_none() {
                return Err(format!("loss: send {send} waits, and so does its thread: {:?}", self.sends[send]));
            }
        }
        self.check_idle()
    }

    /// The first send that has not ended, of a process that has not.
    fn open_send(&self) -> Option<usize> {
        let of_living = |n: &usize| self.programs[which(self.sends[*n].from.process)].alive;
        (0..self.sends.len()).filter(of_living).find(|send| self.sends[*send].outcome.is_none())
    }

    fn check_idle(&mut self) -> Result<(), String> {
        for (who, program) in self.programs.iter().enumerate().filter(|(_, program)| program.alive) {
            if !program.engine.is_idle() {
                return Err(format!("freed: the engine of process {who} keeps something"));
            }
            for (of, link) in program.links.iter().enumerate() {
                if !link.items.is_empty() || !link.coming.is_empty() {
                    return Err(format!("loss: process {who} has something for or from {of} that never goes"));
                }
                let under_way = |part| {
                    let hib = &self.cluster.nodes[usize::from(node(who))].hib;
                    let number = import(who, of, part);
                    let (issued, finished) = hib.import_progress(number).unwrap_or_default();
                    issued - finished + u64::from(hib.elements_under_way(number))
                };
                let left = under_way(Part::Inbox) + under_way(Part::Queue);
                if left > 0 {
                    return Err(format!("loss: {left} stores of process {who} to {of} are never acknowledged"));
                }
            }
        }
        let ended = |process| !self.programs[which(process)].alive;
        if let Some(open) = self.receives.iter().find(|w| w.outcome.is_none() && !ended(w.at.process)) {
            return Err(format!("end: a receive has not ended: {open:?}"));
        }
        if !self.transfers.is_empty() {
            return Err("hang: a transfer never ends".into());
        }
        let fabric = self.cluster.fabric.as_ref().unwrap();
        fabric.switch.audit()
    }
}
