// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tasks of this node.

use crate::types::{Exit, Incarnation, TaskId, TaskInfo};
use std::collections::{BTreeMap, VecDeque};
use telegraphos_accounts::{Exhausted, Shares, Users};

/// Tasks of a node, and beside them those of root.
const TASKS: (Shares, u64) = (Shares { capacity: 224, spenders: 16, guaranteed: 2, limit: 128 }, 32);
/// Tasks that have ended, and whose exit is still known.
const ENDED: usize = 1024;
/// Registrations at the tasks and clients of a node, and beside them those of root.
const WATCHERS: (Shares, u64) = (Shares { capacity: 3072, spenders: 32, guaranteed: 32, limit: 1024 }, 1024);

/// The receiver of a notification: a ticket of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watcher {
    pub(crate) node: u16,
    pub(crate) incarnation: Incarnation,
    pub(crate) ticket: u64,
    /// The number of the client there.
    pub(crate) client: u64,
    pub(crate) uid: u32,
}

/// Whose task it is.
#[derive(Clone, Debug)]
pub(crate) struct Master {
    /// The watcher that is notified of its end.
    pub(crate) owner: Watcher,
    pub(crate) task: TaskId,
    pub(crate) program: String,
}

/// A task that is being started.
#[derive(Debug)]
pub(crate) struct Starting {
    pub(crate) master: Master,
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

/// The tasks of this node, and the watchers to notify of their end.
#[derive(Debug)]
pub(crate) struct Tasks {
    running: BTreeMap<u32, Task>,
    starting: BTreeMap<u64, Starting>,
    ended: VecDeque<(u32, Exit)>,
    watchers: Vec<(u32, Watcher)>,
    /// Those that run or start, by their user.
    tasks: Users,
    /// Registrations, by the user of the client.
    registrations: Users,
}

impl Default for Tasks {
    fn default() -> Tasks {
        let users = |(shares, reserve)| Users::new(shares, reserve);
        Tasks {
            running: BTreeMap::new(),
            starting: BTreeMap::new(),
            ended: VecDeque::new(),
            watchers: Vec::new(),
            tasks: users(TASKS),
            registrations: users(WATCHERS),
        }
    }
}

impl Tasks {
    /// Tasks that run or start.
    pub(crate) fn count(&self) -> usize {
        self.running.len() + self.starting.len()
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
            uid: task.master.owner.uid,
            program: task.master.program.clone(),
        };
        self.running.iter().map(info).collect()
    }

    /// Registers for the end of a process.
    pub(crate) fn watch(&mut self, pid: u32, watcher: Watcher) -> Result<(), Exhausted> {
        self.registrations.take(watcher.uid, 1)?;
        self.watchers.push((pid, watcher));
        Ok(())
    }

    /// Removes and returns the watchers to notify of the end of a process.
    pub(crate) fn take_watchers(&mut self, pid: u32) -> Vec<Watcher> {
        let (of_it, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.watchers).into_iter().partition(|(of, _)| *of == pid);
        self.watchers = others;
        of_it.iter().for_each(|(_, watcher)| self.registrations.give(watcher.uid, 1));
        of_it.into_iter().map(|(_, watcher)| watcher).collect()
    }

    pub(crate) fn forget(&mut self, gone: impl Fn(&Watcher) -> bool) {
        let registrations = &mut self.registrations;
        self.watchers.retain(|(_, watcher)| {
            let goes = gone(watcher);
            registrations.give(watcher.uid, goes.into());
            !goes
        });
    }

    /// A process is to be started for a master.
    pub(crate) fn start(&mut self, token: u64, master: Master) -> Result<(), Exhausted> {
        self.tasks.take(master.owner.uid, 1)?;
        self.starting.insert(token, Starting { master, doomed: false });
        Ok(())
    }

    /// A process has been started, or not: for whom.
    pub(crate) fn started(&mut self, token: u64, pid: Option<u32>) -> Option<Starting> {
        let starting = self.starting.remove(&token)?;
        match pid {
            Some(pid) => _ = self.running.insert(pid, Task { master: starting.master.clone(), ending: None }),
            None => self.tasks.give(starting.master.owner.uid, 1),
        }
        Some(starting)
    }

    /// A process has ended. Returns the watchers to notify.
    pub(crate) fn exited(&mut self, pid: u32, exit: Exit) -> Vec<Watcher> {
        let Some(task) = self.running.remove(&pid) else { return Vec::new() };
        self.tasks.give(task.master.owner.uid, 1);
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
