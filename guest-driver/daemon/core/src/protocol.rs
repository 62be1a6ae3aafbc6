// SPDX-License-Identifier: MIT OR Apache-2.0
//! What clients and daemons say to each other, in postcard's encoding, and its limits: whatever is decoded here is
//! within them.

use crate::types::{Exit, Incarnation, Job, NodeInfo, Partition, Place, Refusal, TaskId, TaskInfo, User, Watched};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of one message, at most.
pub const MAX_MESSAGE: usize = 60 * 1024;
/// Bytes of a job in a message, at most: of its arguments, its environment and its directory.
pub const MAX_JOB: usize = 32 * 1024;
/// Tasks of one request, at most.
pub const MAX_COUNT: u16 = 256;
/// Bytes of a partition's name, 1 to this; letters, digits, `-`, `_` and `.`.
pub const MAX_NAME: usize = 32;
/// Characters of a program's name in a list, at most.
pub const SHOWN: usize = 32;
/// Bytes of a length before each message on a Unix socket: least byte first.
pub const LENGTH: usize = 4;

/// What a client asks its daemon for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Spawn tasks, whose master the client is from now on: when it goes, they are ended. Answered by a
    /// [`Answer::Spawned`] for each, and [`Answer::Died`] for each that was spawned.
    Spawn {
        place: Place,
        /// How many, 1 to [`MAX_COUNT`].
        count: u16,
        /// Only inside this partition.
        partition: Option<String>,
        job: Job,
    },
    /// Send a signal: answered by `Done` or `Refused` with the errno of kill(2).
    Signal {
        task: TaskId,
        /// Its number; 0 only asks whether it could be sent.
        signal: i32,
    },
    /// Tell this client once when something dies, at once if it is dead.
    Watch {
        what: Watched,
    },
    Tasks,
    /// All nodes that have been heard of.
    Nodes,
    Partitions,
    /// Make or change a partition (root).
    SetPartition {
        name: String,
        /// Its nodes, of which there is one at least.
        nodes: Vec<u16>,
    },
    /// Delete a partition (root).
    DeletePartition {
        name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// One task of a request has been spawned, or not.
    Spawned {
        /// Which, from 0.
        index: u16,
        /// Which node was to have it.
        node: u16,
        outcome: Result<TaskId, Refusal>,
    },
    /// Something has died for whose death the client is registered.
    Died {
        what: Watched,
        exit: Exit,
    },
    /// It is done.
    Done,
    /// It is not.
    Refused(Refusal),
    /// Tasks, as many as fit a message.
    Tasks(Vec<TaskInfo>),
    Nodes(Vec<NodeInfo>),
    Partitions(Vec<Partition>),
}

/// A letter and the incarnations that it is between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    pub from: Incarnation,
    /// The receiver's; a letter for another one is dropped.
    pub to: Incarnation,
    /// Greater than that of each letter before; one that has come already is dropped.
    pub number: u64,
    pub letter: Letter,
}

/// What daemons say to each other. A ticket is a number of the daemon that asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Letter {
    /// Spawn a task. Answered by `Spawned`; when the task has ended, by `Died`.
    Spawn {
        ticket: u64,
        /// The number of the client that is the master.
        client: u64,
        master: TaskId,
        /// Whom it runs as.
        user: User,
        job: Job,
    },
    /// The process id of a task that was to be spawned.
    Spawned {
        /// That of the request.
        ticket: u64,
        outcome: Result<u32, Refusal>,
    },
    /// Send a signal. Answered by `Outcome`.
    Signal {
        ticket: u64,
        pid: u32,
        signal: i32,
        /// Whose request it is.
        user: User,
    },
    /// How a request ended; of a registration, that it is refused.
    Outcome {
        /// That of the request.
        ticket: u64,
        outcome: Result<(), Refusal>,
    },
    /// Say when that process has died. Answered by `Died`, or `Outcome` if it is refused.
    Watch {
        ticket: u64,
        /// The number of the client.
        client: u64,
        pid: u32,
        /// Whose request it is.
        user: User,
    },
    Died {
        /// That of the request.
        ticket: u64,
        exit: Exit,
    },
    /// A client of the sender's is gone: its tasks are to end, and its registrations are forgotten.
    ClientGone { client: u64 },
    /// List the tasks.
    Tasks { ticket: u64 },
    /// The list, as much of it as fits.
    TaskList {
        /// That of the request.
        ticket: u64,
        tasks: Vec<TaskInfo>,
    },
    /// A partition as the sender has it.
    Partition(Partition),
    /// The receiver's incarnation has been declared dead: it is to end its tasks and to continue as another.
    Fenced,
}

/// Bytes that are no message, or one beyond the limits: what is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

fn malformed<T>(text: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(text.into()))
}

/// What is within limits once it is decoded.
pub trait Checked: Serialize + DeserializeOwned {
    /// Checks the limits.
    fn check(&self) -> Result<(), Malformed>;
}

