// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection to the daemon of this node.

use crate::SOCKET;
use crate::error::{Error, Result};
use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use telegraphos_daemon_core::protocol::{Answer, Request, frame, unframe};
use telegraphos_daemon_core::{Exit, Job, NodeInfo, Partition, Place, Refusal, TaskId, TaskInfo, Watched};

/// What to spawn, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawn {
    pub place: Place,
    /// How many, 1 to 256.
    pub count: u16,
    /// Only on nodes of this partition.
    pub partition: Option<String>,
    pub job: Job,
}

/// What became of one task of a [`Spawn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spawned {
    /// Its number, from 0.
    pub index: u16,
    /// The node that was to have it.
    pub node: u16,
    /// The task, or why there is none.
    pub outcome: std::result::Result<TaskId, Refusal>,
}

/// A connection to the daemon of this node. Requests are answered one after the other; deaths come when they come, and
/// are kept until they are asked for.
#[derive(Debug)]
pub struct Daemon {
    stream: UnixStream,
    /// What has come of an answer.
    buffer: Vec<u8>,
    last: u32,
    /// What this client waits for the death of, by the request.
    watched: BTreeSet<(u32, Watched)>,
    /// What next_death has not returned yet.
    deaths: VecDeque<std::result::Result<(Watched, Exit), Refusal>>,
}

impl Daemon {
    /// Connects to the daemon of this node.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn connect() -> Result<Daemon> {
        Daemon::connect_at(Path::new(SOCKET))
    }

    /// Connects to the daemon that listens there.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn connect_at(path: &Path) -> Result<Daemon> {
        let stream = UnixStream::connect(path).map_err(|source| Error::NotRunning { path: path.to_owned(), source })?;
        let (watched, deaths) = (BTreeSet::new(), VecDeque::new());
        Ok(Daemon { stream, buffer: Vec::new(), last: 0, watched, deaths })
    }

    /// Spawns tasks, whose master this process is as long as the connection lasts. [`Daemon::next_death`] returns all
    /// of their deaths.
    pub fn spawn(&mut self, spawn: Spawn) -> Result<Vec<Spawned>> {
        let Spawn { place, count, partition, job } = spawn;
        let id = self.ask(Request::Spawn { place, count, partition, job })?;
        let mut spawned = Vec::new();
        while spawned.len() < usize::from(count) {
            match self.answer(id)? {
                Answer::Spawned { index, node, outcome } => spawned.push(Spawned { index, node, outcome }),
                Answer::Refused(refusal) => return Err(refusal.into()),
                _ => return Err(Error::Unexpected),
            }
        }
        spawned.sort_by_key(|spawned| spawned.index);
        Ok(spawned)
    }

    /// Sends a signal, 0 to 64, to a process of any node, as kill(2) does on this one; 0 only asks whether it could be
    /// sent.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the errno of kill(2), or `EHOSTUNREACH` if the node is dead.
    pub fn signal(&mut self, task: TaskId, signal: i32) -> Result<()> {
        self.done(Request::Signal { task, signal })
    }

    /// Has [`Daemon::next_death`] tell the death of a task, of another client of a daemon, or of a node: once, and at
    /// once if it is dead.
    pub fn watch(&mut self, what: Watched) -> Result<()> {
        let id = self.ask(Request::Watch { what })?;
        self.watched.insert((id, what));
        Ok(())
    }

    /// Waits for the next death; `None` if this client is registered for none.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] in place of a death whose registration the daemon has refused.
    pub fn next_death(&mut self) -> Result<Option<(Watched, Exit)>> {
        loop {
            match self.deaths.pop_front() {
                Some(death) => return Ok(Some(death?)),
                None if self.watched.is_empty() => return Ok(None),
                None => _ = self.receive()?,
            }
        }
    }

    pub fn tasks(&mut self) -> Result<Vec<TaskInfo>> {
        match self.call(Request::Tasks)? {
            Answer::Tasks(tasks) => Ok(tasks),
            _ => Err(Error::Unexpected),
        }
    }

    /// All nodes that have been heard of.
    pub fn nodes(&mut self) -> Result<Vec<NodeInfo>> {
        match self.call(Request::Nodes)? {
            Answer::Nodes(nodes) => Ok(nodes),
            _ => Err(Error::Unexpected),
        }
    }

    pub fn partitions(&mut self) -> Result<Vec<Partition>> {
        match self.call(Request::Partitions)? {
            Answer::Partitions(partitions) => Ok(partitions),
            _ => Err(Error::Unexpected),
        }
    }

    /// Makes a partition of these nodes, or changes it (root).
    pub fn set_partition(&mut self, name: &str, nodes: Vec<u16>) -> Result<()> {
        self.done(Request::SetPartition { name: name.into(), nodes })
    }

    /// Deletes a partition (root). Tasks that run in it continue.
    pub fn delete_partition(&mut self, name: &str) -> Result<()> {
        self.done(Request::DeletePartition { name: name.into() })
    }

    fn done(&mut self, request: Request) -> Result<()> {
        match self.call(request)? {
            Answer::Done => Ok(()),
            _ => Err(Error::Unexpected),
        }
    }

    fn call(&mut self, request: Request) -> Result<Answer> {
        let id = self.ask(request)?;
        match self.answer(id)? {
            Answer::Refused(refusal) => Err(refusal.into()),
            answer => Ok(answer),
        }
    }

    fn ask(&mut self, request: Request) -> Result<u32> {
        self.last = self.last.wrapping_add(1);
        let frame = frame(&(self.last, request))?;
        if let Err(error) = self.stream.write_all(&frame) {
            // It may have said why it has closed.
            return loop {
                match self.receive() {
                    Ok(_) => {}
                    Err(Error::Refused(refusal)) => break Err(refusal.into()),
                    Err(_) => break Err(Error::Closed(error)),
                }
            };
        }
        Ok(self.last)
    }

    /// The next answer to that request.
    fn answer(&mut self, id: u32) -> Result<Answer> {
        loop {
            match self.receive()? {
                Some((of, answer)) if of == id => return Ok(answer),
                _ => {}
            }
        }
    }

    /// The next answer; `None` if it was a death or the refusal of a registration, which is kept.
    fn receive(&mut self) -> Result<Option<(u32, Answer)>> {
        let mut bytes = [0; 4096];
        loop {
            if let Some((id, answer)) = unframe::<(u32, Answer)>(&mut self.buffer)? {
                return self.keep(id, answer);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Error::Closed(ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Closed(error)),
            }
        }
    }

    fn keep(&mut self, id: u32, answer: Answer) -> Result<Option<(u32, Answer)>> {
        match &answer {
            Answer::Died { what, exit } => {
                if self.watched.remove(&(id, *what)) {
                    self.deaths.push_back(Ok((*what, *exit)));
                }
                return Ok(None);
            }
            // What it says before it closes.
            Answer::Refused(refusal) if id == 0 => return Err(refusal.clone().into()),
            Answer::Refused(refusal) => {
                let watched = self.watched.iter().find(|(of, _)| *of == id).copied();
                if watched.is_some_and(|watched| self.watched.remove(&watched)) {
                    self.deaths.push_back(Err(refusal.clone()));
                    return Ok(None);
                }
            }
            Answer::Spawned { outcome: Ok(task), .. } => _ = self.watched.insert((id, Watched::Task(*task))),
            _ => {}
        }
        Ok(Some((id, answer)))
    }
}
