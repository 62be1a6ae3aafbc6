// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions with processes that no board reaches, over streams and gateways (SPEC item 42).
//!
//! ```text
//!   Engine ──► Body ──► session: its path, a number ──► Passage ──► stream ──► gateway: the next of the path ──► ...
//! ```
//!
//! A stream carries [`Frame`]s between two neighbours, in order and whole, until it ends. A session is with one process
//! and goes by one path, from its beginning to its end, and back on the same: its frames stay in order, and the path
//! that each carries names the final process. They are numbered, so that what was lost with a stream is noticed. Then,
//! and when a gateway says that it cannot pass something on, or when there is nothing to be heard of the other for
//! [`SILENCE`] ticks, the session ends; the next one goes by another path, if there is one.
//!
//! Pure: the owner brings frames and ticks, about one a second, and does what [`Far::step`] says.

use crate::address::Process;
use crate::bugs::Bug;
use crate::config::Config;
use crate::packet::{Packet, Place};
use crate::routes::{self, MOST_HOPS, News, Routes, StreamId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Ticks without anything from a process after which the session with it ends.
pub const SILENCE: u32 = 8;

/// What goes over a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Frame {
    /// What has changed for a neighbour.
    News(News),
    /// From one process to another, perhaps by this one.
    Passage(Passage),
    /// Nothing else is said.
    Alive,
}

/// What one process says to another, on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Passage {
    /// From the process that says it to the one that it is for.
    pub path: Vec<Process>,
    /// The place in the path of the process that gets it next.
    pub at: u8,
    /// The session: its number at the end that gets this, or for [`Word::Open`], [`Word::Close`] and [`Word::Broken`]
    /// at the other end.
    pub session: u64,
    pub word: Word,
}

/// What is said of a session, or in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Word {
    /// It is to begin.
    Open(Sizes),
    /// It has begun; its number at the end that accepts it.
    Accept(u64),
    /// It does not begin.
    Refuse(Why),
    /// Something in it, by its number from 0.
    Body(u64, Body),
    /// It has ended, or is not there.
    Close(Why),
    /// A gateway could not pass something on.
    Broken { to: Process },
}

/// What engines say to each other, and the bytes of messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// A packet, and the bytes that are put into the slot.
    Packet(Packet, Vec<u8>),
    /// Bytes of a request are asked for.
    Read {
        /// To be named in the answer.
        number: u64,
        at: Place,
        offset: u64,
        length: u32,
    },
    /// The answer. `None` if there is no such request.
    Bytes { number: u64, bytes: Option<Vec<u8>> },
    /// Nothing else has been said since the last tick.
    Alive,
}

/// What must be the same for both ends of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sizes {
    slots: u16,
    block: u32,
    fragments: u16,
    eager: u64,
    longest: u64,
}

impl Sizes {
    /// Those of a configuration.
    pub fn of(config: &Config) -> Sizes {
        let Config { slots, block, fragments, eager, longest, .. } = *config;
        Sizes { slots, block, fragments, eager, longest }
    }
}

/// Why a session has ended, or has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Why {
    /// No path leads to the process.
    #[error("no route leads there")]
    NoRoute,
    /// A stream of its path has ended.
    #[error("the path is broken before {0}")]
    Broken(Process),
    /// Nothing has been heard of the process.
    #[error("nothing was heard from there for {SILENCE} seconds")]
    Silent,
    /// Something is missing of what it has said.
    #[error("something from there was lost on the way")]
    Lost,
    /// The other has ended it, or begun anew.
    #[error("it has ended the connection")]
    Ended,
    #[error("it has another configuration: slots, block, fragments, eager and longest must be the same")]
    Unlike,
    /// It has as many sessions as it may.
    #[error("it has as many connections as it may have")]
    Full,
}