impl Job {
    /// Bytes that count for [`MAX_JOB`].
    pub(crate) fn bytes(&self) -> usize {
        let env = self.env.iter().map(|(name, value)| name.len() + value.len() + 2);
        self.argv.iter().map(|word| word.len() + 1).sum::<usize>() + env.sum::<usize>() + self.dir.len()
    }

    /// Checks that it can be executed.
    pub fn check(&self) -> Result<(), Malformed> {
        let bytes = self.bytes();
        if bytes > MAX_JOB {
            return malformed(format!(
                "arguments and environment have {bytes} bytes: expected at most {MAX_JOB}; leave variables out, or put \
                 the data into a file"
            ));
        }
        if self.argv.first().is_none_or(String::is_empty) {
            return malformed("the program has no name: expected a program and its arguments");
        }
        let texts = self.env.iter().flat_map(|(name, value)| [name, value]).chain(&self.argv).chain([&self.dir]);
        if let Some(text) = texts.into_iter().find(|text| text.contains('\0')) {
            return malformed(format!("the text {text:?} has a zero byte in it, which programs cannot be given"));
        }
        if let Some((name, _)) = self.env.iter().find(|(name, _)| name.is_empty() || name.contains('=')) {
            return malformed(format!("the variable {name:?}: expected a name without \"=\""));
        }
        if !self.dir.starts_with('/') {
            return malformed(format!("the directory {:?}: expected an absolute path", self.dir));
        }
        if self.logger.is_some_and(|logger| logger.port < 1024) {
            return malformed("the port of the logger is below 1024: expected one of a user's");
        }
        Ok(())
    }
}

/// Checks the name of a partition.
pub fn check_name(name: &str) -> Result<(), Malformed> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return malformed(format!(
            "the partition {name:?}: expected 1 to {MAX_NAME} letters, digits, \"-\", \"_\" or \".\""
        ));
    }
    Ok(())
}

fn check_refusal<T>(outcome: &Result<T, Refusal>) -> Result<(), Malformed> {
    match outcome {
        Err(refusal) if refusal.text.len() > Refusal::MAX_TEXT => malformed("a text that is too long"),
        _ => Ok(()),
    }
}

impl Checked for Request {
    fn check(&self) -> Result<(), Malformed> {
        match self {
            Request::Spawn { count, partition, job, .. } => {
                if !(1..=MAX_COUNT).contains(count) {
                    return malformed(format!("{count} tasks: expected 1 to {MAX_COUNT}"));
                }
                partition.as_deref().map_or(Ok(()), check_name)?;
                job.check()
            }
            Request::SetPartition { name, .. } | Request::DeletePartition { name } => check_name(name),
            _ => Ok(()),
        }
    }
}

impl Checked for Answer {
    fn check(&self) -> Result<(), Malformed> {
        match self {
            Answer::Spawned { outcome, .. } => check_refusal(outcome),
            _ => Ok(()),
        }
    }
}

/// Checks the id of a process: 0 and what is negative name groups.
fn check_pid(pid: u32) -> Result<(), Malformed> {
    if i32::try_from(pid).is_ok_and(|pid| pid > 0) {
        return Ok(());
    }
    malformed(format!("the process {pid}: expected 1 to {}", i32::MAX))
}

/// Checks a user: system calls take the greatest number for "as before".
fn check_user(user: User) -> Result<(), Malformed> {
    if user.uid == u32::MAX || user.gid == u32::MAX {
        return malformed(format!("user {}, group {}: expected less than {}", user.uid, user.gid, u32::MAX));
    }
    Ok(())
}

/// Checks the number of a signal.
pub(crate) fn check_signal(signal: i32) -> Result<(), Malformed> {
    if (0..=64).contains(&signal) {
        return Ok(());
    }
    malformed(format!("the signal {signal}: expected 0 to 64"))
}

impl Checked for Envelope {
    fn check(&self) -> Result<(), Malformed> {
        match &self.letter {
            Letter::Spawn { job, user, .. } => {
                check_user(*user)?;
                job.check()
            }
            Letter::Spawned { outcome, .. } => {
                check_refusal(outcome)?;
                outcome.as_ref().map_or(Ok(()), |pid| check_pid(*pid))
            }
            Letter::Signal { signal, user, .. } => {
                check_user(*user)?;
                check_signal(*signal)
            }
            Letter::Watch { user, .. } => check_user(*user),
            Letter::Outcome { outcome, .. } => check_refusal(outcome),
            Letter::TaskList { tasks, .. } => match tasks.iter().find(|info| info.program.chars().count() > SHOWN) {
                Some(info) => malformed(format!("the program of task {} has more than {SHOWN} characters", info.task)),
                None => Ok(()),
            },
            Letter::Partition(partition) => check_name(&partition.name),
            _ => Ok(()),
        }
    }
}

impl<T: Checked> Checked for (u32, T) {
    fn check(&self) -> Result<(), Malformed> {
        self.1.check()
    }
}

