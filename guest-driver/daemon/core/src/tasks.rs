// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tasks of this node.

use crate::types::{Exit, Incarnation, TaskId, TaskInfo};
use std::collections::{BTreeMap, VecDeque};

/// Tasks of a node, at most.
pub(crate) const MOST: usize = 256;
/// Those of one user, at most, but of root.
pub(crate) const OF_A_USER: usize = 192;
/// Tasks that have ended, and whose exit is still known.
const ENDED: usize = 1024;
/// Registrations at the tasks and clients of a node, at most.
const WATCHERS: usize = 4096;

/// Somebody who is to be told: a ticket of a daemon's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub(crate) node: u16,
    pub(crate) incarnation: Incarnation,
    pub(crate) ticket: u64,
}

/// Whose task it is.
#[derive(Clone, Debug)]
pub(crate) struct Master {
    /// Who is told of its end.
    pub(crate) owner: Watcher,
    /// The number of the client there.
    pub(crate) client: u64,
    pub(crate) task: TaskId,
    pub(crate) uid: u32,
    pub(crate) program: String,
}

/// A task that is being started.
#[derive(Debug)]
pub(crate) struct Starting {
    pub(crate) master: Master,
    /// Its master has gone.
    pub(crate) doomed: bool,
}

#[derive(Debug)]
struct Task {
    master: Master,
    /// It is being ended: periods until SIGKILL, which has been sent at 0.
    ending: Option<u32>,
}

/// What is to be done to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) pid: u32,
    pub(crate) kill: bool,
}

/// The tasks of this node, and who is to be told of their end.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    running: BTreeMap<u32, Task>,
    pub(crate) starting: BTreeMap<u64, Starting>,
    ended: VecDeque<(u32, Exit)>,
    watchers: Vec<(u32, Watcher)>,
}

impl Tasks {
    /// Tasks that run or start.
    pub(crate) fn count(&self) -> usize {
        self.running.len() + self.starting.len()
    }

    /// Those of a user.
    pub(crate) fn count_of(&self, uid: u32) -> usize {
        let masters = self.running.values().map(|task| &task.master);
        masters
            .chain(self.starting.values().map(|starting| &starting.master))
            .filter(|master| master.uid == uid)
            .count()
    }

    pub(crate) fn is_running(&self, pid: u32) -> bool {
        self.running.contains_key(&pid)
    }

    /// How a task ended that is known to have.
    pub(crate) fn ended(&self, pid: u32) -> Option<Exit> {
        self.ended.iter().rev().find(|(ended, _)| *ended == pid).map(|(_, exit)| *exit)
    }

    pub(crate) fn list(&self, node: u16) -> Vec<TaskInfo> {
        let info = |(pid, task): (&u32, &Task)| TaskInfo {
            task: TaskId { node, pid: *pid },
            master: task.master.task,
            uid: task.master.uid,
            program: task.master.program.clone(),
        };
        self.running.iter().map(info).collect()
    }

    /// Adds a task; false if there are too many registrations.
    pub(crate) fn watch(&mut self, pid: u32, watcher: Watcher) -> bool {
        let room = self.watchers.len() < WATCHERS;
        if room {
            self.watchers.push((pid, watcher));
        }
        room
    }

    /// Takes out who is to be told of the end of a process.
    pub(crate) fn take_watchers(&mut self, pid: u32) -> Vec<Watcher> {
        let (of_it, others) = std::mem::take(&mut self.watchers).into_iter().partition(|(of, _)| *of == pid);
        self.watchers = others;
        let of_it: Vec<(u32, Watcher)> = of_it;
        of_it.into_iter().map(|(_, watcher)| watcher).collect()
    }

    pub(crate) fn forget(&mut self, gone: impl Fn(&Watcher) -> bool) {
        self.watchers.retain(|(_, watcher)| !gone(watcher));
    }

    /// A process has been started for a master.
    pub(crate) fn add(&mut self, pid: u32, master: Master) {
        self.running.insert(pid, Task { master, ending: None });
    }

    /// A process has ended: whoever is to be told.
    pub(crate) fn exited(&mut self, pid: u32, exit: Exit) -> Vec<Watcher> {
        let Some(task) = self.running.remove(&pid) else { return Vec::new() };
        if self.ended.len() == ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back((pid, exit));
        let mut told = vec![task.master.owner];
        told.extend(self.take_watchers(pid));
        told
    }

    /// Begins to end tasks, and dooms those that are being started.
    pub(crate) fn end(&mut self, grace: u32, of: impl Fn(&Master) -> bool) -> Vec<End> {
        self.starting.values_mut().filter(|starting| of(&starting.master)).for_each(|starting| starting.doomed = true);
        let mut ends = Vec::new();
        for (pid, task) in self.running.iter_mut().filter(|(_, task)| of(&task.master) && task.ending.is_none()) {
            task.ending = Some(grace);
            ends.push(End { pid: *pid, kill: grace == 0 });
        }
        ends
    }

    /// Counts a period: the tasks whose grace is over.
    pub(crate) fn tick(&mut self) -> Vec<End> {
        let mut ends = Vec::new();
        for (pid, task) in &mut self.running {
            if let Some(left @ 1..) = &mut task.ending {
                *left -= 1;
                if *left == 0 {
                    ends.push(End { pid: *pid, kill: true });
                }
            }
        }
        ends
    }
}