/// What a neighbour says against the rules. Its stream is to be ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    #[error(transparent)]
    Routes(#[from] routes::Wrong),
    /// A path that does not lead by both ends of the stream, or in a circle, or that is too long.
    #[error("a frame on a path of {0} processes that does not lead here, or in a circle: expected 2 to {most}", most = MOST_HOPS + 1)]
    Path(usize),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A frame is to be sent over a stream, behind those before.
    Say {
        over: StreamId,
        frame: Frame,
        /// The stream whose frame this comes of, and whose account it is on.
        of: Option<StreamId>,
    },
    Up(Process),
    Body(Process, Body),
    /// A session has ended, or not begun.
    Gone(Process, Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Opening,
    Up { theirs: u64, sent: u64, heard: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session {
    mine: u64,
    path: Vec<Process>,
    stage: Stage,
    /// Ticks since something was heard.
    silent: u32,
    /// Something has been said since the last tick, or it was asked for.
    said: bool,
}

impl Session {
    /// Whether the other one says this session's number.
    fn is(&self, mine: u64) -> bool {
        self.mine == mine
    }

    /// Whether it is the one that this end calls so.
    fn is_called(&self, number: u64) -> bool {
        match self.stage {
            Stage::Opening => self.mine == number,
            Stage::Up { theirs, .. } => theirs == number,
        }
    }
}

/// The far processes of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Far {
    config: Config,
    me: Process,
    routes: Routes,
    sessions: BTreeMap<Process, Session>,
    next: u64,
    out: VecDeque<Step>,
    /// The stream whose frame is being handled.
    of: Option<StreamId>,
}

impl Far {
    /// Those of a process. Sessions get numbers from `first` on, which is not predictable for other processes.
    pub fn new(config: &Config, me: Process, gateway: bool, first: u64) -> Far {
        Far {
            config: config.clone(),
            me,
            routes: Routes::new(config, me, gateway),
            sessions: BTreeMap::new(),
            next: first,
            out: VecDeque::new(),
            of: None,
        }
    }

    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Gives this process a name, or takes it: [`Routes::name`].
    pub fn name(&mut self, name: &str, has: bool) -> bool {
        let done = self.routes.name(name, has);
        self.tell();
        done
    }

    /// A stream leads to a neighbour.
    pub fn join(&mut self, stream: StreamId, neighbour: Process) {
        self.routes.join(stream, neighbour);
        self.tell();
    }

    pub fn leave(&mut self, stream: StreamId) {
        let neighbour = self.routes.neighbour(stream);
        let lost = self.routes.leave(stream);
        let cut = neighbour.filter(|neighbour| self.routes.stream(*neighbour).is_none());
        if let Some(cut) = cut {
            self.end_all(Why::Broken(cut), |_, session| session.path.get(1) == Some(&cut));
        }
        self.lose(&lost);
        self.tell();
    }

    /// Processes are not reached any more.
    fn lose(&mut self, lost: &[Process]) {
        self.end_all(Why::NoRoute, |process, _| lost.contains(&process));
    }

    fn end_all(&mut self, why: Why, which: impl Fn(Process, &Session) -> bool) {
        let ended = self.sessions.iter().filter(|(process, session)| which(**process, session));
        let ended: Vec<Process> = ended.map(|(process, _)| *process).collect();
        ended.into_iter().for_each(|process| self.end(process, why));
    }

    /// A session has ended, and its owner does not know it yet.
    fn end(&mut self, process: Process, why: Why) {
        if self.close(process, why) {
            self.out.push_back(Step::Gone(process, why));
        }
    }

    /// Ends the session with a process, and notifies it. False if there is none.
    pub fn close(&mut self, process: Process, why: Why) -> bool {
        let Some(Session { mine, path, .. }) = self.sessions.remove(&process) else { return false };
        self.send(path, mine, Word::Close(why));
        true
    }

    /// Begins a session with a process, unless there is one.
    ///
    /// # Errors
    ///
    /// Why it is not tried.
    pub fn open(&mut self, process: Process) -> Result<(), Why> {
        if self.sessions.contains_key(&process) {
            return Ok(());
        }
        let path = self.routes.path(process).ok_or(Why::NoRoute)?;
        let session = self.add(process, path.clone(), Stage::Opening).ok_or(Why::Full)?;
        self.send(path, session, Word::Open(Sizes::of(&self.config)));
        Ok(())
    }

    fn add(&mut self, process: Process, path: Vec<Process>, stage: Stage) -> Option<u64> {
        if self.sessions.len() >= self.config.peers as usize {
            return None;
        }
        let mine = self.next;
        self.next = self.next.wrapping_add(1);
        self.sessions.insert(process, Session { mine, path, stage, silent: 0, said: true });
        Some(mine)
    }

    /// Whether a session with a process has begun, and not ended.
    pub fn is_up(&self, process: Process) -> bool {
        self.sessions.get(&process).is_some_and(|session| session.stage != Stage::Opening)
    }

    /// The path of the session with a process, both included.
    pub fn path(&self, process: Process) -> Option<&[Process]> {
        self.sessions.get(&process).map(|session| session.path.as_slice())
    }

    /// Says something to a process, if there is a session with it.
    pub fn say(&mut self, process: Process, body: Body) {
        let Some(session) = self.sessions.get_mut(&process) else { return };
        let Stage::Up { theirs, sent, .. } = &mut session.stage else { return };
        let word = Word::Body(*sent, body);
        *sent += 1;
        session.said = true;
        let (path, theirs) = (session.path.clone(), *theirs);
        self.send(path, theirs, word);
    }

    /// Sends a word along a path, which begins with this process.
    fn send(&mut self, path: Vec<Process>, session: u64, word: Word) {
        self.pass(Passage { path, at: 1, session, word });
    }

    /// Sends a passage to the next process of its path, or has its first one know that it is broken.
    fn pass(&mut self, passage: Passage) {
        let at = usize::from(passage.at);
        let Some(next) = passage.path.get(at).copied() else { return };
        if let Some(over) = self.routes.stream(next) {
            self.out.push_back(Step::Say { over, frame: Frame::Passage(passage), of: self.of });
            return;
        }
        // What ends a session needs no answer. This process's own ends with the stream.
        let silent = matches!(passage.word, Word::Close(_) | Word::Refuse(_) | Word::Broken { .. });
        if at <= 1 || silent || self.config.has(Bug::DropSilently) {
            return;
        }
        // From here back to the first.
        let path: Vec<Process> = passage.path[..at].iter().rev().copied().collect();
        self.send(path, passage.session, Word::Broken { to: next });
    }

    /// A neighbour sends a frame.
    ///
    /// # Errors
    ///
    /// What is against the rules. The caller is to end the stream, and to call [`Far::leave`].
    pub fn frame(&mut self, over: StreamId, frame: Frame) -> Result<(), Wrong> {
        let Some(neighbour) = self.routes.neighbour(over) else { return Ok(()) };
        self.of = Some(over);
        let result = match frame {
            Frame::News(news) => self.routes.hear(over, news).map_err(Wrong::from).map(|lost| {
                self.lose(&lost);
                self.tell();
            }),
            Frame::Passage(passage) => self.passage(neighbour, passage),
            Frame::Alive => Ok(()),
        };
        self.of = None;
        result
    }

    fn passage(&mut self, neighbour: Process, passage: Passage) -> Result<(), Wrong> {
        let Passage { path, at, .. } = &passage;
        let (at, long) = (usize::from(*at), path.len());
        let before = at.checked_sub(1).and_then(|before| path.get(before));
        let leads_here = path.get(at) == Some(&self.me) && before == Some(&neighbour);
        if !leads_here || long > MOST_HOPS + 1 || routes::circle(path).is_some() {
            return Err(Wrong::Path(long));
        }
        if at + 1 == long {
            self.word(passage);
        } else if self.routes.is_gateway() {
            self.pass(Passage { at: passage.at + 1, ..passage });
        } else {
            // A process that is no gateway passes nothing on.
            let path: Vec<Process> = path[..=at].iter().rev().copied().collect();
            self.send(path, passage.session, Word::Broken { to: self.me });
        }
        Ok(())
    }

    /// A word for this process has arrived.
    fn word(&mut self, passage: Passage) {
        let Passage { path, session: number, word, .. } = passage;
        // It has been checked that there are two.
        let Some(from) = path.first().copied() else { return };
        let back: Vec<Process> = path.iter().rev().copied().collect();
        let known = self.sessions.get_mut(&from);
        match word {
            Word::Open(sizes) => self.opened(from, back, number, sizes),
            Word::Accept(theirs) => match known.filter(|session| session.is(number)) {
                Some(session) if session.stage == Stage::Opening => {
                    (session.stage, session.silent) = (Stage::Up { theirs, sent: 0, heard: 0 }, 0);
                    self.out.push_back(Step::Up(from));
                }
                Some(session) if session.is_called(theirs) => {}
                _ => self.send(back, number, Word::Close(Why::Ended)),
            },
            Word::Refuse(why) => {
                if known.is_some_and(|session| session.is(number) && session.stage == Stage::Opening) {
                    self.sessions.remove(&from);
                    self.out.push_back(Step::Gone(from, why));
                }
            }
            Word::Body(n, body) => {
                let Some(session) = known.filter(|session| session.is(number)) else {
                    return self.send(back, number, Word::Close(Why::Ended));
                };
                match &mut session.stage {
                    Stage::Up { heard, .. } if *heard == n || self.config.has(Bug::CountNoFrames) => {
                        *heard = n + 1;
                        session.silent = 0;
                        if body != Body::Alive {
                            self.out.push_back(Step::Body(from, body));
                        }
                    }
                    // The end that accepts says so before anything else, on the same path.
                    Stage::Up { .. } | Stage::Opening => self.end(from, Why::Lost),
                }
            }
            Word::Close(why) => {
                if known.is_some_and(|session| session.is_called(number)) {
                    self.sessions.remove(&from);
                    let why = if why == Why::Unlike { why } else { Why::Ended };
                    self.out.push_back(Step::Gone(from, why));
                }
            }
            Word::Broken { to } => {
                let by = |session: &Session| session.is_called(number) && session.path.contains(&from);
                let broken = self.sessions.iter().find(|(_, session)| by(session));
                if let Some(process) = broken.map(|(process, _)| *process) {
                    self.end(process, Why::Broken(to));
                }
            }
        }
    }

    /// Another process begins a session.
    fn opened(&mut self, from: Process, back: Vec<Process>, theirs: u64, sizes: Sizes) {
        if sizes != Sizes::of(&self.config) {
            return self.send(back, theirs, Word::Refuse(Why::Unlike));
        }
        let up = Stage::Up { theirs, sent: 0, heard: 0 };
        let mine = match self.sessions.get_mut(&from) {
            // Both have begun at once: that is one session, in which each keeps to its own path.
            Some(session) if session.stage == Stage::Opening => {
                (session.stage, session.silent) = (up, 0);
                Some(session.mine)
            }
            // It is asked for again, so the answer has been lost, or is on its way.
            Some(session) if session.is_called(theirs) => {
                let (path, mine) = (session.path.clone(), session.mine);
                return self.send(path, theirs, Word::Accept(mine));
            }
            Some(_) => {
                // It has begun anew.
                self.sessions.remove(&from);
                self.out.push_back(Step::Gone(from, Why::Ended));
                self.add(from, back.clone(), up)
            }
            None => self.add(from, back.clone(), up),
        };
        let Some(mine) = mine else { return self.send(back, theirs, Word::Refuse(Why::Full)) };
        let path = self.sessions.get(&from).map_or(back, |session| session.path.clone());
        self.send(path, theirs, Word::Accept(mine));
        self.out.push_back(Step::Up(from));
    }

    /// Some time has passed.
    pub fn tick(&mut self) {
        for over in self.routes.streams() {
            self.out.push_back(Step::Say { over, frame: Frame::Alive, of: None });
        }
        self.sessions.values_mut().for_each(|session| session.silent += 1);
        self.end_all(Why::Silent, |_, session| session.silent > SILENCE);
        let quiet = self.sessions.iter_mut().filter_map(|(process, session)| {
            let said = std::mem::take(&mut session.said);
            (!said).then_some(*process)
        });
        let quiet: Vec<Process> = quiet.collect();
        for process in quiet {
            match self.sessions.get(&process) {
                Some(Session { mine, path, stage: Stage::Opening, .. }) => {
                    let (path, session) = (path.clone(), *mine);
                    self.send(path, session, Word::Open(Sizes::of(&self.config)));
                }
                _ => self.say(process, Body::Alive),
            }
        }
    }

    /// Tells all neighbours what has changed for them.
    fn tell(&mut self) {
        for over in self.routes.streams() {
            while let Some(news) = self.routes.news(over) {
                self.out.push_back(Step::Say { over, frame: Frame::News(news), of: self.of });
            }
        }
    }

    /// What is to be done next.
    pub fn step(&mut self) -> Option<Step> {
        self.out.pop_front()
    }
}