/// A message as bytes.
///
/// # Errors
///
/// One that is too long, or beyond the limits.
pub fn encode<T: Checked>(message: &T) -> Result<Vec<u8>, Malformed> {
    message.check()?;
    let bytes = postcard::to_allocvec(message).map_err(|error| Malformed(error.to_string()))?;
    match bytes.len() {
        0..=MAX_MESSAGE => Ok(bytes),
        length => malformed(format!("a message of {length} bytes: expected at most {MAX_MESSAGE}")),
    }
}

/// The message of these bytes, all of which it must take.
pub fn decode<T: Checked>(bytes: &[u8]) -> Result<T, Malformed> {
    if bytes.len() > MAX_MESSAGE {
        return malformed(format!("a message of {} bytes: expected at most {MAX_MESSAGE}", bytes.len()));
    }
    let (message, rest) = postcard::take_from_bytes::<T>(bytes).map_err(|error| Malformed(error.to_string()))?;
    if !rest.is_empty() {
        return malformed(format!("{} bytes behind a message", rest.len()));
    }
    message.check()?;
    Ok(message)
}

/// A message with its length before it, for a Unix socket.
pub fn frame<T: Checked>(message: &T) -> Result<Vec<u8>, Malformed> {
    let bytes = encode(message)?;
    // At most MAX_MESSAGE.
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend(bytes);
    Ok(frame)
}

/// Takes the first message out of what has come, if all of it has.
pub fn unframe<T: Checked>(buffer: &mut Vec<u8>) -> Result<Option<T>, Malformed> {
    let Some(length) = buffer.first_chunk::<LENGTH>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_MESSAGE {
        return malformed(format!("a message of {length} bytes: expected at most {MAX_MESSAGE}"));
    }
    let Some(bytes) = buffer.get(LENGTH..LENGTH + length) else { return Ok(None) };
    let message = decode(bytes)?;
    buffer.drain(..LENGTH + length);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    fn job() -> Job {
        let env = vec![("PATH".into(), "/bin".into())];
        Job { argv: vec!["true".into()], env, dir: "/".into(), logger: None }
    }

    fn spawn(count: u16, job: Job) -> (u32, Request) {
        (7, Request::Spawn { place: Place::LeastLoaded, count, partition: None, job })
    }

    #[test]
    fn what_is_beyond_a_limit_says_so() {
        assert_eq!(decode::<(u32, Request)>(&encode(&spawn(1, job())).unwrap()).unwrap(), spawn(1, job()));
        let of = |change: fn(&mut Job)| {
            let mut job = job();
            change(&mut job);
            spawn(1, job)
        };
        for (bad, says) in [
            (spawn(0, job()), "0 tasks: expected 1 to 256"),
            (spawn(257, job()), "257 tasks"),
            (of(|job| job.argv.clear()), "has no name"),
            (of(|job| job.argv.push("x".repeat(MAX_JOB))), "expected at most 32768"),
            (of(|job| job.argv.push("\0".into())), "zero byte"),
            (of(|job| job.env.push(("A=B".into(), String::new()))), "without \"=\""),
            (of(|job| job.dir = "tmp".into()), "absolute path"),
            (of(|job| job.logger = Some(crate::Logger { port: 80, key: [0; 16] })), "below 1024"),
            ((1, Request::DeletePartition { name: "a b".into() }), "expected 1 to 32 letters"),
            ((1, Request::SetPartition { name: String::new(), nodes: Vec::new() }), "expected 1 to 32 letters"),
        ] {
            let said = encode(&bad).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
            // If the sender does not check it, the receiver does.
            let said = decode::<(u32, Request)>(&postcard::to_allocvec(&bad).unwrap()).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn a_reason_is_never_too_long_for_a_message() {
        for text in ["x".repeat(40_000), "\u{1f980}".repeat(3000), "y".repeat(Refusal::MAX_TEXT)] {
            let refusal = Refusal::new(1, format!("begin {text} end"));
            assert!(refusal.text.starts_with("begin ") && refusal.text.ends_with(" end"), "{refusal}");
            let answer = (1, Answer::Refused(refusal));
            assert_eq!(decode::<(u32, Answer)>(&encode(&answer).unwrap()).unwrap(), answer);
        }
    }

    #[test]
    fn frames_are_taken_when_they_are_whole() {
        let whole = [frame(&spawn(2, job())).unwrap(), frame(&(8, Request::Nodes)).unwrap()].concat();
        let mut buffer = Vec::new();
        let mut found = Vec::new();
        for byte in &whole {
            buffer.push(*byte);
            found.extend(unframe::<(u32, Request)>(&mut buffer).unwrap());
        }
        assert_eq!(found, [spawn(2, job()), (8, Request::Nodes)]);
        assert!(buffer.is_empty());
        let mut long = u32::MAX.to_le_bytes().to_vec();
        assert!(unframe::<(u32, Request)>(&mut long).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            _ = decode::<(u32, Request)>(&bytes);
            _ = decode::<Envelope>(&bytes);
            _ = decode::<(u32, Answer)>(&bytes);
            _ = unframe::<(u32, Request)>(&mut bytes.clone());
        }
    }
}
