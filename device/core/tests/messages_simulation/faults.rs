// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults: processes that end, resets, crashes, and broken links. Others find out by their boards alone.

use super::world::{INBOXES, NODES, PROCESSES, Part, World, import, node, pages};
use crate::common::{Driver, grant_clear, import_clear};

impl World {
    /// One of all faults.
    pub(crate) fn fault(&mut self) -> Result<(), String> {
        self.faulty = true;
        let node = self.below(usize::from(NODES)) as u16;
        match self.below(5) {
            0 => self.exit(),
            1 => self.reset(node),
            2 => {
                self.count("crashes", 1);
                self.end_all(node);
                self.cluster.replace(node);
                self.absent.insert(node);
                Ok(())
            }
            3 => {
                self.count("links that break for good", 1);
                self.cluster.disconnect(node);
                self.absent.insert(node);
                Ok(())
            }
            _ => {
                self.count("links that break", 1);
                self.cluster.disconnect(node);
                self.cluster.some_steps(20);
                self.cluster.connect(node);
                Ok(())
            }
        }
    }

    /// A process is no more.
    fn end(&mut self, who: usize) {
        self.programs[who].alive = false;
        for link in &mut self.programs[who].links {
            link.up = false;
            link.items.clear();
            link.coming.clear();
        }
        self.transfers.retain(|transfer| transfer.who != who);
        self.arrived.retain(|send| self.sends[*send].to.process != PROCESSES[who]);
    }

    fn end_all(&mut self, of: u16) {
        (0..PROCESSES.len()).filter(|who| node(*who) == of).for_each(|who| self.end(who));
    }

    /// A process ends; its driver closes what it has imported, and revokes what it has exported, in any order with
    /// everything else.
    fn exit(&mut self) -> Result<(), String> {
        self.count("ends of processes", 1);
        let who = self.below(PROCESSES.len());
        self.end(who);
        for of in 0..PROCESSES.len() {
            for part in [Part::Inbox, Part::Queue, Part::Memory] {
                let import = import(who, of, part);
                self.cluster.post(node(who), import_clear(import));
            }
        }
        for page in 0..INBOXES + PROCESSES.len() as u32 {
            let index = pages(who) + page;
            self.cluster.post(node(who), grant_clear(index, 1));
        }
        Ok(())
    }

    /// A guest is restarted: its processes are no more, and its driver begins anew.
    fn reset(&mut self, node: u16) -> Result<(), String> {
        self.count("resets", 1);
        self.end_all(node);
        self.cluster.reset(node);
        self.cluster.nodes[usize::from(node)].ram.fill(0);
        self.cluster.start(node);
        Ok(())
    }
}
