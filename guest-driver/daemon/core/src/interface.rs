// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes into the engine and what comes out.

use crate::bugs::Bug;
use crate::protocol::{Answer, Envelope, Request};
use crate::types::{Exit, Incarnation, Job, Refusal, User};
use std::fmt;
use telegraphos_accounts::Exhausted;

/// What an engine is made with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub node: u16,
    /// This start of the daemon: any number but one that an earlier start of it had.
    pub incarnation: Incarnation,
    /// Nodes that there can be; their numbers are below it.
    pub nodes: u16,
    /// Periods of silence after which a node is dead.
    pub silence: u32,
    /// Periods between SIGTERM and SIGKILL for the tasks of a master that has gone.
    pub grace: u32,
    /// Requests of clients on their way to one node, at most; of one user half as many, and of root an eighth beside
    /// them.
    pub letters: u64,
    /// A deliberate bug that a check must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

impl Config {
    /// For a node, with 8 periods of silence and of grace.
    pub fn new(node: u16, incarnation: Incarnation, nodes: u16) -> Config {
        Config {
            node,
            incarnation,
            nodes,
            silence: 8,
            grace: 8,
            letters: 1024,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    #[cfg(feature = "bugs")]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(feature = "bugs"))]
    #[expect(clippy::unused_self, reason = "the other one uses it")]
    pub(crate) fn has(&self, _bug: Bug) -> bool {
        false
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Tick {
        /// The run queue of this node, in units of 1/[`LOAD_ONE`](crate::LOAD_ONE).
        running: u32,
    },
    /// An alive message of another node.
    Heard {
        node: u16,
        incarnation: Incarnation,
        load: u32,
    },
    /// A letter of another daemon.
    Letter {
        from: u16,
        envelope: Envelope,
    },
    /// The first of the letters that are on their way to a node has arrived, or is for an incarnation that is dead
    /// here. One for an incarnation that is alive is sent again until it arrives.
    Sent {
        node: u16,
    },
    Connected {
        /// Its number. A client before it with the same one is gone.
        client: u64,
        pid: u32,
        /// Its user and primary group.
        user: User,
    },
    /// A request of a client.
    Request {
        client: u64,
        /// Chosen by the client; comes back with each answer.
        id: u32,
        request: Request,
    },
    Gone {
        client: u64,
    },
    /// How [`Action::Start`] ended: the process id.
    Started {
        /// That of the action.
        token: u64,
        outcome: Result<u32, Refusal>,
    },
    /// A process that was started has ended.
    Exited {
        pid: u32,
        exit: Exit,
    },
    /// How [`Action::Signal`] ended.
    Signalled {
        /// That of the action.
        token: u64,
        outcome: Result<(), Refusal>,
    },
    /// The daemon is to end: its tasks end, and no more are started.
    Stop,
}

/// The party that meets a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    User(u32),
    Node(u16),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Party::User(uid) => write!(f, "user {uid}"),
            Party::Node(node) => write!(f, "node {node}"),
        }
    }
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Say to all nodes at once that this one is alive.
    Beat { incarnation: Incarnation, load: u32 },
    /// Send a letter to the daemon of another node.
    Send {
        node: u16,
        /// The letter, with the incarnation that it is for.
        envelope: Envelope,
    },
    /// Start a process in its own group; [`Event::Started`] answers.
    Start {
        token: u64,
        /// Whom it runs as.
        user: User,
        /// The node of its logger.
        master: u16,
        job: Job,
    },
    /// Send a process a signal as this user would; [`Event::Signalled`] answers.
    Signal {
        token: u64,
        pid: u32,
        /// The signal, 0 to 64.
        signal: i32,
        user: User,
    },
    /// Ends the process group of a task: by SIGKILL, or else by SIGTERM.
    End {
        /// The process id of the task.
        pid: u32,
        kill: bool,
    },
    /// Answer a client.
    Answer {
        client: u64,
        /// The id of its request.
        id: u32,
        answer: Answer,
    },
    /// A node is alive from now on; to be reported.
    Joined { node: u16, incarnation: Incarnation },
    /// That incarnation of a node is dead; to be reported.
    Lost { node: u16, incarnation: Incarnation },
    /// A party has used up what it may have of something, and was refused more; for the log.
    Refused {
        party: Party,
        what: &'static str,
        /// How much it has, and may have.
        exhausted: Exhausted,
        /// How often this daemon has refused any party anything so far.
        times: u64,
    },
    /// This node was declared dead by mistake, and continues as another incarnation; to be reported.
    Renewed { incarnation: Incarnation },
}
